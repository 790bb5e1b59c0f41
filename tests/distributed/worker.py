"""What one process does, alone or as one of two; the tests compare what comes of it.

Run as a program it is one of two: the main one leaves everything in ``DIR/results.pt``.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch

from stages.common.engine import join, leave, load_whole_tensors, whole_tensors
from stages.common.ranks import Ranks
from stages.common.seeding import keyed_generator
from stages.common.sharding import held_share, is_sharded
from stages.interaction.native import Job, decode
from stages.rl.learner import ActorLearner, Objective
from stages.rl.rows import ActorRow, actor_rows, pieces, shares
from tests.rl.worlds import bandit_episodes, episode, setup, small_actor

UPDATES = 3
OBJECTIVE = Objective(
    clip_range=0.2,
    kl_coef=0.05,
    kl_loss="k2",
    entropy_coef=0.01,
    sft_coef=0.5,
    temperature=1.0,
    max_grad_norm=0.5,
)
LONG = 70
JOBS = (2, 12, 3)
"""Tokens that are sampled of three prompts: more of one process than of the other."""


def batch() -> list[ActorRow]:
    """One long row and nine short ones: shared out by tokens, 1 and 9."""
    actor = small_actor()
    long = episode([([1] * LONG, [2, 3], 1.0)], actor=actor)
    episodes = [long, *bandit_episodes(actor, 9, 0)]
    numbers = keyed_generator(5).normal(size=(len(episodes), 2))
    advantages = [row[: len(e.turns)].tolist() for row, e in zip(numbers, episodes, strict=True)]
    return actor_rows(episodes, advantages)


def experience(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Updates on the stored batch, sampled replies, and the last update again from saved state."""
    trainer = setup(folder, iterations=UPDATES, learning_rate=0.01, ranks=ranks)
    learner = ActorLearner(
        trainer, epochs=1, minibatch_episodes=10, microbatch_tokens=8, sft_rows=batch
    )
    found: dict[str, Any] = {"metrics": [], "gradients": [], "weights": [], "held": []}
    spy = _Spy(trainer.descent, found["gradients"], dict(trainer.learned.named_parameters()))
    trainer.descent.step = spy.step  # type: ignore[method-assign]
    for number in range(UPDATES):
        if number == UPDATES - 1:
            found["saved"] = _state(trainer)
        _update(trainer, learner, number, found)
    found["sampled"] = {how: _sampled(trainer, ranks, how) for how in ("rollout", "layer")}
    found["again"] = _once_more(trainer, learner, ranks.everyone(found["saved"])[0])
    found["shares"] = [len(s) for s in shares(batch(), ranks.size)]
    found["pieces"] = ranks.everyone(len(pieces(batch(), max_tokens=8, ranks=ranks)))
    found["sharded"] = [is_sharded(trainer.actor), is_sharded(trainer.ref_model)]
    found["gathered"] = ranks.gather([i * i for i in ranks.share(5)])
    drifted = {"a": [torch.full((2,), float(ranks.rank))]}
    ranks.align(drifted)
    found["aligned"] = ranks.everyone(float(drifted["a"][0].sum()))
    return found


def resumed(folder: Path, saved: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The last update by one process, from a state that any number of processes may have saved."""
    trainer = setup(folder, iterations=UPDATES, learning_rate=0.01)
    learner = ActorLearner(
        trainer, epochs=1, minibatch_episodes=10, microbatch_tokens=8, sft_rows=batch
    )
    return _once_more(trainer, learner, saved)


def _once_more(trainer: Any, learner: ActorLearner, saved: dict[str, Any]) -> Any:
    load_whole_tensors(trainer.actor, saved["actor"])
    trainer.descent.load_state_dict(saved["optimizer"])
    trainer.lr_scheduler.load_state_dict(saved["schedule"])
    found: dict[str, Any] = {"metrics": [], "weights": [], "held": []}
    _update(trainer, learner, UPDATES - 1, found)
    return found["weights"][0]


def _update(trainer: Any, learner: ActorLearner, number: int, found: dict[str, Any]) -> None:
    found["metrics"].append(learner.update(batch(), OBJECTIVE, keyed_generator(3, number)))
    trainer.lr_scheduler.step()
    found["held"].append(trainer.ranks.everyone(held_share(trainer.actor)))
    found["weights"].append(whole_tensors(trainer.actor))


def _state(trainer: Any) -> dict[str, Any]:
    schedule = trainer.lr_scheduler.state_dict() | {"lr_lambdas": [None]}
    return {
        "actor": whole_tensors(trainer.actor),
        "optimizer": copy.deepcopy(trainer.descent.state_dict()),  # torch's is still its own
        "schedule": schedule,
    }


def _sampled(trainer: Any, ranks: Ranks, how: str) -> list[list[int]]:
    """Each process's share of the jobs, as many tokens as they take."""
    mine = []
    with trainer.playing(how):
        for number in ranks.share(len(JOBS)):
            length = JOBS[number]
            draws = keyed_generator(8, number).random((1, length))
            job = Job([[1, 2, 3]], [length], draws, stops=[], temperature=1.0)
            mine.append(decode(trainer.actor, job)[0].ids)
    return ranks.gather(mine)


class _Spy:
    """Notes the whole gradient just before the step."""

    def __init__(self, descent: Any, gradients: list[Any], parameters: dict[str, Any]) -> None:
        self._step, self._gradients, self._parameters = descent.step, gradients, parameters

    def step(self, max_grad_norm: float) -> float:
        from deepspeed.utils import safe_get_full_grad

        found = {}
        for name, p in self._parameters.items():
            zero = hasattr(p, "ds_id") or hasattr(p, "_hp_mapping")
            gradient = safe_get_full_grad(p) if zero else p.grad
            found[name] = gradient.detach().clone().reshape(getattr(p, "ds_shape", p.shape))
        self._gradients.append(found)
        return self._step(max_grad_norm)


def main(folder: Path) -> None:
    ranks = join(60)
    found = experience(folder / "trainer", ranks)
    if ranks.main:
        torch.save(found, folder / "results.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
