"""What a value may be fitted to, besides the λ-return of ``advantages.gae``: pure functions.

One row per episode, one column per turn. "Next" is the next column whose mask is True, so
columns that are not turns neither discount nor cut credit. An episode that the machinery cut
bootstraps with V(c_T); one that the task ended is worth 0 from there on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.rl.advantages import check_turns


@dataclass(frozen=True)
class Trace:
    """How much of later turns V-trace lets through.

    ``rho_bar``: largest ratio of a TD error; decides *what* the values converge to.
    ``c_bar``: largest ratio passed back through a turn; decides only how fast.
    ``gae_lambda``: further decay per turn. ``n_steps``: turns looked ahead; None: to the end.
    """

    rho_bar: float = 1.0
    c_bar: float = 1.0
    gae_lambda: float = 1.0
    n_steps: int | None = None


def n_step_returns(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    bootstrap: Tensor,
    discount: float,
    n_steps: int,
) -> Tensor:
    """Rewards of the next n turns and the value of the view after them.

        G_t = r_t + γ·r_{t+1} + … + γ^{m−1}·r_{t+m−1} + γ^m·V_{t+m}      m = min(n, T − t)

    with V_T = ``bootstrap``. n = 1 gives the one-step TD target, n ≥ T the Monte-Carlo return.
    Sutton & Barto 2018, equation 7.1.

    Args:
        rewards, values: float, (B, N). ``rewards`` must be 0 where the mask is False.
        mask: bool, (B, N). True where the column is a turn.
        bootstrap: float, (B,). V(c_T) of an episode cut by the machinery; 0 if terminated.
        discount: in [0, 1], per turn. n_steps: at least 1.

    Returns:
        (B, N), without gradient, 0 outside the mask.

    Raises:
        ValueError: shapes or types differ, a coefficient is out of range, a reward off the mask.
    """
    check_turns(rewards, values, mask, bootstrap)
    _check_steps(discount, n_steps)
    end, following = bootstrap.detach().to(values), _following(mask)
    returns = values.detach()
    for _ in range(min(n_steps, mask.shape[1])):
        returns = rewards + discount * _after(returns, end, following)
    return torch.where(mask, returns, 0.0)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    log_ratios: Tensor,
    mask: Tensor,
    *,
    bootstrap: Tensor,
    discount: float,
    trace: Trace,
) -> Tensor:
    """V-trace targets: n-step returns of the current policy from episodes of an older one.

        v_s = V_s + Σ_{t=s}^{s+n−1} γ^{t−s} (Π_{i=s}^{t−1} c_i) δ_t
        δ_t = ρ_t (r_t + γ·V_{t+1} − V_t)      ρ_t = min(ρ̄, π/μ)      c_i = λ·min(c̄, π/μ)

    A turn is one action, so π/μ is the product over its tokens. The fixed point is the value of
    the policy ∝ min(ρ̄·μ, π): that of π itself where ρ̄ is at least the largest ratio. On-policy,
    with ρ̄ and c̄ at least 1, it is the λ-return (or the n-step return at λ = 1). Espeholt et al.
    2018, arXiv:1802.01561, equation 1 and remark 2.

    Args:
        rewards, values, mask, bootstrap, discount: as in ``n_step_returns``.
        log_ratios: float, (B, N). Σ over the turn's action tokens of log π − log μ; the ratios
            are cut before they are exponentiated, so that long actions cannot overflow.
        trace: ρ̄ and c̄ above 0, λ in [0, 1], n at least 1 or None.

    Returns:
        (B, N), without gradient, 0 outside the mask.

    Raises:
        ValueError: shapes or types differ, a coefficient is out of range, a reward off the mask.
    """
    check_turns(rewards, values, mask, bootstrap)
    if log_ratios.shape != mask.shape:
        raise ValueError(f"log_ratios must be {tuple(mask.shape)}, got {tuple(log_ratios.shape)}")
    if min(trace.rho_bar, trace.c_bar) <= 0 or not 0.0 <= trace.gae_lambda <= 1.0:
        raise ValueError(f"{trace}: rho_bar and c_bar must be above 0, gae_lambda in [0, 1]")
    columns = mask.shape[1]
    steps = columns if trace.n_steps is None else trace.n_steps
    _check_steps(discount, steps)
    values, log_ratios = values.detach(), torch.where(mask, log_ratios.detach(), 0.0)
    rho = log_ratios.clamp(max=math.log(trace.rho_bar)).exp()
    c = trace.gae_lambda * log_ratios.clamp(max=math.log(trace.c_bar)).exp()
    end, following = bootstrap.detach().to(values), _following(mask)
    delta = rho * (rewards + discount * _after(values, end, following) - values)
    gained, nothing = torch.zeros_like(delta), torch.zeros_like(end)
    for _ in range(min(steps, columns)):
        gained = delta + discount * c * _after(gained, nothing, following)
    return torch.where(mask, values + gained, 0.0)


def effective_sample_size(log_ratios: Tensor) -> float:
    """Kish's effective sample size as a share of the turns: (Σw)² / (n·Σw²), w = π/μ.

    1 on-policy, 1/n when one turn holds all the weight. In log space.

    Args:
        log_ratios: float, (n,), one per turn; n at least 1.

    Raises:
        ValueError: another shape, or no turn.
    """
    if log_ratios.dim() != 1 or not len(log_ratios):
        raise ValueError(f"log_ratios must be (n,) with n > 0, got {tuple(log_ratios.shape)}")
    exact = log_ratios.double()
    logarithm = 2 * exact.logsumexp(0) - (2 * exact).logsumexp(0)
    return math.exp(float(logarithm)) / len(log_ratios)


def _following(mask: Tensor) -> Tensor:
    """(B, N): the column of the next turn after each column, N where there is none."""
    columns = mask.shape[1]
    places = torch.where(mask, torch.arange(columns, device=mask.device), columns)
    nearest = places.flip(1).cummin(1).values.flip(1)
    return torch.cat([nearest[:, 1:], torch.full_like(nearest[:, :1], columns)], dim=1)


def _after(x: Tensor, end: Tensor, following: Tensor) -> Tensor:
    """x at the next turn; ``end`` (B,) after the last one."""
    return torch.cat([x, end[:, None]], dim=1).gather(1, following)


def _check_steps(discount: float, n_steps: int) -> None:
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount is {discount}; it must lie in [0, 1]")
    if n_steps < 1:
        raise ValueError(f"n_steps is {n_steps}; it must be at least 1")
