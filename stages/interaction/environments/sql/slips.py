"""Slips of the pen, as a small model makes them when it samples: one word of a call is wrong.

An expert that slips and then does it right teaches an imitator to try again where its own calls
fail, which clean demonstrations never show.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_LITERAL = re.compile(r"'([^']+)'")
_NAME = re.compile(r"\b[a-z]\w*")  # keywords and functions are in capitals
UNREADABLE = 0.15
"""Of the slips in a statement with a literal: those that leave the call no valid JSON."""
SYNONYM = 0.5
"""Of the slips in a name that has synonyms: those that put one in its place."""


def unreadable(call: str, rng: random.Random) -> str | None:
    """Now and then, the call with a quote that its JSON cannot bear; else None."""
    broken = call.replace("'", '"', 1)
    return broken if broken != call and rng.random() < UNREADABLE else None


def miswritten(
    argument: str,
    others: Sequence[str],
    rng: random.Random,
    synonyms: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """A table's name, or a statement in SQL, with one name or literal of it wrong.

    ``others``: names in sight, of which pieces get in. ``synonyms`` of a name: what the same thing
    is called elsewhere.
    """
    literals = [match.span(1) for match in _LITERAL.finditer(argument)]
    inside = [range(*span) for span in literals]
    names = [
        match.span()
        for match in _NAME.finditer(argument)
        if not any(match.start() in place for place in inside)
    ]
    start, end = rng.choice([*names, *literals])
    word = argument[start:end]
    elsewhere = synonyms.get(word)
    if elsewhere and rng.random() < SYNONYM:
        wrong = rng.choice(elsewhere)
    else:
        wrong = _misspelt(word, [other for other in others if other != word], rng)
    return argument[:start] + wrong + argument[end:]


def _misspelt(word: str, others: Sequence[str], rng: random.Random) -> str:
    """Begun rightly and ended as another word, or in another number."""
    cut = rng.randrange(1, max(len(word), 2))
    other = rng.choice(others) if others else word[::-1]
    spliced = word[:cut] + other[rng.randrange(len(other)) :]
    number = word[:-1] if word.endswith("s") and len(word) > 1 else word + "s"
    wrong = rng.choice((spliced, spliced, spliced, number))
    return wrong if wrong != word else word + "_" + word
