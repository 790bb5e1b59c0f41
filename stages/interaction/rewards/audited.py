"""Penalty examples: actions that a person marked as bad in ``aac audit`` are fined ever after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.files import read_json
from stages.interaction.rewards.relevance import similarity
from stages.interaction.trajectory import Turn

BAD = "bad"


class Audited:
    """A reward function: 1 for an action at least as similar as ``threshold`` to a marked one.

    Similar by the words and their parts (a cosine; 1 is the same words in whatever order).
    """

    def __init__(self, marked: Sequence[str], threshold: float) -> None:
        self._marked, self._threshold = tuple(dict.fromkeys(marked)), threshold

    def __call__(self, turn: Turn, earlier: Sequence[Turn]) -> float:
        """1.0 like a marked action, else 0.0."""
        said = turn.action.text
        if said in self._marked:
            return 1.0
        found = (similarity(said, bad) for bad in self._marked)
        return float(any(value >= self._threshold for value in found))


def audited(options: Any) -> Audited:
    """From the recipe's ``rl.rewards.audited``: verdicts, similarity. UsageError if none is bad."""
    marked = marked_bad(options.verdicts)
    if not marked:
        raise UsageError(
            f"rl.rewards.audited.verdicts = {options.verdicts} marks no action as bad; give a "
            "verdict by aac audit, or leave it out."
        )
    return Audited(marked, options.similarity)


def marked_bad(file: Path) -> list[str]:
    """The actions of a ``verdicts.json`` that were judged bad. UsageError for another file."""
    rows = read_json(file)
    try:
        return [
            str(text) for row in rows.values() if row["verdict"] == BAD for text in row["actions"]
        ]
    except (AttributeError, KeyError, TypeError):
        raise UsageError(
            f"{file} is no verdicts.json of aac audit; name the one in audit/ of a run."
        ) from None
