"""The scripted reader: finds each document it needs, reads it, and puts the figures together."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stages.interaction.actions import format_call
from stages.interaction.environments.base import Task
from stages.interaction.environments.report.options import ReaderOptions
from stages.interaction.trajectory import Message


class Reader:
    """A policy ``(observations so far) -> action text`` for one episode."""

    def __init__(self, task: Task, habits: ReaderOptions, rng: random.Random) -> None:
        self._task = task
        self._figure = "Costs" if rng.random() < habits.wrong_figure else "Sales"
        self._twice = rng.random() < habits.redundant_search
        self._wanted = list(task.payload["needed"])
        if rng.random() < habits.stops_early:
            self._wanted.pop()
        self._texts: dict[str, str] = {}
        self._searched = False
        self._reading = ""

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action."""
        if self._reading:
            self._texts[self._reading] = str(observations[-1]["content"])
            self._reading = ""
        left = [name for name in self._wanted if name not in self._texts]
        if not left:
            return format_call("submit", {"answer": self._answer()})
        if not self._searched or self._twice:
            self._twice = self._twice and not self._searched
            self._searched = True
            return format_call("search", {"query": left[0].replace("_", " ")})
        self._searched, self._reading = False, left[0]
        return format_call("read", {"document": left[0]})

    def _answer(self) -> str:
        return answer_from(self._task.kind, self._texts, self._figure)


def answer_from(kind: str, texts: Mapping[str, str], figure: str) -> str:
    """What texts of documents say to a generated question."""
    figures = {name: _number(text, figure) for name, text in texts.items() if "Memo" not in text}
    values: list[Any] = list(figures.values())
    if not values:
        return "unknown"
    if kind == "highest":
        return max(figures, key=lambda name: figures[name]).rsplit("_", 1)[0]
    if kind == "change":
        return str(values[-1] - values[0])
    return str(sum(values))


def _number(text: str, figure: str) -> int:
    found = re.search(rf"{figure} were (-?\d+)", text)
    return int(found.group(1)) if found else 0


class Walkthrough:
    """Over a person's own folder: reads the documents that the question names, then answers."""

    def __init__(self, task: Task) -> None:
        self._actions = [
            format_call("read", {"document": name}) for name in task.payload["needed"]
        ] or [format_call("search", {"query": str(task.payload["text"])[:200]})]
        self._answer = str(task.payload["answer"])

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action."""
        return (
            self._actions.pop(0)
            if self._actions
            else format_call("submit", {"answer": self._answer})
        )
