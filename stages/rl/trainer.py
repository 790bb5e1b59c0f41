"""Asymmetric PPO over turns. This file only sequences calls; there is no arithmetic in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from stages.common.allocator import give_back
from stages.common.seeding import keyed_generator
from stages.common.sharding import (
    PlayMode,
    check_partitioned,
    held_share,
    is_sharded,
    play_ready,
)
from stages.interaction.trajectory import Trajectory
from stages.rl.baselines import Baseline, annotated, whitened
from stages.rl.learner import ActorLearner, Objective
from stages.rl.pool import ExperiencePool
from stages.rl.rows import actor_rows
from stages.rl.trl_adapter import AsymmetricPPOConfig, TrlPPOSetup

Episodes = list[Trajectory]


@dataclass(frozen=True)
class Parts:
    """What the loop sequences, built by ``session``."""

    collect: Callable[[int, int], Episodes]
    """(iteration, actor version) -> episodes of the current actor; dropped ones left out."""
    score: Callable[[Sequence[Trajectory]], Episodes]
    """Adds the reward model's raw score to every turn."""
    measure: Callable[[Sequence[Trajectory]], dict[str, float]]
    """Rollout metrics: reward per component, success, turns, rates."""
    baseline: Baseline
    pool: ExperiencePool
    objective: Callable[[int, int], Objective]
    """(iteration, actor version) -> the coefficients of an update."""
    report: Callable[[int, dict[str, float], Episodes], None]
    """Logs one iteration: metrics.jsonl, trajectories, progress."""
    evaluate: Callable[[int], dict[str, float]]
    """Held-out evaluation where one is due, else {}."""
    checkpoint: Callable[[int], None]
    """Saves the whole state where that is due."""
    relabel: Callable[[int, Sequence[Trajectory]], dict[str, float]] = lambda *_: {}
    """Keeps what an iteration's failures were good for, apart from the pool; ``hindsight/*``."""
    watch: Callable[[int, dict[str, float]], dict[str, float]] = lambda *_: {}
    """Raises alarms over an iteration's figures and acts on them; ``alarm/*``."""


@dataclass
class Progress:
    """Where the run stands; all of it is in every checkpoint."""

    iteration: int = 0
    """The next iteration."""
    actor_version: int = 0
    """Actor updates so far."""
    waiting: Episodes = field(default_factory=list)
    """On-policy episodes of the warm-up, kept for the first update."""
    stopped: str = ""
    """Why the run ends before its time; in no checkpoint."""


class AsymmetricPPOTrainer(TrlPPOSetup):
    """TRL's PPO set-up with a multi-turn loop and a critic that lives apart."""

    def __init__(self, config: AsymmetricPPOConfig, **setup: Any) -> None:
        """``setup``: see ``TrlPPOSetup``."""
        super().__init__(config, **setup)
        self.progress = Progress()
        self.clock = Clock()

    def held(self) -> dict[str, float]:
        """Which share of a partitioned actor's bytes this process holds. RunError: too much."""
        check_partitioned(self.actor, self.ranks)
        return {"actor/held_share": held_share(self.actor)} if is_sharded(self.actor) else {}

    @contextmanager
    def playing(self, how: PlayMode) -> Iterator[None]:
        """Inside, ``actor`` may generate, each process for itself; see ``sharding.play_ready``."""
        with ExitStack() as stack:
            if is_sharded(self.actor):
                with self.clock("gather"):
                    context = play_ready(self.model, self.accelerator, self.ranks, how)
                    stack.enter_context(context)
            yield

    def train(self, parts: Parts, learner: ActorLearner, *, iterations: int) -> None:
        """Collect, score, pool, judge, fit the critic, update the actor, log; over and over.

        Several processes each play, score and learn from a share and are told the rest: all know
        all episodes, so whatever is a figure of the whole rollout is the same for all. The critic
        judges the new episodes before it is fitted to them, so that the baseline
        cannot know how they went on.
        """
        now, clock = self.progress, self.clock
        while now.iteration < iterations and not now.stopped:
            with clock("rollout"):
                episodes = parts.collect(now.iteration, now.actor_version)
            with clock("score"):
                episodes = parts.score(episodes)
            parts.pool.add(now.iteration, episodes)
            metrics = parts.measure(episodes)
            with clock("hindsight"):
                metrics |= parts.relabel(now.iteration, episodes)

            with clock("critic"):
                metrics |= parts.baseline.listen(episodes)
                now.waiting += episodes
                if parts.baseline.ready:
                    judgement = parts.baseline.judge(now.waiting)
                metrics |= parts.baseline.learn(now.iteration, now.actor_version)
                self.ranks.align(parts.baseline.state_dict())
            if parts.baseline.ready:
                with clock("actor"):
                    advantages, spread = whitened(judgement, min_std=self.args.whiten_min_std)
                    rows = actor_rows(now.waiting, advantages, judgement.returns)
                    objective = parts.objective(now.iteration, now.actor_version)
                    rng = keyed_generator(self.args.seed, now.iteration, 2)
                    metrics |= spread | learner.update(rows, objective, rng)
                episodes = annotated(now.waiting, judgement, advantages)[-len(episodes) :]
                now.actor_version, now.waiting = now.actor_version + 1, []
                metrics |= self.held()
            self.step_schedule()

            now.iteration += 1
            with clock("evaluation"):
                metrics |= parts.evaluate(now.iteration)
            metrics |= parts.watch(now.iteration, metrics)
            parts.report(now.iteration, metrics | clock.lap(), episodes)
            parts.checkpoint(now.iteration)
            give_back()


class Clock:
    """Seconds per phase since the last lap, as ``time/<phase>_s``.

    A phase within another counts for itself alone, so that all phases add up to what was spent.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner = 0.0
        """Seconds of the phases within the one that is open."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block."""
        start, before, self._inner = time.perf_counter(), self._inner, 0.0
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self._seconds[phase] = self._seconds.get(phase, 0.0) + spent - self._inner
            self._inner = before + spent

    def lap(self) -> dict[str, float]:
        """The phases of this lap; starts the next."""
        lap = {f"time/{phase}_s": seconds for phase, seconds in self._seconds.items()}
        self._seconds = {}
        return lap
