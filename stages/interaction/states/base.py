"""The state-processor contract: how the history becomes the compact state S_t.

A processor lives for one episode at a time. It sees only what the actor may see: the reset and
the finished turns, never ``privileged``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from stages.interaction.environments.base import Reset
from stages.interaction.trajectory import Message, Turn

CountTokens = Callable[[list[Message]], int]
"""Length in tokens of the whole prompt that these messages become."""


class StateOverflow(Exception):
    """Not even the goal and the (cut) last exchange fit the token budget."""


@dataclass(frozen=True)
class StateOptions:
    """What a recipe says about the state; the fields are described in its ``state`` section."""

    exchanges: int = 8
    max_tokens: int = 2048
    checklist: bool = True
    tool_prompt: str = "full"
    review: str = "none"

    @classmethod
    def of(cls, options: Mapping[str, Any] | Any) -> StateOptions:
        """From a mapping, or from any object with these attributes (a recipe section)."""
        if isinstance(options, Mapping):
            return cls(**options)
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@runtime_checkable
class StateProcessor(Protocol):
    """Makes S_t: ``reset``, then ``render`` and ``update`` in turns."""

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
        """What the processor itself wrote into the latest ``render``, for the record."""
        ...


def content_bytes(messages: Sequence[Message]) -> int:
    """UTF-8 length of the contents: no tokenizer makes more tokens than bytes of them."""
    return sum(len(str(message.get("content") or "").encode()) for message in messages)
