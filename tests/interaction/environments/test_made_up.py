"""Mixed and invented databases: for training only, and none of the test's words."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from stages.interaction.arena import Arena
from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import ExpertOptions, SqlEnvironment, SqlOptions
from stages.interaction.environments.sql.lexicon import BY_NAME, DOMAINS, Domain
from stages.interaction.environments.sql.made_up import MIXED, domain_of, mixed_name
from stages.interaction.environments.sql.options import UNSEEN_DOMAINS
from stages.interaction.environments.sql.tasks import world_of
from stages.interaction.environments.sql.vocabulary import (
    INVENTED,
    NUMBERS,
    TEXTS,
    THINGS,
    invented_name,
)
from stages.interaction.environments.sql.world import name_options
from stages.recipe.rewards import RewardsSection
from stages.recipe.state import StateSection

KNOWN = [name for name in BY_NAME if name not in UNSEEN_DOMAINS]


SHARES = ("mixed_domains", "invented_domains")


def drawn(split: str, count: int, **options: Any) -> list[Task]:
    return SqlEnvironment(SqlOptions(**options)).tasks(split, count, seed=4)


def test_the_training_tasks_are_made_up_in_the_shares_asked_for() -> None:
    tasks = drawn("train", 400, mixed_domains=0.5, invented_domains=0.3)
    groups = Counter(task.group for task in tasks)
    assert 0.4 < groups[MIXED] / len(tasks) < 0.6
    assert 0.2 < groups[INVENTED] / len(tasks) < 0.4
    assert set(groups) - {MIXED, INVENTED} <= set(KNOWN)
    for name, share in ((MIXED, "mixed_domains"), (INVENTED, "invented_domains")):
        assert {task.group for task in drawn("train", 20, **{share: 1.0})} == {name}
    assert {task.group for task in drawn("train", 50)} <= set(KNOWN)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("share", SHARES)
def test_what_is_held_out_stays_as_it_is(split: str, share: str) -> None:
    assert drawn(split, 40, **{share: 1.0}) == drawn(split, 40)


def test_shares_of_more_than_everything_are_refused() -> None:
    with pytest.raises(ValueError, match=r"together at most 1, given 1\.2"):
        SqlOptions(mixed_domains=0.7, invented_domains=0.5)


def test_its_name_says_what_a_domain_is_put_together_from() -> None:
    orders_of_doctors = domain_of("shop+clinic+farm+music")
    assert orders_of_doctors.child.plural == "orders"
    assert [c.concept for c in orders_of_doctors.child.columns][:2] == ["species", "color"]
    assert orders_of_doctors.parent.word == "doctor"
    assert [c.concept for c in orders_of_doctors.parent.columns] == ["country", "instrument"]
    assert domain_of("shop") is BY_NAME["shop"]


@pytest.mark.parametrize("drawn_name", [partial(mixed_name, tuple(BY_NAME)), invented_name])
def test_names_in_a_made_up_database_are_distinct(
    drawn_name: Callable[[random.Random], str],
) -> None:
    rng = random.Random(0)
    for _ in range(400):
        domain = domain_of(drawn_name(rng))
        names = [name for options in name_options(domain).values() for name in options]
        assert len(names) == len(set(names))
        concepts = [c.concept for t in (domain.child, domain.parent) for c in t.columns]
        assert len(concepts) == len(set(concepts))


def test_no_word_of_an_unseen_domain_occurs() -> None:
    unseen = {n for d in UNSEEN_DOMAINS for n in BY_NAME[d].child.names + BY_NAME[d].parent.names}
    known = {n for d in KNOWN for n in BY_NAME[d].child.names + BY_NAME[d].parent.names}
    for task in drawn("train", 60, mixed_domains=1.0):
        parts = task.payload["domain"].split("+")
        assert len(parts) == 4 and set(parts) <= set(KNOWN)
        world = world_of(domain_of(task.payload["domain"]), task.payload["world"], (20, 40))
        assert not set(world.tables) & (unseen - known)


@pytest.mark.parametrize(("share", "group"), [*zip(SHARES, (MIXED, INVENTED), strict=True)])
def test_the_expert_solves_tasks_read_back_from_json(share: str, group: str) -> None:
    options = SqlOptions(**{share: 1.0}, expert=ExpertOptions.clean())
    tasks = SqlEnvironment(options).tasks("train", 32, seed=2)
    read = [replace(task, payload=json.loads(json.dumps(task.payload))) for task in tasks]
    arena = Arena.of(options, StateSection(), RewardsSection())
    episodes = arena.demonstrate(read, seed=0, count_tokens=len)
    assert all(episode.success and episode.group == group for episode in episodes)


def said_of(domain: Domain) -> set[str]:
    """Every word of a domain: of its questions, its schema and its values."""
    words: set[str] = set()
    for table in (domain.child, domain.parent, domain.extra):
        words |= {table.word, table.plural, *table.names}
        for column in table.columns:
            words |= {column.concept, *column.names, *(value.lower() for value in column.values)}
    return words


def test_no_invented_word_is_one_of_a_domain() -> None:
    """So any domain may be held out."""
    known = set().union(*map(said_of, DOMAINS))
    rng = random.Random(0)
    for _ in range(400):
        assert not said_of(domain_of(invented_name(rng))) & known


def test_invented_names_are_distinct_and_can_be_written_without_quotes() -> None:
    columns = [name for column in (*TEXTS, *NUMBERS) for name in column.names]
    tables = [name for thing in THINGS for name in {thing.word, thing.plural, *thing.names}]
    assert len(set(columns + tables)) == len(columns + tables)
    connection = sqlite3.connect(":memory:")
    for name in columns + tables:
        connection.execute(f"CREATE TABLE {name} ({name} TEXT)")
        connection.execute(f"SELECT {name}.{name} FROM {name} GROUP BY {name}")
    connection.close()


def test_an_invented_domain_is_always_the_same() -> None:
    names = [invented_name(random.Random(seed)) for seed in (0, 0, 1)]
    assert domain_of(names[0]) == domain_of(names[1]) != domain_of(names[2])
