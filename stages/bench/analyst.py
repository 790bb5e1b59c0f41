"""The sql environment as an environment class for TRL's GRPOTrainer; both sides play this class."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import SqlEnvironment
from stages.interaction.trajectory import Action, ToolCall

OVER = "the episode is over"


class SqlTools:
    """Public methods are tools; ``reset`` takes a row with the task as JSON."""

    def __init__(self) -> None:
        self._environment = SqlEnvironment()
        self._solved = self._over = False

    def reset(self, *, task: str, **_: Any) -> None:
        """Start the episode of a task."""
        self._environment.reset(Task(**json.loads(task)))
        self._solved = self._over = False

    def list_tables(self) -> str:
        """List the tables."""
        return self._call("list_tables")

    def describe(self, table: str) -> str:
        """Describe a table.

        Args:
            table: Its name.
        """
        return self._call("describe", table=table)

    def query(self, sql: str) -> str:
        """Run a query.

        Args:
            sql: A SELECT.
        """
        return self._call("query", sql=sql)

    def answer(self, value: str) -> str:
        """Answer the question.

        Args:
            value: The answer.
        """
        return self._call("answer", value=value)

    def get_reward(self) -> float:
        """1 for the right answer."""
        return float(self._solved)

    def _call(self, name: str, **arguments: str) -> str:
        if self._over:
            return OVER
        step = self._environment.step(Action("", (ToolCall(name, arguments),)))
        self._over, self._solved = step.terminated, step.success
        return "\n".join(str(message["content"]) for message in step.messages)


def row_of(task: Task) -> dict[str, str]:
    """The column that ``reset`` takes."""
    return {"task": json.dumps(asdict(task))}
