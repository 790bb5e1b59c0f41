"""Kind discriminative: told apart by contrast, never judging what it learnt from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.interaction.trajectory import Action
from stages.rl.baselines import Cadence, LearnedBaseline
from stages.rl.critic.contrast import preference_loss
from stages.rl.critic.discriminator import (
    BONUS,
    BonusPlan,
    DiscriminativeBaseline,
    Discriminator,
    bonuses,
    held_out,
)
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.preferences import dialogue_episode, preference_episodes
from stages.rl.critic.views import ViewParts, action_views
from stages.rl.learner import ActorLearner, Objective
from stages.rl.pool import ExperiencePool
from stages.rl.trainer import Parts
from tests.rl.worlds import START, bandit_episodes, episode, setup

PLAN = FitPlan(learning_rate=1e-2, steps=15, batch_size=16)
BONUS_PLAN = BonusPlan(weight=0.1, cap=0.2)
GOOD, BAD = "look it up", "guess"


def success(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def worded(words, won, *, task, number):
    """An episode whose turns say ``words``; the last turn pays if ``won``."""
    last = len(words) - 1
    made = episode(
        [([START], [1], float(won) if t == last else 0.0) for t in range(len(words))],
        key=(0, 0, number),
    )
    turns = [
        replace(t, action=Action(w), observation=()) for t, w in zip(made.turns, words, strict=True)
    ]
    return replace(made.with_turns(turns), task_id=task)


def world(count, *, seed=0, informative=True):
    """Two turns; the first one decides unless nothing does. Two episodes per task."""
    rng = np.random.default_rng(seed)
    done = []
    for number in range(count):
        good = bool(rng.random() < 0.5)
        won = good if informative else bool(rng.random() < 0.5)
        words = (GOOD if good else BAD, "then answer")
        done.append(worded(words, won, task=f"task {number // 2}", number=number))
    return done


def build(plan=PLAN, **options):
    torch.manual_seed(0)
    settings = {"parts": ViewParts(), "bonus": BONUS_PLAN, "turn_rewards": success} | options
    return Discriminator(CriticNetwork(LightTrunk(16, actions=True)), plan=plan, **settings)


def test_bonuses_add_up_to_nothing_and_stay_below_the_cap():
    scores = torch.tensor([1.0, -2.0, 0.5, 4.0])
    small = bonuses(scores, BonusPlan(weight=0.01, cap=0.2))
    torch.testing.assert_close(small, 0.01 * (scores - 0.875))
    capped = bonuses(scores, BonusPlan(weight=10.0, cap=0.2))
    assert float(capped.abs().sum()) == pytest.approx(0.2)
    assert float(capped.sum()) == pytest.approx(0.0, abs=1e-6)
    torch.testing.assert_close(capped / small, (capped / small)[:1].expand(4))
    assert bonuses(torch.tensor([7.0]), BonusPlan(10.0, 0.2)).tolist() == [0.0]
    # length is not paid for: the same score again and again adds nothing
    assert float(bonuses(torch.full((50,), 3.0), BonusPlan(10.0, 0.2)).abs().max()) == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        bonuses(torch.tensor([]), BONUS_PLAN)


def test_it_tells_good_from_bad_and_pays_the_good_turn():
    judge = build()
    fresh = judge.with_bonuses(world(4))
    assert {t.info[BONUS] for e in fresh for t in e.turns} == {0.0}  # nothing learnt, nothing paid
    metrics = [judge.fit(world(64), np.random.default_rng(i)) for i in range(3)]
    assert metrics[-1]["critic/discriminator_loss"] < 0.8 * metrics[0]["critic/discriminator_loss"]
    assert metrics[-1]["critic/auc"] > 0.9
    good, bad = judge.with_bonuses(
        [
            worded((w, "then answer"), False, task="new", number=900 + n)
            for n, w in enumerate((GOOD, BAD))
        ]
    )
    assert good.turns[0].info[BONUS] > bad.turns[0].info[BONUS] + 0.05
    # the second turn looks good or bad by what came before it, and is not paid for that
    assert good.turns[1].info[BONUS] < 0 < bad.turns[1].info[BONUS]


def test_permuted_outcomes_teach_nothing():
    judge = build()
    balanced = [
        worded((word, "then answer"), won, task=f"task {n // 4}", number=n)
        for n, (word, won) in enumerate([(w, v) for w in (GOOD, BAD) for v in (0, 1)] * 16)
    ]
    for i in range(3):
        metrics = judge.fit(balanced, np.random.default_rng(i))
    assert metrics["critic/discriminator_loss"] > 0.9 * np.log(2)
    assert metrics["critic/auc"] < 0.65


def test_held_out_tasks_never_train_it(monkeypatch):
    judge = build()
    trained = set()
    real = judge._step

    def note(pairs):
        trained.update(e.task_id for pair in pairs for e, _ in pair)
        return real(pairs)

    monkeypatch.setattr(judge, "_step", note)
    metrics = judge.fit(world(64), np.random.default_rng(0))
    assert trained and not any(held_out(task) for task in trained)
    assert any(held_out(e.task_id) for e in world(64)) and "critic/auc" in metrics


def test_without_a_contrast_nothing_moves():
    judge = build()
    before = [p.clone() for p in judge.network.parameters()]
    lost = [worded((BAD,), False, task=f"t{n}", number=n) for n in range(8)]
    assert judge.fit(lost, np.random.default_rng(0)) == {"critic/pairs": 0.0}
    assert all(map(torch.equal, before, judge.network.parameters()))


def test_episodes_cut_by_the_machinery_have_no_outcome_to_learn_from():
    judge = build()
    cut = [replace(e, terminated=False, truncated=True) for e in world(16)]
    assert judge.fit(cut, np.random.default_rng(0)) == {"critic/pairs": 0.0}


def test_privileged_facts_are_seen_or_not():
    facts = {"answer": "42"}
    told = [replace(e, initial_privileged=facts) for e in world(32)]
    for privileged in (True, False):
        judge = build(parts=ViewParts(privileged=privileged))
        judge.fit(told, np.random.default_rng(0))
        plain, other = (replace(told[0], initial_privileged=f, key=()) for f in (facts, {}))
        with torch.no_grad():
            same = torch.equal(judge.scores([(plain, 0)]), judge.scores([(other, 0)]))
        assert same is not privileged


def rows():
    asked = [
        {"role": "user", "content": "how many?"},
        {"role": "assistant", "content": "query"},
        {"role": "user", "content": "3 rows"},
    ]
    one = {"prompt": asked, "chosen": GOOD, "rejected": BAD, "task_id": "p"}
    return [one, {"prompt": "which?", "chosen": GOOD, "rejected": BAD}]


def test_a_preference_row_becomes_two_episodes():
    chosen, rejected = preference_episodes(rows())[0]
    view = action_views(chosen)[-1]
    assert view.goal == "how many?" and view.action == GOOD and view.privileged == ""
    assert [(e.action, e.result) for e in view.history] == [("query", "3 rows")]
    assert "3 rows" in view.state and GOOD not in view.state
    assert action_views(rejected)[-1] == replace(view, action=BAD)
    assert chosen.key != rejected.key and chosen.task_id == "p"
    lone = dialogue_episode([{"role": "assistant", "content": "hello"}], task_id="x", key=(-1,))
    assert lone.goal == "" and len(lone.turns) == 1


def test_preferences_alone_teach_it():
    judge = build(preferences=preference_episodes(rows()))
    first = judge.fit([], np.random.default_rng(0))
    for i in range(2):
        last = judge.fit([], np.random.default_rng(i))
    assert last["critic/discriminator_loss"] < 0.5 * first["critic/discriminator_loss"]
    good, bad = (worded((w,), False, task="new", number=1) for w in (GOOD, BAD))
    with torch.no_grad():
        scores = judge.scores([(replace(good, key=()), 0), (replace(bad, key=()), 0)])
    assert float(scores[0] - scores[1]) > 0.5


def test_preferences_of_held_out_tasks_never_train_it():
    tasks = [f"task {n}" for n in range(20)]
    pairs = preference_episodes([row | {"task_id": t} for t in tasks for row in rows()[:1]])
    taught = {good[0].task_id for good, _ in build(preferences=pairs).preferences}
    assert taught == {task for task in tasks if not held_out(task)} != set(tasks)


def test_pool_and_preferences_share_a_batch():
    judge = build(preferences=preference_episodes(rows()))
    sizes = []
    real = judge._step
    judge._step = lambda pairs: (
        sizes.append(sum(good[0].key[0] == -1 for good, _ in pairs)) or real(pairs)
    )
    judge.fit(world(32), np.random.default_rng(0))
    assert set(sizes) == {PLAN.batch_size // 2}


def test_the_loss_is_bradley_terry_by_hand():
    judge = build(replace(PLAN, steps=1))
    judge.fit(world(32), np.random.default_rng(0))
    a, b = world(2)
    with torch.no_grad():
        scores = judge.scores([(a, 0), (b, 0)])
        one = judge.scores([(a, 0)])
    torch.testing.assert_close(scores[:1], one)
    expected = np.log1p(np.exp(-float(scores[0] - scores[1])))
    assert float(preference_loss(scores[:1], scores[1:])) == pytest.approx(expected, rel=1e-5)


def test_what_it_scores_was_never_in_its_training_data(tmp_path):
    """Through the real loop, warm-up included: each episode is scored before any fit sees it."""
    trainer = setup(tmp_path, iterations=4, learning_rate=1e-2)
    judge = build(replace(PLAN, steps=2, batch_size=4))
    pool = ExperiencePool(tmp_path / "pool", max_episodes=64)

    def turn_rewards(trajectory):
        bonus = [float(t.info[BONUS]) for t in trajectory.turns]
        return [r + b for r, b in zip(success(trajectory), bonus, strict=True)]

    torch.manual_seed(1)
    values = CriticLearner(
        CriticNetwork(LightTrunk(8)),
        plan=FitPlan(steps=2),
        parts=ViewParts(),
        turn_rewards=turn_rewards,
    )
    cadence = Cadence(3, 1.0, 0.95, "td_lambda", 4, 2, 0.0)
    baseline = DiscriminativeBaseline(LearnedBaseline(values, pool, cadence), judge)
    fitted, scored = set(), []
    real_fit, real_score = judge.fit, judge.with_bonuses

    def fit(episodes, rng):
        fitted.update(e.key for e in episodes)
        return real_fit(episodes, rng)

    def with_bonuses(episodes):
        assert not fitted & {e.key for e in episodes}
        scored.extend(e.key for e in episodes)
        return real_score(episodes)

    judge.fit, judge.with_bonuses = fit, with_bonuses
    objective = Objective(0.2, 0.0, "k2", 0.0, 0.0, 1.0, 1.0)
    log = []
    parts = Parts(
        collect=lambda i, v: bandit_episodes(trainer.actor, 16, i, version=v),
        score=with_bonuses,
        measure=lambda es: {},
        baseline=baseline,
        pool=pool,
        objective=lambda *_: objective,
        report=lambda i, metrics, es: log.append(metrics),
        evaluate=lambda i: {},
        checkpoint=lambda i: None,
    )
    learner = ActorLearner(trainer, epochs=1, minibatch_episodes=8, microbatch_tokens=4096)
    trainer.train(parts, learner, iterations=4)
    assert fitted == set(scored) and len(scored) == 64
    assert log[0]["critic/bonus"] == 0.0 and trainer.progress.actor_version >= 1
    pooled = {e.key: e for e in pool.episodes}
    for kept in pooled.values():
        assert sum(t.info[BONUS] for t in kept.turns) == pytest.approx(0.0, abs=1e-6)
    # V is fitted to rewards that hold the bonus: the pool keeps it, frozen
    newest = [e for e in pooled.values() if e.key[1] == 3]
    assert any(t.info[BONUS] != 0.0 for e in newest for t in e.turns)
