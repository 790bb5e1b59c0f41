"""The full state of an RL run on disk, written under a temporary name and renamed.

Resume is not warm start: weights, optimizer moments, schedule, critic, target network, counters
all come back; random numbers are keyed and need no saving; the pool has files of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from stages.common.run_folder import checkpoint_step
from stages.rl.baselines import LearnedBaseline
from stages.rl.pool import ExperiencePool, read_trajectories, write_trajectories
from stages.rl.trainer import AsymmetricPPOTrainer, Progress

STATE, WAITING = "state.pt", "waiting.jsonl"


def save_checkpoint(
    folder: Path, trainer: AsymmetricPPOTrainer, baseline: Any, *, keep: int, extra: dict[str, Any]
) -> Path:
    """Write ``checkpoint-<iteration>`` and drop all but the newest ``keep``."""
    done = folder / f"checkpoint-{trainer.progress.iteration}"
    partial = folder / f"partial-{trainer.progress.iteration}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    torch.save(_state(trainer, baseline, extra), partial / STATE)
    write_trajectories(partial / WAITING, trainer.progress.waiting)
    shutil.rmtree(done, ignore_errors=True)
    partial.rename(done)
    for old in sorted(folder.glob("checkpoint-*"), key=checkpoint_step)[:-keep]:
        shutil.rmtree(old)
    return done


def load_checkpoint(
    folder: Path, trainer: AsymmetricPPOTrainer, baseline: Any, pool: ExperiencePool
) -> dict[str, Any]:
    """Put everything back; returns the ``extra`` that was saved."""
    # weights_only: tensors and plain containers, never pickled code
    state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    trainer.actor.load_state_dict(state["actor"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.lr_scheduler.load_state_dict(state["schedule"])
    if isinstance(baseline, LearnedBaseline):
        baseline.critic.load_state_dict(state["critic"])
        baseline.warm, baseline.warm_ups = state["warm"], state["warm_ups"]
    trainer.progress = Progress(
        iteration=state["iteration"],
        actor_version=state["actor_version"],
        waiting=read_trajectories(folder / WAITING),
    )
    pool.restore(before=state["iteration"])
    extra: dict[str, Any] = state["extra"]
    return extra


def _state(trainer: AsymmetricPPOTrainer, baseline: Any, extra: dict[str, Any]) -> dict[str, Any]:
    state = {
        "actor": trainer.actor.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": _plain(trainer.lr_scheduler.state_dict()),
        "iteration": trainer.progress.iteration,
        "actor_version": trainer.progress.actor_version,
        "extra": extra,
    }
    if isinstance(baseline, LearnedBaseline):
        state["critic"] = baseline.critic.state_dict()
        state["warm"], state["warm_ups"] = baseline.warm, baseline.warm_ups
    return state


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A schedule's state without the functions it carries: they come from the recipe again."""
    return state | {"lr_lambdas": [None] * len(state.get("lr_lambdas", ()))}
