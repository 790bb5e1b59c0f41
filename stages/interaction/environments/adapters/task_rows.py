"""Tasks of an adapter: the rows of a person's file, or seeds."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.records import read_records
from stages.interaction.environments.base import SPLITS, Task

SMALLEST_DIVIDED = 10
"""Fewer rows are not divided: every split holds them all."""
_SEEDS = 2**24
_INSTEAD = {
    "train": ("validation", "test"),
    "validation": ("test", "train"),
    "test": ("validation", "train"),
}


@dataclass(frozen=True)
class TaskRows:
    """Tasks by split; without any, seeds are the tasks."""

    kind: str
    by_split: Mapping[str, Sequence[Task]] | None = None

    @property
    def stand_ins(self) -> dict[str, str]:
        """Splits the file has no row of, and the split whose tasks each gives instead."""
        found = self.by_split
        if found is None:
            return {}
        absent = [split for split in SPLITS if not found[split]]
        return {split: next(s for s in _INSTEAD[split] if found[s]) for split in absent}

    def select(self, split: str, count: int, seed: int) -> list[Task]:
        """Up to ``count`` distinct tasks of a split, chosen by the seed."""
        if split not in SPLITS:
            raise UsageError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
        if self.by_split is None:
            return self._seeds(split, count, seed)
        source = self.stand_ins.get(split, split)
        tasks = list(self.by_split[source])
        random.Random(f"rows/{source}/{seed}").shuffle(tasks)
        return tasks[:count]

    def _seeds(self, split: str, count: int, seed: int) -> list[Task]:
        drawn = random.Random(f"seeds/{split}/{seed}").sample(range(_SEEDS), count)
        numbers = [len(SPLITS) * n + SPLITS.index(split) for n in drawn]
        return [Task(f"{self.kind}-{n}", self.kind, self.kind, {"seed": n}) for n in numbers]


def task_rows(path: Path | None, kind: str) -> TaskRows:
    """The tasks of a file, or seeds without one. UsageError, with file and row, on a bad one."""
    return TaskRows(kind) if path is None else _read(path, kind)


def task_seed(task: Task) -> int:
    """A seed for a task's own randomness: the one it states, else one made of its id."""
    row = task.payload.get("row", task.payload)
    stated = row.get("seed")
    if isinstance(stated, int) and not isinstance(stated, bool):
        return stated
    return int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:4], "little") >> 1


# Environments come in dozens; the file is read once.
@lru_cache(maxsize=8)
def _read(path: Path, kind: str) -> TaskRows:
    records = read_records(path)
    columned = any("split" in row for _, row in records)
    tasks = [(_task(row, kind), _split(place, row, columned)) for place, row in records]
    seen: set[str] = set()
    for (task, _), (place, _row) in zip(tasks, records, strict=True):
        if task.id in seen:
            raise UsageError(f"{place}: the task {task.id} is there twice; expected each once.")
        seen.add(task.id)
    if columned:
        return TaskRows(kind, {s: [t for t, of in tasks if of == s] for s in SPLITS})
    return TaskRows(kind, _divided([task for task, _ in tasks]))


def _task(row: Mapping[str, Any], kind: str) -> Task:
    text = json.dumps(row, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    named = row.get("kind") or row.get("environment") or kind
    return Task(str(row.get("id", f"{kind}-{digest}")), str(named), str(named), {"row": row})


def _split(place: str, row: Mapping[str, Any], columned: bool) -> str:
    split = row.get("split", "train")
    if columned and split not in SPLITS:
        raise UsageError(f"{place}: split is {split!r}; expected one of {', '.join(SPLITS)}.")
    return str(split)


def _divided(tasks: Sequence[Task]) -> dict[str, Sequence[Task]]:
    """A tenth each for validation and test, chosen by hash; all in each of very few."""
    if len(tasks) < SMALLEST_DIVIDED:
        return dict.fromkeys(SPLITS, tasks)
    ordered = sorted(tasks, key=lambda task: hashlib.sha256(task.id.encode()).hexdigest())
    share = len(tasks) // 10
    return {
        "test": ordered[:share],
        "validation": ordered[share : 2 * share],
        "train": ordered[2 * share :],
    }
