"""Turns in words: one line each, as summaries, facts and memory tell them."""

from __future__ import annotations

import json
from typing import Any

from stages.interaction.trajectory import Action, Message, ToolCall, Turn

LONGEST = 400
"""Characters of one turn's action, and of its result, that are looked at."""


def one_line(text: str, limit: int = LONGEST) -> str:
    """A text without line breaks, its end cut off at ``limit`` characters."""
    flat = " ".join(text[: 4 * limit].split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def call_words(call: ToolCall) -> str:
    """``tool(argument, ...)``."""
    return one_line(f"{call.name}({', '.join(map(_plain, call.arguments.values()))})")


def action_words(action: Action) -> str:
    """The calls, or else the words."""
    return "; ".join(map(call_words, action.calls)) or one_line(action.text)


def result_words(turn: Turn) -> str:
    """What came back that no user said."""
    return one_line(" ".join(content(m) for m in turn.observation if m["role"] != "user"))


def user_words(turn: Turn) -> list[str]:
    """What the user said after the action."""
    return [one_line(content(m)) for m in turn.observation if m["role"] == "user"]


def turn_parts(turn: Turn) -> list[str]:
    """``tool(argument): result``, then ``user: words`` for each message of the user."""
    result = result_words(turn)
    did = action_words(turn.action) + (f": {result}" if result else "")
    return [did, *(f"user: {said}" for said in user_words(turn))]


def turn_words(turn: Turn) -> str:
    """The parts on one line."""
    return "; ".join(turn_parts(turn))


def content(message: Message) -> str:
    """A message's text."""
    return str(message.get("content") or "")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
