"""An episode's record holds the whole state: from its turns a processor is as it was."""

from __future__ import annotations

from stages.interaction.environments.base import Reset
from stages.interaction.states.base import StateProcessor
from stages.interaction.trajectory import Trajectory


def replay(state: StateProcessor, episode: Trajectory) -> StateProcessor:
    """``state`` as it was after the last turn of a partly played episode, ready to go on.

    Nothing is written a second time: summaries and what had left come from ``Turn.produced``.
    """
    state.reset(
        Reset(
            episode.initial_messages,
            episode.tools,
            episode.goal,
            checklist=episode.initial_checklist,
        )
    )
    for turn in episode.turns:
        state.update(turn)
    return state
