"""Rows of a person's data file, each with the words that name its place in a message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError

Record = tuple[str, dict[str, Any]]
"""(``file.jsonl line 3``, the row)."""
KINDS = ".jsonl, .json or .parquet"


def read_records(path: Path) -> list[Record]:
    """All rows of a JSON lines, JSON or parquet file, or of a folder of such files.

    A JSON file holds a list of rows (or one under the key ``data``), or one row a line. In a run
    folder the files under ``trajectories/`` are read. UsageError, with file and line, on whatever
    cannot be read, and if nothing is there.
    """
    files = _files(path)
    records = [record for file in files for record in _read(file)]
    if not records:
        raise UsageError(f"{path} holds no rows; give a file with at least one.")
    return records


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} does not exist; give a {KINDS} file.")
    inner = path / "trajectories" if (path / "trajectories").is_dir() else path
    files = sorted(p for p in inner.iterdir() if p.suffix in (".jsonl", ".parquet"))
    if not files:
        raise UsageError(f"{inner} holds no .jsonl or .parquet file; give a {KINDS} file.")
    return files


def _read(file: Path) -> Iterator[Record]:
    if file.suffix == ".parquet":
        rows: Any = _parquet(file)
    elif file.suffix == ".json":
        rows = _json(file)
    elif file.suffix == ".jsonl":
        rows = None
    else:
        raise UsageError(f"{file} is no {KINDS} file; convert it to one of these.")
    if rows is None:
        yield from _json_lines(file)
        return
    for number, row in enumerate(rows, start=1):
        yield _checked(f"{file} row {number}", row)


def _json(file: Path) -> list[Any] | None:
    """The rows, or None where the file is JSON lines by another name."""
    try:
        content = json.loads(_text(file))
    except ValueError as error:
        if "Extra data" in str(error):
            return None
        raise UsageError(f"{file} is not valid JSON ({error}); mend the file.") from error
    rows = content.get("data", [content]) if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise UsageError(f"{file} holds {type(rows).__name__}, expected a list of rows.")
    return rows


def _json_lines(file: Path) -> Iterator[Record]:
    # Not splitlines(): JSON strings may hold separators that it would split at.
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{file} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{place} is not valid JSON ({error}); mend the line.") from error
        yield _checked(place, row)


def _parquet(file: Path) -> list[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[Any] = pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{file} is not a parquet file ({error}).") from error
    return rows


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as UTF-8 text ({error}).") from error


def _checked(place: str, row: Any) -> Record:
    if not isinstance(row, dict):
        raise UsageError(f"{place} is {type(row).__name__}, expected an object with named fields.")
    return place, row
