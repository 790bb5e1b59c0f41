"""The experience pool (F9): durable, bounded, the critic's own diet.

Episodes with raw reward components, one JSON-lines file per iteration, written under a
temporary name and renamed. The oldest files leave when the bound is passed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stages.interaction.trajectory import Trajectory


class ExperiencePool:
    """Whole and partial trajectories of the last iterations, on disk and in memory."""

    def __init__(self, folder: Path, *, max_episodes: int, spare_iterations: int = 0) -> None:
        """``spare_iterations``: files stay this much longer, for checkpoints that reach back."""
        self.folder, self.max_episodes = folder, max_episodes
        self._spare = spare_iterations
        self._shards: dict[int, list[Trajectory]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards.values())

    @property
    def episodes(self) -> list[Trajectory]:
        """Oldest first."""
        return [e for number in sorted(self._shards) for e in self._shards[number]]

    def add(self, iteration: int, episodes: Sequence[Trajectory]) -> None:
        """Store one iteration's episodes; whole old iterations leave beyond the bound."""
        write_trajectories(self._file(iteration), episodes)
        self._shards[iteration] = list(episodes)
        self._shrink()
        for file in self.folder.glob("*.jsonl"):
            if int(file.stem) < min(self._shards) - self._spare:
                file.unlink()

    def sample(
        self, count: int, rng: np.random.Generator, *, version: int, max_age: int
    ) -> list[Trajectory]:
        """``count`` episodes, uniform with replacement, at most ``max_age`` versions old.

        Raises ValueError when nothing is young enough.
        """
        young = [e for e in self.episodes if version - e.actor_version <= max_age]
        if not young:
            raise ValueError(f"no episode within {max_age} versions of actor {version}")
        return [young[i] for i in rng.integers(len(young), size=count)]

    def restore(self, before: int) -> None:
        """Read back what iterations below ``before`` left; later files are removed."""
        self._shards = {}
        for file in sorted(self.folder.glob("*.jsonl")):
            number = int(file.stem)
            if number < before:
                self._shards[number] = read_trajectories(file)
            else:
                file.unlink()
        self._shrink()

    def _shrink(self) -> None:
        while len(self) > self.max_episodes and len(self._shards) > 1:
            del self._shards[min(self._shards)]

    def _file(self, iteration: int) -> Path:
        return self.folder / f"{iteration:05d}.jsonl"


def write_trajectories(file: Path, episodes: Sequence[Trajectory]) -> None:
    """One JSON object a line, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as out:
        for episode in episodes:
            out.write(json.dumps(episode.to_json(), ensure_ascii=False, default=str) + "\n")
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)


def read_trajectories(file: Path) -> list[Trajectory]:
    """Inverse of ``write_trajectories``."""
    with file.open(encoding="utf-8") as lines:
        return [Trajectory.from_json(json.loads(line)) for line in lines if line.strip()]
