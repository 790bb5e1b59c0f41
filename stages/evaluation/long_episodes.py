"""Scripted episodes far longer than a window, in which early turns are asked about much later.

A clerk looks things up and hears things from a customer; every turn tells one code that stands
nowhere else. All names are drawn from the same few words, so that only both words of a name
together tell turns apart, and a question is worded otherwise than the turn it asks about.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from stages.interaction.environments.base import Reset
from stages.interaction.trajectory import Action, Message, ToolCall, Turn

_QUALITIES = "amber brass copper dusty early foreign golden hollow iron jade kind late marble old"
_THINGS = "anchor basket candle drum engine fiddle globe hammer inkwell jug kettle lamp mirror net"
TOOLS: tuple[dict[str, Any], ...] = (
    {"name": "look_up", "description": "find a thing", "parameters": {"type": "object"}},
)
RESET = Reset(
    ({"role": "user", "content": "Help me to sort out the storehouse, one thing at a time."},),
    TOOLS,
    "sort out the storehouse",
)


@dataclass(frozen=True)
class Told:
    """What one turn told."""

    turn: int
    name: str
    code: str
    question: str


@dataclass(frozen=True)
class LongEpisode:
    """Turns as a scripted policy and environment make them, and what can be asked of each."""

    turns: tuple[Turn, ...]
    told: tuple[Told, ...]


def long_episode(length: int, seed: int) -> LongEpisode:
    """``length`` turns (at most 196: names are not used twice)."""
    rng = random.Random(f"long/{seed}")
    names = rng.sample([f"{a} {b}" for a in _QUALITIES.split() for b in _THINGS.split()], length)
    pairs = [
        _looked_up(i, name, rng) if i % 3 else _heard(i, name, rng) for i, name in enumerate(names)
    ]
    return LongEpisode(tuple(t for t, _ in pairs), tuple(told for _, told in pairs))


def asking(told: Told, index: int) -> Turn:
    """The turn after which the customer asks for what was told."""
    said: Message = {"role": "user", "content": told.question}
    return Turn(index, (), Action("What else can I do?"), (said,))


def _looked_up(index: int, name: str, rng: random.Random) -> tuple[Turn, Told]:
    code = _code(rng)
    call = ToolCall("look_up", {"thing": name})
    text = f'{{"name": "look_up", "arguments": {{"thing": "{name}"}}}}'
    result = f"{name}: shelf {code}, {rng.randint(2, 90)} in stock, {rng.randint(2, 60)} kg"
    turn = Turn(index, (), Action(text, (call,)), ({"role": "tool", "content": result},))
    return turn, Told(index, name, code, f"On which shelf did we see the {name}?")


def _heard(index: int, name: str, rng: random.Random) -> tuple[Turn, Told]:
    code = _code(rng)
    said = f"Write down that the {name} goes out with order {code} to the harbour."
    turn = Turn(index, (), Action("Noted. Next one, please."), ({"role": "user", "content": said},))
    return turn, Told(index, name, code, f"Which order takes the {name}?")


def _code(rng: random.Random) -> str:
    return f"{rng.choice('KLMNPQRST')}{rng.randint(1, 9)}-{rng.randint(100, 999)}"
