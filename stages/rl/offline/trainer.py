"""Learning from a static pool. This file only sequences calls; there is no arithmetic in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Trajectory
from stages.rl.baselines import Baseline
from stages.rl.offline.learner import Imitation, ImitationLearner, weighted_rows
from stages.rl.offline.pool import POOL_VERSION
from stages.rl.trainer import AsymmetricPPOTrainer

DRAWS = 9
"""Place in random keys, so that no two uses share numbers."""
Weigher = Callable[[Sequence[Trajectory]], list[list[float]]]
"""Episodes -> the weight of each turn."""


@dataclass(frozen=True)
class OfflinePlan:
    """How long, and in what portions."""

    iterations: int
    warm_up: int
    """Iterations of the critic alone."""
    steps: int
    """Actor steps of each other iteration."""
    episodes: int
    """Of each actor step."""


@dataclass(frozen=True)
class OfflineParts:
    """What the loop sequences, built by ``offline.session``."""

    episodes: Sequence[Trajectory]
    """What the actor learns from; the critic has the whole pool."""
    baseline: Baseline
    weigh: Weigher
    remarks: Callable[[], dict[str, float]]
    """What is to be said of the weights since it was last asked."""
    objective: Callable[[], Imitation]
    evaluate: Callable[[int], dict[str, float]]
    """Held-out evaluation where one is due, else {}."""
    watch: Callable[[int, dict[str, float]], dict[str, float]]
    report: Callable[[int, dict[str, float]], None]
    checkpoint: Callable[[int], None]


def learn_offline(
    trainer: AsymmetricPPOTrainer,
    parts: OfflineParts,
    learner: ImitationLearner,
    plan: OfflinePlan,
) -> None:
    """Fit the critic to the pool, weigh its turns, imitate, log; over and over. Nothing is played.

    An iteration's turns are weighed by the critic as it is then.
    """
    now, clock = trainer.progress, trainer.clock
    while now.iteration < plan.iterations and not now.stopped:
        with clock("critic"):
            metrics = parts.baseline.learn(now.iteration, POOL_VERSION)
            trainer.ranks.align(parts.baseline.state_dict())
        if now.iteration >= plan.warm_up and plan.steps:
            with clock("actor"):
                rng = keyed_generator(trainer.args.seed, now.iteration, DRAWS)
                drawn = minibatches(parts.episodes, plan, rng)
                rows = (weighted_rows(some, parts.weigh(some)) for some in drawn)
                metrics |= learner.imitate(rows, parts.objective()) | parts.remarks()
            now.actor_version += 1
            metrics |= trainer.held()
            trainer.step_schedule()

        now.iteration += 1
        with clock("evaluation"):
            metrics |= parts.evaluate(now.iteration)
        metrics |= parts.watch(now.iteration, metrics)
        parts.report(now.iteration, metrics | clock.lap())
        parts.checkpoint(now.iteration)


def minibatches(
    episodes: Sequence[Trajectory], plan: OfflinePlan, rng: np.random.Generator
) -> Iterator[list[Trajectory]]:
    """One draw per actor step, without replacement within it."""
    size = min(plan.episodes, len(episodes))
    for _ in range(plan.steps):
        yield [episodes[i] for i in rng.choice(len(episodes), size=size, replace=False)]
