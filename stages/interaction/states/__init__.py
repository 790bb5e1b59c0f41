"""State processors: what the actor is shown each turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.interaction.states.base import CountTokens, StateOptions, StateOverflow, StateProcessor
from stages.interaction.states.window import WindowState

__all__ = ["StateOptions", "StateOverflow", "StateProcessor", "build_state"]


def build_state(options: Mapping[str, Any] | Any, count_tokens: CountTokens) -> StateProcessor:
    """The processor a recipe's ``state`` section (or its dictionary) asks for."""
    return WindowState(StateOptions.of(options), count_tokens)
