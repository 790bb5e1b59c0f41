"""Hand-made episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stages.interaction.trajectory import Action, ToolCall, Trajectory, Turn


def make_turn(index: int, text: str, **fields: Any) -> Turn:
    """A turn whose text is ``tool argument`` (a call), or ``!text`` (malformed)."""
    if text.startswith("!"):
        action = Action(text[1:], error="no call could be parsed")
    else:
        name, _, argument = text.partition(" ")
        call = ToolCall(name, {"value": argument})
        action = Action(json.dumps({"name": name, "arguments": {"value": argument}}), (call,))
    return Turn(index=index, messages=(), action=action, **fields)


def make_episode(*texts: str, success: bool = False, **fields: Any) -> Trajectory:
    """An episode of such turns; ``info={turn: {...}}`` gives facts to single turns."""
    info = fields.pop("info", {})
    rewards = fields.pop("rewards", {})
    turns = tuple(
        make_turn(i, text, info=info.get(i, {}), rewards=rewards.get(i, {}))
        for i, text in enumerate(texts)
    )
    defaults: dict[str, Any] = {"task_id": "t0", "kind": "count", "group": "shop", "goal": "?"}
    return Trajectory(
        **(defaults | fields), turns=turns, success=success, terminated=True, max_turns=8
    )


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """The factory of hand-made episodes."""
    return make_episode
