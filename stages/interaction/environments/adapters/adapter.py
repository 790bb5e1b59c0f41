"""What all adapters share: tasks, the return so far, and an expert where the recipe names one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stages.interaction.environments.adapters.entry import load_entry
from stages.interaction.environments.adapters.options import AdapterOptions
from stages.interaction.environments.adapters.randomness import OwnRandomness
from stages.interaction.environments.adapters.task_rows import task_rows
from stages.interaction.environments.base import Task


class Adapter:
    """Tasks of a file or seeds; rewards of the adapted world become shares of ``success``."""

    name: str

    def __init__(self, options: AdapterOptions) -> None:
        self.name, self.max_turns = options.name, options.max_turns
        self._scale, self._solved_at = options.reward_scale, options.solved_at
        self._rows = task_rows(options.tasks, options.name)
        self._random = OwnRandomness(apart=not options.workers)
        self._total = 0.0
        self._turns = 0
        if options.expert is not None:
            # An attribute, not a method: an adapter without an expert must not look like one with.
            self.demonstrate = _demonstrate(load_entry(options.expert, "expert"))

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split (fewer if a person's file holds fewer)."""
        return self._rows.select(split, count, seed)

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """Splits that a person's tasks lack, and the split whose tasks each gives instead."""
        return self._rows.stand_ins

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self) -> None:
        self._total, self._turns = 0.0, 0

    def _paid(self, reward: float) -> dict[str, float]:
        """One reward of the adapted world as a share of success; nothing for nothing."""
        self._total += reward
        return {"success": reward / self._scale} if reward else {}

    @property
    def _solved(self) -> bool:
        # Three rewards of 0.3 are a return of 0.9.
        return self._total >= self._solved_at or math.isclose(self._total, self._solved_at)

    @property
    def _last_turn(self) -> bool:
        return self._turns >= self.max_turns


def task_row(task: Task) -> dict[str, Any]:
    """The columns of a task: its row, or its seed alone."""
    return dict(task.payload.get("row", task.payload))


def _demonstrate(expert: Any) -> Any:
    return lambda task, seed: expert(task_row(task), seed)
