"""Small files written whole or not at all, and what a file's bytes are known by."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new one, never a half."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a file atomically."""
    write_bytes(path, content.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write JSON lines: the whole file or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    write_text(path, "".join(lines))


def read_json(path: Path) -> Any:
    """Read JSON. Raises UsageError when the file is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; check the path.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid JSON ({error}); restore or remove it.") from None


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Until a file or folder is on the disk itself, so that a power cut cannot take it back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
