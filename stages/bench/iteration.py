"""A whole RL iteration against the forwards and backwards that it cannot do without.

These are taken of the very same tokens with nothing around them:

- ``reading``: one forward of what the actor was shown and had not said itself, packed;
- ``decoding``: the forwards and draws by which the replies came token by token, as they have to,
  all rows of a turn at once;
- ``reference``, ``scoring``: one packed forward of everything each;
- ``learning``: a forward and a backward of all rows that the actor learned from, packed, as often
  as it did.

Environments, the critic, optimizers and book-keeping are what comes on top.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from stages.bench.measure import Spread, interleaved
from stages.bench.models import BASE, saved_scorer
from stages.bench.results import Bound, Result, Section
from stages.bench.rollouts import Decoding, left_padded
from stages.bench.running import Running
from stages.bench.setting import Setting, Tell
from stages.common.logprobs import at_actions, chosen_logprobs
from stages.interaction.trajectory import Trajectory, Turn
from stages.rl.rows import ActorRow, actor_rows, collate, microbatches

RECIPE = BASE.parent / "quickstart.yaml"
PACKED = 2048
"""Tokens of one call: with more a CPU is no faster."""
IRREDUCIBLE = ("reading", "decoding", "reference", "scoring", "learning")
Spent = dict[str, float]
"""Seconds by name."""
NOTE = (
    "One iteration of recipes/quickstart.yaml from the shipped base model, and right after it the "
    "forwards and backwards of the very same tokens with nothing around them. The replies of the "
    "limit are drawn token by token, as they depend on each other; in the second line they are read"
    " in one packed forward, which no sampler can do."
)


def measure(setting: Setting, tell: Tell) -> Section:
    """Iterations, each beside its own limit."""
    folder, episodes = setting.fresh("iteration"), 8 if setting.quick else 64
    saved_scorer(BASE, folder / "reward")
    tell(f"{episodes} episodes")
    entry = "stages.bench.iteration:Measured"
    with setting.side(entry, folder=folder, episodes=episodes) as side:
        taken = interleaved({"aac": side}, setting.repeats)["aac"]
    spent = [times.figures["spent"] for times in taken]
    read = [{**one, "reading": one["played"], "decoding": 0.0} for one in spent]
    results = [
        _result("replies drawn token by token", spent, Bound(1.3, at_least=False)),
        _result("replies read at once", read, None),
    ]
    return Section("A whole iteration against its limit", NOTE, "ratio", results)


def _result(what: str, spent: Sequence[Spent], aim: Bound | None) -> Result:
    limits = [sum(one[name] for name in IRREDUCIBLE) for one in spent]
    parts = {name: median(one[name] for one in spent) for name in IRREDUCIBLE}
    return Result(
        what,
        {"aac": median(one["iteration"] for one in spent), "limit": median(limits)},
        "s",
        Spread.of([one["iteration"] / limit for one, limit in zip(spent, limits, strict=True)]),
        aim=aim,
        proof={"seconds": parts},
    )


class Measured(Running):
    """The quickstart's iterations; each call is one, and then its limit."""

    def __init__(self, folder: Path, episodes: int) -> None:
        given = [f"rl.episodes={episodes}", "rl.critic.warm_up.max_iterations=0", "threads=null"]
        super().__init__(folder, RECIPE, sft=BASE, reward=folder / "reward", overrides=given)

    def __call__(self) -> dict[str, Any]:
        """Figures of ``Running``; ``spent`` by the iteration and by each irreducible part."""
        spent: Spent = {}
        with self._learned() as learned, _timed("iteration", spent):
            figures = super().__call__()
        self._limit(learned, spent)
        return figures | {"spent": spent}

    @contextmanager
    def _learned(self) -> Iterator[list[ActorRow]]:
        """Inside, the rows that the actor goes forward and backward over are noted."""
        learner, rows = self.session.learner, list[ActorRow]()
        for name in ("ppo_losses", "sft_losses"):
            real = getattr(learner, name)

            def losses(given: Sequence[ActorRow], *rest: Any, _real: Any = real) -> Any:
                rows.extend(given)
                return _real(given, *rest)

            setattr(learner, name, losses)
        try:
            yield rows
        finally:
            del learner.ppo_losses, learner.sft_losses

    def _limit(self, learned: Sequence[ActorRow], spent: Spent) -> None:
        trainer, scorer = self.session.trainer, self.session.rewarding.scorer
        assert trainer.ref_model is not None and scorer is not None
        rows = actor_rows(self.episodes, [[0.0] * len(e.turns) for e in self.episodes])
        for name, model in (("played", trainer.actor), ("reference", trainer.ref_model)):
            with _timed(name, spent), torch.no_grad():
                _forward(model, rows)
        said = sum(int(row.mask.sum()) for row in rows)
        spent["reading"] = spent["played"] * (1 - said / sum(len(row.ids) for row in rows))
        for turns in _rounds(self.episodes):
            ids, mask = left_padded([list(turn.prompt_ids) for turn in turns])
            begun = Decoding(trainer.actor, ids, mask)
            with _timed("decoding", spent):
                begun.run([len(turn.action_ids) for turn in turns])
        with _timed("scoring", spent), torch.no_grad():
            for piece in microbatches(rows, max_tokens=PACKED):
                scorer.model.model(input_ids=collate(piece).ids, use_cache=False)
        with _timed("learning", spent):
            _forward(trainer.actor, learned, backward=True)
        trainer.actor.zero_grad(set_to_none=True)


def _forward(model: Any, rows: Sequence[ActorRow], *, backward: bool = False) -> None:
    head = model.get_output_embeddings()
    for piece in microbatches(rows, max_tokens=PACKED):
        batch = collate(piece)
        with at_actions(head, batch.mask):
            logits = model(input_ids=batch.ids, use_cache=False).logits[0]
        loss = -chosen_logprobs(logits, batch.ids[batch.mask]).sum()
        if backward:
            loss.backward()


def _rounds(episodes: Sequence[Trajectory]) -> Iterator[list[Turn]]:
    """The first turns of all episodes, then the second, ..."""
    for t in range(max(len(e.turns) for e in episodes)):
        yield [e.turns[t] for e in episodes if len(e.turns) > t]


@contextmanager
def _timed(name: str, spent: Spent) -> Iterator[None]:
    """Add what a block takes."""
    start = time.perf_counter()
    yield
    spent[name] = spent.get(name, 0.0) + time.perf_counter() - start
