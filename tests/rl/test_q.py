"""Kind q: enumerated policy gradients, closed-form values through the real learner."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from stages.rl.baselines import Cadence, LearnedBaseline
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.q import QBaseline, QLearner
from stages.rl.critic.views import ViewParts
from stages.rl.pool import ExperiencePool
from tests.rl.worlds import BETWEEN, START, episode

ACTIONS, TURNS = 2, 3
CHANCES = [[0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]
LOGITS = torch.tensor(CHANCES, dtype=torch.float64).log()
"""Policy by state: 0 at first; then 1 + (last action), and 3 at the last turn. In quarters, so
that 64 episodes hold every trajectory as often as the policy plays it."""


def state_after(actions):
    if not actions:
        return 0
    return 3 if len(actions) == TURNS - 1 else 1 + actions[-1]


def reward_of(actions):
    """Of the last of ``actions``; it depends on state and action alone."""
    table = {(0, 0): 0.5, (0, 1): 0.0, (1, 0): -1.0, (1, 1): 0.25, (2, 0): 2.0, (2, 1): 0.0}
    return table.get((state_after(actions[:-1]), actions[-1]), float(actions[-1]))


def policy(logits, state):
    return logits[state].log_softmax(-1)


def q_exact(actions):
    """Q(s, a) by expectation over what follows; ``actions`` ends with a."""
    rest = 0.0 if len(actions) == TURNS else v_exact(actions)
    return reward_of(actions) + rest


def v_exact(actions):
    chances = policy(LOGITS, state_after(actions)).exp()
    return sum(float(chances[a]) * q_exact((*actions, a)) for a in range(ACTIONS))


def play(actions, key=()):
    """The actions as an episode; action a is token a."""
    turns, ids = [], [START]
    for t, action in enumerate(actions):
        turns.append((list(ids), [action], reward_of(actions[: t + 1])))
        ids += [action, BETWEEN]
    return episode(turns, key=key)


def rewards(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


class Table(nn.Module):
    """A tabular trunk: one feature per state, or per state and action."""

    def __init__(self, *, actions=False):
        super().__init__()
        self.actions = actions
        self.width = 5 * ACTIONS if actions else 5

    def prepare(self, views):
        rows = []
        for view in views:
            past = tuple(int(e.action) for e in view.history)
            state = 4 if len(past) == TURNS else state_after(past)
            rows.append(state * ACTIONS + int(view.action) if self.actions else state)
        return torch.tensor(rows)

    def forward(self, episodes):
        return nn.functional.one_hot(torch.cat(list(episodes)), self.width).double()


def build(folder, **plan):
    cadence = Cadence(
        seed=0,
        discount=1.0,
        gae_lambda=0.95,
        target="td_lambda",
        max_age=8,
        warm_up_iterations=0,
        min_explained_variance=0.0,
    )
    plan = FitPlan(**plan)
    networks = [CriticNetwork(Table(actions=a)).double() for a in (False, True)]
    values = CriticLearner(networks[0], plan=plan, parts=ViewParts(), turn_rewards=rewards)
    pool = ExperiencePool(folder, max_episodes=100_000)
    return QBaseline(LearnedBaseline(values, pool, cadence), QLearner(networks[1], values))


def set_table(network, numbers):
    with torch.no_grad():
        network.head.linear.weight.copy_(torch.as_tensor(numbers)[None])
        network.head.linear.bias.zero_()


def exact_tables():
    """(V, Q) by state, and state and action."""
    v, q = torch.zeros(5, dtype=torch.float64), torch.zeros(5 * ACTIONS, dtype=torch.float64)
    for turn in range(TURNS):
        for past in itertools.product(range(ACTIONS), repeat=turn):
            v[state_after(past)] = v_exact(past)
            for a in range(ACTIONS):
                q[state_after(past) * ACTIONS + a] = q_exact((*past, a))
    return v, q


def enumerated_gradient(logits):
    """∇ Σ_τ π(τ)·R(τ)."""
    total = 0.0
    for actions in itertools.product(range(ACTIONS), repeat=TURNS):
        logp = sum(policy(logits, state_after(actions[:t]))[a] for t, a in enumerate(actions))
        total = total + logp.exp() * sum(reward_of(actions[: t + 1]) for t in range(TURNS))
    return torch.autograd.grad(total, logits)[0]


def estimated_gradient(baseline, logits):
    """E_τ[Σ_t A_t·∇ log π(a_t|s_t)] with the baseline's own advantages, over all trajectories."""
    every = list(itertools.product(range(ACTIONS), repeat=TURNS))
    advantages = baseline.judge([play(actions) for actions in every]).advantages
    total = 0.0
    for actions, row in zip(every, advantages, strict=True):
        logps = [policy(logits, state_after(actions[:t]))[a] for t, a in enumerate(actions)]
        chance = torch.stack(logps).sum().exp().detach()
        total = total + chance * sum(a * logp for a, logp in zip(row, logps, strict=True))
    return torch.autograd.grad(total, logits)[0]


