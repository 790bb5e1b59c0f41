"""Hindsight on a problem with goals that can be enumerated: who may learn from relabelled rows.

Two turns of a coin's throw each, played evenly; the goal is how many heads there are in the end.
V(c_0 | goal) is the binomial chance of it, V(c_1 | goal, first) is a half where it is in reach.
"""

import itertools
from dataclasses import replace

import pytest
import torch

from stages.rl.baselines import Cadence, LearnedBaseline
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.q import QBaseline, QLearner, Relabelled
from stages.rl.critic.views import ViewParts
from stages.rl.pool import ExperiencePool
from tests.rl.test_enumerable import Table
from tests.rl.worlds import BETWEEN, START, episode

GOALS = (0, 1, 2)
THROWS = list(itertools.product((0, 1), repeat=2))
V_START = {0: 0.25, 1: 0.5, 2: 0.25}
V_SECOND = {(goal, first): 0.5 * (goal - first in (0, 1)) for goal in GOALS for first in (0, 1)}


class DoubleTable(Table):
    """In float64."""

    def forward(self, episodes):
        return super().forward(episodes).double()


def played(goal, throws, *, relabelled_from=""):
    """An episode; goal and heads so far stand in the privileged facts."""
    first, second = throws
    made = [
        ([START], [first], 0.0),
        ([START, first, BETWEEN], [second], float(sum(throws) == goal)),
    ]
    done = episode(made, key=(goal, first, second, bool(relabelled_from)))
    told = [
        replace(turn, privileged={"goal": goal, "heads": sum(throws[: turn.index + 1])})
        for turn in done.turns
    ]
    facts = {"goal": goal, "heads": 0}
    done = replace(done.with_turns(told), initial_privileged=facts)
    return replace(done, relabelled_from=relabelled_from)


EVERY = [played(goal, throws) for goal in GOALS for throws in THROWS]
RELABELLED = [
    played(sum(throws), throws, relabelled_from=f"goal {goal}")
    for goal in GOALS
    for throws in THROWS
    if sum(throws) != goal
]


def paid(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def build(folder, weight=0.0, **options):
    plan = {"learning_rate": 0.1, "steps": 20, "target_rate": 1.0, "max_grad_norm": 100.0}
    parts = ViewParts(history=False, state=False, privileged=True)
    values = CriticLearner(
        CriticNetwork(DoubleTable()).double(),
        plan=FitPlan(**(plan | options)),
        parts=parts,
        turn_rewards=paid,
    )
    pool, others = (ExperiencePool(folder / n, max_episodes=99) for n in ("pool", "hindsight"))
    others.add(0, RELABELLED)
    baseline = LearnedBaseline(values, pool, Cadence(0, 1.0, 0.95, "td_lambda", 8, 0, 0.0))
    q = QLearner(CriticNetwork(DoubleTable()).double(), values)
    return QBaseline(baseline, q, Relabelled(others, weight))


def learn(baseline, episodes, fits=10):
    """All of the episodes in every batch, so that there is one fixed point."""
    baseline.values.pool.add(0, episodes)
    baseline.values.pool.sample = lambda *_, **__: episodes
    for iteration in range(fits):
        baseline.learn(iteration, 0)
    return baseline


def starts(learner):
    """{goal: V(c_0)}."""
    return {goal: float(learner.values([played(goal, (0, 0))])[0][0]) for goal in GOALS}


@pytest.mark.parametrize(("weight", "gae_lambda"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.95)])
def test_q_learns_from_relabelled_episodes_and_v_stays_true(tmp_path, gae_lambda, weight):
    baseline = learn(build(tmp_path, weight, gae_lambda=gae_lambda), EVERY)
    assert starts(baseline.values.critic) == pytest.approx(V_START, abs=0.02)
    for e, q in zip(EVERY, baseline.q.values(EVERY), strict=True):
        goal, (first, second) = e.key[0], e.key[1:3]
        truth = [V_SECOND[goal, first], float(first + second == goal)]
        assert q.tolist() == pytest.approx(truth, abs=0.03)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_an_action_that_was_never_played_for_its_goal_is_known_from_hindsight_alone(
    tmp_path, weight
):
    missing = played(2, (1, 1))
    episodes = [e for e in EVERY if e.key != missing.key]
    q = learn(build(tmp_path, weight, gae_lambda=0.0), episodes).q.values([missing])[0]
    assert (float(q[1]) > 0.95) == (weight > 0)


def test_unweighted_monte_carlo_on_relabelled_episodes_makes_v_exceed_the_truth(tmp_path):
    """Successes, given that the goal was chosen with hindsight, by their enumerated share."""
    as_played = [replace(e, relabelled_from="") for e in RELABELLED]
    together = EVERY + as_played
    learner = build(tmp_path).values.critic
    for _ in range(10):
        learner.fit(lambda _: together, kind="monte_carlo")
    of_goal = {goal: [e for e in together if e.key[0] == goal] for goal in GOALS}
    shares = {goal: sum(e.success for e in es) / len(es) for goal, es in of_goal.items()}
    assert shares == {0: 0.5, 1: 0.75, 2: 0.5}
    found = starts(learner)
    assert found == pytest.approx(shares, abs=0.02)
    assert all(found[goal] > V_START[goal] + 0.2 for goal in GOALS)


@pytest.mark.parametrize("kind", ["td_lambda", "monte_carlo", "n_step"])
def test_no_such_return_of_a_relabelled_episode_can_be_fitted(tmp_path, kind):
    baseline = build(tmp_path)
    with pytest.raises(ValueError, match="relabelled"):
        baseline.values.critic.fit(lambda _: [*EVERY, RELABELLED[0]], kind=kind)
    with pytest.raises(ValueError, match="relabelled"):
        baseline.q.fit(lambda _: [*EVERY, RELABELLED[0]], kind=kind)


def test_the_target_of_expected_sarsa_is_one_reward_and_the_next_value(tmp_path):
    learner = build(tmp_path, discount=0.5).values.critic
    slow = [torch.tensor([0.3, 0.8, 0.4], dtype=torch.float64)]
    cut = replace(played(1, (0, 1)), terminated=False, truncated=True)
    for e, expected in ((played(1, (0, 1)), [0.4, 1.0]), (cut, [0.4, 1.2])):
        returns, _ = learner.targets([e], slow, kind="expected_sarsa")
        torch.testing.assert_close(returns, torch.tensor([expected], dtype=torch.float64))


def test_q_waits_until_v_is_warm(tmp_path):
    cold, warm = (build(tmp_path / name, 1.0) for name in ("cold", "warm"))
    cold.values.warm = False
    missing = played(2, (1, 1))
    episodes = [e for e in EVERY if e.key != missing.key]
    known = [float(learn(b, episodes, 3).q.values([missing])[0][1]) for b in (cold, warm)]
    assert known[0] < 0.5 < known[1]
