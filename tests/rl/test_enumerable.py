"""Problems small enough to enumerate: what values must converge to, in closed form."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from stages.rl.baselines import Cadence, LearnedBaseline
from stages.rl.critic.correction import AS_DRAWN, NoCorrection
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.views import ViewParts
from stages.rl.pool import ExperiencePool
from stages.rl.targets import Trace, vtrace
from tests.rl.worlds import BETWEEN, START, episode

HORIZON, DISCOUNT = 3, 0.9
REWARD = np.array([[0.0, 1.0], [0.5, -1.0]])
"""By state and action."""
BEHAVIOUR = np.array([[0.7, 0.3], [0.2, 0.8]])
POLICY = np.array([[0.1, 0.9], [0.6, 0.4]])
CHANCE = np.array([[[0.8, 0.2], [0.3, 0.7]], [[0.5, 0.5], [0.1, 0.9]]])
"""By state, action and next state."""


def true_values(policy, chance=CHANCE):
    """V^π_t(s) by backward induction, (T + 1, 2)."""
    values = np.zeros((HORIZON + 1, 2))
    for t in reversed(range(HORIZON)):
        q = REWARD + DISCOUNT * chance @ values[t + 1]
        values[t] = (policy * q).sum(1)
    return values


def cut_policy(policy, behaviour, rho_bar):
    """∝ min(ρ̄·μ, π): what V-trace converges to."""
    least = np.minimum(rho_bar * behaviour, policy)
    return least / least.sum(1, keepdims=True)


def all_paths():
    """Every episode of the behaviour policy: states (P, T+1), actions (P, T), chances (P,)."""
    states, actions, chances = [], [], []
    for path in itertools.product((0, 1), repeat=2 * HORIZON + 1):
        s, a = path[: HORIZON + 1], path[HORIZON + 1 :]
        steps = range(HORIZON)
        p = np.prod([BEHAVIOUR[s[t], a[t]] * CHANCE[s[t], a[t], s[t + 1]] for t in steps])
        states.append(s), actions.append(a), chances.append(0.5 * p)
    return np.array(states), np.array(actions), np.array(chances)


def vtrace_fixed_point(trace, *, turns=HORIZON, bootstraps=True):
    """Iterate V ← E_μ[v_t | s_t] over all paths, cut after ``turns``; V of later views is given."""
    states, actions, chances = all_paths()
    s, a = states[:, :turns], actions[:, :turns]
    values = true_values(POLICY)
    values[:turns] = 0.0
    for _ in range(200):  # ratios that are cut leave a part of the old value: it fades
        last = torch.tensor(values[turns][states[:, turns]])
        targets = vtrace(
            torch.tensor(REWARD[s, a]),
            torch.tensor(values[np.arange(turns), s]),
            torch.tensor(np.log(POLICY[s, a] / BEHAVIOUR[s, a])),
            torch.ones(s.shape, dtype=torch.bool),
            bootstrap=last if bootstraps else torch.zeros_like(last),
            discount=DISCOUNT,
            trace=trace,
        ).numpy()
        for t, here in itertools.product(range(turns), (0, 1)):
            values[t, here] = np.average(targets[:, t], weights=chances * (s[:, t] == here))
    return values


LARGEST = float((POLICY / BEHAVIOUR).max())


@pytest.mark.parametrize("c_bar", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("n_steps", [1, 2, None])
def test_vtrace_converges_to_the_policys_value_if_no_ratio_is_cut(c_bar, n_steps):
    found = vtrace_fixed_point(Trace(LARGEST, c_bar, n_steps=n_steps))
    np.testing.assert_allclose(found, true_values(POLICY), rtol=1e-9)


@pytest.mark.parametrize("rho_bar", [1.0, 0.5, 2.0])
def test_vtrace_converges_to_the_value_of_the_cut_policy(rho_bar):
    expected = true_values(cut_policy(POLICY, BEHAVIOUR, rho_bar))
    for c_bar, gae_lambda in itertools.product((0.25, 0.5), (0.0, 0.9, 1.0)):
        found = vtrace_fixed_point(Trace(rho_bar, c_bar, gae_lambda))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert abs(expected - true_values(POLICY)).max() > 0.05


def test_machinery_cuts_bootstrap_and_ends_do_not():
    truth = true_values(POLICY)
    np.testing.assert_allclose(vtrace_fixed_point(Trace(LARGEST), turns=2), truth, rtol=1e-9)
    ended = vtrace_fixed_point(Trace(LARGEST), turns=2, bootstraps=False)
    np.testing.assert_allclose(ended[1], (POLICY * REWARD).sum(1), rtol=1e-9)
    assert abs(ended[:2] - truth[:2]).max() > 0.05


# The same through the critic's real learner. Transitions are certain and actions even here, so
# that the enumeration is a plain list of eight episodes, each as likely as the others.


class Table(nn.Module):
    """A trunk that tells each different view from all others: under a linear head, a table."""

    width = 64

    def __init__(self):
        super().__init__()
        self.places = {}

    def prepare(self, views):
        return torch.tensor([self.places.setdefault(v.text(), len(self.places)) for v in views])

    def forward(self, episodes):
        return nn.functional.one_hot(torch.cat(list(episodes)), self.width).float()


NEXT = np.array([[0, 1], [1, 0]])
CERTAIN = np.eye(2)[NEXT]
EVEN = np.full((2, 2), 0.5)
SEES_STATE = ViewParts(history=False, state=False, privileged=True)


def played(actions, turns=HORIZON, *, truncated=False):
    """An episode of the certain world; the state stands in the privileged facts."""
    s, states, made = 0, [0], []
    for a in actions[:turns]:
        made.append(([START], [a], float(REWARD[s, a])))
        s = int(NEXT[s, a])
        states.append(s)
    done = episode(made, key=(*actions, turns, int(truncated)), truncated=truncated)
    told = [replace(t, privileged={"s": states[t.index + 1]}) for t in done.turns]
    return replace(done.with_turns(told), initial_privileged={"s": 0})


EVERY = list(itertools.product((0, 1), repeat=HORIZON))


def paid(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def fit(episodes, *, kind="td_lambda", parts=SEES_STATE, correction=AS_DRAWN, pays=paid, **plan):
    options = {"learning_rate": 0.03, "steps": 35, "target_rate": 1.0, "discount": DISCOUNT}
    learner = CriticLearner(
        CriticNetwork(Table()), plan=FitPlan(**(options | plan)), parts=parts, turn_rewards=pays
    )
    for _ in range(14):
        learner.fit(lambda n: episodes, kind=kind, correction=correction)
    return learner


def values_by_state(learner, episodes):
    """{(t, s): V}."""
    return {
        (t, dict(e.privileged_before(t))["s"]): float(v[t])
        for e, v in zip(episodes, learner.values(episodes), strict=True)
        for t in range(len(e.turns))
    }


def assert_values(found, truth, atol=0.01):
    assert len(found) == 5  # one state at first, then two
    for (t, s), value in found.items():
        assert value == pytest.approx(truth[t, s], abs=atol), (t, s)


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("td_lambda", {"gae_lambda": 0.0}),
        ("td_lambda", {"gae_lambda": 0.9}),
        ("monte_carlo", {}),
        ("n_step", {"n_steps": 2}),
        ("td_lambda", {"target_update": "periodic", "target_period": 1}),
    ],
)
def test_on_policy_the_critic_reaches_the_true_values(kind, plan):
    episodes = [played(a) for a in EVERY]
    found = values_by_state(fit(episodes, kind=kind, **plan), episodes)
    assert_values(found, true_values(EVEN, CERTAIN))


class OldActor(NoCorrection):
    """The episodes were played evenly; the policy of today is ``POLICY``."""

    def log_ratios(self, episodes):
        out = []
        for e in episodes:
            states = [dict(e.privileged_before(t.index))["s"] for t in e.turns]
            chosen = [t.action_ids[0] for t in e.turns]
            out.append(torch.tensor(np.log(POLICY[states, chosen] / 0.5)).float())
        return out


@pytest.mark.parametrize("kind", ["td_lambda", "monte_carlo", "n_step"])
@pytest.mark.parametrize("rho_bar", [2.0, 1.0])
def test_off_policy_the_critic_reaches_what_vtrace_promises(kind, rho_bar):
    episodes = [played(a) for a in EVERY]
    options = {"rho_bar": rho_bar, "c_bar": 1.0, "n_steps": 2}
    learner = fit(episodes, kind=kind, correction=OldActor(), **options)
    promised = cut_policy(POLICY, EVEN, rho_bar)  # at 2 no ratio is cut: that is the policy
    assert (rho_bar == 2.0) == bool(np.allclose(promised, POLICY))
    assert_values(values_by_state(learner, episodes), true_values(promised, CERTAIN))


@pytest.mark.parametrize("kind", ["td_lambda", "monte_carlo", "n_step"])
def test_cuts_by_the_machinery_leave_the_critic_right_and_ends_do_not(kind):
    whole = [played(a) for a in EVERY]
    truth = true_values(EVEN, CERTAIN)
    cut = [played(a, 2, truncated=True) for a in EVERY]
    assert_values(values_by_state(fit(whole + cut, kind=kind, n_steps=2), whole), truth)
    ended = [played(a, 2) for a in EVERY]
    found = values_by_state(fit(whole + ended, kind=kind, n_steps=2), whole)
    for s in (0, 1):  # in every other episode nothing follows the second turn
        expected = (EVEN * (REWARD + 0.5 * DISCOUNT * CERTAIN @ truth[2])).sum(1)[s]
        assert found[1, s] == pytest.approx(expected, abs=0.01)
        assert abs(expected - truth[1, s]) > 0.03


# A critic without memory: the first action decides what the last turn pays, and nothing that the
# memoryless view shows in between tells which action it was.

SHARE = 0.25


def forgetful(first, key, facts):
    made = [([START], [first], 0.0), ([START, first, BETWEEN], [2], float(first == 1))]
    return replace(episode(made, key=key), initial_privileged=facts)


CHOICES = [forgetful(int(i == 0), (i, 7), {}) for i in range(4)]


def judged(parts, gae_lambda, folder):
    learner = fit(CHOICES, parts=parts, discount=1.0, gae_lambda=gae_lambda)
    cadence = Cadence(0, 1.0, gae_lambda, "td_lambda", 1, 0, 0.0)
    pool = ExperiencePool(folder, max_episodes=1)
    return LearnedBaseline(learner, pool, cadence).judge(CHOICES)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
def test_a_memoryless_critic_biases_the_gradient_by_bootstrapping_only(gae_lambda, tmp_path):
    """Both views alias to V = p, so A_0 = λ(G − p): gone at λ = 0, exact at λ = 1."""
    blind = judged(ViewParts(False, False, False), gae_lambda, tmp_path)
    won = torch.tensor([float(e.success) for e in CHOICES])
    torch.testing.assert_close(blind.values, torch.full((4, 2), SHARE), atol=0.01, rtol=0)
    expected = gae_lambda * (won - SHARE)
    torch.testing.assert_close(blind.advantages[:, 0], expected, atol=0.02, rtol=0)
    # E[A_0 ∇ log π] for the logit of the good action: p(1 − p) without bias
    slope = won - SHARE
    gradient = float((blind.advantages[:, 0] * slope).mean())
    assert gradient == pytest.approx(gae_lambda * SHARE * (1 - SHARE), abs=0.01)
    sees = judged(ViewParts(True, False, False), gae_lambda, tmp_path)
    torch.testing.assert_close(sees.advantages[:, 0], won - SHARE, atol=0.02, rtol=0)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
def test_a_memoryless_critic_converges_to_the_aliased_fixed_point(gae_lambda):
    """The first view shows the coin, the second does not: V(x) = p, V(c_0) = (1 − λ)p + λG."""
    coins = [forgetful(int(i == 0), (i, 8), {"coin": int(i == 0)}) for i in range(4)]
    learner = fit(coins, parts=SEES_STATE, discount=1.0, gae_lambda=gae_lambda)
    values = torch.stack([v[:2] for v in learner.values(coins)])
    won = torch.tensor([float(e.success) for e in coins])
    first = (1 - gae_lambda) * SHARE + gae_lambda * won
    expected = torch.stack([first, torch.full((4,), SHARE)], dim=1)
    torch.testing.assert_close(values, expected, atol=0.01, rtol=0)
