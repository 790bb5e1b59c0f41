"""The loop learns, uses the pool, keeps warm-up episodes, and resumes to the same weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.common.checkpoints import Origin
from stages.common.run_folder import RunFolder, RunRequest
from stages.rl.baselines import Cadence, LearnedBaseline, LeaveOneOutBaseline
from stages.rl.checkpoint import Belongings, load_checkpoint, save_checkpoint
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.views import ViewParts
from stages.rl.learner import ActorLearner, Objective
from stages.rl.pool import ExperiencePool, read_trajectories
from stages.rl.trainer import Clock, Parts
from tests.rl.worlds import bandit_episodes, episode, setup

BELONGINGS = Belongings(Origin("r"), extra={"best": {}}, best=Path("nowhere"))


def success(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def build(
    folder, *, iterations, warm_up=1, critic=True, episodes=32, learning_rate=1e-2, bound=128
):
    """A trainer in the bandit world, its parts, and the list that its reports go to."""
    trainer = setup(folder, iterations=iterations, learning_rate=learning_rate)
    pool = ExperiencePool(folder / "pool", max_episodes=bound)
    if critic:
        torch.manual_seed(5)
        learner = CriticLearner(
            CriticNetwork(LightTrunk(8)),
            plan=FitPlan(steps=5, learning_rate=5e-3),
            parts=ViewParts(),
            turn_rewards=success,
        )
        cadence = Cadence(
            seed=3,
            discount=1.0,
            gae_lambda=0.95,
            target="td_lambda",
            max_age=4,
            warm_up_iterations=warm_up,
            min_explained_variance=0.0,
        )
        baseline = LearnedBaseline(learner, pool, cadence)
    else:
        baseline = LeaveOneOutBaseline(success, discount=1.0)
    log = []
    objective = Objective(0.2, 0.0, "k2", 0.0, 0.0, 1.0, 1.0)
    parts = Parts(
        collect=lambda i, v: bandit_episodes(trainer.actor, episodes, i, version=v),
        score=list,
        measure=lambda es: {"episode/success": float(np.mean([e.success for e in es]))},
        baseline=baseline,
        pool=pool,
        objective=lambda *_: objective,
        report=lambda i, metrics, es: log.append(metrics),
        evaluate=lambda i: {},
        checkpoint=lambda i: None,
    )
    learner = ActorLearner(trainer, epochs=2, minibatch_episodes=8, microbatch_tokens=4096)
    return trainer, parts, learner, log


@pytest.mark.parametrize("critic", [True, False])
def test_it_solves_a_problem_whose_first_action_decides(tmp_path, critic):
    trainer, parts, learner, log = build(tmp_path, iterations=10, critic=critic, learning_rate=2e-2)
    trainer.train(parts, learner, iterations=10)
    curve = [m["episode/success"] for m in log]
    assert curve[0] < 0.5 and np.mean(curve[-3:]) > 0.9


def test_warm_up_moves_the_critic_only_and_its_episodes_are_used(tmp_path):
    trainer, parts, learner, log = build(tmp_path, iterations=3, warm_up=2)
    before = [p.clone() for p in trainer.actor.parameters()]
    critic = [p.clone() for p in parts.baseline.critic.network.parameters()]
    trainer.train(parts, learner, iterations=1)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.actor.parameters(), strict=True))
    moved = zip(critic, parts.baseline.critic.network.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in moved)
    assert len(trainer.progress.waiting) == 32
    trainer.train(parts, learner, iterations=3)
    assert trainer.progress.waiting == [] and trainer.progress.actor_version >= 1
    first_update = next(m for m in log if "actor/updates" in m)
    # two epochs, eight episodes a step: more than one iteration's episodes went in
    assert first_update["actor/updates"] >= 2 * 2 * 32 / 8
    assert any(
        not torch.equal(a, b) for a, b in zip(before, trainer.actor.parameters(), strict=True)
    )


def test_new_episodes_are_judged_before_they_are_fitted(tmp_path):
    trainer, parts, learner, _ = build(tmp_path, iterations=4, warm_up=0)
    calls = []
    for name in ("listen", "judge", "learn"):
        real = getattr(parts.baseline, name)

        def note(*args, _name=name, _real=real):
            calls.append(_name)
            return _real(*args)

        setattr(parts.baseline, name, note)
    trainer.train(parts, learner, iterations=2)
    assert calls == ["listen", "judge", "learn"] * 2


def weights(trainer, parts):
    critic = parts.baseline.critic
    every = [*trainer.actor.parameters(), *critic.network.parameters(), *critic.target.parameters()]
    return torch.cat([p.detach().flatten() for p in every])


def test_save_and_load_in_the_middle_changes_nothing(tmp_path):
    """k steps + save + load + k = 2k: weights, critic and target bit for bit.

    The first half goes on after the save, as a run that is killed later does: the pool's bound
    is passed then, and what the checkpoint needs must still be there.
    """
    trainer, parts, learner, log = build(tmp_path / "whole", iterations=6, warm_up=2, bound=64)
    trainer.train(parts, learner, iterations=6)

    halves = {"folder": tmp_path / "halves", "iterations": 6, "warm_up": 2, "bound": 64}
    first, first_parts, first_learner, _ = build(**halves)
    first.train(first_parts, first_learner, iterations=2)
    run = RunFolder(tmp_path / "halves", RunRequest(tmp_path / "halves"))
    save_checkpoint(run, first, first_parts.baseline, first_parts.pool, BELONGINGS, keep=1)
    first.train(first_parts, first_learner, iterations=4)
    again, parts_again, learner_again, rest = build(**halves)
    saved = run.checkpoints / "checkpoint-2"
    extra = load_checkpoint(saved, again, parts_again.baseline, parts_again.pool, BELONGINGS)
    assert extra == {"best": {}} and again.progress.iteration == 2
    again.train(parts_again, learner_again, iterations=6)
    assert torch.equal(weights(again, parts_again), weights(trainer, parts))
    for mine, theirs in zip(rest, log[2:], strict=True):
        timeless = {k: v for k, v in theirs.items() if not k.startswith("time/")}
        assert {k: v for k, v in mine.items() if not k.startswith("time/")} == pytest.approx(
            timeless, rel=0, abs=0, nan_ok=True
        )


def test_only_the_newest_checkpoints_stay(tmp_path):
    trainer, parts, learner, _ = build(tmp_path, iterations=3, warm_up=0)
    run = RunFolder(tmp_path, RunRequest(tmp_path))
    for iteration in (1, 2, 3):
        trainer.train(parts, learner, iterations=iteration)
        save_checkpoint(run, trainer, parts.baseline, parts.pool, BELONGINGS, keep=2)
    kept = sorted(p.name for p in run.checkpoints.iterdir())
    assert kept == ["checkpoint-2", "checkpoint-3"]


def test_the_pool_keeps_the_files_that_checkpoints_reach_back_to(tmp_path):
    """However irregularly these come, and no longer than that."""
    pool = ExperiencePool(tmp_path, max_episodes=8)

    def files():
        return [int(p.stem) for p in sorted(tmp_path.glob("*.jsonl"))]

    for iteration in range(3):
        pool.add(iteration, numbered(4, iteration, iteration))
    assert pool.oldest == 1 and files() == [1, 2]
    pool.keep_from(pool.oldest)  # a checkpoint after three iterations
    for iteration in range(3, 6):
        pool.add(iteration, numbered(4, iteration, iteration))
    assert pool.oldest == 4 and files() == [1, 2, 3, 4, 5]
    reader = ExperiencePool(tmp_path, max_episodes=8, writes=False)
    reader.restore(before=3)
    assert [e.key[1] for e in reader.episodes] == [1] * 4 + [2] * 4
    pool.keep_from(None)
    assert files() == [4, 5]


def numbered(count, iteration, version):
    return [
        episode([([1], [2], 0.0)], key=(0, iteration, i), version=version) for i in range(count)
    ]


def test_pool_is_bounded_durable_and_young(tmp_path):
    pool = ExperiencePool(tmp_path, max_episodes=10)
    for iteration in range(4):
        pool.add(iteration, numbered(4, iteration, iteration))
    assert len(pool) == 8 and [p.name for p in sorted(tmp_path.iterdir())] == [
        "00002.jsonl",
        "00003.jsonl",
    ]
    rng = np.random.default_rng(0)
    drawn = pool.sample(50, rng, version=4, max_age=1)
    assert {e.actor_version for e in drawn} == {3}
    with pytest.raises(ValueError, match="version"):
        pool.sample(1, rng, version=20, max_age=1)
    again = ExperiencePool(tmp_path, max_episodes=10)
    again.restore(before=3)
    assert [e.key for e in again.episodes] == [(0, 2, i) for i in range(4)]
    assert not (tmp_path / "00003.jsonl").exists()


def test_trajectories_survive_json(tmp_path):
    pool = ExperiencePool(tmp_path, max_episodes=10)
    pool.add(0, numbered(2, 0, 0))
    assert read_trajectories(tmp_path / "00000.jsonl") == pool.episodes
    for line in (tmp_path / "00000.jsonl").read_text().splitlines():
        json.loads(line)


def test_phases_add_up_to_what_was_spent(monkeypatch):
    """Seconds by hand: outer 0 to 7, inner 1 to 3 within it; then another from 7 to 15."""
    moments = iter((0.0, 1.0, 3.0, 7.0, 7.0, 15.0))
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr("stages.rl.trainer.time.perf_counter", lambda: next(moments))
        with clock("outer"), clock("inner"):
            pass
        with clock("another"):
            pass
    assert clock.lap() == {"time/inner_s": 2.0, "time/outer_s": 5.0, "time/another_s": 8.0}
