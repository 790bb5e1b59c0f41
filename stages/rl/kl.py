"""Divergence from the reference policy, per token. State which estimator, and which direction.

Names after J. Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html): with
ℓ = log π − log π_ref of a token sampled from π,

    k1 = ℓ        k2 = ½ℓ²        k3 = exp(−ℓ) − 1 + ℓ        E[k1] = E[k3] = KL(π‖π_ref)

As *losses* they differ: under samples of π, E[∇k2] = ∇KL(π‖π_ref), E[∇k3] = ∇KL(π_ref‖π) and
E[∇k1] = 0. So k2 (or the full sum) is trained on, k3 is what is logged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """log π − log π_ref of the sampled tokens, any shape."""
    _check(logprobs, reference_logprobs)
    return logprobs - reference_logprobs


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """½(log π − log π_ref)²: its expected gradient is that of KL(π‖π_ref)."""
    return 0.5 * k1(logprobs, reference_logprobs).square()


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """exp(−ℓ) − 1 + ℓ: unbiased, never negative, for logs. As a loss it pulls the wrong way."""
    log_ratio = k1(logprobs, reference_logprobs)
    return torch.expm1(-log_ratio) + log_ratio


def full(log_policy: Tensor, log_reference: Tensor) -> Tensor:
    """Σ_v π(v)(log π(v) − log π_ref(v)) over the vocabulary.

    Args:
        log_policy, log_reference: normalised log-probabilities, (..., V).

    Returns:
        (...), not negative.
    """
    _check(log_policy, log_reference)
    return (log_policy.exp() * (log_policy - log_reference)).sum(-1)


@dataclass
class KlCoefficient:
    """β of the KL term: as given, or steered towards a target KL.

    Ziegler et al. 2019 (arXiv:1909.08593, section 2.2), per iteration with gain K_β:

        e = clip(KL / target − 1, −0.2, 0.2)        β ← β · (1 + K_β e)
    """

    value: float
    target: float | None = None
    """Nats per action token; none: the coefficient stays."""
    gain: float = 0.1

    def steer(self, kl: float) -> None:
        """One step after an iteration whose KL was ``kl``, nats per action token."""
        if self.target is not None:
            self.value *= 1 + self.gain * min(max(kl / self.target - 1, -0.2), 0.2)


def _check(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(f"policy {tuple(a.shape)} and reference {tuple(b.shape)} shapes differ")
