"""Potential-based shaping: F_t = γ·Φ(s_{t+1}) − Φ(s_t), with Φ = 0 where the task has ended.

Ng, Harada & Russell 1999: with such an F the order of all policies stays as it was, and every
value becomes V(s) − Φ(s). It holds for this F whole only, so no cap, clip or scale touches it, γ is
that of the returns, and Φ is a function of the environment's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stages.interaction.trajectory import ChecklistItem, Trajectory

SHAPING = "shaping"
"""Name of the component."""
Potential = Callable[[Trajectory, int], float]
"""(episode, t) -> Φ of the state before turn t, in [0, 1]; t may be the number of turns."""


def checklist_progress(trajectory: Trajectory, t: int) -> float:
    """Share of the environment's checklist that is solved before turn t; 0 without one.

    The checklist that the actor may see: it stands in every critic's view, no right answer is in
    it, and it says what the environment's state is now, not what was done some time.
    """
    items = trajectory.turns[t - 1].checklist if t else trajectory.initial_checklist
    return solved(items)


def solved(items: Sequence[ChecklistItem]) -> float:
    """Share of a checklist that is ticked."""
    return sum(done for _, done in items) / len(items) if items else 0.0


POTENTIALS: Mapping[str, Potential] = {"checklist": checklist_progress}
"""By the name under which ``rl.rewards.shaping`` asks for them."""


@dataclass(frozen=True)
class Shaping:
    """How an episode's turns are shaped."""

    potential: str
    weight: float
    """Φ of a wholly solved checklist, in units of success."""
    discount: float
    """γ per turn, that of the returns."""

    def __call__(self, trajectory: Trajectory) -> list[float]:
        """F_t of every turn. An episode that is cut or not yet over keeps its last potential."""
        of, count = POTENTIALS[self.potential], len(trajectory.turns)
        phi = [self.weight * of(trajectory, t) for t in range(count + 1)]
        if trajectory.terminated:
            phi[-1] = 0.0
        return [self.discount * after - now for now, after in pairwise(phi)]
