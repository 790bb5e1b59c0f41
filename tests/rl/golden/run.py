"""A small run of the learners on recorded episodes, boiled down to figures.

``python -m tests.rl.golden.run`` writes ``figures.json`` anew, ``--play`` also the episodes. The
figures there were written before the learners were made faster; ``test_golden.py`` holds them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

HERE = Path(__file__).parent
BASE = HERE.parents[2] / "recipes" / "base"
EPISODES, FIGURES = HERE / "episodes.jsonl", HERE / "figures.json"
ITERATIONS, EACH = 3, 4


def play() -> None:
    """Record episodes of the base actor in the sql environment."""
    from stages.common.models import load_actor, load_tokenizer
    from stages.interaction.arena import Arena
    from stages.interaction.environments import SqlOptions
    from stages.interaction.native import NativePolicy
    from stages.rl.pool import write_trajectories

    policy = NativePolicy(load_actor(BASE), load_tokenizer(BASE), max_new_tokens=40)
    state = {"exchanges": 3, "max_tokens": 400, "checklist": True, "tool_prompt": "none"}
    arena = Arena(SqlOptions(max_turns=3), state)
    played = []
    for iteration in range(ITERATIONS):
        tasks = arena.practice(EACH, 1, (7, iteration))
        played += arena.play(tasks, policy, key=(7, iteration), label="", actor_version=iteration)
    write_trajectories(EPISODES, played)


def figures(folder: Path) -> dict[str, Any]:
    """Metrics of each iteration, and two numbers of every weight at the end."""
    from stages.common.models import load_actor, load_tokenizer
    from stages.interaction.rewards.mix import RewardMix
    from stages.rl.baselines import Cadence, LearnedBaseline
    from stages.rl.critic.heads import HistogramHead
    from stages.rl.critic.learner import CriticLearner, FitPlan
    from stages.rl.critic.light import LightTrunk
    from stages.rl.critic.network import CriticNetwork
    from stages.rl.critic.views import ViewParts
    from stages.rl.learner import ActorLearner, Objective
    from stages.rl.pool import ExperiencePool, read_trajectories
    from stages.rl.rows import actor_rows
    from stages.rl.trainer import AsymmetricPPOTrainer, Parts
    from stages.rl.trl_adapter import ppo_config

    recorded = read_trajectories(EPISODES)
    by_iteration = [[e for e in recorded if e.key[1] == i] for i in range(ITERATIONS)]
    actor, reference = load_actor(BASE, frozen=["embed_tokens"]), load_actor(BASE)
    trainer = AsymmetricPPOTrainer(
        ppo_config(folder, iterations=ITERATIONS, learning_rate=1e-4, seed=3),
        actor=actor,
        reference=reference.requires_grad_(False),
        reward_model=None,
        tokenizer=load_tokenizer(BASE),
    )
    torch.manual_seed(5)
    trunk = LightTrunk(16)
    critic = CriticLearner(
        CriticNetwork(trunk, HistogramHead(16, value_range=(-1.0, 2.0), bins=21)),
        plan=FitPlan(steps=6, batch_size=8),
        parts=ViewParts(state_tokens=400),
        turn_rewards=RewardMix().totals,
    )
    pool = ExperiencePool(folder / "pool", max_episodes=64, priority_exponent=0.6)
    cadence = Cadence(
        seed=3,
        discount=1.0,
        gae_lambda=0.9,
        target="td_lambda",
        max_age=8,
        warm_up_iterations=0,
        min_explained_variance=0.0,
    )
    learner = ActorLearner(
        trainer,
        epochs=2,
        minibatch_episodes=2,
        microbatch_tokens=1200,
        sft_rows=lambda: actor_rows(recorded[:4], [[0.0] * len(e.turns) for e in recorded[:4]]),
    )
    log: list[dict[str, float]] = []
    objective = Objective(0.2, 0.05, "k2", 0.01, 0.5, 1.1, 1.0, sft_temperature=1.0)
    parts = Parts(
        collect=lambda i, _: by_iteration[i],
        score=list,
        measure=lambda _: {},
        baseline=LearnedBaseline(critic, pool, cadence),
        pool=pool,
        objective=lambda *_: objective,
        report=lambda _, metrics, __: log.append(metrics),
        evaluate=lambda _: {},
        checkpoint=lambda _: None,
    )
    trainer.train(parts, learner, iterations=ITERATIONS)
    kept = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in log]
    return {
        "metrics": kept,
        "actor": digest(trainer.actor),
        "critic": digest(critic.network),
        "target": digest(critic.target),
    }


def digest(model: torch.nn.Module) -> dict[str, list[float]]:
    """Of every parameter its norm, and its product with a wave of its size."""
    found = {}
    for name, weight in model.named_parameters():
        flat = weight.detach().double().flatten()
        wave = torch.cos(torch.arange(len(flat), dtype=torch.float64))
        found[name] = [float(flat.norm()), float(flat @ wave)]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--play" in sys.argv:
        play()
    with TemporaryDirectory() as scratch:
        FIGURES.write_text(json.dumps(figures(Path(scratch)), indent=1) + "\n")
