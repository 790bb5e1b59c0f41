"""The pool's bounds, priorities and draws; what a fit asks of them; ratios of today's actor."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.common.errors import RunError
from stages.rl.critic.correction import NoCorrection
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.views import ViewParts
from stages.rl.learner import ActorLearner
from stages.rl.pool import SMALLEST_PRIORITY, ExperiencePool
from stages.rl.replay import Replay
from tests.rl.worlds import BETWEEN, START, episode, setup, small_actor


def shard(count, iteration, *, turns=1, **options):
    """``count`` episodes of ``turns`` turns, played by actor version ``iteration``."""
    made = [([START], [2], 0.0)] * (turns - 1) + [([START], [3], 1.0)]
    return [
        episode(made, key=(0, iteration, i), version=iteration, **options) for i in range(count)
    ]


def test_whole_iterations_leave_beyond_the_bytes(tmp_path):
    size = ExperiencePool(tmp_path / "one", max_episodes=99)
    size.add(0, shard(4, 0))
    pool = ExperiencePool(tmp_path / "pool", max_episodes=99, max_bytes=int(2.5 * size.size))
    for iteration in range(4):
        pool.add(iteration, shard(4, iteration))
        assert pool.size <= pool.max_bytes
    files = sorted((tmp_path / "pool").iterdir())
    assert [f.name for f in files] == ["00002.jsonl", "00003.jsonl"]
    assert pool.size == sum(f.stat().st_size for f in files) == 2 * size.size
    assert pool.metrics(5) == {
        "pool/episodes": 8.0,
        "pool/bytes": float(pool.size),
        "pool/oldest_age": 3.0,
    }
    again = ExperiencePool(tmp_path / "pool", max_episodes=99, max_bytes=pool.max_bytes)
    again.restore(before=4)
    assert again.episodes == pool.episodes and again.size == pool.size


def test_the_newest_iteration_stays_however_large(tmp_path):
    pool = ExperiencePool(tmp_path, max_episodes=99, max_bytes=1)
    for iteration in range(2):
        pool.add(iteration, shard(3, iteration))
    assert [e.actor_version for e in pool.episodes] == [1, 1, 1]


def test_partial_and_unscored_episodes_lie_in_the_pool(tmp_path):
    cut = shard(1, 0, truncated=True)[0]
    told = cut.with_turns(
        [replace(t, prompt_ids=(), action_ids=(), logprobs=()) for t in cut.turns]
    )
    pool = ExperiencePool(tmp_path, max_episodes=9)
    pool.add(0, [cut, told])
    pool.restore(before=1)
    assert pool.episodes == [cut, told] and pool.episodes[1].turns[0].logprobs == ()
    assert pool.episodes[0].truncated and pool.episodes[0].turns[0].rewards == {"success": 1.0}


ERRORS = [0.0, 0.1, 0.4, 1.0]


def prioritised(folder, exponent):
    pool = ExperiencePool(folder, max_episodes=99, priority_exponent=exponent)
    pool.add(0, shard(4, 0))
    pool.prioritise({id(e): error for e, error in zip(pool.episodes, ERRORS, strict=True)})
    return pool


def shares(pool, count=20_000):
    drawn = pool.sample(count, np.random.default_rng(0), version=0, max_age=9)
    found = [e.key for e in drawn]
    return np.array([found.count(e.key) / count for e in pool.episodes])


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_chances_are_proportional_to_the_error_to_the_exponent(tmp_path, exponent):
    pool = prioritised(tmp_path, exponent)
    wanted = (np.array(ERRORS) + SMALLEST_PRIORITY) ** exponent
    np.testing.assert_allclose(shares(pool), wanted / wanted.sum(), atol=0.015)


def test_importance_weights_undo_the_chances(tmp_path):
    """Σ P·w·x over the pool is the plain mean of x, up to the one factor that makes max w = 1."""
    pool = prioritised(tmp_path, 0.6)
    weights = np.array(pool.importance_weights(pool.episodes, version=0, max_age=9))
    chances = (np.array(ERRORS) + SMALLEST_PRIORITY) ** 0.6
    product = weights * chances
    np.testing.assert_allclose(product, product[0])
    assert weights.max() == 1.0 and weights[0] == 1.0 and weights[3] < 0.1
    subset = pool.importance_weights(pool.episodes[2:], version=0, max_age=9)
    assert subset == weights[2:].tolist()  # whatever it is drawn with


def test_exponent_zero_is_uniform_number_for_number(tmp_path):
    pool, plain = prioritised(tmp_path / "a", 0.0), ExperiencePool(tmp_path / "b", max_episodes=99)
    plain.add(0, shard(4, 0))
    one, two = (p.sample(40, np.random.default_rng(1), version=0, max_age=9) for p in (pool, plain))
    assert one == two
    assert pool.importance_weights(pool.episodes, version=0, max_age=9) == [1.0] * 4


def test_new_episodes_get_the_largest_priority_and_age_is_bounded(tmp_path):
    pool = prioritised(tmp_path, 1.0)
    pool.add(1, shard(2, 1))
    assert pool.state_dict() == {"priorities": {0: ERRORS, 1: [1.0, 1.0]}}
    drawn = pool.sample(200, np.random.default_rng(2), version=1, max_age=0)
    assert {e.actor_version for e in drawn} == {1}


def test_priorities_come_back(tmp_path):
    pool = prioritised(tmp_path, 1.0)
    again = ExperiencePool(tmp_path, max_episodes=99, priority_exponent=1.0)
    again.restore(before=1)
    assert not np.allclose(shares(again), shares(pool), atol=0.05)
    again.load_state_dict(pool.state_dict())
    assert shares(again).tolist() == shares(pool).tolist()


def test_replay_reads_each_episode_once_and_tells_the_pool_the_errors(tmp_path):
    pool = prioritised(tmp_path, 0.5)
    read = []

    def ratios(episodes):
        read.extend(e.key for e in episodes)
        return [torch.log(torch.tensor([1.0 + e.key[2]])) for e in episodes]

    replay = Replay(pool, np.random.default_rng(3), version=2, max_age=9, turn_log_ratios=ratios)
    for _ in range(20):
        drawn = replay(6)
        found = replay.log_ratios(drawn)
        assert [float(r.exp()) for r in found] == pytest.approx([1.0 + e.key[2] for e in drawn])
        replay.observe(drawn, [10.0 + e.key[2] for e in drawn])
    assert sorted(read) == [e.key for e in pool.episodes]
    figures = replay.finish()
    assert figures["critic/sample_age"] == 2.0
    assert figures["critic/effective_sample_size"] == pytest.approx(100 / (4 * 30))  # 1, 2, 3, 4
    assert pool.state_dict()["priorities"][0] == [10.0, 11.0, 12.0, 13.0]


def test_without_vtrace_there_are_no_ratios(tmp_path):
    replay = Replay(prioritised(tmp_path, 0.0), np.random.default_rng(0), version=0, max_age=0)
    assert replay.log_ratios(replay(2)) is None
    assert "critic/effective_sample_size" not in replay.finish()


def paid(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def critic(**plan):
    torch.manual_seed(0)
    options = FitPlan(**({"learning_rate": 1e-2, "steps": 2} | plan))
    network = CriticNetwork(LightTrunk(8))
    return CriticLearner(network, plan=options, parts=ViewParts(), turn_rewards=paid)


class Weighing(NoCorrection):
    def __init__(self, weights):
        self.given, self.heard = torch.tensor(weights), []

    def weights(self, episodes):
        return self.given

    def observe(self, episodes, errors):
        self.heard.append(errors)


def test_weights_act_in_the_loss_and_errors_are_heard():
    """An unfitted critic says 0, so an episode's error is its mean return and the loss known."""
    won, lost = shard(1, 0, turns=2)[0], episode([([START], [4], 0.0)], key=(9,))
    correction = Weighing([0.5, 1.0])
    loss = critic(steps=1).fit(lambda n: [won, lost], kind="monte_carlo", correction=correction)
    assert correction.heard == [[1.0, 0.0]]
    assert loss == pytest.approx((0.5 + 0.5) / 3)  # three turns, two of them return 1
    moved, still = critic(steps=1), critic(steps=1)
    moved.fit(lambda n: [won, lost], kind="monte_carlo")
    still.fit(lambda n: [won, lost], kind="monte_carlo", correction=Weighing([0.0, 1.0]))
    assert float(moved.values([won])[0][0]) > 1e-3
    assert float(still.values([won])[0][0]) == pytest.approx(0.0, abs=1e-3)


