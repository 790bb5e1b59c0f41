"""A person's own database and questions: JSON lines of ``{"question", "sql"}``.

The answer to a question is the result of its statement. Optional ``id`` and ``split`` (train,
validation or test).

Without any ``split`` a question's own hash decides, and a split that this leaves empty takes one
question of the largest split, that of the smallest hash; a file of fewer than ten questions is too
small to divide, so then every split holds all of them. With ``split`` in some row, what is absent
stays absent, but the other held-out split stands in for validation or test, or else train does.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError, kind_of
from stages.common.records import read_text
from stages.interaction.environments.base import SPLITS, Task
from stages.interaction.environments.sql.database import Database, QueryError, open_file
from stages.interaction.environments.sql.expert import call_text
from stages.interaction.environments.sql.options import SqlOptions
from stages.interaction.environments.sql.tasks import split_of
from stages.interaction.trajectory import Message

KIND = "own"
SMALLEST_DIVIDED = 10
_KEYS = {"question", "sql", "id", "split"}
_INSTEAD = {"validation": ("test", "train"), "test": ("validation", "train")}


@dataclass(frozen=True)
class OwnTasks:
    """Tasks by split; ``stand_ins`` names, for an absent split, the one whose tasks it gives."""

    by_split: dict[str, list[Task]]
    stand_ins: dict[str, str]


def load(options: SqlOptions) -> OwnTasks | None:
    """Tasks by split, or None if the options name no files. Raises ``UsageError``."""
    if options.database is None or options.questions is None:
        return None
    return _load(options.database, options.questions, options.time_limit_s, options.max_rows)


def open_database(options: SqlOptions) -> Database:
    """A fresh read-only connection to the person's file. Raises ``UsageError``."""
    assert options.database is not None
    return _open(options.database, options.time_limit_s, options.max_rows)


def select(own: OwnTasks, split: str, count: int, seed: int) -> list[Task]:
    """Up to ``count`` tasks of a split, in an order that depends on the seed only."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    source = own.stand_ins.get(split, split)
    tasks = list(own.by_split[source])
    if not tasks:
        raise UsageError(f'no question is of the {split} split; give some rows "split": "{split}"')
    random.Random(f"own/{source}/{seed}").shuffle(tasks)
    return tasks[:count]


def _open(path: Path, time_limit_s: float, max_rows: int) -> Database:
    if not path.is_file():
        raise UsageError(f"environment.database: {path} is no file; expected a SQLite file.")
    try:
        connection = open_file(path)
    except sqlite3.Error as error:
        raise UsageError(
            f"environment.database: {path} cannot be read as SQLite ({error}); give a SQLite file "
            "that is whole and not encrypted."
        ) from None
    if not connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchone():
        connection.close()
        raise UsageError(
            f"environment.database: {path} holds no table; give the SQLite file that the "
            "questions are about."
        )
    return Database(connection, time_limit_s=time_limit_s, max_rows=max_rows)


# Environments come in dozens; the file is read and every statement checked once.
@lru_cache(maxsize=8)
def _load(database: Path, questions: Path, time_limit_s: float, max_rows: int) -> OwnTasks:
    if not questions.is_file():
        raise UsageError(
            f"environment.questions: {questions} does not exist; expected JSON lines of "
            '{"question", "sql"}'
        )
    opened = _open(database, time_limit_s, max_rows)
    try:
        tasks = _tasks(questions, opened, database.stem)
    finally:
        opened.close()
    if not tasks:
        raise UsageError(f"{questions} holds no questions; expected at least one JSON line")
    return _divide(tasks)


def _divide(tasks: list[tuple[Task, str, str]]) -> OwnTasks:
    """Tasks by split, as the module's docstring says."""
    columned = any(given for _, given, _ in tasks)
    small = len(tasks) < SMALLEST_DIVIDED and not columned
    found: dict[str, list[Task]] = {split: [] for split in SPLITS}
    for task, given, hashed in tasks:
        for split in SPLITS if small else (given or hashed,):
            found[split].append(task)
    if not columned:
        for split in SPLITS:
            if not found[split]:
                largest = max(found.values(), key=len)
                moved = min(largest, key=_digest)
                largest.remove(moved)
                found[split].append(moved)
    absent = [split for split in _INSTEAD if not found[split]]
    stand_ins = {split: next(s for s in _INSTEAD[split] if found[s]) for split in absent}
    return OwnTasks(found, stand_ins)


def _digest(task: Task) -> str:
    return hashlib.sha256(task.payload["questions"][0]["text"].encode()).hexdigest()


def _tasks(path: Path, database: Database, group: str) -> list[tuple[Task, str, str]]:
    """(task, split given, split by hash) for every line, checked and without repetitions."""
    tasks: list[tuple[Task, str, str]] = []
    seen: set[str] = set()
    # Not splitlines(): a JSON string may hold U+2028 and its like.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = _row(line, where)
        tables = _check(row["sql"], database, where)
        if row["question"] in seen:
            raise UsageError(f"{where}: the question is there twice; expected each once")
        seen.add(row["question"])
        digest = hashlib.sha256(row["question"].encode()).hexdigest()[:12]
        asked = [{"text": row["question"], "sql": row["sql"]}]
        payload = {"questions": asked, "tables": tables}
        task = Task(str(row.get("id", f"{group}-{digest}")), KIND, group, payload)
        tasks.append((task, row.get("split", ""), split_of(group, row["question"])))
    return tasks


def _row(line: str, where: str) -> dict[str, Any]:
    wanted = 'expected {"question": "...", "sql": "SELECT ..."}'
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON ({error}); {wanted}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: {kind_of(row)} was given; {wanted}")
    for key in ("question", "sql"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise UsageError(f"{where}: {key} is {_shown(row.get(key))}; {wanted}")
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    if "split" in row and row["split"] not in SPLITS:
        raise UsageError(f"{where}: split is {row['split']!r}; expected one of {', '.join(SPLITS)}")
    return row


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)


def _check(statement: str, database: Database, where: str) -> list[str]:
    """Run a person's statement once; returns the tables it reads."""
    try:
        result = database.run(statement)
    except QueryError as error:
        raise UsageError(
            f"{where}: the sql fails ({error}); expected one SELECT that this database answers"
        ) from None
    if not result.rows:
        raise UsageError(f"{where}: the sql returns no rows; expected the answer to the question")
    if result.more:
        raise UsageError(f"{where}: the sql returns too many rows to be an answer; raise max_rows")
    return sorted(result.tables)


class Walkthrough:
    """The demonstration for a person's own question: list, describe, their SQL, the result."""

    def __init__(self, task: Task):
        self._steps = ["list_tables", *task.payload["tables"], "query", "answer"]
        self._sql = task.payload["questions"][0]["sql"]
        self._turn = -1

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action; the answer is what the query just showed."""
        self._turn = min(self._turn + 1, len(self._steps) - 1)
        step = self._steps[self._turn]
        if self._turn == 0:
            return call_text("list_tables")
        if self._turn == len(self._steps) - 2:
            return call_text("query", sql=self._sql)
        if self._turn == len(self._steps) - 1:
            return call_text("answer", value=_answer(str(observations[-1]["content"])))
        return call_text("describe", table=step)


def _answer(shown: str) -> str:
    """Rows of a result as one answer: values separated by commas."""
    lines = [line for line in shown.split("\n") if line[:4] not in ("[x] ", "[ ] ")]
    return ", ".join(cell for line in lines for cell in line.split(" | "))
