"""The scripted analyst: acts on what it sees, with systematic mistakes on demand."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Slip
from stages.interaction.environments.sql import questions
from stages.interaction.environments.sql.options import MISTAKES, ExpertOptions
from stages.interaction.environments.sql.questions import Question
from stages.interaction.environments.sql.slips import miswritten, unreadable
from stages.interaction.environments.sql.world import CHILD, PARENT
from stages.interaction.trajectory import Message

_ARGUMENT = {"describe": "table", "query": "sql", "answer": "value"}


def call_text(name: str, **arguments: Any) -> str:
    """An assistant turn in canonical form: one JSON call."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


LOOKS_AGAIN = 0.5
"""How often the expert, before it puts a slip right, lists or describes once more. Who only sees
calls put right at once, learns to copy its last one, wrong word and all."""


class Expert:
    """A policy ``(observations so far) -> action text`` for one episode.

    It knows the usual names of each concept and finds the ones in use by listing and
    describing; every decision, recovery included, follows from the newest observation.
    ``actual`` (the true names) serves only to choose names that do not exist, so that a
    guess fails and the recovery can be seen. With a ``memory`` it looks back on that many
    exchanges only and describes again what it no longer sees, so that all it does follows from
    a window of as many.
    """

    def __init__(
        self,
        asked: Sequence[Question],
        options: Mapping[str, tuple[str, ...]],
        actual: Mapping[str, str],
        habits: ExpertOptions,
        rng: random.Random,
        memory: int | None = None,
    ):
        self._asked = list(asked)
        self._options = options
        self._actual = actual
        self._habits = habits
        self._rng = rng
        self._memory = memory
        self._tables: list[str] = []
        self._columns: dict[str, tuple[int, list[str]]] = {}
        """Table -> (turn in which it was last described, its columns)."""
        self._last: tuple[str, str] = ("", "")
        self._answered = ""
        self._index = -1
        self._turn = -1
        self._repeat_at = -1
        self._slipped = False
        self._look_again = False

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action; ``observations`` are the environment's messages, newest last."""
        newest = observations[-1]
        self._turn += 1
        if newest["role"] == "user":
            self._begin()
        else:
            self._observe(_visible(str(newest["content"])))
        if self._repeat_at == 0 and self._last[0] in ("list_tables", "describe", "query"):
            self._repeat_at = -1
            return self._emit(*self._last)
        self._repeat_at -= 1
        return self._emit(*self._next())

    def _begin(self) -> None:
        """Take up the next question and decide which mistakes will be made in it."""
        self._index = min(self._index + 1, len(self._asked) - 1)
        question = self._asked[self._index]
        if question.chained:
            question = replace(question, value=questions.value_of(self._answered))
        self._question = mistaken(question, self._habits, self._rng)
        two = question.template == "two_step"
        self._skip = two and self._happens(self._habits.skipped_step)
        self._guess_table = not self._tables and self._happens(self._habits.guessed_table)
        self._guess_column = self._happens(self._habits.guessed_column)
        repeats = self._happens(self._habits.redundant_call)
        self._repeat_at = self._rng.randint(1, 3) if repeats else -1
        if question.chained:
            self._keep_in_sight(question)
        self._key, self._result = "", ""

    def _keep_in_sight(self, question: Question) -> None:
        """Few detours, so that the answer before is among the last three exchanges when used."""
        if self._guess_column or len(question.roles) == 2:
            self._repeat_at = -1
        self._guess_column = self._guess_column and len(question.roles) == 1

    def _happens(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _observe(self, text: str) -> None:
        """Learn from the newest observation, in the light of the call that caused it."""
        tool, argument = self._last
        if self._slipped:
            self._slipped = False
            self._look_again = self._happens(LOOKS_AGAIN)
            return
        if text.startswith("error"):
            return
        if tool == "list_tables":
            self._tables = text.split(", ")
        elif tool == "describe":
            columns = [part.split(" ")[0] for part in text.split(", ")]
            self._columns[argument] = (self._turn - 1, columns)
        elif tool == "query" and self._question.template == "two_step" and not self._key:
            if self._skip or text == "no rows":
                self._result = text
            self._key = text
        elif tool == "query":
            self._result = text

    def _seen(self) -> dict[str, list[str]]:
        """Columns by table, of the tables whose description the expert still looks back on."""
        oldest = 0 if self._memory is None else self._turn - self._memory
        return {table: names for table, (turn, names) in self._columns.items() if turn >= oldest}

    def _names(self) -> dict[str, str]:
        """Role or concept -> the name in use, as far as it can be seen."""
        columns = [name for names in self._seen().values() for name in names]
        found = {}
        for concept, options in self._options.items():
            candidates = self._tables if concept in (CHILD, PARENT) else columns
            name = next((name for name in options if name in candidates), None)
            if name is not None:
                found[concept] = name
        return found

    def _next(self) -> tuple[str, str]:
        question = self._question
        if self._look_again:
            self._look_again = False
            described = list(self._seen())
            if self._last[0] == "query" and described:
                return "describe", described[-1]
            return "list_tables", ""
        if self._result:
            return "answer", self._result
        if self._guess_table:
            self._guess_table = False
            return "describe", self._wrong_name(question.roles[0])
        if not self._tables:
            return "list_tables", ""
        names = self._names()
        needed = (PARENT,) if self._key else question.roles
        missing = [names[role] for role in needed if names[role] not in self._seen()]
        if missing and self._guess_column:
            self._guess_column = False
            return "query", self._statement(self._guessed(names))
        if missing:
            return "describe", missing[0]
        return "query", self._statement(names)

    def _statement(self, names: Mapping[str, str]) -> str:
        question = self._question
        if question.template != "two_step":
            return questions.sql(question, names)
        if self._skip:
            return questions.second_step(question, names, questions.literal(question.value))
        if not self._key:
            return questions.first_step(question, names)
        return questions.second_step(question, names, self._key)

    def _guessed(self, names: Mapping[str, str]) -> dict[str, str]:
        """Known names, and a wrong one for every column that is not known yet."""
        guessed = {c: self._wrong_name(c) for c in self._options if c not in names}
        return {**guessed, **names}

    def _wrong_name(self, concept: str) -> str:
        wrong = [n for n in self._options[concept] if n != self._actual[concept]]
        return self._rng.choice(wrong or [self._options[concept][0] + "_x"])

    def _emit(self, tool: str, argument: str) -> str:
        self._last = (tool, argument)
        if tool == "answer":
            self._answered = argument
        if tool == "list_tables":
            return call_text(tool)
        name = _ARGUMENT[tool]
        call = call_text(tool, **{name: argument})
        # Drawn for only where asked for, so that other recipes' demonstrations stay as they were.
        rate = self._habits.slip if tool != "answer" else 0.0
        self._slipped = rate > 0 and self._happens(rate)
        if not self._slipped:
            return call
        if broken := unreadable(call, self._rng):
            return Slip(broken)
        wrong = miswritten(argument, self._in_sight(), self._rng, self._synonyms())
        return Slip(call_text(tool, **{name: wrong}))

    def _in_sight(self) -> list[str]:
        return [*self._tables, *(name for names in self._seen().values() for name in names)]

    def _synonyms(self) -> dict[str, list[str]]:
        """Name in use -> the other names that its role or concept could have had."""
        return {
            actual: [name for name in self._options[concept] if name != actual]
            for concept, actual in self._actual.items()
            if concept in self._options
        }


def mistaken(question: Question, habits: ExpertOptions, rng: random.Random) -> Question:
    """The question as a careless analyst understands it: the same mistake every time."""
    draws = {name: rng.random() < getattr(habits, name) for name in MISTAKES}
    joined = question.template.startswith("join")
    if draws["wrong_aggregate"] and question.function in ("MAX", "MIN"):
        question = replace(question, function="SUM")
    if draws["dropped_join_filter"] and joined:
        question = replace(question, filter="", operator="=", value="")
    if draws["dropped_filter"] and question.template in ("count_filter", "aggregate"):
        question = replace(question, filter="", operator="=", value="")
    if draws["wrong_operator"] and question.operator == ">":
        question = replace(question, operator="<")
    if draws["wrong_order"] and question.order == "ASC":
        question = replace(question, order="DESC")
    return question


def _visible(text: str) -> str:
    """An observation without the checklist a state may have put under it."""
    lines = text.split("\n")
    while len(lines) > 1 and lines[-1][:4] in ("[x] ", "[ ] "):
        lines.pop()
    return "\n".join(lines)