def test_a_periodic_target_stands_still_between_copies():
    learner = critic(target_update="periodic", target_period=3)
    episodes = shard(4, 0, turns=2)

    def target():
        return torch.cat([p.flatten() for p in learner.target.parameters()]).clone()

    def network():
        return torch.cat([p.detach().flatten() for p in learner.network.parameters()])

    start, seen = target(), []
    for _ in range(6):
        learner.fit(lambda n: episodes, kind="td_lambda")
        seen.append(target())
        if learner.fits == 4:  # a resumed learner counts on
            state, learner = learner.state_dict(), critic(target_update="periodic", target_period=3)
            learner.load_state_dict(state)
    assert torch.equal(seen[0], start) and torch.equal(seen[1], start)
    assert not torch.equal(seen[2], start)
    assert torch.equal(seen[3], seen[2]) and torch.equal(seen[4], seen[2])
    assert torch.equal(seen[5], network()) and not torch.equal(seen[5], seen[2])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_turn_log_ratios_are_sums_over_the_turns_tokens(tmp_path, temperature):
    """Merged rows, rows apart and microbatches: always log π_now − log μ of that turn's tokens."""
    trainer = setup(tmp_path)
    learner = ActorLearner(trainer, epochs=1, minibatch_episodes=2, microbatch_tokens=16)
    first = [([START], [3, 4], 0.0), ([START, 3, 4, BETWEEN], [5], 1.0)]
    second = [([START, 5], [1], 0.0), ([START], [2, 2, 0], 0.0), ([BETWEEN], [3], 0.0)]
    episodes = [episode(turns, actor=trainer.actor) for turns in (first, second)]
    now = small_actor(seed=4)
    trainer.actor.load_state_dict(now.state_dict())
    ratios = learner.turn_log_ratios(episodes, temperature)
    assert [len(r) for r in ratios] == [2, 3]
    for e, found in zip(episodes, ratios, strict=True):
        for turn, ratio in zip(e.turns, found.tolist(), strict=True):
            prompt, action = list(turn.prompt_ids), list(turn.action_ids)
            with torch.no_grad():
                logits = now(torch.tensor([[*prompt, *action]])).logits[0] / temperature
            log_policy = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            chosen = sum(float(row[a]) for row, a in zip(log_policy, action, strict=True))
            assert ratio == pytest.approx(chosen - sum(turn.logprobs), abs=1e-5)


@pytest.mark.parametrize("change", [{"logprobs": ()}, {"logprobs": (), "action_ids": ()}])
def test_ratios_of_unscored_turns_are_refused(tmp_path, change):
    trainer = setup(tmp_path)
    learner = ActorLearner(trainer, epochs=1, minibatch_episodes=2, microbatch_tokens=64)
    scored = episode([([START], [3, 4], 0.0), ([START], [5], 1.0)], actor=trainer.actor)
    turns = [scored.turns[0], replace(scored.turns[1], **change)]
    with pytest.raises(
        RunError, match=r"turn 1 .* 0 behaviour log-probs .* rl\.critic\.off_policy"
    ):
        learner.turn_log_ratios([scored, scored.with_turns(turns)], 1.0)
