"""Advantages over turns: pure functions of tensors. One row per episode, one column per turn."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    bootstrap: Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and λ-returns over turns.

        δ_t = r_t + γ·V_next − V_t          A_t = δ_t + γλ·A_next          G_t = A_t + V_t

    "next" is the next column whose ``mask`` is True: columns that are not turns of the episode
    neither discount nor cut credit, so the result equals GAE on the row with them removed.
    λ=1 gives Monte-Carlo return − value; λ=0 the one-step TD error.
    Schulman et al. 2016, arXiv:1506.02438, section 3.

    Args:
        rewards, values: float, (B, N). ``rewards`` must be 0 where the mask is False.
        mask: bool, (B, N). True where the column is a turn.
        bootstrap: float, (B,). V(c_T) of an episode cut by the machinery; 0 if terminated.
        discount, gae_lambda: in [0, 1], per turn.

    Returns:
        advantages, returns: (B, N), without gradient, 0 outside the mask.

    Raises:
        ValueError: shapes or types differ, a coefficient is out of range, a reward off the mask.
    """
    check_turns(rewards, values, mask, bootstrap)
    for name, x in (("discount", discount), ("gae_lambda", gae_lambda)):
        if not 0.0 <= x <= 1.0:
            raise ValueError(f"{name} is {x}; it must lie in [0, 1]")
    values = values.detach()
    advantages = torch.zeros_like(values)
    next_value, next_advantage = bootstrap.detach().to(values), torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        delta = rewards[:, t] + discount * next_value - values[:, t]
        advantage = delta + discount * gae_lambda * next_advantage
        advantages[:, t] = torch.where(here, advantage, 0.0)
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
    returns = torch.where(mask, advantages + values, 0.0)
    return advantages, returns


def leave_one_out(returns: Tensor, mask: Tensor) -> Tensor:
    """Baseline without a critic: mean return-to-go of the *other* episodes still alive at turn t.

    Nothing of episode i enters its own baseline, so the gradient stays unbiased however the
    policy decides when to stop. 0 where no other episode reached the turn.

    Args:
        returns: float, (B, N), Monte-Carlo returns-to-go. mask: bool, (B, N).

    Returns:
        (B, N), 0 outside the mask.
    """
    if returns.shape != mask.shape or mask.dtype != torch.bool:
        raise ValueError(f"returns {tuple(returns.shape)} and a bool mask of that shape expected")
    paid = torch.where(mask, returns, 0.0)
    others = mask.sum(0, keepdim=True) - mask.long()
    baseline = (paid.sum(0, keepdim=True) - paid) / others.clamp(min=1)
    return torch.where(mask & (others > 0), baseline, 0.0)


def whiten(x: Tensor, mask: Tensor, *, min_std: float) -> tuple[Tensor, float, float]:
    """Mean 0 and standard deviation 1 over the masked turns of the whole rollout.

    Below ``min_std`` (no contrast to speak of) only centred, not blown up.

    Args:
        x: float, (B, N). mask: bool, (B, N).

    Returns:
        whitened (B, N), 0 outside the mask; the mean and the (population) deviation before.

    Raises:
        ValueError: shapes differ or the mask is empty.
    """
    if x.shape != mask.shape or mask.dtype != torch.bool:
        raise ValueError(f"x {tuple(x.shape)} and a bool mask of that shape expected")
    if not bool(mask.any()):
        raise ValueError("nothing to whiten: the mask selects no turn")
    chosen = x[mask]
    mean, std = chosen.mean(), chosen.std(unbiased=False)
    centred = torch.where(mask, x - mean, 0.0)
    scaled = centred / std if float(std) >= min_std else centred
    return scaled, float(mean), float(std)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 − Var(G − V)/Var(G) over the masked turns; nan where returns do not vary."""
    g, v = returns[mask].double(), values[mask].double()
    spread = g.var(unbiased=False) if g.numel() else torch.tensor(0.0)
    if float(spread) < 1e-12:
        return float("nan")
    return float(1 - (g - v).var(unbiased=False) / spread)


def check_turns(rewards: Tensor, values: Tensor, mask: Tensor, bootstrap: Tensor) -> None:
    """ValueError unless (B, N) rewards, values, bool mask and (B,) bootstrap fit together."""
    if rewards.dim() != 2 or not rewards.shape == values.shape == mask.shape:
        shapes = [tuple(x.shape) for x in (rewards, values, mask)]
        raise ValueError(f"rewards, values and mask must be (B, N) alike, got {shapes}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool (True = a turn), got {mask.dtype}")
    if bootstrap.shape != rewards.shape[:1]:
        raise ValueError(f"bootstrap must be (B,), got {tuple(bootstrap.shape)}")
    if bool((rewards[~mask] != 0).any()):
        raise ValueError("a reward lies off the mask; put it on the turn that earned it")
