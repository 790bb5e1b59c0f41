"""What offline learning adds to the losses: pure functions of tensors.

Tensors may have any one shape.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expectile_weights(errors: Tensor, *, expectile: float) -> Tensor:
    """|τ − 1(u < 0)| of u = target − value, without gradient.

    Squared errors weighed so are smallest where v is the τ-expectile of its targets y,

        τ·E[(y − v)₊] = (1 − τ)·E[(v − y)₊]

    which is the mean at τ = ½ and goes to the largest target as τ → 1. Any loss whose weighted
    minimum is the weighted mean does as well as the squared one. Kostrikov et al. 2022,
    arXiv:2110.06169, equation 4.

    Raises ValueError unless 0 < τ < 1.
    """
    if not 0.0 < expectile < 1.0:
        raise ValueError(f"expectile is {expectile}; it must lie between 0 and 1")
    weights = torch.full_like(errors.detach(), expectile)
    return weights.masked_fill_(errors.detach() < 0, 1.0 - expectile)


def smaller_of(values: Tensor) -> Tensor:
    """min_k Q_k, (K, …) to (…): what several networks agree on at least.

    A maximum over noisy values is too high on average; with two networks the smaller counts.
    Fujimoto et al. 2018, arXiv:1802.09477, section 4.2.
    """
    return values.min(dim=0).values


def exponential_weights(advantages: Tensor, *, beta: float, max_weight: float) -> Tensor:
    """min(exp(A/β), cap), without gradient; 1 where A = 0.

    The likelihood of actions of μ weighed so is largest for π = μ·exp(A/β)/Z, the policy that
    maximises E_π[A] − β·KL(π‖μ), but for weights that the cap cuts. β → ∞ is plain cloning, β → 0
    the best action alone. Peng et al. 2019, arXiv:1910.00177, equation 9.

    Args:
        advantages: in units of the reward. beta: > 0, in the same. max_weight: at least 1, so
            that no action at or below the average is cut.

    Raises:
        ValueError: a coefficient out of its range.
    """
    if beta <= 0 or max_weight < 1:
        raise ValueError(f"beta {beta} must be above 0, max_weight {max_weight} at least 1")
    # Cut before it is exponentiated, so that a small β cannot overflow.
    return (advantages.detach() / beta).clamp(max=math.log(max_weight)).exp()


def weighted_likelihood(logprobs: Tensor, weights: Tensor) -> Tensor:
    """−w·log π per token; with equal weights over a turn's tokens that of the whole action.

    Raises ValueError if shapes differ or a weight is negative.
    """
    if logprobs.shape != weights.shape or bool((weights < 0).any()):
        raise ValueError(
            f"weights of at least 0 in the shape {tuple(logprobs.shape)} expected, got "
            f"{tuple(weights.shape)} from {float(weights.min()) if weights.numel() else 0:g}"
        )
    return -weights * logprobs
