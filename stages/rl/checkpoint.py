"""The full state of an RL run on disk.

Resume is not warm start: weights (of an actor with adapters only these), optimizer moments,
schedule, critic, target network, counters all come back. Our random numbers are keyed and need no
saving; the libraries' generators are here. The pool's episodes have files of their own, its
priorities are here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.common.best import BEST
from stages.common.checkpoints import Origin, all_checkpoints, is_sealed, notes_of, prune
from stages.common.engine import load_whole_tensors, whole_tensors
from stages.common.errors import UsageError
from stages.common.run_folder import RunFolder
from stages.common.seeding import random_states, restore_random_states
from stages.rl.baselines import Baseline
from stages.rl.pool import ExperiencePool, read_trajectories, write_trajectories
from stages.rl.trainer import AsymmetricPPOTrainer, Progress

STATE, WAITING = "state.pt", "waiting.jsonl"
POOL_FROM = "pool_from"
"""Note of a checkpoint: the oldest iteration whose episodes it needs of the pool."""


@dataclass(frozen=True)
class Belongings:
    """What a checkpoint carries besides the trainer's own state."""

    origin: Origin
    """What the run depends on: one made from something else may not go on from here."""
    extra: dict[str, Any]
    """Plain values."""
    best: Path
    """The best actor's weights so far, if the file exists."""


def save_checkpoint(
    folder: RunFolder,
    trainer: AsymmetricPPOTrainer,
    baseline: Baseline,
    pool: ExperiencePool,
    belongings: Belongings,
    *,
    keep: int,
) -> None:
    """Write ``checkpoint-<iteration>`` and drop all but the newest ``keep``.

    Every process calls it, the main one writes. All tensors are whole, so any number of processes
    can go on from it. RunError where it cannot be written.
    """
    states = trainer.ranks.everyone(random_states())
    state = _state(trainer, baseline, belongings)
    state |= {"pool": pool.state_dict(), "random": states}
    if trainer.ranks.main:
        now, notes = trainer.progress, {POOL_FROM: pool.oldest}
        with folder.new_checkpoint(now.iteration, belongings.origin, **notes) as place:
            torch.save(state, place / STATE)
            if belongings.best.exists():
                shutil.copyfile(belongings.best, place / BEST)
            write_trajectories(place / WAITING, now.waiting)
        prune(folder.checkpoints, keep)
        keep_pool_of(folder, pool)
    trainer.ranks.wait()


def keep_pool_of(folder: RunFolder, pool: ExperiencePool) -> None:
    """Let the pool's files stay as far back as the run's checkpoints reach."""
    reach = [notes_of(c)[POOL_FROM] for c in all_checkpoints(folder.checkpoints) if is_sealed(c)]
    pool.keep_from(min(reach))


def load_checkpoint(
    checkpoint: Path,
    trainer: AsymmetricPPOTrainer,
    baseline: Baseline,
    pool: ExperiencePool,
    belongings: Belongings,
) -> dict[str, Any]:
    """Put everything back; returns the ``extra`` that was saved.

    Raises UsageError for a folder that holds no checkpoint of this stage, or moments that cannot
    be those of a run that went well.
    """
    if not (checkpoint / STATE).is_file():
        raise UsageError(f"--resume {checkpoint} holds no {STATE}; name a checkpoint-<n> folder.")
    # weights_only: tensors and plain containers, never pickled code
    state = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
    if trainer.ranks.main:
        belongings.best.unlink(missing_ok=True)
        if (checkpoint / BEST).is_file():
            belongings.best.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / BEST, belongings.best)
    load_whole_tensors(trainer.actor, state["actor"])
    trainer.descent.load_state_dict(state["optimizer"])
    trainer.lr_scheduler.load_state_dict(state["schedule"])
    baseline.load_state_dict(state["baseline"])
    trainer.progress = Progress(
        iteration=state["iteration"],
        actor_version=state["actor_version"],
        waiting=read_trajectories(checkpoint / WAITING),
    )
    pool.restore(before=state["iteration"])
    pool.load_state_dict(state["pool"])
    if len(state["random"]) == trainer.ranks.size:  # else nobody's were these
        restore_random_states(state["random"][trainer.ranks.rank])
    extra: dict[str, Any] = state["extra"]
    return extra


def _state(
    trainer: AsymmetricPPOTrainer, baseline: Baseline, belongings: Belongings
) -> dict[str, Any]:
    return {
        "actor": whole_tensors(trainer.actor),
        "optimizer": trainer.descent.state_dict(),
        "schedule": _plain(trainer.lr_scheduler.state_dict()),
        "iteration": trainer.progress.iteration,
        "actor_version": trainer.progress.actor_version,
        "extra": belongings.extra,
        "baseline": baseline.state_dict(),
    }


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A schedule's state without the functions it carries: they come from the recipe again."""
    return state | {"lr_lambdas": [None] * len(state.get("lr_lambdas", ()))}
