"""One RL run in flight: the parts wired to the trainer, evaluated, checkpointed, saved."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.common.console import progress, say, warn
from stages.common.engine import load_whole_tensors, whole_tensors
from stages.common.errors import UsageError
from stages.common.manifest import fingerprint
from stages.common.models import count_parameters
from stages.common.run_folder import RunFolder
from stages.common.trl_trainer import save_trained
from stages.evaluation.audit import FOLDER as AUDIT
from stages.evaluation.audit import picks, write_picks
from stages.evaluation.metrics import episode_metrics
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe
from stages.recipe.ranges import advice
from stages.rl import assembly
from stages.rl.baselines import Baseline
from stages.rl.checkpoint import Belongings, load_checkpoint, save_checkpoint
from stages.rl.critic.assembly import (
    build_baseline,
    build_reviewer,
    build_shared_baseline,
    warm_start,
)
from stages.rl.learner import Objective
from stages.rl.monitor import Monitor
from stages.rl.pool import ExperiencePool
from stages.rl.remedies import ALARMS_FILE, Remedies
from stages.rl.report import IterationReport, append_json, rollout_metrics, truncate_json
from stages.rl.rewarding import build_rewarding
from stages.rl.trainer import Parts

KEEP_CHECKPOINTS = 2


class Session:
    """Builds everything, then ``resume`` → ``train`` → ``save``."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        sft: Path,
        reward: Path | None,
        critic: Path | None = None,
    ) -> None:
        """Folders of the SFT actor, of the reward model, and of a critic to start from."""
        self.recipe, self.folder, self.ranks = recipe, folder, folder.ranks
        self.started = time.perf_counter()
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.kl = assembly.kl_coefficient(recipe.rl)
        self.rewarding = build_rewarding(
            recipe.rl,
            reward,
            kl=self.kl,
            state_tokens=recipe.state.max_tokens,
            ranks=self.ranks,
        )
        self.pool = self._pool()
        shared = recipe.rl.critic.shared  # then the critic is a part of the trainer's model
        if not shared:
            self.baseline: Baseline = build_baseline(
                recipe,
                self.rewarding,
                self.pool,
                sft=sft,
                turn_log_ratios=self._turn_log_ratios,
            )
        self.trainer = assembly.build_trainer(recipe, folder, sft, self.rewarding)
        if shared:
            self.baseline = build_shared_baseline(recipe, self.rewarding, self.pool, self.trainer)
        if critic is not None:
            warm_start(recipe, self.baseline, critic)
        self.learner = assembly.build_learner(recipe, self.trainer, sft, self.pool)
        self.player = assembly.Player(
            recipe,
            self.trainer,
            build_reviewer(recipe, self.baseline, self.rewarding),
            sft=sft,
        )
        self.clean = assembly.build_clean_check(
            recipe, self.trainer, self.learner, self.player, sft
        )
        self.remedies = self._remedies()
        for line in advice(recipe, count_parameters(self.trainer.actor), "rl"):
            warn(line)

    def _pool(self) -> ExperiencePool:
        rl = self.recipe.rl
        return ExperiencePool(
            self.folder.path / "pool",
            max_episodes=rl.pool.max_episodes,
            max_bytes=rl.pool.max_bytes,
            priority_exponent=rl.pool.exponent,
            spare_iterations=rl.checkpoint_every * KEEP_CHECKPOINTS,
            writes=self.ranks.main,
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

    def resume(self, checkpoint: Path | None) -> None:
        """Go on from a checkpoint; metrics and evaluations are cut back to it."""
        if checkpoint is None:
            self.pool.restore(before=0)
            if self.ranks.main:
                self._truncate(0)
                for name in ("trajectories", AUDIT):
                    shutil.rmtree(self.folder.path / name, ignore_errors=True)
            return
        if checkpoint.resolve().parent != self.folder.checkpoints.resolve():
            raise UsageError(
                f"--resume {checkpoint} lies in another run than {self.folder.path}, whose pool it "
                "needs; give that run's folder as --output-dir."
            )
        extra = load_checkpoint(
            checkpoint, self.trainer, self.baseline, self.pool, self._belongings()
        )
        self.best, self.last = extra["best"], extra["last"]
        self.remedies.load_state_dict(extra["remedies"])
        self.clean.load_state_dict(extra["clean"])
        iteration = self.trainer.progress.iteration
        if self.ranks.main:
            self.folder.metrics.keep_until(iteration)
            self._truncate(iteration)
        say(f"resumed from iteration {iteration}")

    def train(self) -> None:
        """The loop of ``trainer`` with this run's parts."""
        rl = self.recipe.rl
        left = rl.iterations - self.trainer.progress.iteration
        if rl.forgetting.every and self.trainer.progress.actor_version == 0:
            self.clean.start(version=0)  # what the SFT actor can do
        with progress("rl", left) as advance:
            parts = Parts(
                collect=self.player.collect,
                score=self._score,
                measure=self._measure,
                baseline=self.baseline,
                pool=self.pool,
                objective=self._objective,
                report=IterationReport(
                    self.folder.metrics,
                    self.folder.path / "trajectories",
                    advance=advance,
                    publish=self.trainer.publish,
                    writes=self.ranks.main,
                ),
                evaluate=self._evaluate,
                checkpoint=self._checkpoint,
                watch=self.remedies,
            )
            self.trainer.train(parts, self.learner, iterations=rl.iterations)

    def save(self) -> dict[str, Any]:
        """The actor as a plain Hugging Face folder, the critic beside it; the summary."""
        if self.recipe.rl.keep == "best" or self.trainer.progress.stopped:
            self._hand_over_best()
        save_trained(
            self.trainer.actor,
            self.trainer.processing_class,
            self.folder,
            card=f"Actor of the aac recipe {self.recipe.name}, trained by asymmetric PPO.",
            autocast=self.trainer.autocast,
        )
        if self.ranks.main:
            shutil.rmtree(self._best_weights.parent, ignore_errors=True)
            options = self.recipe.rl.critic.model_dump(mode="json")
            self.baseline.save(self.folder.path / "critic", options)
        self.ranks.wait()
        now = self.trainer.progress
        episodes = now.iteration * self.recipe.rl.episodes
        return {
            "seconds": round(time.perf_counter() - self.started, 1),
            "iterations": now.iteration,
            "actor_updates": now.actor_version,
            "training_episodes": episodes,
            "kept": self.recipe.rl.keep,
            "best": self.best,
            **self.last,
            **self.remedies.summary(),
            **self.clean.summary(),
        }

    @property
    def _best_weights(self) -> Path:
        return self.folder.path / "best" / "actor.safetensors"

    def _belongings(self) -> Belongings:
        recipe = self.recipe.model_dump(mode="json")
        parts = {name: recipe[name] for name in ("seed", "model", "environment", "state", "rl")}
        remedies = self.remedies.state_dict()
        extra = {"best": self.best, "last": self.last, "remedies": remedies}
        extra["clean"] = self.clean.state_dict()
        return Belongings(fingerprint(parts), extra, self._best_weights)

    @property
    def _keeps_best(self) -> bool:
        rl = self.recipe.rl
        return rl.keep == "best" or bool(rl.monitor.uses("roll_back", "stop"))

    def _restore_best(self) -> tuple[int, str]:
        """Put the best actor's weights back, if any were kept; its iteration, and in words."""
        if not self.best or not self._keeps_best:
            return 0, ""
        load_whole_tensors(self.trainer.learned, _read_weights(self._best_weights))
        step, success = int(self.best["step"]), self.best["success"]
        return step, f"the actor of iteration {step} with held-out success {success:.2f}"

    def _hand_over_best(self) -> None:
        if not self._restore_best()[0] and self.last:
            warn(
                "no evaluated actor is within rl.forgetting.max_perplexity, so the last actor is "
                "kept; see clean/* in metrics.jsonl."
            )

    def _truncate(self, iteration: int) -> None:
        """Cut the evaluations and alarms after an iteration, which will be written again."""
        for name in ("evaluations.jsonl", ALARMS_FILE):
            truncate_json(self.folder.path / name, iteration)

    def _objective(self, iteration: int, version: int) -> Objective:
        planned = assembly.objective_at(self.recipe.rl, iteration, version)
        return replace(planned, kl_coef=self.kl.value)

    @property
    def _temperature(self) -> float:
        return assembly.temperature_at(self.recipe.rl, self.trainer.progress.actor_version)

    def _score(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        scored = self.rewarding.score(episodes)
        if self.recipe.rl.ppo.kl_loss == "in_reward":
            scored = self.learner.with_drift(scored, self._temperature)
        return scored

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
        figures = episode_metrics(episodes, self.rewarding.mix)
        if self.ranks.main:
            append_json(self.folder.path / "evaluations.jsonl", {"step": iteration} | figures)
            write_picks(self.folder.path, iteration, picks(iteration, episodes, self.rewarding.mix))
        self.last = {"validation_success": figures["success"], "validation_step": iteration}
        clean = self._check_clean(iteration)
        if self._is_best(figures, clean):
            self.best = {n: figures[n] for n in ("success", "return")} | {"step": iteration}
            if self._keeps_best:
                best = whole_tensors(self.trainer.learned)
                if self.ranks.main:
                    _write_weights(best, self._best_weights)
                self.ranks.wait()
        return clean | {
            "evaluation/success": figures["success"],
            "evaluation/return": figures["return"],
            "evaluation/turns": figures["turns"],
        }

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
        allowed = clean.get("clean/perplexity_ratio", 1.0) <= rl.forgetting.max_perplexity
        return allowed and figures[rl.best_by] > self.best.get(rl.best_by, -math.inf)

    def _checkpoint(self, iteration: int) -> None:
        every = self.recipe.rl.checkpoint_every
        if self.trainer.progress.stopped:
            return  # going on from here would leave out what made it stop
        if every and iteration % every == 0 and iteration < self.recipe.rl.iterations:
            save_checkpoint(
                self.folder.checkpoints,
                self.trainer,
                self.baseline,
                self.pool,
                self._belongings(),
                keep=KEEP_CHECKPOINTS,
            )


def _write_weights(weights: dict[str, Tensor], file: Path) -> None:
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    save_file(weights, partial)
    partial.replace(file)


def _read_weights(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(file)
