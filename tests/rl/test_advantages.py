"""GAE over turns, whitening, leave-one-out: against the definitions, in float64, written here."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.rl.advantages import explained_variance, gae, leave_one_out, whiten
from stages.rl.baselines import LeaveOneOutBaseline
from tests.rl.worlds import START, episode


def gae_by_definition(rewards, values, bootstrap, discount, lam):
    """A_t = Σ_l (γλ)^l δ_{t+l}, straight from the definition; O(T²)."""
    following = [*values[1:], bootstrap]
    deltas = [r + discount * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [
        sum((discount * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


def random_rows(seed, rows=5, turns=7):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, turns + 1, size=rows)
    mask = torch.tensor(np.arange(turns)[None] < lengths[:, None])
    rewards = torch.tensor(rng.normal(size=(rows, turns))) * mask
    values = torch.tensor(rng.normal(size=(rows, turns)))
    bootstrap = torch.tensor(rng.normal(size=rows))
    return rewards, values, mask, bootstrap


@pytest.mark.parametrize(
    ("discount", "lam"), list(itertools.product((0.0, 0.9, 1.0), (0.0, 0.5, 0.95, 1.0)))
)
def test_gae_is_its_definition(discount, lam):
    rewards, values, mask, bootstrap = random_rows(0)
    advantages, returns = gae(
        rewards, values, mask, bootstrap=bootstrap, discount=discount, gae_lambda=lam
    )
    for i, row in enumerate(mask):
        n = int(row.sum())
        expected = gae_by_definition(
            rewards[i, :n].tolist(), values[i, :n].tolist(), float(bootstrap[i]), discount, lam
        )
        np.testing.assert_allclose(advantages[i, :n], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            returns[i, :n], np.add(expected, values[i, :n].numpy()), rtol=1e-9
        )
        assert torch.all(advantages[i, n:] == 0) and torch.all(returns[i, n:] == 0)


def test_gae_by_hand():
    # γ = 1, λ = 0.5; δ_1 = 1 − 0.4 = 0.6; δ_0 = 0 + 0.4 − 0.2 = 0.2; A_0 = 0.2 + 0.5·0.6 = 0.5
    advantages, returns = gae(
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[0.2, 0.4]]),
        torch.tensor([[True, True]]),
        bootstrap=torch.zeros(1),
        discount=1.0,
        gae_lambda=0.5,
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.5, 0.6]]))
    torch.testing.assert_close(returns, torch.tensor([[0.7, 1.0]]))


def test_gaps_change_nothing():
    """GAE on a row with gaps equals GAE on it compacted: credit crosses gaps undecayed."""
    rewards, values, _, bootstrap = random_rows(1, rows=1, turns=4)
    whole = torch.ones(1, 4, dtype=torch.bool)
    plain, _ = gae(rewards, values, whole, bootstrap=bootstrap, discount=0.9, gae_lambda=0.8)
    place = torch.tensor([1, 2, 9, 30])
    mask = torch.zeros(1, 40, dtype=torch.bool)
    mask[0, place] = True
    wide_rewards, wide_values = torch.zeros(1, 40).double(), torch.full((1, 40), 7.0).double()
    wide_rewards[0, place], wide_values[0, place] = rewards[0], values[0]
    gapped, _ = gae(
        wide_rewards, wide_values, mask, bootstrap=bootstrap, discount=0.9, gae_lambda=0.8
    )
    torch.testing.assert_close(gapped[0, place], plain[0], rtol=1e-10, atol=1e-12)


def test_padding_and_order_change_nothing():
    rewards, values, mask, bootstrap = random_rows(2)
    options = {"discount": 0.97, "gae_lambda": 0.9}
    plain, _ = gae(rewards, values, mask, bootstrap=bootstrap, **options)
    order = torch.tensor([3, 1, 4, 0, 2])
    pad = (0, 5)
    padded, _ = gae(
        torch.nn.functional.pad(rewards[order], pad),
        torch.nn.functional.pad(values[order], pad, value=3.0),
        torch.nn.functional.pad(mask[order], pad),
        bootstrap=bootstrap[order],
        **options,
    )
    torch.testing.assert_close(padded[:, : plain.shape[1]], plain[order])


def test_limits_of_lambda():
    rewards, values, mask, bootstrap = random_rows(3)
    one, returns = gae(rewards, values, mask, bootstrap=bootstrap, discount=0.9, gae_lambda=1.0)
    zero, _ = gae(rewards, values, mask, bootstrap=bootstrap, discount=0.9, gae_lambda=0.0)
    for i, row in enumerate(mask):
        n = int(row.sum())
        for t in range(n):
            tail = [0.9 ** (k - t) * float(rewards[i, k]) for k in range(t, n)]
            expected = sum(tail) + 0.9 ** (n - t) * float(bootstrap[i])
            assert float(returns[i, t]) == pytest.approx(expected, rel=1e-9)
            following = float(values[i, t + 1]) if t + 1 < n else float(bootstrap[i])
            td = float(rewards[i, t]) + 0.9 * following - float(values[i, t])
            assert float(zero[i, t]) == pytest.approx(td, rel=1e-9)
    assert not torch.allclose(one, zero)


def test_truncation_bootstraps_and_termination_does_not():
    """Reward 1 for ever, γ = 0.5: V = 2. Cut after three turns the bootstrap keeps it exact."""
    rewards, values = torch.ones(1, 3).double(), torch.full((1, 3), 2.0).double()
    mask = torch.ones(1, 3, dtype=torch.bool)
    cut, _ = gae(rewards, values, mask, bootstrap=torch.tensor([2.0]), discount=0.5, gae_lambda=0.9)
    ended, _ = gae(rewards, values, mask, bootstrap=torch.zeros(1), discount=0.5, gae_lambda=0.9)
    assert torch.all(cut.abs() < 1e-12)
    assert float(ended[0, -1]) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"values": torch.zeros(2, 4)},
        {"mask": torch.ones(2, 3)},
        {"bootstrap": torch.zeros(3)},
        {"discount": 1.1},
        {"gae_lambda": -0.1},
        {"mask": torch.zeros(2, 3, dtype=torch.bool)},
    ],
)
def test_gae_refuses(change):
    arguments = {
        "rewards": torch.ones(2, 3),
        "values": torch.zeros(2, 3),
        "mask": torch.ones(2, 3, dtype=torch.bool),
        "bootstrap": torch.zeros(2),
        "discount": 1.0,
        "gae_lambda": 0.9,
    } | change
    with pytest.raises(ValueError):
        gae(**arguments)


def test_whitening_is_over_the_mask_only():
    rng = np.random.default_rng(4)
    x, mask = (
        torch.tensor(rng.normal(3.0, 2.0, size=(4, 6))),
        torch.tensor(rng.random((4, 6)) < 0.6),
    )
    white, mean, std = whiten(torch.where(mask, x, 1e6), mask, min_std=1e-4)
    chosen = x.numpy()[mask.numpy()]
    assert mean == pytest.approx(chosen.mean(), rel=1e-9)
    assert std == pytest.approx(chosen.std(), rel=1e-9)
    np.testing.assert_allclose(white[mask], (chosen - chosen.mean()) / chosen.std(), rtol=1e-9)
    assert torch.all(white[~mask] == 0)


def test_whitening_does_not_blow_up_what_hardly_varies():
    x = torch.tensor([[1.0, 1.0 + 1e-7]]).double()
    white, _, _ = whiten(x, torch.ones(1, 2, dtype=torch.bool), min_std=1e-4)
    assert float(white.abs().max()) < 1e-6


def test_leave_one_out_holds_nothing_of_the_episode_itself():
    returns = torch.tensor([[1.0, 2.0], [3.0, 0.0], [5.0, 4.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    baseline = leave_one_out(returns, mask)
    torch.testing.assert_close(baseline, torch.tensor([[4.0, 4.0], [3.0, 0.0], [2.0, 2.0]]))
    changed = returns.clone()
    changed[0] += 100
    assert torch.all(leave_one_out(changed, mask)[0] == baseline[0])


def test_explained_variance():
    returns, mask = torch.tensor([[0.0, 1.0, 2.0]]), torch.ones(1, 3, dtype=torch.bool)
    assert explained_variance(returns, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.zeros(1, 3), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(returns, torch.ones(1, 3), mask))


def test_leave_one_out_stays_within_the_task_where_asked():
    """Tasks a (won, lost) and b (won, won): by hand, over all and within each."""
    won = [([START], [3], 1.0)]
    lost = [([START], [3], 0.0)]
    played = [("a", won), ("a", lost), ("b", won), ("b", won)]
    episodes = [
        replace(episode(turns, key=(0, 0, i)), task_id=task)
        for i, (task, turns) in enumerate(played)
    ]

    def paid(trajectory):
        return [t.rewards.get("success", 0.0) for t in trajectory.turns]

    over_all = LeaveOneOutBaseline(paid, discount=1.0).judge(episodes)
    torch.testing.assert_close(over_all.values[:, 0], torch.tensor([2 / 3, 1.0, 2 / 3, 2 / 3]))
    within = LeaveOneOutBaseline(paid, discount=1.0, within_task=True).judge(episodes)
    torch.testing.assert_close(within.values[:, 0], torch.tensor([0.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(within.advantages[:, 0], torch.tensor([1.0, -1.0, 0.0, 0.0]))
