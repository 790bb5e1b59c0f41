"""A SQLite connection that can only read, for a bounded time, with bounded results."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.interaction.environments.sql import functions, words

_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_DENIED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
_STEPS_BETWEEN_CHECKS = 200
_VALUE_BYTES = 32_000
"""Longest string or blob SQLite may build or read. One function call cannot be interrupted, and
some take the product of two lengths, so this bounds time as well as memory."""
_RESULT_BYTES = 1_000_000
"""Fetching stops after the row that reaches this."""
_MOST_COPIES = 50_000
"""Most copies that nested SELECTs may make of one expression."""
_PROGRAM_STEPS = 1400
"""Most instructions of a statement's program. Between two checks of the time a program runs at
most once through, so this bounds how late the check may come: a row of many calls is refused."""

Cell = str | int | float | None


class QueryError(Exception):
    """The agent's statement failed; the message is for the agent."""

    timed_out = False


class QueryTimeout(QueryError):
    """The agent's statement took too long."""

    timed_out = True


@dataclass(frozen=True)
class Result:
    """Rows of one statement (at most the limit), how many were left out, tables it read."""

    rows: tuple[tuple[Cell, ...], ...]
    more: bool
    tables: frozenset[str]


class Database:
    """Runs single SELECT statements on an open connection, which it takes over."""

    def __init__(self, connection: sqlite3.Connection, *, time_limit_s: float, max_rows: int):
        self._connection = connection
        self._time_limit_s = time_limit_s
        self._max_rows = max_rows
        self._deadline = 0.0
        self._read: set[str] = set()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10_000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 100)
        connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 20)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        functions.install(connection, value_bytes=_VALUE_BYTES)
        self.schema = _schema(connection)
        """Table name to (column, type) pairs."""
        connection.setlimit(sqlite3.SQLITE_LIMIT_VDBE_OP, _PROGRAM_STEPS)
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._expired, _STEPS_BETWEEN_CHECKS)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        if action not in _READING:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _DENIED_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_READ and first:
            if first.lower().startswith("pragma_"):
                return sqlite3.SQLITE_DENY
            self._read.add(first)
        return sqlite3.SQLITE_OK

    def _expired(self) -> int:
        return int(time.monotonic() > self._deadline)

    def run(self, statement: str) -> Result:
        """Execute one SELECT. Raises ``QueryError`` with a message for the agent."""
        self._read.clear()
        if words.copies(statement) > _MOST_COPIES:
            raise QueryError("too many names repeated in nested SELECTs")
        self._deadline = time.monotonic() + self._time_limit_s
        try:
            cursor = self._connection.execute(statement)
            if cursor.description is None:
                raise QueryError("only SELECT statements are allowed")
            rows, more = self._fetch(cursor)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            late = "interrupted" in str(error)
            raise (QueryTimeout if late else QueryError)(self._explain(error)) from None
        return Result(tuple(rows), more, self._tables(statement))

    def _fetch(self, cursor: sqlite3.Cursor) -> tuple[list[tuple[Cell, ...]], bool]:
        """Rows up to the limits, one at a time, and whether there are more."""
        rows: list[tuple[Cell, ...]] = []
        used = 0
        for row in cursor:
            if len(rows) >= self._max_rows or used >= _RESULT_BYTES:
                return rows, True
            rows.append(row)
            used += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
        return rows, False

    def table(self, name: str) -> str | None:
        """A table's name as the schema spells it; SQL takes upper and lower case alike."""
        return next((t for t in self.schema if t.lower() == name.lower()), None)

    def _tables(self, statement: str) -> frozenset[str]:
        """Tables a statement uses: SQLite does not report those it only joins or counts."""
        names = set(words.names(statement))
        return frozenset(t for t in self.schema if t in self._read or t.lower() in names)

    def _explain(self, error: BaseException) -> str:
        text = str(error)
        if "interrupted" in text:
            return f"query took longer than {self._time_limit_s:g} s"
        if "not authorized" in text or "prohibited" in text:
            return "only reading is allowed"
        if "one statement at a time" in text:
            return "only one statement is allowed"
        if isinstance(error, MemoryError):
            return "the statement is too long or needs too much memory"
        if "too big" in text:
            return "a value of the result is too big"
        if "user-defined function" in text:
            return f"patterns and the characters of trim: at most {functions.PATTERN_LENGTH}"
        return text

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def open_file(path: Path) -> sqlite3.Connection:
    """Open a database file for reading only. Raises ``sqlite3.Error`` if it is none."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False
    )
    connection.execute("SELECT name FROM sqlite_master").fetchall()
    return connection


def _schema(connection: sqlite3.Connection) -> dict[str, tuple[tuple[str, str], ...]]:
    listed = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
    ).fetchall()
    columns = "SELECT name, type FROM pragma_table_info(?) ORDER BY cid"
    return {
        str(name): tuple((str(c), str(t)) for c, t in connection.execute(columns, (name,)))
        for (name,) in listed
    }


def cell_text(cell: Cell | bytes) -> str:
    """One value as the agent sees it: floats with at most two decimals."""
    if cell is None:
        return "NULL"
    if isinstance(cell, float):
        return f"{cell:.2f}".rstrip("0").rstrip(".") if abs(cell) < 1e15 else repr(cell)
    if isinstance(cell, bytes):
        return f"<{len(cell)} bytes>"
    return str(cell)


def result_text(result: Result, max_bytes: int) -> str:
    """Rows as ``a | b`` lines, cut at whole rows; ``no rows`` if there are none."""
    if not result.rows:
        return "no rows"
    lines: list[str] = []
    used = 0
    for row in result.rows:
        line = " | ".join(cell_text(cell) for cell in row)
        used += len(line.encode()) + 1
        if used > max_bytes:
            lines.append(_cut(line, max_bytes) if not lines else "... (more rows)")
            return "\n".join(lines)
        lines.append(line)
    return "\n".join([*lines, "... (more rows)"] if result.more else lines)


def _cut(line: str, max_bytes: int) -> str:
    return line.encode()[:max_bytes].decode(errors="ignore") + " ..."


def cells(rows: Sequence[Sequence[Cell]]) -> list[Cell]:
    """All values of a result, row by row."""
    return [cell for row in rows for cell in row]
