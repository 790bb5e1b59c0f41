"""How a fit treats episodes that were drawn unevenly, or played by an older actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from stages.interaction.trajectory import Trajectory


class Correction(Protocol):
    """What a fit asks about the episodes of a batch, and what it tells about them."""

    def weights(self, episodes: Sequence[Trajectory]) -> Tensor:
        """(B,) weights of the episodes in the loss."""
        ...

    def log_ratios(self, episodes: Sequence[Trajectory]) -> list[Tensor] | None:
        """Per episode (T,) log ratios of the turns for V-trace; None: take targets as they are."""
        ...

    def observe(self, episodes: Sequence[Trajectory], errors: Sequence[float]) -> None:
        """Hear the mean absolute error of each episode."""
        ...


class NoCorrection:
    """All episodes alike, as if the current actor had played them."""

    def weights(self, episodes: Sequence[Trajectory]) -> Tensor:
        """Ones."""
        return torch.ones(len(episodes))

    def log_ratios(self, episodes: Sequence[Trajectory]) -> list[Tensor] | None:
        """None."""
        return None

    def observe(self, episodes: Sequence[Trajectory], errors: Sequence[float]) -> None:
        """Nothing to do."""


AS_DRAWN = NoCorrection()
