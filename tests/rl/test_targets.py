"""n-step returns, V-trace and the effective sample size, against definitions in float64."""

import itertools
import math

import numpy as np
import pytest
import torch

from stages.rl.advantages import gae
from stages.rl.targets import Trace, effective_sample_size, n_step_returns, vtrace
from tests.rl.test_advantages import random_rows


def n_step_by_definition(rewards, values, bootstrap, discount, n):
    """Sum of at most n rewards, then the value of the view that follows."""
    views = [*values, bootstrap]
    out = []
    for t in range(len(rewards)):
        m = min(n, len(rewards) - t)
        out.append(sum(discount**k * rewards[t + k] for k in range(m)) + discount**m * views[t + m])
    return out


def vtrace_by_definition(rewards, values, ratios, bootstrap, discount, trace):
    """Equation 1 of the paper with λ of its remark 2: a sum of products, O(T³)."""
    views, length = [*values, bootstrap], len(rewards)
    out = []
    for s in range(length):
        total = views[s]
        for t in range(s, min(length, s + (trace.n_steps or length))):
            passed = math.prod(trace.gae_lambda * min(trace.c_bar, ratios[i]) for i in range(s, t))
            rho = min(trace.rho_bar, ratios[t])
            delta = rho * (rewards[t] + discount * views[t + 1] - views[t])
            total += discount ** (t - s) * passed * delta
        out.append(total)
    return out


@pytest.mark.parametrize(
    ("discount", "n"), list(itertools.product((0.0, 0.9, 1.0), (1, 2, 3, 7, 50)))
)
def test_n_step_is_its_definition(discount, n):
    rewards, values, mask, bootstrap = random_rows(10)
    returns = n_step_returns(
        rewards, values, mask, bootstrap=bootstrap, discount=discount, n_steps=n
    )
    for i, row in enumerate(mask):
        turns = int(row.sum())
        plain = [x[i, :turns].tolist() for x in (rewards, values)]
        expected = n_step_by_definition(*plain, float(bootstrap[i]), discount, n)
        np.testing.assert_allclose(returns[i, :turns], expected, rtol=1e-9, atol=1e-12)
        assert torch.all(returns[i, turns:] == 0)


def test_n_step_by_hand():
    # γ = 0.5; G_0 = 1 + 0.5·2 + 0.25·8 = 4; G_1 = 2 + 0.5·4 + 0.25·16 = 8; G_2 = 4 + 0.5·16 = 12
    returns = n_step_returns(
        torch.tensor([[1.0, 2.0, 4.0]]),
        torch.tensor([[100.0, 50.0, 8.0]]),
        torch.ones(1, 3, dtype=torch.bool),
        bootstrap=torch.tensor([16.0]),
        discount=0.5,
        n_steps=2,
    )
    torch.testing.assert_close(returns, torch.tensor([[4.0, 8.0, 12.0]]))


TRACES = [
    Trace(rho, c, lam, n)
    for rho, c in ((1.0, 1.0), (0.7, 0.3), (5.0, 2.0), (1e9, 1e9))
    for lam in (0.0, 0.8, 1.0)
    for n in (None, 1, 3)
]


@pytest.mark.parametrize("trace", TRACES, ids=str)
def test_vtrace_is_its_definition(trace):
    rewards, values, mask, bootstrap = random_rows(11)
    log_ratios = torch.tensor(np.random.default_rng(12).normal(size=mask.shape))
    for discount in (0.0, 0.9, 1.0):
        targets = vtrace(
            rewards,
            values,
            log_ratios,
            mask,
            bootstrap=bootstrap,
            discount=discount,
            trace=trace,
        )
        for i, row in enumerate(mask):
            turns = int(row.sum())
            plain = [x[i, :turns].tolist() for x in (rewards, values, log_ratios.exp())]
            expected = vtrace_by_definition(*plain, float(bootstrap[i]), discount, trace)
            np.testing.assert_allclose(targets[i, :turns], expected, rtol=1e-9, atol=1e-12)
            assert torch.all(targets[i, turns:] == 0)


def test_on_policy_it_is_the_lambda_return_and_the_n_step_return():
    rewards, values, mask, bootstrap = random_rows(13)
    where = {"bootstrap": bootstrap, "discount": 0.9}
    same = torch.zeros_like(values)
    _, returns = gae(rewards, values, mask, **where, gae_lambda=0.8)
    traced = vtrace(rewards, values, same, mask, **where, trace=Trace(gae_lambda=0.8))
    torch.testing.assert_close(traced, returns)
    stepped = n_step_returns(rewards, values, mask, **where, n_steps=2)
    traced = vtrace(rewards, values, same, mask, **where, trace=Trace(n_steps=2))
    torch.testing.assert_close(traced, stepped)


