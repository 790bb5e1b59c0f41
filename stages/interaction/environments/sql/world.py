"""One generated database: names drawn for a domain's concepts, and rows."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from stages.interaction.environments.sql.lexicon import NUMBER, TEXT, Column, Domain, Table

KEY_SUFFIXES = ("id", "no", "code")
CHILD, PARENT = "@child", "@parent"
CHILD_KEY, PARENT_KEY, LABEL = "@child_key", "@parent_key", "@label"
"""Roles: keys of ``World.names`` beside the concepts themselves."""

Row = tuple[str | int | float, ...]


@dataclass(frozen=True)
class World:
    """A schema with its rows. ``names`` maps roles and concepts to the names in use."""

    domain: Domain
    names: Mapping[str, str]
    tables: Mapping[str, tuple[tuple[str, str], ...]]
    """Table name to (column, type) pairs, in the order they are listed."""
    rows: Mapping[str, tuple[Row, ...]] = field(hash=False)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of schema and rows: half of what decides the split of a question."""
        text = repr((sorted(self.tables.items()), sorted(self.rows.items())))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def name_options(domain: Domain) -> dict[str, tuple[str, ...]]:
    """Every name each role and concept may have: what an experienced analyst would look for."""
    child, parent = domain.child, domain.parent
    options = {
        CHILD: child.names,
        PARENT: parent.names,
        CHILD_KEY: tuple(f"{child.word}_{s}" for s in KEY_SUFFIXES),
        PARENT_KEY: tuple(f"{parent.word}_{s}" for s in KEY_SUFFIXES),
        LABEL: ("name", f"{parent.word}_name", "full_name"),
    }
    for column in (*child.columns, *parent.columns):
        options[column.concept] = column.names
    return options


def make_world(domain: Domain, seed: int, rows: tuple[int, int] = (20, 40)) -> World:
    """Draw names and rows; the same arguments give the same world."""
    rng = random.Random(f"world/{domain.name}/{seed}")
    names = {role: rng.choice(options) for role, options in name_options(domain).items()}
    parents = rng.randint(5, 8)
    tables: list[tuple[str, list[tuple[str, str, list[str | int | float]]]]] = [
        (names[CHILD], _child(domain, names, rng.randint(*rows), parents, rng)),
        (names[PARENT], _parent(domain, names, parents, rng)),
    ]
    if rng.random() < 0.5:
        tables.append((rng.choice(domain.extra.names), _extra(domain.extra, rng)))
    rng.shuffle(tables)
    return World(
        domain,
        names,
        {name: tuple((c, t) for c, t, _ in columns) for name, columns in tables},
        {name: tuple(zip(*(v for _, _, v in columns), strict=True)) for name, columns in tables},
    )


_Columns = list[tuple[str, str, list[str | int | float]]]


def _child(
    domain: Domain, names: Mapping[str, str], count: int, parents: int, rng: random.Random
) -> _Columns:
    keys: list[str | int | float] = list(range(1, count + 1))
    links: list[str | int | float] = [rng.randint(1, parents) for _ in range(count)]
    rest = [_drawn(c, names[c.concept], count, rng) for c in domain.child.columns]
    rest.append((names[PARENT_KEY], NUMBER, links))
    rng.shuffle(rest)
    return [(names[CHILD_KEY], NUMBER, keys), *rest]


def _parent(domain: Domain, names: Mapping[str, str], count: int, rng: random.Random) -> _Columns:
    labels: list[str | int | float] = list(rng.sample(domain.parent.labels, count))
    rest = [_drawn(c, names[c.concept], count, rng) for c in domain.parent.columns]
    rest.append((names[LABEL], TEXT, labels))
    rng.shuffle(rest)
    return [(names[PARENT_KEY], NUMBER, list(range(1, count + 1))), *rest]


def _extra(table: Table, rng: random.Random) -> _Columns:
    count = rng.randint(4, 8)
    keys: list[str | int | float] = list(range(1, count + 1))
    rest = [_drawn(c, rng.choice(c.names), count, rng) for c in table.columns]
    return [(f"{table.word}_{rng.choice(KEY_SUFFIXES)}", NUMBER, keys), *rest]


def _drawn(
    column: Column, name: str, count: int, rng: random.Random
) -> tuple[str, str, list[str | int | float]]:
    if column.type == TEXT:
        # A few values only: a filter must keep several rows, and the most frequent be unique.
        pool = rng.sample(column.values, min(len(column.values), 4))
        weights = [rng.uniform(0.5, 2.0) for _ in pool]
        return name, TEXT, list(rng.choices(pool, weights, k=count))
    if column.type == "REAL":
        halves = [rng.randint(2 * column.low, 2 * column.high) for _ in range(count)]
        return name, "REAL", [n / 2 for n in halves]
    return name, NUMBER, [rng.randint(column.low, column.high) for _ in range(count)]


def fill(connection: sqlite3.Connection, world: World) -> None:
    """Create the tables of a world in an empty database and insert its rows."""
    for table, columns in world.tables.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{c} {t}' for c, t in columns)})")
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", world.rows[table])
    connection.commit()
