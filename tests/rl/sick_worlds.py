"""Worlds that are sick: one whose training tasks never pay success, others that break or hang."""

from __future__ import annotations

import random
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


class Flaky:
    """Of its steps one in ten raises and one in a hundred never returns; each is noted before.

    Three steps solve it. ``options: {note: FILE}``: where it is noted.
    """

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.note, self.steps = Path(options["note"]), 0
        return "go on", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        draw = random.random()  # by the task's seed
        if draw < 0.10:
            self._say("raised")
            raise OSError("the line is dead")
        if draw < 0.11:
            self._say("hung")
            time.sleep(3600)
        return "go on", float(self.steps == 3), self.steps == 3, False, {}

    def _say(self, what: str) -> None:
        with self.note.open("a") as file:
            file.write(what + "\n")


class Deaf:
    """Never answers. ``options: {note: FILE}``: written once it is asked."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.note = Path(options["note"])
        return "speak up", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.note.write_text("asked")
        time.sleep(3600)
        raise AssertionError
