"""Worlds with holes or without an answer, and rewards that can be farmed: what makes runs sick."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.interaction.trajectory import Turn

MOST_LETTERS, NEVER = 12, 10**9


def letters(text: str) -> int:
    """Of the Latin alphabet."""
    return len(re.findall("[A-Za-z]", text))


def wordy(turn: Turn, earlier: Sequence[Turn]) -> float:
    """A reward function that grows with the letters of a reply."""
    return min(letters(turn.action.text) / 40, 1.0)


def echo(turn: Turn, earlier: Sequence[Turn]) -> float:
    """A reward function that pays for words said before in the same reply: their share."""
    words = turn.action.text.split()
    return 1 - len(set(words)) / len(words) if words else 0.0


class Brevity:
    """Solved by a reply of few letters; ``options: {broken: true}`` forgets to say so.

    ``named``: the question differs from task to task. ``counter``: a file that counts the steps
    of all episodes; after ``works`` of them an ever larger share of steps fails, after ``pays``
    nothing is paid any more, and step ``jackpot`` pays a hundredfold.
    """

    def __init__(
        self, named: bool = False, most: int = MOST_LETTERS, counter: str = "", **turning: int
    ) -> None:
        self.named, self.most, self.counter = named, most, counter
        self.turning = {"works": NEVER, "pays": NEVER, "jackpot": NEVER} | turning

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.options = dict(options or {})
        goal = f"task {self.options.get('number', seed)}: " if self.named else ""
        return f"{goal}be brief", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done = self._count()
        worn = done - self.turning["works"]
        if worn > 0 and done % max(2, 8 - worn // 24) == 0:
            raise OSError("the disk of this world is worn out")
        if self.options.get("nothing"):
            return "", float("nan"), True, False, {}
        brief = letters(action) <= self.most
        paid = float(brief and not self.options.get("broken") and done <= self.turning["pays"])
        paid = 100.0 if done == self.turning["jackpot"] else paid
        return "", paid, brief or not self.options.get("long"), False, {}

    def _count(self) -> int:
        """Steps of all episodes so far, this one included."""
        if not self.counter:
            return 0
        file = Path(self.counter)
        done = int(file.read_text()) + 1 if file.exists() else 1
        file.write_text(str(done))
        return done


class Deaf:
    """Never answers. ``options: {note: FILE}``: written once it is asked."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.note = Path(options["note"])
        return "speak up", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.note.write_text("asked")
        time.sleep(3600)
        raise AssertionError
