"""IQL through its real learner, on problems small enough to solve by definition."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch

from stages.rl.critic.iql import IqlBaseline, IqlPlan, polyak_step
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.q import QLearner
from stages.rl.critic.views import ViewParts
from stages.rl.pool import ExperiencePool
from tests.rl.test_enumerable import (
    DISCOUNT,
    EVERY,
    HORIZON,
    NEXT,
    REWARD,
    SEES_STATE,
    Table,
    paid,
    played,
    values_by_state,
)
from tests.rl.test_offline_losses import expectile_of
from tests.rl.worlds import START, episode


def implicit(episodes, folder, *, expectile, twins=2, parts=SEES_STATE, **plan):
    """IQL whose every step sees all episodes: the fixed point is the only place to rest."""
    options = {"learning_rate": 0.03, "steps": 40, "target_rate": 0.999, "discount": DISCOUNT}
    values = CriticLearner(
        CriticNetwork(Table()), plan=FitPlan(**(options | plan)), parts=parts, turn_rewards=paid
    )
    qs = [QLearner(CriticNetwork(Table()), values) for _ in range(twins)]
    pool = ExperiencePool(folder, max_episodes=1000)
    pool.add(0, episodes)
    pool.sample = lambda *_, **__: list(episodes)
    return IqlBaseline(values, qs, pool, IqlPlan(0, expectile))


def solved(allowed, tau):
    """V_t(s) by backward induction: the τ-expectile, over the actions of the pool, of r + γV."""
    values = np.zeros((HORIZON + 1, 2))
    for t, s in itertools.product(reversed(range(HORIZON)), (0, 1)):
        q = [REWARD[s, a] + DISCOUNT * values[t + 1, NEXT[s, a]] for a in allowed(t, s)]
        values[t, s] = expectile_of(q, [1 / len(q)] * len(q), tau)
    return values


def both(t, s):
    return (0, 1)


@pytest.mark.parametrize(("tau", "twins"), [(0.5, 1), (0.8, 2)])
def test_v_is_the_expectiles_own_fixed_point(tau, twins, tmp_path):
    episodes = [played(a) for a in EVERY]
    learner = implicit(episodes, tmp_path, expectile=tau, twins=twins)
    for iteration in range(12):
        learner.learn(iteration, 0)
    found, truth = values_by_state(learner.values, episodes), solved(both, tau)
    assert len(found) == 5
    for (t, s), value in found.items():
        assert value == pytest.approx(truth[t, s], abs=0.02), (t, s)
    judged = learner.judge(episodes)
    for i, t in itertools.product(range(len(episodes)), range(HORIZON)):
        a, s = EVERY[i][t], dict(episodes[i].privileged_before(t))["s"]
        q = REWARD[s, a] + DISCOUNT * truth[t + 1, NEXT[s, a]]
        assert float(judged.advantages[i, t]) == pytest.approx(q - truth[t, s], abs=0.04)


def test_towards_1_it_goes_to_the_best_of_what_the_pool_holds(tmp_path):
    """The best first action of all is not in the pool: IQL does not dream of it."""

    def seldom(t, s):
        return (0,) if t == 0 else (0, 1)

    episodes = [played(a) for a in EVERY if a[0] == 0]
    optimum, in_support = solved(both, 1 - 1e-9), solved(seldom, 1 - 1e-9)
    assert optimum[0, 0] > in_support[0, 0] + 0.05
    learner = implicit(episodes, tmp_path, expectile=0.995, learning_rate=0.02, twins=1)
    for iteration in range(25):
        learner.learn(iteration, 0)
    found = values_by_state(learner.values, episodes)
    assert found[0, 0] == pytest.approx(in_support[0, 0], abs=0.05)
    assert found[1, 0] == pytest.approx(in_support[1, 0], abs=0.05)
    assert found[0, 0] > solved(seldom, 0.5)[0, 0] + 0.1


def test_luck_is_not_taken_for_skill(tmp_path):
    """Action 4 pays 0.5, action 5 pays 1 three times in ten: the better one is worth 0.5."""
    certain = [episode([([START], [4], 0.5)], key=(n,)) for n in range(10)]
    lottery = [episode([([START], [5], float(n < 3))], key=(10 + n,)) for n in range(10)]
    parts = ViewParts(history=False, state=False, privileged=False)
    learner = implicit(certain + lottery, tmp_path, expectile=0.99, parts=parts)
    for iteration in range(8):
        learner.learn(iteration, 0)
    value = float(learner.values.values(certain[:1])[0][0])
    assert value == pytest.approx(0.5, abs=0.03)
    advantages = learner.judge([certain[0], lottery[0], lottery[9]]).advantages[:, 0]
    assert advantages.tolist() == pytest.approx([0.0, -0.2, -0.2], abs=0.04)


def test_the_smaller_of_the_twins_counts(tmp_path):
    episodes = [played(a) for a in EVERY[:2]]
    learner = implicit(episodes, tmp_path, expectile=0.7)
    tables = [torch.linspace(-1, 1, Table.width), torch.linspace(1, -1, Table.width)]
    for network, table in zip(learner.slow, tables, strict=True):
        with torch.no_grad():
            network.head.linear.weight.copy_(table[None])
    judged = learner.judge(episodes)
    places = [q.network.trunk.places for q in learner.qs]
    assert places[0] == places[1] and len(places[0]) == 4  # both hold two shared turns
    lowest = torch.minimum(*tables)[[0, 1, 2, 0, 1, 3]].reshape(2, 3)
    torch.testing.assert_close(judged.advantages, lowest)  # V is still 0
    alone = implicit(episodes, tmp_path / "one", expectile=0.7, twins=1)
    with torch.no_grad():
        alone.slow[0].head.linear.weight.copy_(tables[1][None])
    assert float(alone.judge(episodes).advantages.sum()) > float(judged.advantages.sum())


def test_slow_copies_go_as_far_in_small_steps_as_in_one():
    plan = FitPlan(target_rate=0.5, steps=20)
    assert (1 - polyak_step(plan)) ** 20 == pytest.approx(0.5)
    assert polyak_step(FitPlan(target_rate=1.0)) == 1.0
    assert polyak_step(FitPlan(target_update="periodic")) == 0.0


def test_periodic_copies_come_when_they_are_due(tmp_path):
    episodes = [played(a) for a in EVERY]
    plan = {"target_update": "periodic", "target_period": 2, "steps": 5}
    learner = implicit(episodes, tmp_path, expectile=0.7, **plan)
    slow = [copy.deepcopy(learner.slow[0].state_dict())]
    for iteration in range(2):
        learner.learn(iteration, 0)
        slow.append(copy.deepcopy(learner.slow[0].state_dict()))
    name = "head.linear.weight"
    assert torch.equal(slow[0][name], slow[1][name])
    assert torch.equal(slow[2][name], learner.qs[0].network.state_dict()[name])


def test_state_comes_back(tmp_path):
    episodes = [played(a) for a in EVERY]
    one = implicit(episodes, tmp_path / "a", expectile=0.7, steps=3)
    one.learn(0, 0)
    two = implicit(episodes, tmp_path / "b", expectile=0.7, steps=3)
    two.judge(episodes)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for learner in (one, two):
        learner.learn(1, 0)
    assert torch.equal(one.judge(episodes).advantages, two.judge(episodes).advantages)
