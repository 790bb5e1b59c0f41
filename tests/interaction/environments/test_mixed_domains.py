"""Databases put together from several domains: for training only, and none of the test's words."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from stages.interaction.arena import Arena
from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import ExpertOptions, SqlEnvironment, SqlOptions
from stages.interaction.environments.sql.lexicon import (
    BY_NAME,
    DOMAINS,
    MIXED,
    domain_of,
    mixed_name,
)
from stages.interaction.environments.sql.options import UNSEEN_DOMAINS
from stages.interaction.environments.sql.tasks import world_of
from stages.interaction.environments.sql.world import name_options
from stages.recipe.rewards import RewardsSection
from stages.recipe.state import StateSection

KNOWN = [name for name in BY_NAME if name not in UNSEEN_DOMAINS]


def drawn(split: str, count: int, **options: Any) -> list[Task]:
    return SqlEnvironment(SqlOptions(**options)).tasks(split, count, seed=4)


def test_a_share_of_the_training_tasks_is_mixed() -> None:
    tasks = drawn("train", 200, mixed_domains=0.5)
    share = sum(task.group == MIXED for task in tasks) / len(tasks)
    assert 0.4 < share < 0.6
    assert all(task.group == MIXED for task in drawn("train", 20, mixed_domains=1.0))
    assert not any(task.group == MIXED for task in drawn("train", 50))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_is_held_out_stays_as_it_is(split: str) -> None:
    assert drawn(split, 40, mixed_domains=1.0) == drawn(split, 40)


def test_its_name_says_what_a_domain_is_put_together_from() -> None:
    orders_of_doctors = domain_of("shop+clinic+farm+music")
    assert orders_of_doctors.child.plural == "orders"
    assert [c.concept for c in orders_of_doctors.child.columns][:2] == ["species", "color"]
    assert orders_of_doctors.parent.word == "doctor"
    assert [c.concept for c in orders_of_doctors.parent.columns] == ["country", "instrument"]
    assert domain_of("shop") is BY_NAME["shop"]


def test_names_in_a_mixed_database_are_distinct() -> None:
    rng = random.Random(0)
    everything = [domain.name for domain in DOMAINS]
    for _ in range(400):
        domain = domain_of(mixed_name(everything, rng))
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


def test_the_expert_solves_tasks_read_back_from_json() -> None:
    options = SqlOptions(mixed_domains=1.0, expert=ExpertOptions.clean())
    tasks = SqlEnvironment(options).tasks("train", 32, seed=2)
    read = [replace(task, payload=json.loads(json.dumps(task.payload))) for task in tasks]
    arena = Arena.of(options, StateSection(), RewardsSection())
    episodes = arena.demonstrate(read, seed=0, count_tokens=len)
    assert all(episode.success and episode.group == MIXED for episode in episodes)
