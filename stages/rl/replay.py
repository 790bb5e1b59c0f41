"""One iteration's draws from the pool: what a fit of the critic asks for, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from stages.interaction.trajectory import Trajectory
from stages.rl.pool import ExperiencePool
from stages.rl.targets import effective_sample_size

TurnLogRatios = Callable[[Sequence[Trajectory]], list[Tensor]]
"""Episodes -> per episode (T,): log of current over behaviour probability of each turn."""


class Replay:
    """Draws episodes, weighs them, and notes how far the critic was off on each.

    A ``Correction`` of the critic's fit. The current actor reads every drawn episode once.
    """

    def __init__(
        self,
        pool: ExperiencePool,
        rng: np.random.Generator,
        *,
        version: int,
        max_age: int,
        turn_log_ratios: TurnLogRatios | None = None,
    ) -> None:
        """``turn_log_ratios``: None leaves the targets as they are (no V-trace)."""
        self._pool, self._rng, self._turn_log_ratios = pool, rng, turn_log_ratios
        self._version, self._max_age = version, max_age
        self._ages: list[int] = []
        self._ratios: dict[int, Tensor] = {}
        self._errors: dict[int, float] = {}

    def __call__(self, count: int) -> list[Trajectory]:
        """``count`` episodes of the pool."""
        drawn = self._pool.sample(count, self._rng, version=self._version, max_age=self._max_age)
        self._ages += [self._version - e.actor_version for e in drawn]
        return drawn

    def weights(self, episodes: Sequence[Trajectory]) -> Tensor:
        """(B,) importance weights, at most 1."""
        return torch.tensor(
            self._pool.importance_weights(episodes, version=self._version, max_age=self._max_age)
        )

    def log_ratios(self, episodes: Sequence[Trajectory]) -> list[Tensor] | None:
        """Log ratios of the turns, each episode's computed once; None without V-trace."""
        if self._turn_log_ratios is None:
            return None
        new = list({id(e): e for e in episodes if id(e) not in self._ratios}.values())
        if new:
            self._ratios |= zip(map(id, new), self._turn_log_ratios(new), strict=True)
        return [self._ratios[id(e)] for e in episodes]

    def observe(self, episodes: Sequence[Trajectory], errors: Sequence[float]) -> None:
        """Mean absolute error of each episode, just before the step that it took part in."""
        self._errors |= zip(map(id, episodes), errors, strict=True)

    def finish(self) -> dict[str, float]:
        """Hand the errors to the pool as priorities; the figures of these draws."""
        self._pool.prioritise(self._errors)
        metrics = {"critic/sample_age": sum(self._ages) / max(len(self._ages), 1)}
        if self._ratios:
            turns = torch.cat(list(self._ratios.values()))
            metrics["critic/effective_sample_size"] = effective_sample_size(turns)
        return metrics
