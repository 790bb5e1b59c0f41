"""Our string functions say what SQLite's say, in time that does not explode."""

from __future__ import annotations

import random
import sqlite3
import time

import pytest

from stages.interaction.environments.sql import functions
from stages.interaction.environments.sql.words import copies, names

QUERIES = {
    "SELECT ? LIKE ?": ("abAB%_[]-^\\é", "abA%_%\\é"),
    "SELECT ? LIKE ? ESCAPE '\\'": ("abAB%_[]-^\\é", "abA%_%\\é"),
    "SELECT ? GLOB ?": ("abAB*?[]-^é", "abA*?*[]^-é"),
    "SELECT instr(?, ?)": ("abA", "abA"),
    "SELECT replace(?, ?, 'xy')": ("abA", "abA"),
    "SELECT trim(?, ?)": ("abA", "abA"),
    "SELECT ltrim(?, ?) || rtrim('ba', 'a')": ("abA", "abA"),
}


@pytest.fixture
def ours() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    functions.install(connection, value_bytes=32_000)
    return connection


@pytest.mark.parametrize("query", QUERIES)
def test_as_sqlite(ours: sqlite3.Connection, query: str) -> None:
    theirs, rng = sqlite3.connect(":memory:"), random.Random(query)
    texts, patterns = QUERIES[query]
    for _ in range(3000):
        text = "".join(rng.choices(texts, k=rng.randint(0, 7)))
        pattern = "".join(rng.choices(patterns, k=rng.randint(0, 6)))
        given = rng.choice([(text, pattern)] * 20 + [(12.5, "2"), (None, pattern), (text, None)])
        assert ours.execute(query, given).fetchone() == theirs.execute(query, given).fetchone()
    theirs.close()
    ours.close()


@pytest.mark.parametrize(
    "test",
    [
        "x LIKE '%" + "_a%" * 30 + "b'",
        "x GLOB '*" + "?a*" * 30 + "b'",
        "instr(x, substr(x, 1, 15000) || 'b')",
        "replace(x, substr(x, 1, 15000) || 'b', '')",
    ],
)
def test_the_worst_arguments_take_little_time(ours: sqlite3.Connection, test: str) -> None:
    start = time.process_time()
    ours.execute(f"SELECT {test} FROM (SELECT printf('%.*c', 31000, 'a') AS x)").fetchall()
    assert time.process_time() - start < 0.5
    ours.close()


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("SELECT name, COUNT(*) FROM t WHERE name > 'a' GROUP BY name ORDER BY name", 4),
        ("SELECT z + z + z AS y FROM (SELECT a + a AS z FROM t)", 4 * 3 * 2),
        ("SELECT \"z\" + [z] + `z` + z FROM (SELECT 'z z z z z' AS z)", 5 * 4 * 1),
    ],
)
def test_copies_by_hand(statement: str, most: int) -> None:
    assert copies(statement) == most


def test_names_are_no_numbers_strings_comments_or_reserved_words() -> None:
    assert list(names("SELECT a1, 12, 'b' -- c\n, \"and\" FROM d AND e")) == [
        "select",
        "a1",
        "and",
        "d",
        "e",
    ]
