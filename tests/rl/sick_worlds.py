"""Sick worlds: one whose training tasks never pay success, one that never answers."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.interaction.trajectory import Turn

MOST_LETTERS = 12


def letters(text: str) -> int:
    """Of the Latin alphabet."""
    return len(re.findall("[A-Za-z]", text))


def wordy(turn: Turn, earlier: Sequence[Turn]) -> float:
    """A reward function that grows with the letters of a reply."""
    return min(letters(turn.action.text) / 40, 1.0)


class Brevity:
    """Solved by a reply of few letters; ``options: {broken: true}`` forgets to say so."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.broken = bool((options or {}).get("broken"))
        return "be brief", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        brief = letters(action) <= MOST_LETTERS
        return "", float(brief and not self.broken), True, False, {}


class Deaf:
    """Never answers. ``options: {note: FILE}``: written once it is asked."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.note = Path(options["note"])
        return "speak up", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.note.write_text("asked")
        time.sleep(3600)
        raise AssertionError
