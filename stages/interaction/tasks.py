"""Drawing tasks for an iteration, also from a file that holds fewer than are wanted."""

from __future__ import annotations

from itertools import cycle, islice

from stages.common.errors import UsageError
from stages.interaction.environments.base import Environment, Task


def draw_tasks(environment: Environment, split: str, count: int, seed: int) -> list[Task]:
    """``count`` tasks of a split; a small set is gone through again and again.

    Raises UsageError if the split holds no task.
    """
    tasks = list(environment.tasks(split, count, seed))
    if not tasks:
        raise UsageError(
            f"environment {environment.name} has no task in the {split} split; "
            "give more questions or mark some with that split"
        )
    return list(islice(cycle(tasks), count))
