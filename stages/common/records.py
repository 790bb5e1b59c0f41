"""Rows of a person's data file, each with the words that name its place in a message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError, kind_of

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
        raise UsageError(f"{inner} is a folder without .jsonl or .parquet; give a {KINDS} file.")
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
    text = read_text(file)
    if not text.strip():
        raise UsageError(f"{file} is empty; expected a list of rows, or one row a line.")
    try:
        content = json.loads(text)
    except ValueError as error:
        if "Extra data" in str(error):
            return None
        raise UsageError(f"{file} is not valid JSON ({error}); mend the file.") from error
    except RecursionError:
        raise UsageError(f"{file} is nested too deep to be read; mend the file.") from None
    rows = content.get("data", [content]) if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise UsageError(f"{file} holds {kind_of(rows)}, expected a list of rows.")
    return rows


def _json_lines(file: Path) -> Iterator[Record]:
    # Not splitlines(): JSON strings may hold separators that it would split at.
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{file} line {number}"
        yield _checked(place, _json_line(place, line))


def _json_line(place: str, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        why = f"column {error.colno}: {error.msg}"
        raise UsageError(f"{place} is not valid JSON ({why}); mend the line.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        raise UsageError(f"{place} cannot be read as JSON ({error}); mend the line.") from None


def _parquet(file: Path) -> list[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[Any] = pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        why = str(error).split(". ")[0].rstrip(".")
        raise UsageError(
            f"{file} is not a whole parquet file ({why}); write it again, or give another {KINDS}"
            " file."
        ) from error
    return rows


def read_text(file: Path) -> str:
    """The text of a file, without its byte-order mark. UsageError if it is no UTF-8."""
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        why = f"byte {error.object[error.start]:#04x} at place {error.start}"
        raise UsageError(f"{file} is no UTF-8 text ({why}); save it in that encoding.") from error
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror}); give a file that you may read."
        ) from error


def _checked(place: str, row: Any) -> Record:
    if not isinstance(row, dict):
        raise UsageError(f"{place} is {kind_of(row)}, expected an object with named fields.")
    return place, row
