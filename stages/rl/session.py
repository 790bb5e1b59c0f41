"""One RL run in flight: the parts wired to the trainer, evaluated, checkpointed, saved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.common.console import progress, say
from stages.common.models import count_parameters, save_folder
from stages.common.run_folder import RunFolder
from stages.evaluation.metrics import episode_metrics
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe
from stages.recipe.ranges import advice
from stages.rl import assembly
from stages.rl.baselines import LearnedBaseline
from stages.rl.checkpoint import load_checkpoint, save_checkpoint
from stages.rl.critic.trunks import save_critic
from stages.rl.pool import ExperiencePool
from stages.rl.report import IterationReport, append_json, rollout_metrics, truncate_json
from stages.rl.trainer import Parts

KEEP_CHECKPOINTS = 2


class Session:
    """Builds everything, then ``resume`` → ``train`` → ``save``."""

    def __init__(self, recipe: Recipe, folder: RunFolder, sft: Path, reward: Path | None) -> None:
        self.recipe, self.folder = recipe, folder
        self.started = time.perf_counter()
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.rewarding = assembly.build_rewarding(recipe.rl, reward)
        self.pool = ExperiencePool(folder.path / "pool", max_episodes=recipe.rl.pool.max_episodes)
        self.baseline = assembly.build_baseline(recipe, self.rewarding, self.pool)
        self.trainer = assembly.build_trainer(recipe, folder, sft, self.rewarding)
        self.learner = assembly.build_learner(recipe, self.trainer, sft)
        self.player = assembly.Player(recipe, self.trainer.actor, self.trainer.processing_class)
        for line in advice(recipe, count_parameters(self.trainer.actor)):
            say(line)

    def resume(self, checkpoint: Path | None) -> None:
        """Go on from a checkpoint; metrics and evaluations are cut back to it."""
        if checkpoint is None:
            self.pool.restore(before=0)
            return
        extra = load_checkpoint(checkpoint, self.trainer, self.baseline, self.pool)
        self.best, self.last = extra["best"], extra["last"]
        iteration = self.trainer.progress.iteration
        self.folder.metrics.keep_until(iteration)
        truncate_json(self.folder.path / "evaluations.jsonl", iteration)
        say(f"resumed from iteration {iteration}")

    def train(self) -> None:
        """The loop of ``trainer`` with this run's parts."""
        rl = self.recipe.rl
        left = rl.iterations - self.trainer.progress.iteration
        with progress("rl", left) as advance:
            parts = Parts(
                collect=self.player.collect,
                score=self._score,
                measure=self._measure,
                baseline=self.baseline,
                pool=self.pool,
                objective=lambda iteration: assembly.objective_at(rl, iteration),
                report=IterationReport(
                    self.folder.metrics, self.folder.path / "trajectories", advance=advance
                ),
                evaluate=self._evaluate,
                checkpoint=self._checkpoint,
            )
            self.trainer.train(parts, self.learner, iterations=rl.iterations)

    def save(self) -> dict[str, Any]:
        """The actor as a plain Hugging Face folder, the critic beside it; the summary."""
        if self.recipe.rl.keep == "best" and self.best:
            _read_weights(self.trainer.actor, self._best_folder)
        save_folder(
            self.trainer.actor,
            self.trainer.processing_class,
            self.folder.path,
            card=f"Actor of the aac recipe {self.recipe.name}, trained by asymmetric PPO.",
        )
        if isinstance(self.baseline, LearnedBaseline):
            options = self.recipe.rl.critic.model_dump(mode="json")
            save_critic(self.baseline.critic.trunk, self.folder.path / "critic", options)
        now = self.trainer.progress
        episodes = self.recipe.rl.iterations * self.recipe.rl.episodes
        return {
            "seconds": round(time.perf_counter() - self.started, 1),
            "iterations": now.iteration,
            "actor_updates": now.actor_version,
            "training_episodes": episodes,
            "kept": self.recipe.rl.keep,
            "best": self.best,
            **self.last,
        }

    @property
    def _best_folder(self) -> Path:
        return self.folder.path / "checkpoints" / "best"

    def _score(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        scored = self.rewarding.score(episodes)
        if self.recipe.rl.ppo.kl_loss == "in_reward":
            scored = self.learner.with_drift(scored, self.recipe.rl.actor.temperature)
        return scored

    def _measure(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        dropped = self.recipe.rl.episodes - len(episodes)
        figures = episode_metrics(episodes, self.rewarding.mix) | {"dropped": dropped}
        return rollout_metrics(figures, episodes)

    def _evaluate(self, iteration: int) -> dict[str, float]:
        """Sampled success on the validation split, the same tasks each time."""
        rl = self.recipe.rl
        every = rl.evaluate_every
        if not every or (iteration % every and iteration != rl.iterations):
            return {}
        episodes = self.player.evaluate(self.trainer.progress.actor_version)
        figures = episode_metrics(episodes, self.rewarding.mix)
        append_json(self.folder.path / "evaluations.jsonl", {"step": iteration} | figures)
        self.last = {"validation_success": figures["success"], "validation_step": iteration}
        if figures["success"] > self.best.get("success", -1.0):
            self.best = {"success": figures["success"], "step": iteration}
            if rl.keep == "best":
                _write_weights(self.trainer.actor, self._best_folder)
        return {
            "evaluation/success": figures["success"],
            "evaluation/return": figures["return"],
            "evaluation/turns": figures["turns"],
        }

    def _checkpoint(self, iteration: int) -> None:
        every = self.recipe.rl.checkpoint_every
        if every and iteration % every == 0 and iteration < self.recipe.rl.iterations:
            save_checkpoint(
                self.folder.checkpoints,
                self.trainer,
                self.baseline,
                keep=KEEP_CHECKPOINTS,
                extra={"best": self.best, "last": self.last},
            )


def _write_weights(actor: Any, folder: Path) -> None:
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial.safetensors"
    save_model(actor, str(partial))
    partial.replace(folder / "actor.safetensors")


def _read_weights(actor: Any, folder: Path) -> None:
    from safetensors.torch import load_model

    load_model(actor, str(folder / "actor.safetensors"))
