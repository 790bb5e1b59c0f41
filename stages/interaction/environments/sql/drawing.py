"""Random questions of each template."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from stages.interaction.environments.sql.lexicon import TEXT, Column, Table
from stages.interaction.environments.sql.questions import AGGREGATES, OPERATORS, ORDERS, Question
from stages.interaction.environments.sql.wordings import wordings
from stages.interaction.environments.sql.world import CHILD, CHILD_KEY, LABEL, PARENT, World


def draw(template: str, world: World, rng: random.Random) -> Question:
    """A random question of a template, not yet checked for shortcuts or an empty answer."""
    question = _DRAW[template](world, rng)
    return replace(question, text=rng.choice(wordings(question, world.domain)))


def texts(table: Table) -> list[Column]:
    """The columns that hold words."""
    return [c for c in table.columns if c.type == TEXT]


def numbers(table: Table) -> list[Column]:
    """The columns that hold numbers."""
    return [c for c in table.columns if c.type != TEXT]


def _value(world: World, role: str, concept: str, rng: random.Random) -> str:
    """A value that occurs in a column of a world."""
    table = world.names[role]
    index = [c for c, _ in world.tables[table]].index(world.names[concept])
    return str(rng.choice(world.rows[table])[index])


def _count_filter(world: World, rng: random.Random) -> Question:
    concept = rng.choice(texts(world.domain.child)).concept
    value = _value(world, CHILD, concept, rng)
    return Question("count_filter", "", function="COUNT", filter=concept, value=value)


def _count_compare(world: World, rng: random.Random) -> Question:
    column = rng.choice(numbers(world.domain.child))
    operator = OPERATORS[rng.choice(list(OPERATORS))]
    bound = rng.randint(column.low + 1, column.high - 1)
    return Question(
        "count_compare",
        "",
        function="COUNT",
        filter=column.concept,
        operator=operator,
        value=bound,
    )


def _aggregate(world: World, rng: random.Random) -> Question:
    child = world.domain.child
    word, measure = rng.choice(list(AGGREGATES)), rng.choice(numbers(child)).concept
    question = Question("aggregate", "", function=AGGREGATES[word], measure=measure)
    if rng.random() >= 0.5:
        return question
    concept = rng.choice(texts(child)).concept
    return replace(question, filter=concept, value=_value(world, CHILD, concept, rng))


def _lookup(world: World, rng: random.Random) -> Question:
    measure = rng.choice(texts(world.domain.parent)).concept
    label = _value(world, PARENT, LABEL, rng)
    return Question("lookup", "", measure=measure, filter=LABEL, value=label)


def _group(world: World, rng: random.Random) -> Question:
    measure = rng.choice(texts(world.domain.child)).concept
    return Question("group", "", measure=measure, order=ORDERS[rng.choice(list(ORDERS))])


def _join_count(world: World, rng: random.Random) -> Question:
    concept = rng.choice(texts(world.domain.parent)).concept
    value = _value(world, PARENT, concept, rng)
    return Question("join_count", "", function="COUNT", filter=concept, value=value)


def _join_aggregate(world: World, rng: random.Random) -> Question:
    word = rng.choice(list(AGGREGATES))
    measure = rng.choice(numbers(world.domain.child)).concept
    concept = rng.choice(texts(world.domain.parent)).concept
    return Question(
        "join_aggregate",
        "",
        function=AGGREGATES[word],
        measure=measure,
        filter=concept,
        value=_value(world, PARENT, concept, rng),
    )


def _two_step(world: World, rng: random.Random) -> Question:
    measure = rng.choice(texts(world.domain.parent)).concept
    # Within the range of parent keys, so that the shortcut finds a row and is silently wrong.
    key = rng.randint(1, len(world.rows[world.names[PARENT]]))
    return Question("two_step", "", measure=measure, filter=CHILD_KEY, value=key)


_DRAW: dict[str, Callable[[World, random.Random], Question]] = {
    "count_filter": _count_filter,
    "count_compare": _count_compare,
    "aggregate": _aggregate,
    "lookup": _lookup,
    "group": _group,
    "join_count": _join_count,
    "join_aggregate": _join_aggregate,
    "two_step": _two_step,
}
