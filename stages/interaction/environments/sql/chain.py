"""Chained questions: each is about the true answer to the one before, which it only refers to.

Which status has the most orders?                           -> open
What is the average price of orders with that status?       -> 54.25
How many orders have price over that?                       -> 13
What is the city of the customer of the order with that id? -> Rome
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from stages.interaction.environments.sql import questions
from stages.interaction.environments.sql.database import Cell, Database, cell_text
from stages.interaction.environments.sql.drawing import draw
from stages.interaction.environments.sql.questions import OPERATORS, Question
from stages.interaction.environments.sql.tasks import (
    DRAWS_PER_QUESTION,
    Posing,
    is_fair,
    pose,
    values,
)
from stages.interaction.environments.sql.world import World

_COUNTS = ("count_filter", "count_compare", "join_count")
FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "group": ("count_filter", "aggregate"),
    "lookup": ("join_count", "join_aggregate"),
    "two_step": ("join_count", "join_aggregate"),
    "aggregate": ("count_compare",),
    "join_aggregate": ("count_compare",),
    **dict.fromkeys(_COUNTS, ("two_step",)),
}
"""Template of a question -> templates that can be about its answer: a value of a column may be
filtered by, a number of a column compared with, a count taken as an id."""


def chained(length: int) -> Posing:
    """``length`` questions, of which the first decides the split and the others follow on."""

    def posed(
        template: str, world: World, database: Database, split: str, rng: random.Random
    ) -> list[Question] | None:
        first = pose(template, world, database, split, rng)
        asked = [] if first is None else [first]
        while 0 < len(asked) < length:
            following = _following(asked[-1], world, database, rng)
            if following is None:
                return None
            asked.append(following)
        return asked or None

    return posed


def _following(
    previous: Question, world: World, database: Database, rng: random.Random
) -> Question | None:
    """A fair question about the answer to ``previous``, or None if none was found."""
    exact = values(database, questions.sql(previous, world.names))[0]
    for _ in range(DRAWS_PER_QUESTION):
        drawn = draw(rng.choice(FOLLOWERS[previous.template]), world, rng)
        question = refer(drawn, previous, questions.value_of(cell_text(exact)), world)
        if question is None or not is_fair(question, world, database):
            continue
        if _is_exact(question, exact, world, database):
            return question
    return None


def refer(
    drawn: Question, previous: Question, answer: str | int | float, world: World
) -> Question | None:
    """``drawn`` with the answer to ``previous`` for its value; None if that makes no sense."""
    said, column = str(drawn.value), drawn.filter
    if drawn.template == "two_step":
        word = world.domain.child.word
        said, refers = f"{word} {said}", f"the {word} with that id"
    elif drawn.template == "count_compare":
        column = previous.measure
        if previous.function == "SUM":
            return None
        word = next(w for w, operator in OPERATORS.items() if operator == drawn.operator)
        said, refers = f"{drawn.filter} {word} {said}", f"{column} {word} that"
    elif drawn.filter:
        column = previous.measure
        said, refers = f"{drawn.filter} {said}", f"that {column}"
    else:
        return None
    text = drawn.text.replace(said, refers)
    return replace(drawn, text=text, filter=column, value=answer, chained=True)


def _is_exact(question: Question, exact: Cell, world: World, database: Database) -> bool:
    """Whether rounding the answer before, as it was shown, changes nothing."""
    assert exact is not None
    told, meant = question, replace(question, value=exact)
    same = (values(database, questions.sql(q, world.names)) for q in (told, meant))
    return next(same) == next(same)