def test_the_exact_q_gives_the_enumerated_gradient_whatever_the_baseline(tmp_path):
    logits = LOGITS.clone().requires_grad_()
    expected = enumerated_gradient(logits)
    assert float(expected.abs().max()) > 0.05
    baseline = build(tmp_path)
    v, q = exact_tables()
    set_table(baseline.q.network, q)
    rng = np.random.default_rng(0)
    for shift in (v, torch.zeros(5), torch.tensor(rng.normal(size=5))):
        set_table(baseline.values.critic.network, shift)
        torch.testing.assert_close(estimated_gradient(baseline, logits), expected)
    # a "baseline" that knows the action is none: the same shift on Q breaks the equality
    set_table(baseline.q.network, q + torch.tensor(rng.normal(size=5 * ACTIONS)))
    assert not torch.allclose(estimated_gradient(baseline, logits), expected, atol=1e-3)


def test_the_advantage_is_exact_where_both_tables_are(tmp_path):
    baseline = build(tmp_path)
    v, q = exact_tables()
    set_table(baseline.values.critic.network, v)
    set_table(baseline.q.network, q)
    judged = baseline.judge([play((0, 1, 1)), play((1, 0, 0))])
    expected = [
        [q_exact(a[: t + 1]) - v_exact(a[:t]) for t in range(TURNS)] for a in ((0, 1, 1), (1, 0, 0))
    ]
    torch.testing.assert_close(judged.advantages, torch.tensor(expected, dtype=torch.float64))


def on_policy():
    """Every trajectory as often as the policy plays it in 64 episodes."""
    drawn = []
    for actions in itertools.product(range(ACTIONS), repeat=TURNS):
        chance = np.prod([CHANCES[state_after(actions[:t])][a] for t, a in enumerate(actions)])
        drawn += [actions] * round(64 * chance)
    assert len(drawn) == 64
    return [play(actions, key=(1, 0, n)) for n, actions in enumerate(drawn)]


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9])
def test_it_learns_the_closed_form_values(tmp_path, gae_lambda):
    """Through learner and target network, all 64 episodes at each step: the only fixed point."""
    plan = {"learning_rate": 0.1, "steps": 20, "target_rate": 1.0, "max_grad_norm": 100.0}
    baseline = build(tmp_path, **plan, gae_lambda=gae_lambda)
    everything = on_policy()
    baseline.values.pool.add(0, everything)
    baseline.values.pool.sample = lambda *_, **__: everything
    for iteration in range(10):
        metrics = baseline.learn(iteration, 0)
    v, q = exact_tables()
    met = torch.arange(4 * ACTIONS)  # state 4 is after the end
    learnt = baseline.q.network.head
    table = (learnt.linear.weight[0] + learnt.linear.bias).detach()
    assert float((table - q)[met].abs().max()) < 0.02
    head = baseline.values.critic.network.head
    values = (head.linear.weight[0] + head.linear.bias).detach()
    assert float((values - v)[:4].abs().max()) < 0.02
    assert metrics["critic/q_loss"] < metrics["critic/loss"]  # it knows the action
    heard = baseline.listen(on_policy())
    assert heard["critic/q_explained_variance"] > heard["critic/explained_variance"]


def test_state_comes_back(tmp_path):
    baseline = build(tmp_path / "a", steps=3, batch_size=8)
    baseline.values.pool.add(0, on_policy())
    baseline.learn(0, 0)
    again = build(tmp_path / "b", steps=3, batch_size=8)
    again.load_state_dict(copy.deepcopy(baseline.state_dict()))
    again.values.pool.add(0, on_policy())
    for one in (baseline, again):
        one.learn(1, 0)
    episodes = on_policy()[::9]
    assert torch.equal(baseline.judge(episodes).advantages, again.judge(episodes).advantages)
