"""Generated tasks: deterministic, deduplicated, and disjoint between the splits.

A (schema with rows, question) pair belongs to the split its hash says, so no two splits can
share one, whatever seeds they are drawn with.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.environments.base import SPLITS, Task
from stages.interaction.environments.sql import judge, questions
from stages.interaction.environments.sql.database import Cell, Database, QueryError, cells
from stages.interaction.environments.sql.drawing import draw
from stages.interaction.environments.sql.lexicon import BY_NAME, Domain
from stages.interaction.environments.sql.made_up import domain_of, mixed_name
from stages.interaction.environments.sql.options import GeneratedOptions, SqlOptions
from stages.interaction.environments.sql.questions import Question
from stages.interaction.environments.sql.vocabulary import invented_name
from stages.interaction.environments.sql.world import World, fill, make_world

DRAWS_PER_QUESTION = 40
_FEWEST_COUNTED = 2


def split_of(schema: str, question: str) -> str:
    """The split of a (schema, question) pair: 80 % train, 10 % validation, 10 % test."""
    digest = hashlib.sha256(f"{schema}\n{question}".encode()).digest()
    bucket = digest[0] * 256 + digest[1]
    return "train" if bucket < 52429 else "validation" if bucket < 58982 else "test"


def open_world(world: World, *, time_limit_s: float = 1.0, max_rows: int = 20) -> Database:
    """The database of a world, in memory."""
    import sqlite3

    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    fill(connection, world)
    return Database(connection, time_limit_s=time_limit_s, max_rows=max_rows)


def is_fair(question: Question, world: World, database: Database) -> bool:
    """Whether the answer is unique and not empty, and no shortcut finds it."""
    gold = values(database, questions.sql(question, world.names))
    if len(gold) != 1 or gold[0] is None or _is_tie(question, world, database):
        return False
    if question.function == "COUNT" and int(gold[0]) < _FEWEST_COUNTED:
        return False
    wrong = (values(database, s) for s in questions.shortcuts(question, world.names))
    return not any(len(w) == 1 and judge.near(w[0], gold[0]) for w in wrong)


def values(database: Database, statement: str) -> list[Cell]:
    """All values a statement returns; none if it fails."""
    try:
        return cells(database.run(statement).rows)
    except QueryError:
        return []


def _is_tie(question: Question, world: World, database: Database) -> bool:
    if question.template != "group":
        return False
    statement = questions.sql(question, world.names).replace("LIMIT 1", "LIMIT 2")
    first = statement.split(" ", 2)[1]
    counts = values(database, statement.replace(f"SELECT {first}", "SELECT COUNT(*)", 1))
    return len(counts) < 2 or counts[0] == counts[1]


def pose(
    template: str, world: World, database: Database, split: str, rng: random.Random
) -> Question | None:
    """A fair question of a template and a split over a world, or None if none was found."""
    for _ in range(DRAWS_PER_QUESTION):
        question = draw(template, world, rng)
        # The hash first: it is cheap, and a test question is one of ten.
        if split_of(world.fingerprint, question.text) == split and is_fair(
            question, world, database
        ):
            return question
    return None


Posing = Callable[[str, World, Database, str, random.Random], list[Question] | None]
"""(first template, world, database, split, rng) -> the questions of a task, None if none fit."""


def independent(options: SqlOptions) -> Posing:
    """A first question and ``follow_ups`` further ones of any template."""

    def posed(
        template: str, world: World, database: Database, split: str, rng: random.Random
    ) -> list[Question] | None:
        templates = [template, *rng.choices(options.templates, k=options.follow_ups)]
        asked = [pose(t, world, database, split, rng) for t in templates]
        return None if None in asked else [q for q in asked if q is not None]

    return posed


def generate(
    options: GeneratedOptions, posing: Posing, split: str, count: int, seed: int
) -> list[Task]:
    """``count`` distinct tasks of a split, their questions posed by ``posing``."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    tasks: list[Task] = []
    seen: set[str] = set()
    for task in _stream(options, posing, split, seed):
        if len(tasks) >= count:
            break
        if task.id not in seen:
            seen.add(task.id)
            tasks.append(task)
    return tasks


def _stream(options: GeneratedOptions, posing: Posing, split: str, seed: int) -> Iterator[Task]:
    """Tasks without end: templates and domains in turn, so that small samples are balanced."""
    rng = random.Random(f"tasks/{split}/{seed}")
    seen_domains, unseen = _domains(options)
    n = 0
    while True:
        template = options.templates[n % len(options.templates)]
        cycle = n // len(options.templates)
        domains = unseen if split == "test" and unseen and cycle % 2 else seen_domains
        domain = rng.choice(domains)
        if split == "train":
            domain = _made_up(options, domains, rng) or domain
        world = domain, rng.getrandbits(40)
        task = _draw(partial(posing, template), world, options.rows, split, rng)
        if task is not None:
            n += 1
            yield task


def _made_up(options: GeneratedOptions, domains: Sequence[str], rng: random.Random) -> str | None:
    """The name of a training task's mixed or invented domain, None for one of ``domains``."""
    mixed, invented = options.mixed_domains, options.invented_domains
    # Drawn for only where it matters, so that other tasks are those of their seed.
    drawn = rng.random() if mixed or invented else 1.0
    if drawn < mixed:
        return mixed_name(domains, rng)
    return invented_name(rng) if drawn < mixed + invented else None


def _domains(options: GeneratedOptions) -> tuple[list[str], list[str]]:
    unseen = list(options.unseen_domains)
    seen = list(options.domains or [name for name in BY_NAME if name not in unseen])
    for name in (*seen, *unseen):
        if name not in BY_NAME:
            raise UsageError(f"unknown domain {name!r}; the domains are {', '.join(BY_NAME)}")
    both = sorted(set(seen) & set(unseen))
    if both or not seen:
        raise UsageError(f"domains and unseen_domains must not share {both} nor leave none")
    return seen, unseen


def _draw(
    posing: Callable[[World, Database, str, random.Random], list[Question] | None],
    drawn: tuple[str, int],
    rows: tuple[int, int],
    split: str,
    rng: random.Random,
) -> Task | None:
    domain, seed = drawn
    world = world_of(domain_of(domain), seed, rows)
    database = open_world(world)
    try:
        asked = posing(world, database, split, rng)
    finally:
        database.close()
    if asked is None or len({q.text for q in asked}) < len(asked):
        return None
    return task_over(world, drawn, [row_of(question, question.text, world) for question in asked])


def row_of(question: Question, text: str, world: World) -> dict[str, Any]:
    """One question of a task's payload, put into words as ``text``."""
    spec = replace(question, text=text).to_json()
    return {"text": text, "sql": questions.sql(question, world.names), "spec": spec}


def task_over(world: World, drawn: tuple[str, int], rows: Sequence[Mapping[str, Any]]) -> Task:
    """The task that asks these questions over the world of a domain's name and a seed."""
    name, seed = drawn
    domain = world.domain.name
    digest = hashlib.sha256(repr((world.fingerprint, [row["text"] for row in rows])).encode())
    payload = {"world": seed, "domain": name, "questions": list(rows)}
    kind = str(rows[0]["spec"]["template"])
    return Task(f"{domain}-{digest.hexdigest()[:12]}", kind, domain, payload)


@lru_cache(maxsize=64)
def world_of(domain: Domain, seed: int, rows: tuple[int, int]) -> World:
    """``make_world``, remembered: the same task is often reset many times in a row."""
    return make_world(domain, seed, rows)
