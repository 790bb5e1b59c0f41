"""Slips of the pen, as a small model makes them when it samples: one word of a call is wrong.

An expert that slips and then does it right teaches an imitator to try again where its own calls
fail, which clean demonstrations never show.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_LITERAL = re.compile(r"'([^']+)'")
_NAME = re.compile(r"\b[a-z]\w*")  # keywords and functions are in capitals
UNREADABLE = 0.15
"""Of the slips in a statement with a literal: those that leave the call no valid JSON."""


def unreadable(call: str, rng: random.Random) -> str | None:
    """Now and then, the call with a quote that its JSON cannot bear; else None."""
    broken = call.replace("'", '"', 1)
    return broken if broken != call and rng.random() < UNREADABLE else None


def misspelt(argument: str, others: Sequence[str], rng: random.Random) -> str:
    """A table's name, or a statement in SQL, with one name or literal of it wrong.

    ``others``: names in sight, of which pieces get in.
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
    wrong = _wrong(word, [other for other in others if other != word], rng)
    return argument[:start] + wrong + argument[end:]


def _wrong(word: str, others: Sequence[str], rng: random.Random) -> str:
    """Begun rightly and ended as another word, in another number, or with a blank before it."""
    cut = rng.randrange(1, max(len(word), 2))
    other = rng.choice(others) if others else word[::-1]
    spliced = word[:cut] + other[rng.randrange(len(other)) :]
    number = word[:-1] if word.endswith("s") and len(word) > 1 else word + "s"
    wrong = rng.choice((spliced, spliced, spliced, number, " " + word))
    return wrong if wrong != word else word + "_" + word
