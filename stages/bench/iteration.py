"""A whole RL iteration against the forwards and backwards that it cannot do without.

These are taken of the very same tokens, packed into as few calls as suit the machine: one forward
of all that was played, one by the reference, one by the reward model, and a forward and a backward
of all rows that the actor learned from, as often as it did. ``decoding`` are the forwards by which
the replies were drawn token by token, as many rows at once as there were, with nothing around them.
Environments, the critic, optimizers and book-keeping are what comes on top.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stages.bench.models import BASE, saved_scorer
from stages.bench.rollouts import Decoding, left_padded
from stages.bench.running import Running
from stages.common.logprobs import at_actions, chosen_logprobs
from stages.interaction.trajectory import Trajectory, Turn
from stages.rl.rows import ActorRow, actor_rows, collate, microbatches

RECIPE = BASE.parent / "quickstart.yaml"
PACKED = 2048
"""Tokens of one call: with more a CPU is no faster."""
Spent = dict[str, tuple[float, float]]
"""(wall, cpu) seconds by name."""


def prepare(folder: Path) -> None:
    """A reward model beside the shipped base model, which plays as it is."""
    saved_scorer(BASE, folder / "reward")


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
        played = actor_rows(self.episodes, [[0.0] * len(e.turns) for e in self.episodes])
        for tick in _ticks(self.episodes):
            ids, mask = left_padded([list(turn.prompt_ids) for turn in tick])
            read = Decoding(trainer.actor, ids, mask)
            with _timed("decoding", spent):
                read.run([len(turn.action_ids) for turn in tick])
        for name, model in (("playing", trainer.actor), ("reference", trainer.ref_model)):
            with _timed(name, spent), torch.no_grad():
                _forward(model, played)
        with _timed("scoring", spent), torch.no_grad():
            for piece in microbatches(played, max_tokens=PACKED):
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


def _ticks(episodes: Sequence[Trajectory]) -> Iterator[list[Turn]]:
    """The turns that were decided at once: the first of all episodes, then the second, ..."""
    for t in range(max(len(e.turns) for e in episodes)):
        yield [e.turns[t] for e in episodes if len(e.turns) > t]


@contextmanager
def _timed(name: str, spent: Spent) -> Iterator[None]:
    """Add what a block takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    before = spent.get(name, (0.0, 0.0))
    now = (time.perf_counter() - wall, time.process_time() - cpu)
    spent[name] = (before[0] + now[0], before[1] + now[1])
