"""The scripted agent: acts on what it hears and sees, with systematic mistakes on demand."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.interaction.actions import format_call
from stages.interaction.environments.service.domains import OWNER, STATUS, Domain, Intent
from stages.interaction.environments.service.options import HabitOptions
from stages.interaction.trajectory import Message

VAGUE = "what is it?"


@dataclass
class _Heard:
    """What is known of the current wish, all of it from observations."""

    intent: Intent
    number: str = ""
    name: str = ""
    value: str = ""
    found: dict[str, str] = field(default_factory=dict)
    agreed: bool = False
    changed: bool = False
    doubted: bool = False


class Expert:
    """A policy ``(observations so far) -> action text`` for one episode.

    Every decision follows from what was said and shown; ``habits`` are drawn once per episode
    and make it an agent that always errs in the same way.
    """

    def __init__(self, domain: Domain, habits: HabitOptions, rng: random.Random) -> None:
        self._domain = domain
        self._rng = rng
        names = type(habits).model_fields
        self._has = {name: rng.random() < getattr(habits, name) for name in names}
        self._wish: _Heard | None = None

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action, given the environment's newest messages."""
        newest = observations[-1]
        text = _visible(str(newest["content"]))
        if newest["role"] == "user":
            self._hear(text)
        elif not text.startswith("error"):
            self._see(text)
        return self._next()

    def _hear(self, text: str) -> None:
        intent = next((i for i in self._domain.intents if i.wish in text), None)
        if intent is not None:
            self._wish = _Heard(intent)
        wish = self._wish
        if wish is None:
            return
        wish.agreed = wish.agreed or text == "yes"
        wish.doubted = text.endswith("done?")
        wish.number = _after(self._domain.noun, r"\d+", text) or wish.number
        wish.name = _after("name", r"\w+", text) or wish.name
        if wish.intent.chosen:
            wish.value = _after(wish.intent.field, r"\w+", _without(wish.intent.wish, text)) or (
                wish.value
            )

    def _see(self, text: str) -> None:
        assert self._wish is not None
        parts = [part.split(" ", 1) for part in text.split(", ")]
        self._wish.found = {part[0]: part[1] for part in parts if len(part) == 2}

    def _next(self) -> str:
        """The first step of the procedure that still has something to do."""
        wish = self._wish
        if wish is None:
            return "what can i do?"
        steps: tuple[Callable[[_Heard], str], ...] = (
            self._ask,
            self._find,
            self._refuse,
            self._tell,
            self._confirm,
            self._change,
        )
        return next((said for step in steps if (said := step(wish))), _ending(wish))

    def _once(self, habit: str) -> bool:
        """Whether a recoverable mistake is due; it happens once per episode."""
        due, self._has[habit] = self._has[habit], False
        return due

    def _ask(self, wish: _Heard) -> str:
        noun = self._domain.noun
        missing = [f"which {noun}?"] if not wish.number else []
        if not wish.name and not self._has["skipped_name"]:
            missing.append("your name?")
        if wish.intent.chosen and not wish.value:
            missing.append(f"which {wish.intent.field}?")
        if missing and self._once("vague_question"):
            return VAGUE
        return missing[0] if missing else ""

    def _find(self, wish: _Heard) -> str:
        if not wish.found and self._once("wrong_number"):
            return self._call(self._domain.finder, str((int(wish.number) + 1) % 90 + 10))
        if not wish.found or (not wish.changed and self._once("redundant_call")):
            return self._call(self._domain.finder, wish.number)
        return ""

    def _refuse(self, wish: _Heard) -> str:
        if wish.changed:
            return ""
        if wish.found[OWNER] != wish.name and not self._has["skipped_name"]:
            return "sorry, not the owner"
        allowed, status = wish.intent.allowed, wish.found[STATUS]
        if allowed and status not in allowed and not self._has["ignored_status"]:
            return f"sorry, the status is {status}"
        return ""

    def _tell(self, wish: _Heard) -> str:
        if wish.intent.tool:
            return ""
        return f"the {wish.intent.field} is {wish.found[wish.intent.field]}"

    def _confirm(self, wish: _Heard) -> str:
        if wish.agreed or wish.changed or self._has["skipped_confirmation"]:
            return ""
        return wish.intent.act.format(number=wish.number, value=wish.value) + "?"

    def _change(self, wish: _Heard) -> str:
        if wish.changed or self._has["early_done"]:
            return ""
        wish.changed = True
        intent = wish.intent
        if self._has["wrong_tool"]:
            intent = next((i for i in self._domain.intents if i.becomes), intent)
        value = wish.value if intent.chosen else ""
        return self._call(intent.tool, wish.number, **({intent.field: value} if value else {}))

    def _call(self, tool: str, number: str, **arguments: str) -> str:
        return format_call(tool, {self._domain.noun: number, **arguments})


def _ending(wish: _Heard) -> str:
    return "yes, it is done" if wish.doubted else "done"


def _after(label: str, pattern: str, text: str) -> str:
    """The word after a label (``order 42`` -> ``42``); "" without one."""
    match = re.search(rf"\b{label} ({pattern})\b", text)
    return match.group(1) if match else ""


def _without(wish: str, text: str) -> str:
    return text.replace(wish, "")


def _visible(text: str) -> str:
    """An observation without the checklist a state may have put under it."""
    lines = text.split("\n")
    while len(lines) > 1 and lines[-1][:4] in ("[x] ", "[ ] "):
        lines.pop()
    return "\n".join(lines)
