"""The state-processor contract: how the history becomes the compact state S_t.

A processor lives for one episode at a time. It sees only what the actor may see: the reset and
the finished turns, never ``privileged``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from stages.interaction.environments.base import Reset
from stages.interaction.trajectory import Message, Turn

CountTokens = Callable[[list[Message]], int]
"""Length in tokens of the whole prompt that these messages become."""


class StateOverflow(Exception):
    """Not even the goal and the (cut) last exchange fit the token budget."""


@runtime_checkable
class StateProcessor(Protocol):
    """Makes S_t: ``reset``, then ``render`` and ``update`` in turns."""

    max_tokens: int
    """What ``render`` never exceeds."""

    def reset(self, reset: Reset) -> None:
        """Forget everything and start an episode."""
        ...

    def update(self, turn: Turn) -> None:
        """Take in a finished turn."""
        ...

    def render(self) -> list[Message]:
        """The messages the actor is shown now. Raises StateOverflow when they cannot fit."""
        ...

    def produced(self) -> dict[str, Any]:
        """What the processor itself wrote into the latest ``render``, for the record.

        With it the turns on disk hold all of the processor's state: see ``replay``.
        """
        ...


@runtime_checkable
class Piece(Protocol):
    """Speaks of the turns that have left the window, in one text within a budget of its own.

    It is told every turn at once, and in time how many are shown no more: only of those it
    speaks, so that nothing stands in a state twice.
    """

    name: str

    def reset(self, reset: Reset) -> None:
        """Forget everything and start an episode."""
        ...

    def update(self, turn: Turn) -> None:
        """Take in a finished turn; ``turn.produced`` holds what was made for its own state."""
        ...

    def leave(self, left: int) -> None:
        """The first ``left`` turns are shown no more; it never falls within an episode."""
        ...

    def render(self, query: str) -> str:
        """What to show now, in view of ``query``: the newest request and result. May be empty."""
        ...

    def produced(self) -> dict[str, Any]:
        """What it made for the latest ``render`` and who made it, JSON-able; empty for nothing."""
        ...


def content_bytes(messages: Sequence[Message]) -> int:
    """UTF-8 length of the contents: no tokenizer makes more tokens than bytes of them."""
    return sum(len(str(message.get("content") or "").encode()) for message in messages)
