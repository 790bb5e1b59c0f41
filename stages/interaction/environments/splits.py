"""Which split a generated task belongs to: settled by a hash, so that no two can share one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from stages.common.errors import UsageError
from stages.interaction.environments.base import SPLITS, Task

DRAWS = 20_000
"""Draws in a row that give no new task of a split before the options are called too narrow."""


def split_of(fingerprint: str) -> str:
    """The split of a task: 80 % train, 10 % validation, 10 % test."""
    digest = hashlib.sha256(fingerprint.encode()).digest()
    bucket = digest[0] * 256 + digest[1]
    return "train" if bucket < 52429 else "validation" if bucket < 58982 else "test"


def fingerprint_id(prefix: str, fingerprint: str) -> str:
    """A task's id: equal tasks have equal ones."""
    return f"{prefix}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}"


def distinct(draws: Iterator[Task | None], split: str, count: int) -> list[Task]:
    """The first ``count`` distinct tasks of endless draws, of which None is a miss.

    Raises UsageError for an unknown split, or where new tasks stop coming.
    """
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    tasks: dict[str, Task] = {}
    misses = 0
    while len(tasks) < count:
        task = next(draws)
        if task is None or task.id in tasks:
            misses += 1
            if misses > DRAWS:
                raise UsageError(
                    f"these options allow only {len(tasks)} distinct tasks of the {split} split, "
                    f"{count} were asked for; widen the environment's options or ask for fewer"
                )
            continue
        misses = 0
        tasks[task.id] = task
    return list(tasks.values())
