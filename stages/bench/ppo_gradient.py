"""Proof that both sides of the single-turn comparison follow the same gradient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from stages.bench.ppo import Seen, Work, ppo_trainer, prepare, watched_update
from stages.common.errors import RunError
from stages.common.gemm import quicken
from stages.rl.learner import ActorLearner, Objective
from stages.rl.rows import ActorRow
from stages.rl.tally import Tally
from stages.rl.trainer import AsymmetricPPOTrainer
from stages.rl.trl_adapter import ppo_config

CLOSE = 1e-4
"""Relative; by as much may two gradients differ."""
MOVED = 1e-3
"""A rate by which the first step moves many ratios out of the clip range."""


def gradients_apart(folder: Path, work: Work) -> list[float]:
    """‖TRL's policy gradient − ours‖ / ‖TRL's‖ at every optimizer step of one of TRL's updates.

    Both are fed the same rollout, the same advantages and the same weights. ``folder``: see
    ``ppo.prepare``.
    """
    trainer = ppo_trainer(folder, work, learning_rate=MOVED)
    policy = trainer.accelerator.unwrap_model(trainer.model).policy

    def keep() -> tuple[dict[str, Tensor], Tensor]:
        weights = {name: p.detach().clone() for name, p in policy.named_parameters()}
        return weights, _gradient(policy)

    seen = watched_update(trainer, keep)
    quicken(policy)
    learner = _learner(policy, work, folder)
    pad = trainer.processing_class.pad_token_id
    apart = []
    for weights, theirs in seen.kept:
        policy.load_state_dict(weights, strict=False)
        policy.zero_grad()
        for loss in learner.ppo_losses(rows_of(seen, pad), _objective(trainer.args), Tally()):
            learner.setup.descent.accumulate(loss, last=False)
        ours = _gradient(policy)
        apart.append(float((ours - theirs).norm() / theirs.norm()))
    return apart


class Proof:
    """Compares the gradients on a smaller batch."""

    def __init__(self, work: Work) -> None:
        self.work = replace(work, batch=8, epochs=3)

    def __call__(self) -> dict[str, float]:
        """The largest of ``gradients_apart``. RunError above ``CLOSE``."""
        with TemporaryDirectory() as scratch:
            prepare(Path(scratch), self.work)
            apart = max(gradients_apart(Path(scratch), self.work))
        require_close(apart)
        return {"apart": apart}


def require_close(apart: float) -> None:
    """RunError above ``CLOSE``, or where it is no number."""
    if not apart <= CLOSE:
        raise RunError(
            f"TRL's single-turn policy gradient and ours are {apart:.1e} apart, more than "
            f"{CLOSE:.0e}; nothing was compared."
        )


def rows_of(seen: Seen, pad: int) -> list[ActorRow]:
    """TRL's rollout as rows of ours, with its advantages."""
    rows = []
    given = zip(seen.sequences, seen.logprobs, seen.advantages, strict=True)
    for number, (sequence, logprobs, advantages) in enumerate(given):
        ids = sequence[sequence != pad]
        mask = torch.zeros(len(ids), dtype=torch.bool)
        mask[len(ids) - len(logprobs) :] = True
        nothing = torch.zeros(len(ids))
        behaviour, advantage = nothing.clone(), nothing.clone()
        behaviour[mask], advantage[mask] = logprobs, advantages
        rows.append(
            ActorRow(
                ids=ids,
                mask=mask,
                behaviour=behaviour,
                weight=mask.float(),
                advantage=advantage,
                reference=nothing,
                returns=nothing,
                turn=mask.long() - 1,
                episode=number,
            )
        )
    return rows


def _learner(actor: Any, work: Work, folder: Path) -> ActorLearner:
    setup = AsymmetricPPOTrainer(
        ppo_config(folder / "ours", iterations=1),
        actor=actor,
        reference=None,
        reward_model=None,
        tokenizer=None,
    )
    return ActorLearner(
        setup, epochs=work.epochs, minibatch_episodes=work.batch, microbatch_tokens=8192
    )


def _objective(args: Any) -> Objective:
    return Objective(
        clip_range=args.cliprange,
        kl_coef=0.0,
        kl_loss="k2",
        entropy_coef=0.0,
        sft_coef=0.0,
        temperature=args.temperature,
        max_grad_norm=1.0,
    )


def _gradient(model: Any) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])
