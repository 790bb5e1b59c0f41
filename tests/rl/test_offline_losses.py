"""Offline numerics against their definitions, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stages.rl.offline.losses import (
    expectile_weights,
    exponential_weights,
    smaller_of,
    weighted_likelihood,
)

TARGETS = torch.tensor([-1.0, 0.25, 0.5, 2.0], dtype=torch.float64)
CHANCES = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)


def expectile_of(targets, chances, tau):
    """The root of τ·E[(y − v)₊] = (1 − τ)·E[(v − y)₊], by bisection."""
    low, high = min(targets), max(targets)
    for _ in range(200):
        v = (low + high) / 2
        above = sum(p * max(y - v, 0.0) for y, p in zip(targets, chances, strict=True))
        below = sum(p * max(v - y, 0.0) for y, p in zip(targets, chances, strict=True))
        low, high = (v, high) if tau * above > (1 - tau) * below else (low, v)
    return v


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.7, 0.9, 0.999])
def test_the_weighted_squared_error_is_least_at_the_expectile(tau):
    root = expectile_of(TARGETS.tolist(), CHANCES.tolist(), tau)
    v = torch.tensor(root, dtype=torch.float64, requires_grad=True)
    errors = TARGETS - v
    loss = (CHANCES * expectile_weights(errors, expectile=tau) * errors.square()).sum()
    assert abs(float(torch.autograd.grad(loss, v)[0])) < 1e-12
    if tau == 0.5:
        assert root == pytest.approx(float((CHANCES * TARGETS).sum()))
    assert root < 2.0 and (tau < 0.999 or root > 1.98)


def test_expectile_weights_by_hand():
    errors = torch.tensor([-2.0, 0.0, 3.0])
    assert expectile_weights(errors, expectile=0.7).tolist() == pytest.approx([0.3, 0.7, 0.7])
    for tau in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            expectile_weights(errors, expectile=tau)


def test_the_smaller_of_two_is_the_minimum_and_takes_back_the_overestimation():
    two = torch.tensor([[1.0, -2.0], [0.5, 7.0]])
    assert smaller_of(two).tolist() == [0.5, -2.0]
    assert torch.equal(smaller_of(two[:1]), two[0])
    # True values 0; the best of four actions by noisy values looks better than it is.
    noise = torch.tensor(np.random.default_rng(0).normal(size=(2, 200_000, 4)))
    one = float(noise[0].max(1).values.mean())
    twin = float(smaller_of(noise).max(1).values.mean())
    assert float(smaller_of(noise).mean()) == pytest.approx(-1 / math.sqrt(math.pi), abs=0.005)
    assert one == pytest.approx(1.0294, abs=0.01)  # expected maximum of four normal numbers
    assert abs(twin) < 0.35 * one


@pytest.mark.parametrize("beta", [0.1, 0.5, 3.0])
def test_the_weighted_likelihood_is_largest_at_mu_exp_a_over_z(beta):
    advantages = TARGETS - (CHANCES * TARGETS).sum()
    weights = exponential_weights(advantages, beta=beta, max_weight=1e12)
    best = CHANCES * torch.exp(advantages / beta)
    best = best / best.sum()
    logits = best.log().requires_grad_()
    loss = (CHANCES * weighted_likelihood(logits.log_softmax(0), weights)).sum()
    assert float(torch.autograd.grad(loss, logits)[0].abs().max()) < 1e-9 * float(weights.max())
    moved = (logits.detach() + torch.tensor([0.1, 0.0, 0.0, 0.0])).requires_grad_()
    worse = (CHANCES * weighted_likelihood(moved.log_softmax(0), weights)).sum()
    assert float(worse.detach()) > float(loss.detach())


def test_weights_are_cut_and_never_overflow():
    advantages = torch.tensor([-1e6, 0.0, 0.5, 1e6])
    found = exponential_weights(advantages, beta=0.25, max_weight=20.0)
    assert found.tolist() == pytest.approx([0.0, 1.0, math.exp(2), 20.0])
    for options in ({"beta": 0.0, "max_weight": 20.0}, {"beta": 1.0, "max_weight": 0.5}):
        with pytest.raises(ValueError, match="must be above 0"):
            exponential_weights(advantages, **options)
    with pytest.raises(ValueError, match="weights of at least 0"):
        weighted_likelihood(torch.zeros(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="in the shape"):
        weighted_likelihood(torch.zeros(2), torch.ones(3))
