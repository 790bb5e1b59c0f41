"""The full state of an RL run on disk, written under a temporary name and renamed.

Resume is not warm start: weights (of an actor with adapters only these), optimizer moments,
schedule, critic, target network, counters all come back; random numbers are keyed and need no
saving; the pool's episodes have files of their own, its priorities are here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.common.engine import load_whole_tensors, whole_tensors
from stages.common.errors import UsageError
from stages.common.run_folder import checkpoint_step
from stages.rl.baselines import Baseline
from stages.rl.pool import ExperiencePool, read_trajectories, write_trajectories
from stages.rl.trainer import AsymmetricPPOTrainer, Progress

STATE, WAITING, BEST = "state.pt", "waiting.jsonl", "best.safetensors"


@dataclass(frozen=True)
class Belongings:
    """What a checkpoint carries besides the trainer's own state."""

    recipe: str
    """Fingerprint of what the run depends on: another recipe may not go on from here."""
    extra: dict[str, Any]
    """Plain values."""
    best: Path
    """The best actor's weights so far, if the file exists."""


def save_checkpoint(
    folder: Path,
    trainer: AsymmetricPPOTrainer,
    baseline: Baseline,
    pool: ExperiencePool,
    belongings: Belongings,
    *,
    keep: int,
) -> Path:
    """Write ``checkpoint-<iteration>`` and drop all but the newest ``keep``.

    Every process calls it, the main one writes. All tensors are whole, so any number of processes
    can go on from it.
    """
    state = _state(trainer, baseline, belongings) | {"pool": pool.state_dict()}
    done = folder / f"checkpoint-{trainer.progress.iteration}"
    if trainer.ranks.main:
        _write(done, state, trainer.progress, belongings.best)
        for old in sorted(folder.glob("checkpoint-*"), key=checkpoint_step)[:-keep]:
            shutil.rmtree(old)
    trainer.ranks.wait()
    return done


def _write(done: Path, state: dict[str, Any], progress: Progress, best: Path) -> None:
    partial = done.with_name(f"partial-{progress.iteration}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    torch.save(state, partial / STATE)
    if best.exists():
        shutil.copyfile(best, partial / BEST)
    write_trajectories(partial / WAITING, progress.waiting)
    shutil.rmtree(done, ignore_errors=True)
    partial.rename(done)


def load_checkpoint(
    folder: Path,
    trainer: AsymmetricPPOTrainer,
    baseline: Baseline,
    pool: ExperiencePool,
    belongings: Belongings,
) -> dict[str, Any]:
    """Put everything back; returns the ``extra`` that was saved.

    Raises UsageError for a folder that holds no checkpoint, or one of another recipe.
    """
    if not (folder / STATE).is_file():
        raise UsageError(f"--resume {folder} holds no {STATE}; name a checkpoint-<n> folder.")
    # weights_only: tensors and plain containers, never pickled code
    state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    if state["recipe"] != belongings.recipe:
        raise UsageError(
            f"{folder} was made with another recipe, so going on from it would mix two runs; undo "
            "the change, or start anew with --resume never."
        )
    if trainer.ranks.main and (folder / BEST).is_file():
        belongings.best.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / BEST, belongings.best)
    load_whole_tensors(trainer.actor, state["actor"])
    trainer.descent.load_state_dict(state["optimizer"])
    trainer.lr_scheduler.load_state_dict(state["schedule"])
    baseline.load_state_dict(state["baseline"])
    trainer.progress = Progress(
        iteration=state["iteration"],
        actor_version=state["actor_version"],
        waiting=read_trajectories(folder / WAITING),
    )
    pool.restore(before=state["iteration"])
    pool.load_state_dict(state["pool"])
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
        "recipe": belongings.recipe,
        "extra": belongings.extra,
        "baseline": baseline.state_dict(),
    }


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A schedule's state without the functions it carries: they come from the recipe again."""
    return state | {"lr_lambdas": [None] * len(state.get("lr_lambdas", ()))}
