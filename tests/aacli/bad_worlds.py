"""Environments that cannot be played: a person's own class, database, questions or tasks."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from tests.aacli.bad_folders import finished, rl
from tests.aacli.bad_input import Case, Place

WORLD = """\
class Room:
    \"\"\"Gymnasium's protocol; says so much, and ends when it is told to.\"\"\"

    def reset(self, seed=None, options=None):
        return "start", {}

    def step(self, action):
        return "more", 0.0, False, False, {}


class ResetFails(Room):
    def reset(self, seed=None, options=None):
        raise OSError("the game file is gone")


class ResetIsNothing(Room):
    def reset(self, seed=None, options=None):
        return None


class StepFails(Room):
    def step(self, action):
        raise ZeroDivisionError("no divisor")


class StepIsNothing(Room):
    def step(self, action):
        return None


class CannotBeMade(Room):
    def __init__(self):
        raise RuntimeError("no licence")


def expert(row, seed):
    return lambda messages: "go"
"""
QUESTION = {"question": "how many?", "sql": "SELECT COUNT(*) FROM orders"}


def world(at: Place, entry: str, *words: str) -> list[str]:
    """``aac sft`` on demonstrations in a class of the person's."""
    module = f"room_{at.root.name.rpartition('_')[2]}"  # modules stay loaded
    at.write(f"{module}.py", WORLD)
    environment = {"name": "gymnasium", "gymnasium": f"{module}:{entry}", "actions": "text"}
    environment |= {"expert": f"{module}:expert", "max_turns": 3}
    return at.sft(None, "--set", f"environment={json.dumps(environment)}", *words)


def room(id: str, entry: str, *names: str) -> Case:
    """A class that breaks the protocol."""
    return Case(id, lambda at: world(at, entry), names)


def database(at: Place) -> str:
    """A sound one."""
    connection = sqlite3.connect(at.root / "shop.sqlite")
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.commit()
    connection.close()
    return "shop.sqlite"


def own(at: Place, base: str, questions: str) -> list[str]:
    """``aac sft`` on a database of the person's."""
    environment = {"name": "sql", "database": base, "questions": questions}
    return at.sft(None, "--set", f"environment={json.dumps(environment)}")


def questions(id: str, row: Any, *names: str) -> Case:
    """A second question, after a sound one."""
    place = "questions.jsonl, line 2"
    return Case(
        id,
        lambda at: own(at, database(at), at.rows(QUESTION, row, name="questions.jsonl")),
        (place, *names),
    )


def base(id: str, content: bytes, *names: str) -> Case:
    """A file that is no database."""
    return Case(
        id,
        lambda at: own(at, at.write("my.sqlite", content), at.rows(QUESTION, name="q.jsonl")),
        ("environment.database: my.sqlite", "SQLite", *names),
    )


def folder_as_database(at: Place) -> list[str]:
    """A folder where a file was meant."""
    (at.root / "my.sqlite").mkdir()
    return own(at, "my.sqlite", at.rows(QUESTION))


CASES = (
    Case(
        "unknown environment",
        lambda at: at.sft(None, "--set", "environment.name=sqll"),
        ("environment.name = 'sqll'", "expected one of sql", "did you mean sql"),
    ),
    room("no such class", "Rooms", "environment.gymnasium", "has no Rooms", "module:name"),
    room(
        "class that cannot be made", "CannotBeMade", "environment.gymnasium", "no licence", "check"
    ),
    room(
        "reset fails",
        "ResetFails",
        "all 2 episodes were dropped",
        "the game file is gone",
        "aac env check",
    ),
    room(
        "reset returns nothing",
        "ResetIsNothing",
        "reset() gave nothing; expected (observation, info)",
        "aac env check",
    ),
    room("step fails", "StepFails", "all 2 episodes were dropped", "no divisor", "aac env check"),
    room(
        "step returns nothing",
        "StepIsNothing",
        "step() gave nothing; expected (observation, reward",
        "aac env check",
    ),
    Case(
        "no such module",
        lambda at: [*world(at, "Room"), "--set", "environment.gymnasium=zzz:Room"],
        ("environment.gymnasium: zzz cannot be imported", "install its package"),
    ),
    Case(
        "tasks that are no rows",
        lambda at: [
            *world(at, "Room"),
            "--set",
            f"environment.tasks={at.write('tasks.jsonl', '7')}",
        ],
        ("tasks.jsonl line 1 is a number", "expected an object"),
    ),
    Case(
        "world without an expert",
        lambda at: [*world(at, "Room"), "--set", "environment.expert=null"],
        ("has no scripted expert", "sft.data"),
    ),
    Case(
        "evaluation in a world that fails",
        lambda at: ["eval", "demo.yaml", "--policy", "random", *world(at, "ResetFails")[-2:]],
        ("all 2 episodes were dropped", "the game file is gone", "aac env check"),
    ),
    Case(
        "no such database",
        lambda at: own(at, "no.sqlite", at.rows(QUESTION)),
        ("environment.database = 'no.sqlite' does not exist", "correct the path"),
    ),
    base("database that is text", b"name,price\n" * 100, "give"),
    base("encrypted database", bytes(range(1, 256)) * 40, "give"),
    base("cut database", b"SQLite format 3\0" + bytes(50), "give"),
    Case(
        "empty database",
        lambda at: own(at, at.write("my.sqlite", b""), at.rows(QUESTION, name="q.jsonl")),
        ("environment.database: my.sqlite holds no table", "give the SQLite file"),
    ),
    Case(
        "reset fails in stage 3",
        lambda at: [*rl(at, finished(at, "sft")), *world(at, "ResetFails")[-2:]],
        ("environment gymnasium fails at its first reset", "game file is gone", "aac env check"),
    ),
    Case(
        "folder as a database",
        folder_as_database,
        ("my.sqlite is no file", "expected a SQLite file"),
    ),
    questions(
        "question whose SQL fails",
        QUESTION | {"question": "b", "sql": "SELECT x FROM y"},
        "the sql fails",
    ),
    questions(
        "question that writes",
        QUESTION | {"question": "b", "sql": "DELETE FROM orders"},
        "the sql fails",
    ),
    questions(
        "question without rows", {"question": "b", "sql": "SELECT 1 WHERE 0"}, "returns no rows"
    ),
    questions("question without SQL", {"question": "b"}, "sql is missing", "expected"),
    questions("question twice", QUESTION, "is there twice"),
    questions(
        "question with an unknown key", QUESTION | {"answer": 1}, "unknown key 'answer'", "known"
    ),
    questions(
        "question of an unknown split",
        QUESTION | {"split": "dev"},
        "split is 'dev'",
        "expected one",
    ),
    questions("question is a list", [1], "a list was given", "expected"),
    Case(
        "questions in UTF-16",
        lambda at: own(
            at, database(at), at.write("q.jsonl", json.dumps(QUESTION).encode("utf-16"))
        ),
        ("q.jsonl", "UTF-8", "save it"),
    ),
    Case(
        "no questions",
        lambda at: own(at, database(at), at.write("q.jsonl", "\n")),
        ("q.jsonl holds no questions", "at least one"),
    ),
)
