"""Texts within a budget of the actor's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stages.interaction.states.base import CountTokens

SHORTEST = 16
"""A line is never cut below this many characters: less says nothing."""
MOST_LINES, LEAST_ROOM = 16, 6
"""Lines that are tried, and tokens below which none is: the time of a turn must not grow with the
episode."""
_REMEMBERED = 4096


class Line(NamedTuple):
    """One line that may be shown."""

    text: str
    place: Any
    """Lines are shown in the order of their places, whatever their rank."""


class Meter:
    """Tokens of a text inside a message, as the actor's tokenizer and template count them."""

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Tokens that ``text`` adds to an empty message; remembered."""
        if not text:
            return 0
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        if "" not in self._known:
            self._known[""] = self._whole("")
        if text not in self._known:
            self._known[text] = self._whole(text)
        return self._known[text] - self._known[""]

    def cut(self, text: str, room: int) -> str:
        """As much of the beginning as fits ``room`` tokens; empty if that would say nothing."""
        if self(text) <= room:
            return text
        low, high, best = SHORTEST, len(text) - 1, ""
        while low <= high:
            middle = (low + high + 1) // 2
            shorter = text[: middle - 3].rstrip() + "..."
            # Not remembered: nobody asks for these again.
            if self._whole(shorter) - self._known[""] <= room:
                best, low = shorter, middle + 1
            else:
                high = middle - 1
        return best

    def _whole(self, text: str) -> int:
        return self._count([{"role": "user", "content": text}])


def fit(meter: Meter, title: str, ranked: Sequence[Line], budget: int) -> tuple[str, list[Line]]:
    """The text of ``title`` and as many lines as fit, the first ranked first; and those lines.

    What is too long is passed over, but the first of all is cut. Empty if no line fits.
    """
    room = budget - meter(f"{title}\n")
    taken: list[Line] = []
    for line in ranked[:MOST_LINES]:
        if taken and room < LEAST_ROOM:
            break
        text = line.text if taken else meter.cut(line.text, room - 1)
        size = meter(text) + 1
        if text and size <= room:
            taken.append(line._replace(text=text))
            room -= size
    # Tokens may join across line ends, in either direction.
    while taken and meter(_joined(title, taken)) > budget:
        taken.pop()
    shown = sorted(taken, key=lambda line: line.place)
    text = _joined(title, shown) if shown else ""
    return (text, shown) if meter(text) <= budget else ("", [])


def _joined(title: str, lines: Sequence[Line]) -> str:
    return "\n".join([title, *(line.text for line in lines)])
