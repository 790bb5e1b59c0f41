"""From a trunk's features to a value, and from a target to a loss per value."""

from __future__ import annotations

from torch import Tensor, nn


class ScalarHead(nn.Module):
    """One number, fitted by squared error.

    forward: (N, width) -> (N,) values.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        # Values start at 0, so that an unfitted critic neither helps nor harms.
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """The head's output for each row."""
        output: Tensor = self.linear(features).squeeze(-1)
        return output

    def value(self, output: Tensor) -> Tensor:
        """(N,) values of the head's output."""
        return output

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """(N,) losses. Args: what ``forward`` gave; (N,) targets."""
        return (output - targets).square()
