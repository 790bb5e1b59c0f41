"""Against TRL's PPOTrainer on its own work: one turn, a reward model's score at its end.

Both sides have the same actor, reference, reward model, prompts, length of responses, epochs and
batch. TRL's value model is as large as the actor, as it has to share its tokens; ours is the light
critic, fitted with as many passes over the episodes.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.bench.measure import interleaved, middle, ratios, require_same_work
from stages.bench.models import SHAPES, TRL_SETTINGS, prompts_file, random_actor, random_scorer
from stages.bench.results import Bound, Result, Section
from stages.bench.running import Running, recipe_file
from stages.bench.setting import Setting, Tell

RATE = 3e-6
"""TRL's default for PPO."""
CRITIC_BATCH = 32
COUNTED = ("prompt_tokens", "response_tokens", "episodes", "optimizer_steps")
NOTE = (
    "A whole update on TRL's own work: sample a batch of replies, score them by the reward model, "
    "and learn from them for four epochs. Same actor, reference, reward model, prompts, length of "
    "replies, epochs and batch; TRL's value model is as large as the actor, as it has to be, and "
    "ours is the light critic. Proved before: same numbers of tokens, episodes and optimizer steps;"
    " on one rollout with the same weights and advantages the policy's gradients are at most "
    "{apart:.0e} apart."
)


@dataclass(frozen=True)
class Work:
    """One update: TRL's defaults, but that all its episodes make one minibatch of each epoch."""

    size: str
    batch: int = 64
    response: int = 53
    epochs: int = 4


WORKS = (Work("0.15 M"), Work("1.2 M"), Work("6.5 M", batch=32))
QUICK = (Work("0.15 M", batch=8, response=8),)


def measure(setting: Setting, tell: Tell) -> Section:
    """Updates of both trainers at each size."""
    works = QUICK if setting.quick else WORKS
    results = [_compare(setting, work, tell) for work in works]
    note = NOTE.format(apart=max(result.proof["gradients_apart"] for result in results))
    return Section("Single-turn PPO against TRL 1.12's PPOTrainer", note, "ratio", results)


def _compare(setting: Setting, work: Work, tell: Tell) -> Result:
    folder = setting.fresh(f"ppo-{work.size}")
    prepare(folder, work)
    tell(f"{work.size} weights, is the gradient TRL's?")
    with setting.side("stages.bench.ppo_gradient:Proof", work=work) as proof:
        apart = proof().figures["apart"]
    tell(f"{work.size} weights, updates")
    given = {"folder": folder, "work": work}
    with (
        setting.side("stages.bench.ppo:Ours", **given) as ours,
        setting.side("stages.bench.ppo:Theirs", **given) as theirs,
    ):
        taken = interleaved({"aac": ours, "TRL": theirs}, setting.repeats)
    counts = require_same_work(taken, COUNTED)
    return Result(
        f"{work.size} weights, {work.batch} episodes",
        {side: middle(times) for side, times in taken.items()},
        "s",
        ratios(taken["TRL"], taken["aac"]),
        must=Bound(2),
        aim=Bound(3),
        proof={"gradients_apart": apart, **counts},
    )


