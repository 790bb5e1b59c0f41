"""The ``sql-session`` environment: chained questions, so that what was seen earlier matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Step, Task
from stages.interaction.environments.sql.analyst import Analyst
from stages.interaction.environments.sql.chain import chained
from stages.interaction.environments.sql.options import SessionOptions
from stages.interaction.environments.sql.tasks import generate
from stages.interaction.trajectory import Action, ChecklistItem

_PAID_IN_FULL = ("success", "invalid")


class SessionEnvironment(Analyst):
    """Each question is about the true answer to the one before; success is all answers right.

    An answer is only received, never judged: whether the session can still succeed is known to
    the critic alone. What a question pays for useful steps is divided by the number of questions.
    """

    name = "sql-session"
    options: SessionOptions
    # So that all an expert does follows from a window of three exchanges and the checklist.
    expert_memory = 3

    def __init__(self, options: SessionOptions | None = None):
        super().__init__(options or SessionOptions())

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct sessions of a split."""
        return generate(self.options, chained(self.options.chain), split, count, seed)

    def step(self, action: Action) -> Step:
        """Carry out the calls of one action in order, up to the answer that ends the session."""
        step = super().step(action)
        share = {n: 1.0 if n in _PAID_IN_FULL else 1 / len(self._questions) for n in step.rewards}
        return replace(step, rewards={n: v * share[n] for n, v in step.rewards.items()})

    def _facts(self) -> dict[str, Any]:
        right, given = sum(self._answered), len(self._answered)
        return {"earlier_answers_right": f"{right} of {given}", **self._progress.facts}

    def _checklist(self) -> tuple[ChecklistItem, ...]:
        """The tables' names stay in sight; the number of the answer says how far the session is."""
        assert self._database is not None
        tables = f"tables {', '.join(self._database.schema)}" if self._listed else "tables"
        number = min(self._asked + 1, len(self._questions))
        return (
            (tables, self._listed),
            ("columns", self._described),
            ("result", self._progress.has_result),
            (f"answer {number}", self._finished),
        )
