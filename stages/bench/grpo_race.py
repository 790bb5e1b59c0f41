"""The race of the multi-turn comparison: both sides learn for as long, then one judge."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from stages.bench.grpo_sides import Ours, grpo_trainer
from stages.bench.grpo_work import SPLITS, Work
from stages.bench.measure import Spread
from stages.bench.results import Bound, Result
from stages.bench.running import FOREVER
from stages.bench.setting import Setting, Tell

SEEDS = (0, 1, 2)
BUDGET = 90.0
"""Seconds of training, without start-up, for each side and seed."""
OURS: Mapping[str, Any] = {
    "episodes_per_task": 1,
    "actor.learning_rate": 3e-4,
    "critic.trunk": "light",
    "critic.loss": "hl_gauss",
    "critic.learning_rate": 2e-3,
    "critic.steps": 20,
    "critic.warm_up.max_iterations": 1,
    "pool.max_episodes": 1536,
    "ppo.epochs": 2,
    "ppo.minibatch_episodes": 8,
    "ppo.kl_coef": 0.05,
    "ppo.gae_lambda": 0.9,
    "ppo.entropy_coef": 0.0,
    "ppo.entropy_coef_final": 0.0,
    "ppo.sft_data": "successes",
    "ppo.sft_coef": 4.0,
}
"""As in recipes/quickstart.yaml but for the rate, and without its schedules: nobody knows how many
iterations fit."""
THEIRS: Mapping[str, Any] = {
    "learning_rate": 5e-4,
    "per_device_train_batch_size": 16,
    "generation_batch_size": 64,
    "num_iterations": 1,
}
"""Chosen on a trial seed and on validation tasks, like the rate of ``OURS``."""


class RaceOurs(Ours):
    """The RL stage; ``changes``: of ``OURS``."""

    def __init__(self, folder: Path, work: Work, changes: Mapping[str, Any]) -> None:
        words = [f"rl.{name}={value}" for name, value in {**OURS, **changes}.items()]
        super().__init__(folder, work, [*words, f"seed={work.seed}"], f"ours-{work.seed}")

    def train(self, seconds: float, saved: Path) -> int:
        """Iterations for as long as that, and the actor's folder; how many there were."""
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self()
            count += 1
        trainer = self.session.trainer
        _save(trainer.actor, trainer.processing_class, saved)
        return count


class RaceTheirs:
    """TRL's trainer; ``changes``: of ``THEIRS``."""

    def __init__(self, folder: Path, work: Work, changes: Mapping[str, Any]) -> None:
        settings = {**THEIRS, **changes, "max_steps": FOREVER}
        place = str(folder / f"trl-{work.seed}")
        self.trainer = grpo_trainer(folder, work, output_dir=place, **settings)

    def train(self, seconds: float, saved: Path) -> int:
        """See ``RaceOurs.train``; a step in the works is finished."""
        self.trainer.add_callback(_Until(time.perf_counter() + seconds))
        with contextlib.redirect_stdout(io.StringIO()):
            self.trainer.train()
        _save(self.trainer.model, self.trainer.processing_class, saved)
        args = self.trainer.args
        steps: int = self.trainer.state.global_step
        return steps // (args.steps_per_generation * args.num_iterations)


class Judge:
    """Success of an actor, sampled, by this project's evaluation; each call is one."""

    def __init__(self, folder: Path, actor: Path, split: str = "test") -> None:
        self.folder, self.actor, self.split = folder, actor, split

    def __call__(self) -> dict[str, Any]:
        """``success`` on the held-out tasks."""
        from stages.evaluation.run import evaluate
        from stages.recipe.load import load_recipe

        recipe = load_recipe(self.folder / "recipe.yaml")
        count = SPLITS[self.split]
        figures = evaluate(recipe, self.actor, episodes=count, split=self.split)
        return {"success": figures["success"]}


def race(setting: Setting, tell: Tell, folder: Path, work: Work) -> tuple[float, list[Result]]:
    """Success of the actor that both begin with, then of what each has made of it."""
    seeds, budget = (SEEDS[:1], 1.0) if setting.quick else (SEEDS, BUDGET)
    tell("success before the race")
    start, results = _success(setting, folder, folder / "sft"), []
    for seed in seeds:
        tell(f"{budget:.0f} s of training on each side, seed {seed}")
        results.append(_raced(setting, folder, replace(work, seed=seed), budget))
    return start, results


def _raced(setting: Setting, folder: Path, work: Work, budget: float) -> Result:
    half = replace(setting, threads=max(setting.threads // 2, 1))
    given: dict[str, Any] = {"folder": folder, "work": work, "changes": {}}
    with (
        half.side("stages.bench.grpo_race:RaceOurs", **given) as ours,
        half.side("stages.bench.grpo_race:RaceTheirs", **given) as theirs,
    ):
        sides = {"aac": ours, "TRL": theirs}
        actors = {name: folder / f"{name}-{work.seed}" for name in sides}
        with ThreadPoolExecutor() as pool:
            ran = {
                name: pool.submit(side.ask, "train", budget, actors[name])
                for name, side in sides.items()
            }
            batches = {name: future.result() for name, future in ran.items()}
    success = {name: _success(setting, folder, actor) for name, actor in actors.items()}
    return Result(
        f"success after {budget:.0f} s, seed {work.seed}",
        {name: 100 * value for name, value in success.items()},
        "%",
        Spread.of([success["aac"] / max(success["TRL"], 1 / SPLITS["test"])]),
        aim=Bound(1),
        proof={"batches": batches},
    )


def _success(setting: Setting, folder: Path, actor: Path) -> float:
    with setting.side("stages.bench.grpo_race:Judge", folder=folder, actor=actor) as judge:
        return float(judge().figures["success"])


class _Until(TrainerCallback):
    """Ends TRL's training at a time of ``perf_counter``."""

    def __init__(self, end: float) -> None:
        self.end = end

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called after every optimizer step."""
        control.should_training_stop |= time.perf_counter() >= self.end


def _save(actor: Any, tokenizer: Any, folder: Path) -> None:
    actor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
