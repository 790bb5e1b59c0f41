"""The words of a SQL statement, and what they say about how large SQLite will make it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""'[^']*' | --[^\n]* | /\*.*?\*/ | "(?P<d>[^"]*)" | \[(?P<s>[^]]*)\] | `(?P<b>[^`]*)`
    | (?P<w>[\w$]+)""",
    re.VERBOSE | re.DOTALL,
)
"""Strings and comments (no group), names in any of SQLite's quotes, bare words."""
_RESERVED_WORDS = (
    "all and as between case distinct else from group in is join limit not null on or order "
    "select then union using when where"
)
_RESERVED = frozenset(_RESERVED_WORDS.split())
"""Bare words that can be no names."""


def names(statement: str) -> Iterator[str]:
    """Everything in a statement that can be a name, in small letters, and ``select``."""
    for match in _TOKEN.finditer(statement):
        if match.lastgroup:
            word = match[match.lastgroup].lower()
            quoted = match.lastgroup != "w"
            if quoted or word == "select" or not (word in _RESERVED or word[0].isdigit()):
                yield word


def copies(statement: str) -> int:
    """At most how often SQLite copies an expression of an inner SELECT into the outer ones.

    It puts the expression in the place of each use of its name, level by level, and cannot be
    interrupted in that: ``SELECT z+z+... FROM (SELECT z+z+... AS z FROM (...))`` of 500 bytes
    would take gigabytes.
    """
    parts: list[Counter[str]] = [Counter()]
    for word in names(statement):
        if word == "select":
            parts.append(Counter())
        else:
            parts[-1][word] += 1
    # What follows an inner SELECT may belong to an outer one: once more for the whole.
    most = max(sum(parts, Counter()).values(), default=1) if len(parts) > 2 else 1
    for part in parts:
        most *= max(part.values(), default=1)
    return most
