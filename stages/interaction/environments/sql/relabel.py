"""Hindsight: the questions that an episode's statements do answer.

A statement answers a question if it is that question's own statement, however it is spelt (or if
two of them are its two steps). The same result is not enough: a shortcut that is right by luck
would be shown as the way to go.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import judge, questions
from stages.interaction.environments.sql.database import Database
from stages.interaction.environments.sql.drawing import numbers, texts
from stages.interaction.environments.sql.lexicon import Column
from stages.interaction.environments.sql.questions import AGGREGATES, OPERATORS, ORDERS, Question
from stages.interaction.environments.sql.tasks import is_fair, row_of, split_of, task_over, values
from stages.interaction.environments.sql.tools import problem
from stages.interaction.environments.sql.wordings import wordings
from stages.interaction.environments.sql.world import CHILD_KEY, LABEL, World
from stages.interaction.trajectory import Trajectory

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[A-Za-z_]\w*|\d+(?:\.\d+)?|[<>!]=|<>|\S")


@dataclass(frozen=True)
class Answered:
    """What was done about one question: the statements, in order, and the answer."""

    statements: tuple[str, ...]
    answer: Any


def answered(trajectory: Trajectory) -> list[Answered]:
    """What was done about each question that was answered."""
    found: list[Answered] = []
    statements: list[str] = []
    for call in (call for turn in trajectory.turns for call in turn.action.calls):
        if problem(call) is not None:
            continue
        if call.name == "query":
            statements.append(call.arguments["sql"])
        elif call.name == "answer":
            found.append(Answered(tuple(statements), call.arguments["value"]))
            statements = []
    return found


def relabelled(
    task: Task,
    trajectory: Trajectory,
    *,
    world: World,
    database: Database,
    templates: Sequence[str],
) -> Task | None:
    """The task with every wrongly answered question replaced by one that the answer is right for.

    A training task, whatever the other was. None if there is none, or if nothing was wrong.
    """
    rows, done = task.payload["questions"], answered(trajectory)
    if len(done) != len(rows):
        return None
    rng = random.Random(f"relabel/{task.id}/{trajectory.key}")
    asked: list[Mapping[str, Any]] = []
    for row, work in zip(rows, done, strict=True):
        if judge.same(work.answer, values(database, row["sql"])):
            asked.append(row)
            continue
        candidates = asked_by(work, world, database)
        fitting = (question for question in candidates if question.template in templates)
        texts_of = ((q, _training_texts(q, world)) for q in fitting)
        question, said = next(((q, said) for q, said in texts_of if said), (None, []))
        if question is None:
            return None
        asked.append(row_of(question, rng.choice(said), world))
    if asked == list(rows) or len({row["text"] for row in asked}) < len(asked):
        return None
    return task_over(world, (task.payload["domain"], int(task.payload["world"])), asked)


def own_relabelled(
    tasks: Iterable[Task], task: Task, trajectory: Trajectory, database: Database
) -> Task | None:
    """Of a person's own tasks, another one whose statement was run and whose answer was given."""
    done = answered(trajectory)
    if len(done) != 1:
        return None
    run = {normal(statement) for statement in done[0].statements}
    for other in (other for other in tasks if other.id != task.id):
        (row,) = other.payload["questions"]
        if normal(row["sql"]) in run and judge.same(done[0].answer, values(database, row["sql"])):
            return other
    return None


def asked_by(work: Answered, world: World, database: Database) -> Iterator[Question]:
    """The fair questions, without texts, that some work answers; by later statements first."""
    for last in reversed(range(len(work.statements))):
        statements = work.statements[: last + 1]
        for question in _readings(statements, world):
            if (
                _is_statement_of(question, statements, world, database)
                and is_fair(question, world, database)
                and judge.same(work.answer, values(database, questions.sql(question, world.names)))
            ):
                yield question


def normal(statement: str) -> tuple[str, ...]:
    """A statement's tokens, in which spelling and spaces make no difference."""
    tokens = [t if t[0] in "'\"" else t.lower() for t in _TOKEN.findall(statement)]
    return tuple(tokens[:-1] if tokens[-1:] == [";"] else tokens)


def _is_statement_of(
    question: Question, statements: Sequence[str], world: World, database: Database
) -> bool:
    *earlier, last = map(normal, statements)
    if last == normal(questions.sql(question, world.names)):
        return True
    if question.template != "two_step":
        return False
    first = questions.first_step(question, world.names)
    keys = values(database, first)
    second = [questions.second_step(question, world.names, str(key)) for key in keys[:1]]
    return normal(first) in earlier and [last] == [normal(step) for step in second]


def _readings(statements: Sequence[str], world: World) -> Iterator[Question]:
    """Whatever question is made of the names, functions and values that the statements hold."""
    said = {token for statement in statements for token in normal(statement)}

    def named(columns: Sequence[Column]) -> list[str]:
        return [c.concept for c in columns if world.names[c.concept].lower() in said]

    child, parent = world.domain.child, world.domain.parent
    kinds, sizes, facts = named(texts(child)), named(numbers(child)), named(texts(parent))
    functions = [f for f in AGGREGATES.values() if f.lower() in said]
    for function, size in product(functions, sizes):
        yield Question("aggregate", "", function=function, measure=size)
    for kind, order in product(kinds, ORDERS.values()):
        yield Question("group", "", measure=kind, order=order)
    for text in sorted(token[1:-1].replace("''", "'") for token in said if token[0] == "'"):
        for kind in kinds:
            yield Question("count_filter", "", function="COUNT", filter=kind, value=text)
            for function, size in product(functions, sizes):
                yield Question("aggregate", "", function, size, filter=kind, value=text)
        for fact in facts:
            yield Question("lookup", "", measure=fact, filter=LABEL, value=text)
            yield Question("join_count", "", function="COUNT", filter=fact, value=text)
            for function, size in product(functions, sizes):
                yield Question("join_aggregate", "", function, size, filter=fact, value=text)
    for number in sorted(int(token) for token in said if token.isdecimal()):
        for size, sign in product(sizes, OPERATORS.values()):
            yield Question("count_compare", "", "COUNT", "", size, sign, number)
        for fact in facts:
            yield Question("two_step", "", measure=fact, filter=CHILD_KEY, value=number)


def _training_texts(question: Question, world: World) -> list[str]:
    """The wordings that belong to the training split: a held-out question is never trained on."""
    said = wordings(question, world.domain)
    return [text for text in said if split_of(world.fingerprint, text) == "train"]