def test_ratios_that_overflow_and_underflow_are_cut_in_log_space():
    whole = torch.ones(1, 2, dtype=torch.bool)
    targets = vtrace(
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([[0.5, 0.25]]),
        torch.tensor([[1e4, -1e4]]),
        whole,
        bootstrap=torch.zeros(1),
        discount=1.0,
        trace=Trace(rho_bar=2.0, c_bar=1.0),
    )
    # turn 1 cannot happen any more: its value stays; turn 0: 0.5 + 2·(1 + 0.25 − 0.5)
    torch.testing.assert_close(targets, torch.tensor([[2.0, 0.25]]))


def test_gaps_padding_and_order_change_nothing():
    rewards, values, mask, bootstrap = random_rows(14)
    log_ratios = torch.tensor(np.random.default_rng(15).normal(size=mask.shape))
    order, place = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([1, 2, 5, 9, 10, 14, 17])

    def spread(x, fill):
        wide = torch.full((5, 20), fill, dtype=x.dtype)
        wide[:, place] = x[order]
        return wide

    wide_mask = spread(mask, False)
    wide = spread(rewards, 0.0), spread(values, 7.0), spread(log_ratios, 9.0), wide_mask
    trace = Trace(1.5, 1.0, 0.9, 4)
    plain = vtrace(
        rewards, values, log_ratios, mask, bootstrap=bootstrap, discount=0.9, trace=trace
    )
    gapped = vtrace(*wide, bootstrap=bootstrap[order], discount=0.9, trace=trace)
    torch.testing.assert_close(gapped[:, place], plain[order])
    options = {"discount": 0.9, "n_steps": 3}
    plain = n_step_returns(rewards, values, mask, bootstrap=bootstrap, **options)
    gapped = n_step_returns(*wide[:2], wide_mask, bootstrap=bootstrap[order], **options)
    torch.testing.assert_close(gapped[:, place], plain[order])


def test_targets_carry_no_gradient():
    rewards, values, mask, bootstrap = random_rows(16)
    values.requires_grad_()
    ratios = torch.zeros_like(values, requires_grad=True)
    where = {"bootstrap": bootstrap, "discount": 1.0}
    assert not n_step_returns(rewards, values, mask, **where, n_steps=2).requires_grad
    assert not vtrace(rewards, values, ratios, mask, **where, trace=Trace()).requires_grad


def test_effective_sample_size():
    assert effective_sample_size(torch.zeros(8)) == pytest.approx(1.0)
    # weights 1, 2, 3: 6² / (3·14)
    weights = torch.tensor([1.0, 2.0, 3.0])
    assert effective_sample_size(weights.log()) == pytest.approx(36 / 42, rel=1e-6)
    # one turn holds everything; a common factor, however large, changes nothing
    assert effective_sample_size(torch.tensor([900.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_sample_size(weights.log() + 500) == pytest.approx(36 / 42, rel=1e-4)
    for wrong in (torch.zeros(0), torch.zeros(2, 2)):
        with pytest.raises(ValueError, match=r"\(n,\)"):
            effective_sample_size(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"values": torch.zeros(2, 4)},
        {"log_ratios": torch.zeros(2, 4)},
        {"mask": torch.ones(2, 3)},
        {"mask": torch.zeros(2, 3, dtype=torch.bool)},
        {"bootstrap": torch.zeros(3)},
        {"discount": 1.1},
        {"trace": Trace(rho_bar=0.0)},
        {"trace": Trace(c_bar=-1.0)},
        {"trace": Trace(gae_lambda=1.5)},
        {"trace": Trace(n_steps=0)},
    ],
)
def test_vtrace_refuses(change):
    arguments = {
        "rewards": torch.ones(2, 3),
        "values": torch.zeros(2, 3),
        "log_ratios": torch.zeros(2, 3),
        "mask": torch.ones(2, 3, dtype=torch.bool),
        "bootstrap": torch.zeros(2),
        "discount": 1.0,
        "trace": Trace(),
    } | change
    with pytest.raises(ValueError):
        vtrace(**arguments)


@pytest.mark.parametrize("change", [{"n_steps": 0}, {"discount": -0.1}])
def test_n_step_refuses(change):
    options = {"bootstrap": torch.zeros(1), "discount": 1.0, "n_steps": 1} | change
    ones = torch.ones(1, 2)
    with pytest.raises(ValueError):
        n_step_returns(ones, ones, ones.bool(), **options)
