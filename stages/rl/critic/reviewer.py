"""The review of a finished turn in words, for the actor's next state.

review_t = r_t + γV(c_{t+1}) − V(c_t): how much better or worse the turn went than was to be
expected before it. Only a critic without privileged facts may speak to the actor, and r_t may hold
no reward that depends on the right answer (the recipe sees to both; the rollout strips the facts).
A reward model scores after the rollout, so its share of r_t is not in the words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from stages.interaction.rollout import Reviewer
from stages.interaction.trajectory import Trajectory

NOTABLE = 0.05
"""Least |review| that is called high or low; 1 is the reward of success."""


def in_words(review: float) -> str:
    """``review: high``, ``review: normal`` or ``review: low``."""
    size = "normal" if abs(review) < NOTABLE else "high" if review > 0 else "low"
    return f"review: {size}"


def reviewer_of(
    values: Callable[[Sequence[Trajectory]], Sequence[Tensor]],
    turn_rewards: Callable[[Trajectory], Sequence[float]],
    *,
    discount: float,
) -> Reviewer:
    """A reviewer by a critic's ``values``: V(c_0) … V(c_T) of each episode."""

    def reviewed(episodes: Sequence[Trajectory]) -> list[str]:
        # Without its key, as a critic may remember by it the numbers of an episode that is over.
        growing = [replace(episode, key=()) for episode in episodes]
        return [
            in_words(turn_rewards(e)[-1] + discount * float(v[-1]) - float(v[-2]))
            for e, v in zip(growing, values(growing), strict=True)
        ]

    return reviewed
