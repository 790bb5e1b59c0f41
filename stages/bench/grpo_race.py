"""The race of the multi-turn comparison: both sides learn for as long, then one judge."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

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
"""As in recipes/quickstart.yaml but for the rate; without its schedules, as nobody knows how many
iterations fit, and without its reward model: only success pays, on both sides."""
THEIRS: Mapping[str, Any] = {"learning_rate": 5e-4, "num_iterations": 1, "num_generations": 4}
STEPS = 4
"""Optimizer steps of TRL's on each batch; like ``THEIRS`` and the rate of ``OURS``, chosen on a
trial seed and on validation tasks."""


class RaceOurs(Ours):
    """The RL stage."""

    def __init__(self, folder: Path, work: Work) -> None:
        words = [f"rl.{name}={value}" for name, value in OURS.items()]
        super().__init__(folder, work, [*words, f"seed={work.seed}"], f"ours-{work.seed}")

    def train(self, seconds: float, saved: Path) -> dict[str, float]:
        """Iterations for as long as that, the last one whole, and the actor's folder; how many
        ``batches`` there were, and the ``seconds``."""
        start, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < seconds:
            self()
            count += 1
        trainer = self.session.trainer
        _save(trainer.actor, trainer.processing_class, saved)
        return {"batches": count, "seconds": spent}


class RaceTheirs:
    """TRL's trainer."""

    def __init__(self, folder: Path, work: Work) -> None:
        settings = {
            **THEIRS,
            "generation_batch_size": work.batch,
            "per_device_train_batch_size": work.batch // STEPS,
            "max_steps": FOREVER,
        }
        place = str(folder / f"trl-{work.seed}")
        self.trainer = grpo_trainer(folder, work, output_dir=place, **settings)

    def train(self, seconds: float, saved: Path) -> dict[str, float]:
        """See ``RaceOurs.train``."""
        clock = _clock(seconds, STEPS)
        self.trainer.add_callback(clock)
        with contextlib.redirect_stdout(io.StringIO()):
            self.trainer.train()
        _save(self.trainer.model, self.trainer.processing_class, saved)
        return {"batches": self.trainer.state.global_step // STEPS, "seconds": clock.spent}


class Judge:
    """Success of an actor, sampled, by this project's evaluation; each call is one."""

    def __init__(self, folder: Path, actor: Path) -> None:
        self.folder, self.actor = folder, actor

    def __call__(self) -> dict[str, Any]:
        """``success`` on the held-out tasks."""
        from stages.evaluation.run import evaluate
        from stages.recipe.load import load_recipe

        recipe = load_recipe(self.folder / "recipe.yaml")
        figures = evaluate(recipe, self.actor, episodes=SPLITS["test"], split="test")
        return {"success": figures["success"]}


def race(setting: Setting, tell: Tell, folder: Path, work: Work) -> tuple[float, Result]:
    """Success of the actor that both begin with, then of what each has made of it."""
    seeds, budget = (SEEDS[:1], 1.0) if setting.quick else (SEEDS, BUDGET)
    tell("success before the race")
    start, runs = _success(setting, folder, folder / "sft"), []
    for seed in seeds:
        tell(f"{budget:.0f} s of training on each side, seed {seed}")
        runs.append(_raced(setting, folder, replace(work, seed=seed), budget))
    success = {name: [run[name]["success"] for run in runs] for name in ("aac", "TRL")}
    least = 1 / SPLITS["test"]  # of a side that solves nothing
    pairs = zip(success["aac"], success["TRL"], strict=True)
    return start, Result(
        f"success after {budget:.0f} s",
        {name: 100 * median(values) for name, values in success.items()},
        "%",
        Spread.of([max(ours, least) / max(theirs, least) for ours, theirs in pairs]),
        aim=Bound(1),
        proof={f"seed {seed}": run for seed, run in zip(seeds, runs, strict=True)},
    )


def _raced(setting: Setting, folder: Path, work: Work, budget: float) -> dict[str, dict[str, Any]]:
    half = replace(setting, threads=max(setting.threads // 2, 1))
    with (
        half.side("stages.bench.grpo_race:RaceOurs", folder=folder, work=work) as ours,
        half.side("stages.bench.grpo_race:RaceTheirs", folder=folder, work=work) as theirs,
    ):
        sides = {"aac": ours, "TRL": theirs}
        actors = {name: folder / f"{name}-{work.seed}" for name in sides}
        for side in sides.values():
            side.wait()  # start-up counts for neither
        with ThreadPoolExecutor() as pool:
            ran = {
                name: pool.submit(side.ask, "train", budget, actors[name])
                for name, side in sides.items()
            }
            told = {name: future.result() for name, future in ran.items()}
    with ThreadPoolExecutor() as pool:
        judged = pool.map(partial(_success, half, folder), actors.values())
        return {
            name: {**told[name], "success": success}
            for name, success in zip(actors, judged, strict=True)
        }


def _success(setting: Setting, folder: Path, actor: Path) -> float:
    with setting.side("stages.bench.grpo_race:Judge", folder=folder, actor=actor) as judge:
        return float(judge().figures["success"])


def _clock(seconds: float, steps: int) -> Any:
    """A callback that ends TRL's training after so many seconds, its start-up not counted, and
    after a whole batch, as the other side does."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        start = spent = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.spent = time.perf_counter() - self.start
            whole = state.global_step % steps == 0
            control.should_training_stop |= whole and self.spent >= seconds

    return Clock()


def _save(actor: Any, tokenizer: Any, folder: Path) -> None:
    actor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
