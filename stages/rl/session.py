"""One RL run in flight: the parts wired to the trainer, evaluated, checkpointed, saved."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.common.best import read_weights, write_weights
from stages.common.checkpoints import Origin
from stages.common.console import say, warn, watch
from stages.common.engine import load_whole_tensors, whole_tensors
from stages.common.interrupts import Interrupted, deferred
from stages.common.live import Board
from stages.common.manifest import fingerprint
from stages.common.models import count_parameters
from stages.common.run_folder import RunFolder
from stages.common.trl_trainer import save_trained
from stages.evaluation.audit import picked, picks, write_picks
from stages.evaluation.metrics import episode_metrics
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe
from stages.recipe.ranges import advice
from stages.recipe.section import deciding
from stages.rl import assembly
from stages.rl.baselines import Baseline, judged_apart
from stages.rl.checkpoint import Belongings
from stages.rl.critic.assembly import (
    build_baseline,
    build_reviewer,
    build_shared_baseline,
    warm_start,
)
from stages.rl.hindsight import Hindsight
from stages.rl.learner import Objective
from stages.rl.monitor import Monitor
from stages.rl.player import Player
from stages.rl.pool import ExperiencePool
from stages.rl.remedies import ALARMS_FILE, Remedies
from stages.rl.report import IterationReport, append_json, rl_board, rollout_metrics
from stages.rl.rewarding import build_rewarding
from stages.rl.saving import Saving
from stages.rl.schedules import kl_coefficient, objective_at, temperature_at
from stages.rl.trainer import AsymmetricPPOTrainer, Parts


class Session:
    """Builds everything, then ``resume`` → ``train`` → ``save``."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        sft: Path,
        reward: Path | None,
        critic: Path | None = None,
        start: Path | None = None,
        *,
        used: Mapping[str, str] | None = None,
    ) -> None:
        """Folders of the SFT actor, of the reward model, and of a critic and an actor to start
        from.

        ``used``: their content hashes, by which a checkpoint knows that they are still the same.
        """
        self.recipe, self.folder, self.ranks = recipe, folder, folder.ranks
        self._read_given()
        self.started = time.perf_counter()
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.kl = kl_coefficient(recipe.rl)
        self.rewarding = build_rewarding(
            recipe.rl,
            reward,
            kl=self.kl,
            state_tokens=recipe.state.max_tokens,
            ranks=self.ranks,
        )
        self.pool = self._pool("pool")
        self.relabelled = self._pool("hindsight") if recipe.rl.hindsight else None
        self.trainer, self.baseline = self._learners(sft, start)
        if critic is not None:
            warm_start(recipe, self.baseline, critic)
        if self.rewarding.scorer is not None:
            self.rewarding.scorer.listen_to(self.trainer.processing_class)
        self.learner = assembly.build_learner(recipe, self.trainer, sft, self._imitated)
        reviewer = build_reviewer(recipe, self.baseline, self.rewarding)
        self.player = Player(recipe, self.trainer, reviewer, sft=sft)
        self.hindsight = self._hindsight()
        self.clean = assembly.build_clean_check(
            recipe, self.trainer, self.learner, self.player, sft
        )
        self.remedies = self._remedies()
        self._origin = _origin(recipe, used or {})
        self.saving = self._saving()
        self._admit()
        for line in advice(recipe, count_parameters(self.trainer.actor), "rl"):
            warn(line)

    def _read_given(self) -> None:
        """Read what is given to learn from, before models are loaded: it may be of no use.
        UsageError."""

    def _admit(self) -> None:
        """Refuse what there is to learn from, where that can be told now. UsageError."""

    def _pool(self, name: str) -> ExperiencePool:
        rl = self.recipe.rl
        return ExperiencePool(
            self.folder.path / name,
            max_episodes=rl.pool.max_episodes,
            max_bytes=rl.pool.max_bytes,
            priority_exponent=rl.pool.exponent,
            writes=self.ranks.main,
        )

    def _learners(self, sft: Path, start: Path | None) -> tuple[AsymmetricPPOTrainer, Baseline]:
        recipe, folder, rewarding = self.recipe, self.folder, self.rewarding
        if recipe.rl.critic.shared:  # then the critic is a part of the trainer's model
            trainer = assembly.build_trainer(recipe, folder, sft, rewarding, start)
            return trainer, build_shared_baseline(recipe, rewarding, self.pool, trainer)
        baseline = build_baseline(
            recipe,
            rewarding,
            self.pool,
            sft=sft,
            turn_log_ratios=self._turn_log_ratios,
            relabelled=self.relabelled,
        )
        return assembly.build_trainer(recipe, folder, sft, rewarding, start), baseline

    @property
    def _pools(self) -> list[ExperiencePool]:
        return [pool for pool in (self.pool, self.relabelled) if pool is not None]

    @property
    def _imitated(self) -> list[ExperiencePool]:
        """Whose successes SFT mixing draws from, where it is to be successes."""
        return self._pools if self.recipe.rl.ppo.sft_data == "hindsight" else [self.pool]

    def _hindsight(self) -> Hindsight | None:
        section = self.recipe.rl.hindsight
        if section is None or self.relabelled is None:
            return None
        return Hindsight(
            assembly.build_replayer(self.player),
            self.relabelled,
            self._rescore,
            share=section.share,
            seed=self.recipe.seed,
            ranks=self.ranks,
        )

    def _remedies(self) -> Remedies:
        rl = self.recipe.rl
        return Remedies(
            rl.monitor,
            self.trainer,
            self.kl,
            monitor=Monitor(rl.evaluation_episodes, rl.forgetting.max_perplexity),
            restore=self._restore_best,
            file=self.folder.path / ALARMS_FILE,
        )

    def _saving(self) -> Saving:
        parts = (self.trainer, self.baseline, self.pool)
        return Saving(self.recipe.rl, self.folder, *parts, self._belongings)

    def resume(self) -> None:
        """Go on from a checkpoint, where there is one; metrics and evaluations are cut back to it.

        UsageError for one that was made from something else.
        """
        extra = self.saving.resume()
        if self.relabelled is not None:
            self.relabelled.restore(before=self.trainer.progress.iteration)
            self.relabelled.keep_from(0)  # any checkpoint may be gone on from
        if extra is None:
            return
        self.best, self.last = extra["best"], extra["last"]
        self.remedies.load_state_dict(extra["remedies"])
        self.clean.load_state_dict(extra["clean"])
        say(f"resumed from iteration {self.trainer.progress.iteration}")

    def train(self) -> None:
        """All iterations that are left, on the screen."""
        rl = self.recipe.rl
        self._look_at_start()
        board = rl_board(rl.iterations, self.folder.metrics.rows())
        with watch(board) as shown, deferred():
            self._learn(board, shown)

    def _learn(self, board: Board, shown: Callable[[], None]) -> None:
        """The loop of ``trainer`` with this run's parts."""
        parts = self.parts(board, shown)
        self.trainer.train(parts, self.learner, iterations=self.recipe.rl.iterations)

    def parts(self, board: Board, shown: Callable[[], None]) -> Parts:
        """What the loop sequences; ``shown``: of ``console.watch``."""
        return Parts(
            collect=self._collect,
            score=self._score,
            measure=self._measure,
            baseline=self.baseline,
            pool=self.pool,
            objective=self._objective,
            report=IterationReport(
                self.folder.metrics,
                self.folder.path / "trajectories",
                board=board,
                shown=shown,
                writes=self.ranks.main,
            ),
            evaluate=self._evaluate,
            checkpoint=lambda _: self.saving.after_iteration(),
            relabel=self._relabel,
            watch=self.remedies,
        )

    def save(self) -> dict[str, Any]:
        """The actor as a plain Hugging Face folder, the critic beside it; the summary."""
        if self.recipe.rl.keep == "best" or self.trainer.progress.stopped:
            self._hand_over_best()
        self.ranks.wait()  # all have read the best weights before the first process deletes them
        save_trained(
            self.trainer.actor,
            self.trainer.processing_class,
            self.folder,
            card=f"Actor of the aac recipe {self.recipe.name}, trained by {self.method}.",
            autocast=self.trainer.autocast,
        )
        if self.ranks.main:
            shutil.rmtree(self._best_weights.parent, ignore_errors=True)
            options = self.recipe.rl.critic.model_dump(mode="json")
            self.baseline.save(self.folder.path / "critic", options)
        self.ranks.wait()
        now = self.trainer.progress
        return {
            "seconds": round(time.perf_counter() - self.started, 1),
            "iterations": now.iteration,
            "actor_updates": now.actor_version,
            "training_episodes": self.training_episodes,
            "kept": self.recipe.rl.keep,
            "best": self.best,
            **self.last,
            **self.remedies.summary(),
            **self.clean.summary(),
        }

    def tidy(self) -> None:
        """Once the run is finished no checkpoint reaches back to what has left the pools."""
        for pool in self._pools:
            pool.keep_from(None)

    @property
    def method(self) -> str:
        """What the actor is trained by, for its card."""
        return "asymmetric PPO"

    @property
    def training_episodes(self) -> int:
        """How many episodes there were to learn from."""
        return self.trainer.progress.iteration * self.recipe.rl.episodes

    @property
    def _best_weights(self) -> Path:
        return self.folder.path / "best" / "actor.safetensors"

    def _belongings(self) -> Belongings:
        remedies = self.remedies.state_dict()
        extra = {"best": self.best, "last": self.last, "remedies": remedies}
        extra["clean"] = self.clean.state_dict()
        return Belongings(self._origin, extra, self._best_weights)

    def _collect(self, iteration: int, version: int) -> list[Trajectory]:
        """One iteration's episodes. A run that is to stop does so before it learns from them."""
        try:
            episodes = self.player.collect(iteration, version)
        except Interrupted:  # given up in the middle
            episodes = []
        self.saving.stop_if_asked()
        return episodes

    @property
    def _keeps_best(self) -> bool:
        rl = self.recipe.rl
        return rl.keep == "best" or bool(rl.monitor.uses("roll_back", "stop"))

    def _restore_best(self) -> tuple[int, str]:
        """Put the best actor's weights back, if any were kept; its iteration, and in words."""
        if not self.best or not self._keeps_best:
            return 0, ""
        load_whole_tensors(self.trainer.learned, read_weights(self._best_weights))
        step, success = int(self.best["step"]), self.best["success"]
        return step, f"the actor of iteration {step} with held-out success {success:.2f}"

    def _hand_over_best(self) -> None:
        if not self._restore_best()[0] and self.last:
            warn(
                "no evaluated actor is within rl.forgetting.max_perplexity, so the last actor is "
                "kept; see clean/* in metrics.jsonl."
            )

    def _objective(self, iteration: int, version: int) -> Objective:
        planned = objective_at(self.recipe.rl, iteration, version)
        return replace(planned, kl_coef=self.kl.value)

    @property
    def _temperature(self) -> float:
        return temperature_at(self.recipe.rl, self.trainer.progress.actor_version)

    def _score(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        scored = self.rewarding.score(episodes)
        if self.recipe.rl.ppo.kl_loss == "in_reward":
            scored = self.learner.with_drift(scored, self._temperature)
        return scored

    def _rescore(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """Relabelled episodes as if they had just been played: log-probs and scores of now."""
        if not episodes:
            return []
        return self._score(self.learner.with_logprobs(episodes, self._temperature))

    def _relabel(self, iteration: int, episodes: Sequence[Trajectory]) -> dict[str, float]:
        if self.hindsight is None:
            return {}
        return self.hindsight(iteration, self.player.tasks, episodes)

    def _turn_log_ratios(self, episodes: Sequence[Trajectory]) -> list[Tensor]:
        return self.learner.turn_log_ratios(episodes, self._temperature)

    def _measure(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        played = [*episodes, *self.player.dropped]
        metrics = rollout_metrics(episode_metrics(played, self.rewarding.mix), episodes)
        self.remedies.refuse_non_finite(self.trainer.progress.iteration + 1, metrics)
        return metrics

    def _evaluate(self, iteration: int) -> dict[str, float]:
        """Sampled success on the validation split, the same tasks each time."""
        rl = self.recipe.rl
        every = rl.evaluate_every
        if iteration != rl.iterations and not (every and iteration % every == 0):
            return {}
        episodes = self.player.evaluate(self.trainer.progress.actor_version)
        # What shaping pays is no merit of the actor's.
        figures = episode_metrics(episodes, replace(self.rewarding.mix, shaping=None))
        rows = picks(iteration, episodes, self.rewarding.mix)
        judged = judged_apart(self.baseline, picked(rows, episodes))
        if self.ranks.main:
            append_json(self.folder.path / "evaluations.jsonl", {"step": iteration} | figures)
            write_picks(self.folder.path, iteration, rows, judged)
        self.last = {"validation_success": figures["success"], "validation_step": iteration}
        clean = self._check_clean(iteration)
        if self._is_best(figures, clean):
            self.best = {n: figures[n] for n in ("success", "return")} | {"step": iteration}
            if self._keeps_best:
                best = whole_tensors(self.trainer.learned)
                if self.ranks.main:
                    write_weights(best, self._best_weights)
                self.ranks.wait()
        return clean | {
            "evaluation/success": figures["success"],
            "evaluation/return": figures["return"],
            "evaluation/turns": figures["turns"],
        }

    def _look_at_start(self) -> None:
        """What the actor knows before it learns here, if that is not known from before."""
        if self.recipe.rl.forgetting.every and not self.clean.first:
            self.clean.start(self.trainer.progress.actor_version)

    def _check_clean(self, iteration: int) -> dict[str, float]:
        """``clean/*`` where that check is due: every so many evaluations, and at the end."""
        rl = self.recipe.rl
        due = iteration == rl.iterations or (
            iteration % max(rl.evaluate_every * rl.forgetting.every, 1) == 0
        )
        if not (rl.forgetting.every and due):
            return {}
        with self.trainer.clock("clean"):
            return self.clean(self.trainer.progress.actor_version)

    def _is_best(self, figures: Mapping[str, float], clean: Mapping[str, float]) -> bool:
        """Better than all before, and not at the price of what stage 1 taught."""
        rl = self.recipe.rl
        known = clean or self.clean.last  # not every evaluation comes with that check
        allowed = known.get("clean/perplexity_ratio", 1.0) <= rl.forgetting.max_perplexity
        return allowed and figures[rl.best_by] > self.best.get(rl.best_by, -math.inf)


def _origin(recipe: Recipe, used: Mapping[str, str]) -> Origin:
    parts = recipe.model_dump(mode="json", include={"seed", "model", "environment", "state"})
    return Origin(fingerprint([parts, deciding(recipe.rl)]), parents=used)
