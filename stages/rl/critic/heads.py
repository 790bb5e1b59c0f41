"""From a trunk's features to a value, and from a target to a loss per value.

Returns are in units of success (1), so the loss' own scales are constants: HUBER_DELTA is a
quarter of success. Every head starts near value 0: an unfitted critic neither helps nor harms.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

Loss = Literal["mse", "huber", "hl_gauss"]

HUBER_DELTA = 0.25
"""Errors beyond this count linearly."""
SIGMA_RATIO = 0.75
"""Spread of a smeared target in bin widths, as Farebrother et al. found best (their figure 12)."""


class ScalarHead(nn.Module):
    """One number, fitted by squared error, or by Huber's, which outliers pull less.

    forward: (N, width) -> (N,) values.
    """

    value_range: tuple[float, float] | None = None
    """Targets may be any number."""

    def __init__(self, width: int, loss: Loss = "mse") -> None:
        """``loss``: mse or huber."""
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self._loss = loss
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
        if self._loss == "huber":
            return nn.functional.huber_loss(output, targets, reduction="none", delta=HUBER_DELTA)
        return (output - targets).square()


class HistogramHead(nn.Module):
    """A distribution over bins of values, fitted by cross-entropy to the smeared target (HL-Gauss).

    forward: (N, width) -> (N, bins) logits. Targets outside ``value_range`` are clipped to it.
    """

    edges: Tensor

    def __init__(self, width: int, *, value_range: tuple[float, float], bins: int) -> None:
        """``value_range``: low < 0 < high. ValueError otherwise, or for fewer than two bins."""
        super().__init__()
        low, high = value_range
        if not low < 0 < high or bins < 2:
            raise ValueError(f"low < 0 < high and two bins expected, got {value_range}, {bins}")
        self.value_range: tuple[float, float] = (low, high)
        self.register_buffer("edges", torch.linspace(low, high, bins + 1), persistent=False)
        self.linear = nn.Linear(width, bins)
        nn.init.zeros_(self.linear.weight)
        with torch.no_grad():
            self.linear.bias.copy_(widest_logits(self.edges, 0.0))

    def forward(self, features: Tensor) -> Tensor:
        """The head's output for each row."""
        output: Tensor = self.linear(features)
        return output

    def value(self, output: Tensor) -> Tensor:
        """(N,) values of the head's output."""
        return expected_centre(output, self.edges)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """(N,) losses. Args: what ``forward`` gave; (N,) targets."""
        wanted = gaussian_histogram(targets, self.edges)
        return -(wanted * output.log_softmax(-1)).sum(-1)


def build_head(
    width: int, loss: Loss, *, value_range: tuple[float, float] = (-1.0, 2.0), bins: int = 51
) -> ScalarHead | HistogramHead:
    """The head that a loss belongs to; ``value_range`` and ``bins`` are those of hl_gauss."""
    if loss == "hl_gauss":
        return HistogramHead(width, value_range=value_range, bins=bins)
    return ScalarHead(width, loss)


def gaussian_histogram(
    targets: Tensor, edges: Tensor, *, sigma_ratio: float = SIGMA_RATIO
) -> Tensor:
    """Each target as a histogram: the mass that N(y, σ²), cut to the range, puts into each bin.

    p_i = [Φ((e_{i+1} − y)/σ) − Φ((e_i − y)/σ)] / [Φ((e_m − y)/σ) − Φ((e_0 − y)/σ)], σ = ratio ·
    bin width: HL-Gauss, Farebrother et al. 2024 (arXiv:2403.03950, section 3.1). For ratio → 0 it
    becomes the one-hot bin of y; well inside the range its mean is y.

    Args:
        targets: float, (N,), clipped to the range. edges: float, (bins + 1,), rising evenly.

    Returns:
        (N, bins), rows sum to 1.

    Raises:
        ValueError: shapes that do not fit, or a ratio that is not above 0.
    """
    if targets.dim() != 1 or edges.dim() != 1 or edges.numel() < 3:
        raise ValueError(
            f"(N,) targets and (bins + 1,) edges expected, got {tuple(targets.shape)} and "
            f"{tuple(edges.shape)}"
        )
    if sigma_ratio <= 0:
        raise ValueError(f"sigma_ratio must be above 0, got {sigma_ratio}")
    sigma = sigma_ratio * (edges[1] - edges[0])
    y = targets.clamp(edges[0], edges[-1])
    below = torch.special.erf((edges[None] - y[:, None]) / (sigma * math.sqrt(2)))
    return below.diff(dim=-1) / (below[:, -1:] - below[:, :1])


def expected_centre(logits: Tensor, edges: Tensor) -> Tensor:
    """Σ_i softmax(logits)_i · z_i with z_i the centre of bin i: the value of a histogram.

    Args:
        logits: float, (N, bins). edges: float, (bins + 1,).

    Returns:
        (N,).

    Raises:
        ValueError: shapes do not fit.
    """
    if logits.dim() != 2 or edges.shape != (logits.shape[1] + 1,):
        raise ValueError(
            f"(N, bins) logits and (bins + 1,) edges expected, got {tuple(logits.shape)} and "
            f"{tuple(edges.shape)}"
        )
    return logits.softmax(-1) @ _centres(edges)


def widest_logits(edges: Tensor, mean: float) -> Tensor:
    """Logits of the distribution over bins that has this mean and is otherwise as open as can be.

    The maximum-entropy one, p_i ∝ exp(θ z_i); θ by bisection, as the mean rises with θ.

    Raises:
        ValueError: the mean lies outside the bins' centres.
    """
    z = _centres(edges.double())
    if not float(z[0]) < mean < float(z[-1]):
        raise ValueError(f"mean {mean} lies outside the centres {float(z[0])} to {float(z[-1])}")
    low, high = -1e3 / float(z[-1] - z[0]), 1e3 / float(z[-1] - z[0])
    for _ in range(200):
        theta = (low + high) / 2
        if float(z @ (theta * z).softmax(-1)) < mean:
            low = theta
        else:
            high = theta
    return (theta * (z - z.mean())).to(edges.dtype)


def share_outside(targets: Tensor, value_range: tuple[float, float] | None) -> float:
    """Share of the targets that lie outside a head's range and will be clipped; 0 without one."""
    if value_range is None or not targets.numel():
        return 0.0
    low, high = value_range
    return float(((targets < low) | (targets > high)).float().mean())


def _centres(edges: Tensor) -> Tensor:
    return (edges[1:] + edges[:-1]) / 2
