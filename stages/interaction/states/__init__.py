"""State processors: what the actor is shown each turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.interaction.states import models
from stages.interaction.states.base import CountTokens, Piece, StateOverflow, StateProcessor
from stages.interaction.states.facts import Facts
from stages.interaction.states.fitting import Meter
from stages.interaction.states.memory import Memory
from stages.interaction.states.options import StateOptions
from stages.interaction.states.replay import replay
from stages.interaction.states.summary import Summary
from stages.interaction.states.window import WindowState

__all__ = ["StateOptions", "StateOverflow", "StateProcessor", "build_state", "replay"]


def build_state(options: Mapping[str, Any] | Any, count_tokens: CountTokens) -> StateProcessor:
    """The processors a recipe's ``state`` section (or its dictionary) asks for, as one.

    Raises UsageError where one needs a model or package that is not there.
    """
    chosen = StateOptions.of(options)
    meter = Meter(count_tokens)
    pieces: list[Piece] = []
    if chosen.summary is not None:
        pieces.append(Summary(chosen.summary, meter, models.summary_writer(chosen.summary)))
    if chosen.facts is not None:
        pieces.append(Facts(chosen.facts, meter, models.extractor(chosen.facts)))
    if chosen.memory is not None:
        pieces.append(Memory(chosen.memory, meter, models.embedder(chosen.memory)))
    return WindowState(chosen, count_tokens, pieces)
