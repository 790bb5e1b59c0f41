"""SQLite's functions that can take the product of their arguments' lengths, in their sum.

One call of a function cannot be interrupted, so none may take long. ``_`` and ``?`` in a pattern
make SQLite's own LIKE and GLOB quadratic in the text: a second for 30 kB.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from typing import Any

PATTERN_LENGTH = 100
"""Longest pattern of LIKE and GLOB, and most characters that trim removes."""


def install(connection: sqlite3.Connection, *, value_bytes: int) -> None:
    """Put our functions in the place of SQLite's; results above ``value_bytes`` are too big."""

    def replaced(text: Any, old: Any, new: Any) -> str | None:
        return _replace(text, old, new, value_bytes)

    functions: dict[tuple[str, int], Callable[..., Any]] = {
        ("like", 2): _like,
        ("like", 3): _like,
        ("glob", 2): _glob,
        ("instr", 2): _instr,
        ("replace", 3): replaced,
        ("trim", 2): _trimming(str.strip),
        ("ltrim", 2): _trimming(str.lstrip),
        ("rtrim", 2): _trimming(str.rstrip),
    }
    for (name, arguments), function in functions.items():
        connection.create_function(name, arguments, function, deterministic=True)


def _like(pattern: Any, text: Any, escape: str = "") -> int | None:
    if pattern is None or text is None or escape is None:
        return None
    return int(_matches(_parsed_like(_short(pattern), str(escape)), _text(text)))


def _glob(pattern: Any, text: Any) -> int | None:
    if pattern is None or text is None:
        return None
    return int(_matches(_parsed_glob(_short(pattern)), _text(text)))


_Part = tuple[re.Pattern[str], int]
"""A piece of a pattern between two wildcards for any length, and how many characters it takes."""


def _matches(parts: tuple[_Part, ...] | None, text: str) -> bool:
    """First part at the start, last at the end, those between as far left as they go."""
    if not parts:
        return False
    (first, position), (last, length) = parts[0], parts[-1]
    if not first.match(text):
        return False
    if len(parts) == 1:
        return len(text) == length
    for part, _ in parts[1:-1]:
        found = part.search(text, position)
        if found is None:
            return False
        position = found.end()
    start = len(text) - length
    return start >= position and bool(last.match(text, start))


@lru_cache(maxsize=256)
def _parsed_like(pattern: str, escape: str) -> tuple[_Part, ...] | None:
    pieces: list[list[str]] = [[]]
    symbols = iter(pattern)
    for symbol in symbols:
        if escape and symbol == escape:
            escaped = next(symbols, None)
            if escaped is None:
                return None
            pieces[-1].append(re.escape(escaped))
        elif symbol == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if symbol == "_" else re.escape(symbol))
    return tuple(_part(piece, re.IGNORECASE) for piece in pieces)


@lru_cache(maxsize=256)
def _parsed_glob(pattern: str) -> tuple[_Part, ...] | None:
    pieces: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        symbol, position = pattern[position], position + 1
        if symbol == "*":
            pieces.append([])
        elif symbol == "[":
            negated = pattern[position : position + 1] == "^"
            start = position + negated
            end = pattern.find("]", start + 1)
            if end < 0:
                return None
            inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", pattern[start:end])
            pieces[-1].append(f"[{'^' if negated else ''}{inside}]")
            position = end + 1
        else:
            pieces[-1].append("." if symbol == "?" else re.escape(symbol))
    try:
        return tuple(_part(piece, re.NOFLAG) for piece in pieces)
    except re.error:  # a range that runs backwards matches nothing
        return None


def _part(piece: list[str], flags: re.RegexFlag) -> _Part:
    return re.compile("".join(piece), flags | re.DOTALL | re.ASCII), len(piece)


def _instr(text: Any, part: Any) -> int | None:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _text(text).find(_text(part)) + 1


def _replace(text: Any, old: Any, new: Any, value_bytes: int) -> str | None:
    if text is None or old is None or new is None:
        return None
    whole, part, other = _text(text), _text(old), _text(new)
    if not part:
        return whole
    if len(whole) + whole.count(part) * (len(other) - len(part)) > value_bytes:
        return "x" * (value_bytes + 1)  # SQLite then says that it is too big
    return whole.replace(part, other)


def _trimming(strip: Callable[[str, str], str]) -> Callable[[Any, Any], str | None]:
    def trimmed(value: Any, characters: Any) -> str | None:
        if value is None or characters is None:
            return None
        return strip(_text(value), _short(characters))

    return trimmed


def _short(value: Any) -> str:
    text = _text(value)
    if len(text) > PATTERN_LENGTH:
        raise ValueError("too long")
    return text


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