def prepare(folder: Path, work: Work) -> Path:
    """Actor, reward model and prompts on disk."""
    random_actor(SHAPES[work.size], folder / "sft")
    random_scorer(SHAPES[work.size], folder / "reward")
    prompts_file(folder / "prompts.jsonl", work.batch)
    critic_steps = max(work.epochs * work.batch // CRITIC_BATCH, 1)
    content = {
        "name": "single-turn",
        "model": {"actor": str(folder / "sft")},
        "environment": {
            "name": "gymnasium",
            "gymnasium": "stages.bench.worlds:Prompts",
            "tasks": str(folder / "prompts.jsonl"),
            "max_turns": 1,
        },
        "state": {"tool_prompt": "none", "checklist": False, "max_tokens": 256},
        "rl": {
            "episodes": work.batch,
            "evaluation_episodes": 1,
            "actor": {
                "max_new_tokens": work.response,
                "learning_rate": RATE,
                "final_rate_fraction": 1.0,
            },
            "critic": {
                "steps": critic_steps,
                "batch_size": CRITIC_BATCH,
                "warm_up": {"max_iterations": 0},
            },
            "ppo": {"epochs": work.epochs, "minibatch_episodes": work.batch, "entropy_coef": 0.0},
            "rewards": {"reward_model": 1.0},
        },
    }
    return recipe_file(folder, content)


class Ours(Running):
    """The RL stage of this project on that work; each call is one iteration."""

    def __init__(self, folder: Path, work: Work) -> None:
        del work  # it is in the recipe
        recipe, sft, reward = (folder / name for name in ("recipe.yaml", "sft", "reward"))
        super().__init__(folder / "ours", recipe, sft=sft, reward=reward)


class Theirs:
    """TRL's trainer; each call is one of its updates."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.work, self.trainer = work, ppo_trainer(folder, work)

    def __call__(self) -> dict[str, Any]:
        """One update."""
        seen = watched_update(self.trainer, lambda: None)
        rows, columns = seen.sequences.shape
        padding = int((seen.sequences == self.trainer.processing_class.pad_token_id).sum())
        return {
            "prompt_tokens": rows * (columns - self.work.response) - padding,
            "response_tokens": rows * self.work.response,
            "episodes": rows,
            "optimizer_steps": len(seen.kept),
        }


def ppo_trainer(folder: Path, work: Work, **changes: Any) -> Any:
    """TRL's trainer on the models and prompts of ``prepare``."""
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        PrinterCallback,
    )

    from stages.rl.trl_adapter import PPOConfig, PPOTrainer

    def scorer() -> Any:
        return AutoModelForSequenceClassification.from_pretrained(folder / "reward")

    settings: dict[str, Any] = {
        **TRL_SETTINGS,
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": work.batch,
        "local_rollout_forward_batch_size": work.batch,
        "gradient_accumulation_steps": 1,
        "num_mini_batches": 1,
        "num_ppo_epochs": work.epochs,
        "total_episodes": work.batch,
        "response_length": work.response,
        "learning_rate": RATE,
        "num_sample_generations": 0,
    }
    tokenizer = AutoTokenizer.from_pretrained(folder / "sft")
    rows = Dataset.from_list([{"input_ids": ids} for ids in prompt_ids(folder, tokenizer)])
    trainer = PPOTrainer(
        args=PPOConfig(**(settings | changes)),
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(folder / "sft"),
        ref_model=AutoModelForCausalLM.from_pretrained(folder / "sft"),
        reward_model=scorer(),
        value_model=scorer(),
        train_dataset=rows,
        eval_dataset=rows,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def prompt_ids(folder: Path, tokenizer: Any) -> list[list[int]]:
    """The prompts as our side shows them to the actor."""
    from stages.common.chat import encode_prompt
    from stages.interaction.environments import make_environment
    from stages.recipe.load import load_recipe

    environment = make_environment(load_recipe(folder / "recipe.yaml").environment)
    tasks = environment.tasks("train", sys.maxsize, 0)
    return [encode_prompt(tokenizer, environment.reset(task).messages) for task in tasks]


@dataclass
class Seen:
    """What TRL's monolithic ``train`` makes on its way."""

    sequences: Any = None
    """(B, T) prompts, padded on the left, and responses."""
    logprobs: Any = None
    """(B, response) of the responses, as they were sampled."""
    advantages: Any = None
    """(B, response), whitened."""
    kept: list[Any] = field(default_factory=list)
    """What ``keep`` gave just before each optimizer step."""


def watched_update(trainer: Any, keep: Callable[[], Any]) -> Seen:
    """Run ``train`` and look over its shoulder."""
    module: Any = sys.modules[type(trainer).__module__]
    seen = Seen()
    generation, whiten, step = module.batch_generation, module.masked_whiten, trainer.optimizer.step

    def generate(*given: Any) -> Any:
        seen.sequences, seen.logprobs = sequences, logits = generation(*given)
        return sequences, logits

    def whitened(*given: Any) -> Any:
        seen.advantages = whiten(*given)
        return seen.advantages

    def stepped(*given: Any) -> Any:
        seen.kept.append(keep())
        return step(*given)

    module.batch_generation, module.masked_whiten = generate, whitened
    trainer.optimizer.step = stepped
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
    finally:
        module.batch_generation, module.masked_whiten = generation, whiten
        trainer.optimizer.step = step
    responses = seen.sequences[:, -seen.logprobs.shape[1] :, None]
    seen.logprobs = seen.logprobs.log_softmax(-1).gather(-1, responses).squeeze(-1)
    return seen
