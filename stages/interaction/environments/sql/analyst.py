"""The analyst's world: questions, four tools, a real SQLite database."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.environments.sql.database import (
    Database,
    QueryError,
    cells,
    result_text,
)
from stages.interaction.environments.sql.episode import Progress, add
from stages.interaction.environments.sql.expert import Expert
from stages.interaction.environments.sql.made_up import domain_of
from stages.interaction.environments.sql.options import GeneratedOptions
from stages.interaction.environments.sql.questions import Question
from stages.interaction.environments.sql.tasks import open_world, world_of
from stages.interaction.environments.sql.tools import TOOLS, problem
from stages.interaction.environments.sql.world import World, name_options
from stages.interaction.trajectory import Action, ChecklistItem, Message, ToolCall

Policy = Callable[[Sequence[Message]], str]

NO_CALL = 'error: no tool call found; reply with JSON like {"name": "list_tables", "arguments": {}}'


class Analyst:
    """What all environments over a generated database share: the episode, the expert.

    The rollout enforces ``max_turns``; the environment itself ends with the last answer.
    """

    expert_memory: int | None = None
    """Exchanges the expert looks back on; None: all."""

    def __init__(self, options: GeneratedOptions):
        self.options = options
        self.max_turns = options.max_turns
        self._database: Database | None = None
        self._questions: list[tuple[str, str]] = []
        self._unread = 0
        """Replies in a row without a readable call."""

    # ---- tasks and demonstrations

    def demonstrate(self, task: Task, seed: int) -> Policy:
        """The scripted expert for one episode, as imperfect as ``options.expert`` says."""
        world = self._world(task)
        asked = [Question(**row["spec"]) for row in task.payload["questions"]]
        rng = random.Random(f"expert/{task.id}/{seed}")
        options, habits = name_options(world.domain), self.options.expert
        return Expert(asked, options, world.names, habits, rng, self.expert_memory)

    def ask(self, task: Task, question: str) -> Task:
        """A person's own question over a task's database. No answer to it counts as right."""
        return _with_questions(task, [{"text": question, "sql": "SELECT NULL"}])

    def alter_gold(self, task: Task) -> Task:
        """The task with other right answers: nothing an actor sees may change (``env check``)."""
        rows = task.payload["questions"]
        return _with_questions(task, [{**row, "sql": "SELECT 987654321"} for row in rows])

    # ---- the episode

    def reset(self, task: Task) -> Reset:
        """Start an episode of a task."""
        return self.begin(self._world(task), question_rows(task))

    def begin(self, world: World, rows: Sequence[tuple[str, str]]) -> Reset:
        """Start an episode over any world, with (question, gold SQL) pairs."""
        limits = self.options
        database = open_world(world, time_limit_s=limits.time_limit_s, max_rows=limits.max_rows)
        return self._begin(database, rows)

    def step(self, action: Action) -> Step:
        """Carry out the calls of one action in order, up to an answer that ends the episode."""
        if self._database is None:
            raise RuntimeError("step() before reset()")
        if action.error is not None or not action.calls:
            text = f"error: {action.error}" if action.error else NO_CALL
            facts = {"invalid": False, "malformed": True}
            self._unread += 1
            return self._outcome([_message("tool", text)], {}, facts)
        self._unread = 0
        messages: list[Message] = []
        rewards: dict[str, float] = {}
        info: dict[str, Any] = {"invalid": False, "tool_error": None}
        for call in action.calls:
            if self._finished:
                break
            said, gained, error = self._carry_out(call)
            messages += said
            add(rewards, gained)
            info["tool"] = call.name
            info["tool_error"] = error or info["tool_error"]
            info["invalid"] = info["invalid"] or "invalid" in gained
        return self._outcome(messages, rewards, info)

    def close(self) -> None:
        """Close the database of the episode."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # ---- inside

    def _world(self, task: Task) -> World:
        domain = domain_of(task.payload["domain"])
        return world_of(domain, int(task.payload["world"]), self.options.rows)

    def _begin(self, database: Database, rows: Sequence[tuple[str, str]]) -> Reset:
        self.close()
        self._database = database
        self._questions = list(rows)
        self._asked = 0
        self._answered: list[bool] = []
        self._listed = self._described = self._finished = False
        self._unread = 0
        self._paid: set[str] = set()
        self._progress = self._take_up(0)
        question = self._questions[0][0]
        return Reset(
            messages=(_message("user", question),),
            tools=TOOLS,
            goal=question,
            checklist=self._checklist(),
            privileged=self._facts(),
        )

    def _facts(self) -> dict[str, Any]:
        return self._progress.facts

    def _take_up(self, index: int) -> Progress:
        """Work out the gold answer of a question; what was paid for before stays paid for."""
        assert self._database is not None
        gold_sql = self._questions[index][1]
        gold = self._database.run(gold_sql)
        return Progress(gold_sql, tuple(cells(gold.rows)), gold.tables, done=set(self._paid))

    def _carry_out(self, call: ToolCall) -> tuple[list[Message], dict[str, float], str | None]:
        wrong = problem(call)
        if wrong is not None:
            return [_message("tool", f"error: {wrong}", call.name)], {"invalid": 1.0}, None
        argument = next(iter(call.arguments.values()), None)
        if call.name == "answer":
            return self._answer(argument)
        try:
            text, rewards = self._use(call.name, argument)
        except QueryError as error:
            # Who keeps the database busy pays for it, or waiting would be free.
            cost = {"invalid": 1.0} if error.timed_out else {}
            return [_message("tool", f"error: {error}", call.name)], cost, str(error)
        return [_message("tool", text, call.name)], rewards, None

    def _use(self, tool: str, argument: Any) -> tuple[str, dict[str, float]]:
        assert self._database is not None
        schema = self._database.schema
        if tool == "list_tables":
            self._listed = True
            return ", ".join(schema) or "no tables", self._progress.listed()
        if tool == "describe":
            table = self._database.table(argument)
            if table is None:
                raise QueryError(f"no such table: {argument[:60]}")
            self._described = True
            columns = ", ".join(f"{c} {t}".strip() for c, t in schema[table])
            return columns, self._progress.described(table)
        result = self._database.run(argument)
        return result_text(result, self.options.max_bytes), self._progress.queried(result)

    def _answer(self, value: Any) -> tuple[list[Message], dict[str, float], str | None]:
        rewards = self._progress.answered(value)
        self._answered.append(rewards["success"] == 1.0)
        messages = [_message("tool", "answer received", "answer")]
        self._asked += 1
        self._finished = self._asked >= len(self._questions)
        # Success is the whole episode's: with follow-ups it pays once, for all answers right.
        rewards["success"] = float(self._finished and all(self._answered))
        if not self._finished:
            kept = {s for s in self._progress.done if s == "list" or s.startswith("describe ")}
            self._paid |= kept
            self._progress = self._take_up(self._asked)
            messages.append(_message("user", self._questions[self._asked][0]))
        return messages, rewards, None

    def _checklist(self) -> tuple[ChecklistItem, ...]:
        shared = [("tables", self._listed), ("columns", self._described)]
        result = ("result", self._progress.has_result)
        if len(self._questions) == 1:
            return (*shared, result, ("answer", self._finished))
        asked = min(self._asked + 1, len(self._questions))
        answers = [(f"answer {k + 1}", k < self._asked) for k in range(asked)]
        return (*shared, result, *answers)

    def _outcome(
        self, messages: list[Message], rewards: Mapping[str, float], info: Mapping[str, Any]
    ) -> Step:
        return Step(
            messages=tuple(messages),
            rewards=rewards,
            terminated=self._finished or self._unread == self.options.malformed_limit,
            success=self._finished and all(self._answered),
            checklist=self._checklist(),
            privileged=self._facts(),
            info=info,
        )


def question_rows(task: Task) -> list[tuple[str, str]]:
    """(question, gold SQL) pairs of a task."""
    return [(str(row["text"]), str(row["sql"])) for row in task.payload["questions"]]


def _with_questions(task: Task, rows: Sequence[Mapping[str, Any]]) -> Task:
    return replace(task, payload={**task.payload, "questions": list(rows)})


def _message(role: str, content: str, tool: str | None = None) -> Message:
    named = {"name": tool} if tool else {}
    return {"role": role, **named, "content": content}
