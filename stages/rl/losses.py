"""The objective, per token. Sums are divided once per optimizer step by one global number.

Tensors may have any one shape: (rows, tokens) or the action tokens alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor, *, clip_range: float
) -> Tensor:
    """−min(ρA, clip(ρ, 1−ε, 1+ε)A) with ρ = π/π_behaviour, per token.

    Where the clip binds (A>0 above 1+ε, A<0 below 1−ε) the gradient is exactly zero.
    Schulman et al. 2017, arXiv:1707.06347, eq. 7.

    Args:
        logprobs: log π of the sampled tokens, with gradient. behaviour_logprobs: at sampling.
        advantages: of the token's turn. All of one shape.
        clip_range: ε > 0.

    Raises:
        ValueError: shapes differ or ε is not positive.
    """
    if not logprobs.shape == behaviour_logprobs.shape == advantages.shape:
        shapes = [tuple(x.shape) for x in (logprobs, behaviour_logprobs, advantages)]
        raise ValueError(f"shapes differ: {shapes}")
    if clip_range <= 0:
        raise ValueError(f"clip_range is {clip_range}; it must be above 0")
    ratio = (logprobs - behaviour_logprobs).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.min(ratio * advantages, clipped * advantages)


def clip_count(logprobs: Tensor, behaviour_logprobs: Tensor, *, clip_range: float) -> Tensor:
    """How many tokens have a ratio outside [1−ε, 1+ε]; a scalar."""
    ratio = (logprobs - behaviour_logprobs).exp()
    return ((ratio - 1).abs() > clip_range).sum()


def capped_ratio(log_ratio: Tensor, *, cap: float) -> Tensor:
    """min(exp(log π − log μ), cap) per token, without gradient: the importance weight for tokens
    that μ sampled in place of π, cut off so that no single token decides (Ionides 2008; for
    samplers of other precision than the learner's: Yao et al. 2025, "Your efficient RL framework
    secretly brings you off-policy RL training").

    Raises ValueError for a cap below 1, which would shrink even equal policies' tokens.
    """
    if cap < 1:
        raise ValueError(f"cap is {cap}; it must be at least 1")
    return log_ratio.detach().exp().clamp(max=cap)


def effective_share(log_ratio: Tensor) -> float:
    """(Σw)² / (n Σw²) of w = exp(log π − log μ), (n,): 1 where the policies agree, towards 1/n
    where one token carries everything (Kong 1992, effective sample size over n)."""
    w = (log_ratio.double() - log_ratio.max()).exp()
    return float(w.sum().square() / (len(w) * w.square().sum()))


def entropy(log_policy: Tensor) -> Tensor:
    """−Σ_v π(v) log π(v). Args: log-probabilities (..., V). Returns (...)."""
    return -(log_policy.exp() * log_policy).sum(-1)


def linear(start: float, end: float, progress: float) -> float:
    """A schedule: ``start`` at progress 0, ``end`` at 1, straight between, clamped outside."""
    return start + (end - start) * min(max(progress, 0.0), 1.0)
