"""What one process does, alone or as one of two; the tests compare what comes of it.

Run as a program it is one of two: the main one leaves everything in ``DIR/results.pt``.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any, Literal

import torch

from stages.common.engine import join, leave, load_whole_tensors, whole_tensors
from stages.common.ranks import ALONE, Ranks
from stages.common.seeding import keyed_generator
from stages.common.sharding import held_share, is_sharded
from stages.interaction.native import Job, decode
from stages.interaction.trajectory import Trajectory
from stages.rl.learner import ActorLearner, Objective
from stages.rl.rows import ActorRow, actor_rows, pieces, shares
from stages.rl.shared import SharedCritic, SharedHead
from tests.rl.worlds import bandit_episodes, episode, setup, small_actor

Kind = Literal["whole", "lora", "shared"]
UPDATES = 3
OBJECTIVE = Objective(
    clip_range=0.2,
    kl_coef=0.05,
    kl_loss="k2",
    entropy_coef=0.01,
    sft_coef=0.5,
    temperature=1.0,
    max_grad_norm=0.5,
    vf_coef=0.7,  # where there is a value head
)
LONG = 70
JOBS = (2, 12, 3)
"""Tokens that are sampled of three prompts: more of one process than of the other."""


def episodes() -> list[Trajectory]:
    """One long row and nine short ones: shared out by tokens, 1 and 9."""
    actor = small_actor()
    long = episode([([1] * LONG, [2, 3], 1.0)], actor=actor)
    return [long, *bandit_episodes(actor, 9, 0)]


def batch() -> list[ActorRow]:
    """Their rows, with advantages and returns."""
    played = episodes()
    numbers = keyed_generator(5).normal(size=(2, len(played), 2))
    advantages, returns = (
        [row[: len(e.turns)].tolist() for row, e in zip(some, played, strict=True)]
        for some in numbers
    )
    return actor_rows(played, advantages, returns)


def trainer_of(folder: Path, kind: Kind, ranks: Ranks = ALONE) -> tuple[Any, ActorLearner]:
    """``lora``: adapters learn; ``shared``: a value head on the actor's trunk, too."""
    head = None
    if kind == "shared":
        with torch.random.fork_rng():
            torch.manual_seed(1)
            head = SharedHead(16)
    trainer = setup(
        folder,
        iterations=UPDATES,
        learning_rate=0.01,
        value_learning_rate=0.01,
        ranks=ranks,
        lora=kind == "lora",
        value_head=head,
    )
    learner = ActorLearner(
        trainer, epochs=1, minibatch_episodes=10, microbatch_tokens=8, sft_rows=batch
    )
    return trainer, learner


def experience(folder: Path, ranks: Ranks, kind: Kind = "whole") -> dict[str, Any]:
    """Updates on the stored batch, sampled replies, and the last update again from saved state."""
    trainer, learner = trainer_of(folder, kind, ranks)
    found: dict[str, Any] = {"metrics": [], "gradients": [], "weights": [], "held": []}
    if kind == "shared":
        found |= _warm_up(trainer)
    moved = {n: p for n, p in trainer.learned.named_parameters() if p.requires_grad}
    spy = _Spy(trainer.descent, found["gradients"], moved)
    trainer.descent.step = spy.step  # type: ignore[method-assign]
    for number in range(UPDATES):
        if number == UPDATES - 1:
            found["saved"] = _state(trainer)
        _update(trainer, learner, number, found)
    found["sampled"] = {how: _sampled(trainer, ranks, how) for how in ("rollout", "layer")}
    found["again"] = _once_more(trainer, learner, ranks.everyone(found["saved"])[0])
    found["shares"] = [len(s) for s in shares(batch(), ranks.size)]
    found["pieces"] = ranks.everyone(len(pieces(batch(), max_tokens=8, ranks=ranks)))
    models = [m for m in (trainer.actor, trainer.ref_model) if m is not None]
    found["sharded"] = [is_sharded(model) for model in models]
    found["gathered"] = ranks.gather([i * i for i in ranks.share(5)])
    drifted = {"a": [torch.full((2,), float(ranks.rank))]}
    ranks.align(drifted)
    found["aligned"] = ranks.everyone(float(drifted["a"][0].sum()))
    return found


def _warm_up(trainer: Any) -> dict[str, Any]:
    """The head alone is fitted; what it says before and after."""
    critic = SharedCritic(
        trainer,
        turn_rewards=lambda e: [turn.rewards.get("success", 0.0) for turn in e.turns],
        discount=1.0,
        microbatch_tokens=8,
    )
    played = episodes()
    before = critic.values(played)
    loss = critic.fit(played, keyed_generator(6), steps=5, batch_size=4, max_grad_norm=1.0)
    return {"values": [before, critic.values(played)], "head_loss": loss}


def resumed(folder: Path, saved: dict[str, Any], kind: Kind = "whole") -> dict[str, torch.Tensor]:
    """The last update by one process, from a state that any number of processes may have saved."""
    return _once_more(*trainer_of(folder, kind), saved)


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


def main(folder: Path, kind: Kind = "whole") -> None:
    ranks = join(60)
    found = experience(folder / "trainer", ranks, kind)
    if ranks.main:
        torch.save(found, folder / "results.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])  # type: ignore[arg-type]
