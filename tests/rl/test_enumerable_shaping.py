"""Potential-based shaping on the certain world of ``test_enumerable``: V' = V − Φ, same order."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from stages.interaction.rewards.mix import RewardMix
from stages.interaction.rewards.shaping import Shaping
from tests.rl.test_enumerable import (
    CERTAIN,
    DISCOUNT,
    EVEN,
    EVERY,
    HORIZON,
    NEXT,
    REWARD,
    assert_values,
    fit,
    played,
    true_values,
    values_by_state,
)

WEIGHT = 0.5
PHI = WEIGHT * np.array([1 / 3, 1.0])
"""Of the two states: in state 0 one of three points is ticked, in state 1 all."""
SHAPING = Shaping("checklist", WEIGHT, DISCOUNT)


def listed(actions, turns=HORIZON, **outcome):
    """An episode of the certain world whose checklist is a function of the state."""
    done = played(actions, turns, **outcome)

    def items(facts):
        return tuple((name, name == "a" or facts["s"] == 1) for name in "abc")

    turns = [replace(t, checklist=items(t.privileged)) for t in done.turns]
    return replace(done.with_turns(turns), initial_checklist=items(done.initial_privileged))


def shaped_values(policy):
    """V'_t(s) by backward induction on the shaped rewards, written out: (T + 1, 2)."""
    values = np.zeros((HORIZON + 1, 2))
    for t in reversed(range(HORIZON)):
        after = PHI if t + 1 < HORIZON else np.zeros(2)
        q = REWARD + DISCOUNT * after[NEXT] - PHI[:, None] + DISCOUNT * values[t + 1][NEXT]
        values[t] = (policy * q).sum(1)
    return values


@pytest.mark.parametrize("policy", [EVEN, np.array([[0.1, 0.9], [0.6, 0.4]])])
def test_the_shaped_value_is_the_value_minus_the_potential(policy):
    expected = true_values(policy, CERTAIN)
    expected[:HORIZON] -= PHI
    np.testing.assert_allclose(shaped_values(policy), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["td_lambda", "monte_carlo", "n_step"])
def test_the_critic_reaches_it_through_the_real_mix(kind):
    """With caps that let no other dense reward through."""
    mix = RewardMix(dense_cap=0.0, shaping=SHAPING)
    episodes = [listed(a) for a in EVERY]
    learner = fit(episodes, kind=kind, pays=mix.totals, n_steps=2)
    assert_values(values_by_state(learner, episodes), shaped_values(EVEN))


def test_a_cut_by_the_machinery_keeps_the_last_potential():
    whole, cut = [listed(a) for a in EVERY], [listed(a, 2, truncated=True) for a in EVERY]
    learner = fit(whole + cut, pays=RewardMix(shaping=SHAPING).totals)
    assert_values(values_by_state(learner, whole), shaped_values(EVEN))


def returns_of(shaping, *, ends=True):
    """Σγ^t·r_t of every deterministic policy of state and time, by its 2·T choices."""
    found = {}
    for choices in itertools.product((0, 1), repeat=2 * HORIZON):
        table, s, actions = np.reshape(choices, (HORIZON, 2)), 0, []
        for t in range(HORIZON):
            actions.append(int(table[t, s]))
            s = int(NEXT[s, actions[-1]])
        done = replace(listed(actions), terminated=ends)
        rewards = RewardMix(shaping=shaping).totals(done)
        found[choices] = sum(DISCOUNT**t * r for t, r in enumerate(rewards))
    return found


def order(returns):
    """Which policies are better than which."""
    return {(a, b) for a, b in itertools.permutations(returns, 2) if returns[a] > returns[b] + 1e-9}


def test_the_order_of_all_policies_is_unchanged():
    # Strong, and against the grain: the state with the most points is where the good paths end.
    strong = replace(SHAPING, weight=-8 * WEIGHT)
    plain, shaped = returns_of(None), returns_of(strong)
    assert len(plain) == 64
    for policy, value in plain.items():
        assert shaped[policy] == pytest.approx(value + 8 * PHI[0], abs=1e-12)
    assert order(shaped) == order(plain)
    # What it takes: a potential that is kept at the end pays for the state one ends in,
    assert order(returns_of(strong, ends=False)) != order(plain)
    # and so does another γ than that of the returns.
    assert order(returns_of(replace(strong, discount=0.2))) != order(plain)
