"""A critic's network: trunk and head, from views to values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from stages.rl.critic.heads import HistogramHead, ScalarHead
from stages.rl.critic.views import View


class Trunk(Protocol):
    """What a trunk offers: views to numbers once, numbers to features often."""

    width: int

    def prepare(self, views: Sequence[View]) -> Any:
        """Numbers of the views of one episode."""
        ...

    def __call__(self, episodes: Sequence[Any]) -> Tensor:
        """(sum of views, width) features."""
        ...


class CriticNetwork(nn.Module):
    """One value per view.

    forward: list of prepared episodes -> (sum of views,) values, episodes one after the other.
    """

    def __init__(self, trunk: nn.Module, head: ScalarHead | HistogramHead | None = None) -> None:
        """``head``: a scalar one with squared error by default."""
        super().__init__()
        self.trunk = trunk
        reading: Any = trunk
        self.head = head if head is not None else ScalarHead(reading.width)

    @property
    def value_range(self) -> tuple[float, float] | None:
        """What targets are clipped to; None: any number will do."""
        return self.head.value_range

    def prepare(self, views: Sequence[View]) -> Any:
        """Numbers of the views of one episode, made once and kept."""
        trunk: Any = self.trunk
        return trunk.prepare(views)

    def forward(self, episodes: Sequence[Any]) -> Tensor:
        """Values of all views."""
        return self.values(self.outputs(episodes))

    def outputs(self, episodes: Sequence[Any]) -> Tensor:
        """What the head says of all views; ``loss`` takes it."""
        output: Tensor = self.head(self.trunk(episodes))
        return output

    def values(self, output: Tensor) -> Tensor:
        """(N,) values of what ``outputs`` gave."""
        return self.head.value(output)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """(N,) losses of (N,) targets, to be averaged by the caller."""
        return self.head.loss(output, targets)
