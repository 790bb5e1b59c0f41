"""The experience pool (F9): durable, bounded, the critic's own diet.

Episodes, whole or partial, with raw reward components and the actor's version, one JSON-lines
file per iteration, written under a temporary name and renamed. The oldest files leave when a
bound, of episodes or of bytes, is passed. Priorities live in memory and in the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.files import write_bytes
from stages.interaction.trajectory import Trajectory

GIB = 2**30
SMALLEST_PRIORITY = 1e-3
"""Added to every error (rewards are in units of success), so that no episode is lost for good."""


@dataclass
class Shard:
    """What one iteration left."""

    episodes: list[Trajectory]
    size: int
    """Bytes on disk."""
    priorities: list[float]
    """The critic's mean absolute error on each episode when it was last fitted to it."""


class ExperiencePool:
    """Whole and partial trajectories of the last iterations, on disk and in memory.

    Samples are uniform at ``priority_exponent`` 0, else proportional to the critic's absolute
    error to that power: Schaul et al. 2016, arXiv:1511.05952, section 3.3.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_episodes: int,
        max_bytes: int = GIB,
        priority_exponent: float = 0.0,
        writes: bool = True,
    ) -> None:
        """``writes``: one of several processes writes for all; they hold the same episodes."""
        self.folder, self.max_episodes, self.max_bytes = folder, max_episodes, max_bytes
        self._exponent, self._writes = priority_exponent, writes
        self._kept_from: int | None = None
        self._shards: dict[int, Shard] = {}
        self._known: tuple[tuple[int, int], list[Trajectory], np.ndarray] | None = None
        """Chances of the latest (version, max age): a fit asks for them at every step."""
        if writes:
            folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return sum(len(shard.episodes) for shard in self._shards.values())

    @property
    def size(self) -> int:
        """Bytes on disk of the episodes that may be sampled."""
        return sum(shard.size for shard in self._shards.values())

    @property
    def episodes(self) -> list[Trajectory]:
        """Oldest first."""
        return [episode for episode, _ in self._entries()]

    def add(self, iteration: int, episodes: Sequence[Trajectory]) -> None:
        """Store one iteration's episodes; whole old iterations leave beyond the bounds.

        The newest iteration always stays. New episodes get the largest priority there is.
        """
        content, self._known = encoded(episodes), None
        largest = max((p for _, p in self._entries()), default=1.0)
        self._shards[iteration] = Shard(list(episodes), len(content), [largest] * len(episodes))
        self._shrink()
        if not self._writes:
            return
        write_bytes(self._file(iteration), content)
        self._tidy()

    @property
    def oldest(self) -> int:
        """The oldest iteration that may be sampled; 0: there is none yet."""
        return min(self._shards, default=0)

    def keep_from(self, iteration: int | None) -> None:
        """Files of left iterations stay from this one on, for checkpoints that reach back; None:
        none stays."""
        self._kept_from = iteration
        self._tidy()

    def sample(
        self, count: int, rng: np.random.Generator, *, version: int, max_age: int
    ) -> list[Trajectory]:
        """``count`` episodes, with replacement, at most ``max_age`` versions old.

        Raises ValueError when nothing is young enough.
        """
        young, chances = self._chances(version, max_age)
        if self._exponent == 0:
            drawn = rng.integers(len(young), size=count)
        else:
            drawn = rng.choice(len(young), size=count, p=chances)
        return [young[i] for i in drawn]

    def importance_weights(
        self, episodes: Sequence[Trajectory], *, version: int, max_age: int
    ) -> list[float]:
        """What undoes the uneven chances of sampled episodes: 1/(n·P), over its maximum.

        The largest belongs to the least likely episode of the pool, so that a weight does not
        depend on what it was drawn with. Schaul et al. 2016, section 3.4, with β = 1.
        """
        if self._exponent == 0:
            return [1.0] * len(episodes)
        young, chances = self._chances(version, max_age)
        weight = dict(zip(map(id, young), chances.min() / chances, strict=True))
        return [float(weight[id(e)]) for e in episodes]

    def prioritise(self, errors: Mapping[int, float]) -> None:
        """New priorities: the critic's mean absolute error by ``id`` of a pooled episode."""
        self._known = None
        for shard in self._shards.values():
            for i, episode in enumerate(shard.episodes):
                shard.priorities[i] = errors.get(id(episode), shard.priorities[i])

    def metrics(self, version: int) -> dict[str, float]:
        """How much it holds and how old that is."""
        ages = [version - episode.actor_version for episode in self.episodes]
        return {
            "pool/episodes": float(len(self)),
            "pool/bytes": float(self.size),
            "pool/oldest_age": float(max(ages, default=0)),
        }

    def restore(self, before: int) -> None:
        """Read back what iterations below ``before`` left; later files are removed."""
        self._shards, self._known = {}, None
        for file in sorted(self.folder.glob("*.jsonl")):
            number = int(file.stem)
            if number < before:
                episodes = read_trajectories(file)
                self._shards[number] = Shard(episodes, file.stat().st_size, [1.0] * len(episodes))
            elif self._writes:
                file.unlink()
        self._shrink()

    def state_dict(self) -> dict[str, Any]:
        """What the files do not hold: priorities by iteration."""
        return {"priorities": {n: list(shard.priorities) for n, shard in self._shards.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``, after ``restore``."""
        self._known = None
        for number, priorities in state["priorities"].items():
            self._shards[number].priorities = list(priorities)

    def _entries(self) -> list[tuple[Trajectory, float]]:
        shards = [self._shards[number] for number in sorted(self._shards)]
        return [pair for s in shards for pair in zip(s.episodes, s.priorities, strict=True)]

    def _chances(self, version: int, max_age: int) -> tuple[list[Trajectory], np.ndarray]:
        """The episodes that are young enough, and how likely each is drawn."""
        if self._known is not None and self._known[0] == (version, max_age):
            return self._known[1:]
        young = [(e, p) for e, p in self._entries() if version - e.actor_version <= max_age]
        if not young:
            raise ValueError(f"no episode within {max_age} versions of actor {version}")
        scores = (np.array([p for _, p in young]) + SMALLEST_PRIORITY) ** self._exponent
        self._known = (version, max_age), [e for e, _ in young], scores / scores.sum()
        return self._known[1:]

    def _tidy(self) -> None:
        """Remove the files that nobody needs any more."""
        needed = self.oldest if self._kept_from is None else min(self._kept_from, self.oldest)
        for file in self.folder.glob("*.jsonl") if self._writes else ():
            if int(file.stem) < needed:
                file.unlink()

    def _shrink(self) -> None:
        while len(self._shards) > 1 and (
            len(self) > self.max_episodes or self.size > self.max_bytes
        ):
            del self._shards[min(self._shards)]

    def _file(self, iteration: int) -> Path:
        return self.folder / f"{iteration:05d}.jsonl"


def write_trajectories(file: Path, episodes: Sequence[Trajectory]) -> None:
    """One JSON object a line, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, encoded(episodes))


def encoded(episodes: Sequence[Trajectory]) -> bytes:
    """One JSON object a line."""
    rows = (json.dumps(e.to_json(), ensure_ascii=False, default=str) for e in episodes)
    return "".join(row + "\n" for row in rows).encode("utf-8")


def read_trajectories(file: Path) -> list[Trajectory]:
    """Inverse of ``write_trajectories``."""
    with file.open(encoding="utf-8") as lines:
        return [Trajectory.from_json(json.loads(line)) for line in lines if line.strip()]
