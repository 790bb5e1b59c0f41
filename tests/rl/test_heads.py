"""Losses and values of the critic's heads against their definitions written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from stages.rl.critic.heads import (
    HUBER_DELTA,
    build_head,
    expected_centre,
    gaussian_histogram,
    share_outside,
    widest_logits,
)

LOSSES = ("mse", "huber", "hl_gauss")
EDGES = torch.linspace(-1.0, 2.0, 52)


def normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("y", [-1.7, -1.0, -0.98, 0.0, 0.51, 1.999, 2.0, 2.4])
def test_a_smeared_target_is_the_mass_of_a_normal_in_each_bin(y):
    edges = [-1 + 3 * i / 51 for i in range(52)]
    sigma, inside = 0.75 * 3 / 51, min(max(y, -1.0), 2.0)
    cdf = [normal((e - inside) / sigma) for e in edges]
    wanted = [(cdf[i + 1] - cdf[i]) / (cdf[-1] - cdf[0]) for i in range(51)]
    row = gaussian_histogram(torch.tensor([y], dtype=torch.float64), EDGES.double())[0]
    torch.testing.assert_close(row, torch.tensor(wanted, dtype=torch.float64), rtol=1e-4, atol=1e-7)


def test_the_mean_of_a_smeared_target_is_the_target_and_a_thin_one_is_one_hot():
    y = torch.linspace(-0.7, 1.7, 37)
    rows = gaussian_histogram(y, EDGES)
    torch.testing.assert_close(rows.sum(-1), torch.ones(37))
    torch.testing.assert_close(expected_centre(rows.log(), EDGES), y, atol=2e-4, rtol=0)
    thin = gaussian_histogram(torch.tensor([0.5]), EDGES, sigma_ratio=1e-3)[0]
    assert thin.tolist() == [float(i == 25) for i in range(51)]


def test_the_loss_of_a_histogram_is_cross_entropy():
    torch.manual_seed(0)
    head = build_head(4, "hl_gauss", value_range=(-1.0, 1.0), bins=3)
    logits = torch.tensor([[0.3, -1.0, 2.0]])
    sigma = 0.75 * 2 / 3
    cdf = [normal((e - 0.4) / sigma) for e in (-1, -1 / 3, 1 / 3, 1)]
    p = [(cdf[i + 1] - cdf[i]) / (cdf[3] - cdf[0]) for i in range(3)]
    total = sum(math.exp(v) for v in (0.3, -1.0, 2.0))
    wanted = -sum(a * (v - math.log(total)) for a, v in zip(p, (0.3, -1.0, 2.0), strict=True))
    assert float(head.loss(logits, torch.tensor([0.4]))) == pytest.approx(wanted, rel=1e-5)
    value = sum(
        math.exp(v) / total * z for v, z in zip((0.3, -1.0, 2.0), (-2 / 3, 0, 2 / 3), strict=True)
    )
    assert float(head.value(logits)) == pytest.approx(value, rel=1e-5)


def test_scalar_losses_by_hand():
    output, targets = torch.tensor([0.0, 1.0]), torch.tensor([0.1, 0.0])
    assert build_head(2, "mse").loss(output, targets).tolist() == pytest.approx([0.01, 1.0])
    tail = HUBER_DELTA * (1.0 - HUBER_DELTA / 2)
    assert build_head(2, "huber").loss(output, targets).tolist() == pytest.approx([0.005, tail])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_fresh_head_says_nearly_nothing_and_a_fitted_one_the_mean(loss):
    """Targets 0 and 1 in shares 3:1 around no feature: mse and hl_gauss reach the mean 0.25; Huber
    lies between mean and median: 0.75·v = 0.25·δ where 1 − v > δ gives v = δ/3."""
    head = build_head(3, loss)
    features = torch.randn(16, 3)
    assert float(head.value(head(features)).detach().abs().max()) < 1e-3
    targets = torch.tensor([0.0, 0.0, 0.0, 1.0])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        head.loss(head(torch.zeros(4, 3)), targets).mean().backward()
        optimizer.step()
    wanted = HUBER_DELTA / 3 if loss == "huber" else 0.25
    fitted = head.value(head(torch.zeros(1, 3))).detach()
    assert float(fitted) == pytest.approx(wanted, abs=0.01)


def test_the_widest_distribution_with_a_mean():
    logits = widest_logits(EDGES, 0.0)
    assert float(expected_centre(logits[None], EDGES)) == pytest.approx(0.0, abs=1e-4)
    steps = logits.diff()
    torch.testing.assert_close(steps, steps[:1].expand(50), rtol=1e-3, atol=1e-5)
    assert float(logits.softmax(-1).min()) > 1e-3  # no bin is shut
    even = widest_logits(torch.linspace(-1, 1, 5), 0.0)
    torch.testing.assert_close(even.softmax(-1), torch.full((4,), 0.25))


def test_targets_outside_are_counted():
    targets = torch.tensor([-2.0, -1.0, 0.0, 5.0])
    assert share_outside(targets, (-1.0, 2.0)) == 0.5
    assert share_outside(targets, None) == 0.0 == share_outside(targets[:0], (-1.0, 2.0))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="targets"):
        gaussian_histogram(torch.zeros(2, 2), EDGES)
    with pytest.raises(ValueError, match="sigma_ratio"):
        gaussian_histogram(torch.zeros(2), EDGES, sigma_ratio=0.0)
    with pytest.raises(ValueError, match="logits"):
        expected_centre(torch.zeros(2, 3), EDGES)
    with pytest.raises(ValueError, match="outside"):
        widest_logits(EDGES, 3.0)
    with pytest.raises(ValueError, match="low"):
        build_head(2, "hl_gauss", value_range=(0.5, 1.0))
