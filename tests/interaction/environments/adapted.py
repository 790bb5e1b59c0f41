"""Worlds in the dialects of other packages, as their users would write them."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from stages.interaction.actions import format_call


class Lockers:
    """For TRL: behind one of three doors is the key. Says "Game over." by an exception."""

    def __init__(self) -> None:
        self.made = True

    def reset(self, number: int = 1, **row: Any) -> str:
        """Start; what it returns is appended to the prompt."""
        self.row, self.number, self.opened, self.reward = row, number, [], 0.0
        self.done = False
        return f" There are 3 lockers, hint {number % 2}."

    def look(self, locker: int) -> str:
        """
        Look into a locker.

        Args:
            locker: Number of the locker.
        """
        if self.done:
            raise ValueError("Game over.")
        self.opened.append(locker)
        return "key" if locker == self.number else "empty"

    async def take(self, locker: int, gently: bool = True) -> dict[str, Any]:
        """
        Take the key.

        Args:
            locker: Number of the locker.
            gently: Without noise.
        """
        self.done = True
        self.reward = float(locker == self.number)
        return {"taken": self.reward > 0, "gently": gently}

    @property
    def not_a_tool(self) -> int:
        """Properties are no tools."""
        return 1

    def _hidden(self) -> None:
        raise AssertionError

    def get_reward(self) -> float:
        """Once, at the end."""
        return self.reward


class Unrewarded(Lockers):
    """Leaves the judgement to reward functions."""

    get_reward = None  # type: ignore[assignment]


class Undescribed(Lockers):
    """A public helper without types or docstring."""

    def helper(self, x):
        return x


class Broken(Lockers):
    """Fails on some rows, by its own fault."""

    def reset(self, number: int = 1, **row: Any) -> str:
        """Every other task cannot be started."""
        if number % 2:
            raise OSError("the lockers are jammed")
        return super().reset(number, **row)


def live_reward(environments: Sequence[Any], **columns: Any) -> list[float | None]:
    """What TRL's own examples do."""
    return [e.reward for e in environments]


def length_reward(
    completions: Sequence[Any], log_metric: Callable[..., None], **columns: Any
) -> list[float | None]:
    """Longer last words are better; a column of the data says when it does not apply."""
    log_metric("length", len(completions[0][-1]["content"]))
    if columns.get("silent", [False])[0]:
        return [None] * len(completions)
    return [len(c[-1]["content"]) / 100 for c in completions]


def locker_expert(row: dict[str, Any], seed: int) -> Callable[[Any], str]:
    """Looks, takes, says so."""
    number = row.get("number", 1)
    texts = iter(
        [
            format_call("look", {"locker": number}),
            format_call("take", {"locker": number}),
            "I have the key.",
        ]
    )
    return lambda messages: next(texts)


class Corridor:
    """Gymnasium's five values, text in and out, dense rewards, a limit of its own."""

    def __init__(self, length: int = 3, limit: int = 6) -> None:
        self.length, self.limit = length, limit
        self.closed = False

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)  # as many do: the global one
        self.place, self.steps = 0, 0
        self.word = random.choice(["left", "right"])
        return "a corridor.", {"suffix": f" say {self.word}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        moved = self.word in action
        self.place += moved
        self.word = random.choice(["left", "right"])
        done = self.place == self.length
        info = {"suffix": f" say {self.word}", "won": done}
        return f"at {self.place}.", float(moved), done, self.steps >= self.limit, info

    def close(self) -> None:
        self.closed = True


class OldCorridor:
    """The older four values, a score so far, ``seed`` apart."""

    def seed(self, seed: int) -> None:
        self.wanted = seed % 3

    def reset(self) -> str:
        self.score = 0
        return f"say {self.wanted}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if action == "cut":
            return "cut", self.score, True, {"TimeLimit.truncated": True}
        if action == "crash":
            raise RuntimeError("the corridor fell in")
        self.score += int(action == str(self.wanted))
        return f"score {self.score}", self.score, self.score >= 2, {}


class Talkative:
    """Anything with text is an action; longer texts earn more. For actors that know nothing."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.seen = 0
        return f"talk, please ({seed})", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.seen += 1
        return "go on", min(len(action), 50) / 100, self.seen == 2, False, {}


def corridor_expert(row: dict[str, Any], seed: int) -> Callable[[Any], str]:
    """Says what it is told to say."""
    return lambda messages: str(messages[-1]["content"]).split()[-1]


class Trapdoors(Lockers):
    """Some of its doors swallow whoever opens them, and once the whole process."""

    def knock(self) -> str:
        """Nothing happens."""
        return "knock, knock"

    def wait(self) -> str:
        """Never comes back, as far as anybody can tell."""
        time.sleep(30)
        return "at last"

    def crash(self) -> str:
        """Takes the process along."""
        os._exit(3)


class Homely(Talkative):
    """Lives nowhere but in the process of the person who wrote it."""

    def __init__(self) -> None:
        if multiprocessing.parent_process() is not None:
            raise OSError("far from home")


class Moody:
    """Anything with text is an action. Every other seed hangs or ends the process it runs in."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.number = seed or 0
        return "talk", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.number % 4 == 1:
            os._exit(3)
        if self.number % 4 == 3:
            time.sleep(30)
        return "thanks", min(len(action), 50) / 50, True, False, {}
