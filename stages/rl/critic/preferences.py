"""Preference rows as episodes, so that they are read through the same views as the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.common.messages import Message
from stages.common.shapes import read_preference
from stages.interaction.trajectory import Action, Trajectory, Turn


def preference_episodes(
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[Trajectory, Trajectory]]:
    """(chosen, rejected) of each row, the judged reply being the last turn of each.

    No privileged facts and no limits: a preference row knows neither. UsageError for a row in no
    known shape.
    """
    pairs = []
    for number, row in enumerate(rows):
        preference = read_preference(f"preference {number + 1}", row)
        sides = (preference.chosen, preference.rejected)
        chosen, rejected = (
            dialogue_episode(side, task_id=preference.group, key=(-1, number, place))
            for place, side in enumerate(sides)
        )
        pairs.append((chosen, rejected))
    return pairs


def dialogue_episode(
    messages: Sequence[Message], *, task_id: str, key: tuple[int, ...]
) -> Trajectory:
    """One turn per reply: it was shown what stands before it, and got what follows.

    The goal is what the user said first. ``key`` must not be one of a played episode's.
    """
    replies = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    ends = [*replies[1:], len(messages)]
    turns = [
        Turn(
            index=t,
            messages=tuple(messages[:place]),
            action=Action(str(messages[place]["content"])),
            observation=tuple(messages[place + 1 : end]),
        )
        for t, (place, end) in enumerate(zip(replies, ends, strict=True))
    ]
    asked = next((str(m["content"]) for m in messages if m["role"] == "user"), "")
    return Trajectory(task_id=task_id, kind="", group="", goal=asked, turns=tuple(turns), key=key)
