"""The scripted debugger: repairs what is wrong, or only what the tests show."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stages.interaction.actions import format_call
from stages.interaction.environments.base import Task
from stages.interaction.environments.code.options import DebuggerOptions
from stages.interaction.trajectory import Message


class Debugger:
    """A policy ``(observations so far) -> action text`` for one episode: tests, edits, submit."""

    def __init__(self, task: Task, habits: DebuggerOptions, rng: random.Random) -> None:
        self._actions = _plan(task.payload, habits, rng)

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action."""
        return self._actions.pop(0) if self._actions else format_call("submit", {})


def _plan(facts: Mapping[str, Any], habits: DebuggerOptions, rng: random.Random) -> list[str]:
    fixes = sorted((int(number), str(text)) for number, text in facts["fixes"].items())
    patches = rng.random() < habits.quick_patch
    halves = rng.random() < habits.half_fix
    actions: list[str] = []
    if rng.random() < habits.look_first:
        actions.append(format_call("test", {}))
    if rng.random() < habits.experiment:
        arguments = ", ".join(str(a) for a in facts["visible"][0][0])
        actions.append(format_call("python", {"code": f"print({facts['function']}({arguments}))"}))
    if rng.random() < habits.wrong_edit:
        number, text = rng.choice(fixes)
        actions += [_edit(number, _spoilt(text)), format_call("test", {})]
        if patches and len(fixes) == 1:
            # What is patched is the program as it was given.
            actions.append(_edit(number, str(facts["lines"][number - 1])))
    if len(fixes) == 2:
        first = next(iter(facts["fixes"]))
        actions += [_edit(n, t) for n, t in fixes if not halves or str(n) == first]
    elif patches:
        actions.append(_edit(len(facts["lines"]), str(facts["patch"])))
    else:
        actions.append(_edit(*fixes[0]))
    return [*actions, format_call("test", {}), format_call("submit", {})]


def _edit(number: int, text: str) -> str:
    return format_call("edit", {"line": number, "code": text.strip()})


def _spoilt(text: str) -> str:
    """A line that looks like a repair and is none."""
    swapped = re.sub(r"[<>]=?|!=", "==", text)
    return swapped if swapped != text else text.replace("total", "limit", 1).replace("best", "x", 1)
