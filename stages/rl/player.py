"""Who plays an RL run's episodes: the current actor, its copy, or vLLM with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from stages.common.chat import encode_prompt, stop_ids
from stages.common.errors import UsageError
from stages.common.precision import precision
from stages.common.sharding import is_sharded
from stages.interaction.arena import Arena, kept
from stages.interaction.environments import needs_person
from stages.interaction.environments.base import Reset, Task
from stages.interaction.generation import Policy, Request
from stages.interaction.native import NativePolicy
from stages.interaction.network import NO_LIMIT, context_length
from stages.interaction.rollout import Reviewer
from stages.interaction.trajectory import Message, Trajectory
from stages.recipe.models import Recipe
from stages.rl.sampler import Sampler, copy_dtype
from stages.rl.saving import Stoppable
from stages.rl.schedules import temperature_at
from stages.rl.trainer import AsymmetricPPOTrainer
from stages.rl.vllm_adapter import VllmEngine, VllmPolicy, VllmSampler, start_engine

EVALUATION_KEY, CLEAN_KEY = 1_000_000, 1_000_001
"""Places in random keys, so that no two uses share numbers."""


class Player:
    """Plays the current actor in the recipe's environment."""

    def __init__(
        self,
        recipe: Recipe,
        trainer: AsymmetricPPOTrainer,
        reviewer: Reviewer | None = None,
        *,
        sft: Path,
    ) -> None:
        """``sft``: the frozen actor's folder, in case it writes summaries."""
        self.recipe, self.trainer = recipe, trainer
        self.tokenizer = trainer.processing_class
        self.sampler = build_sampler(recipe, trainer)
        arena = Arena.of(recipe.environment, recipe.state, recipe.rl.rewards, writer=sft)
        self.arena = arena.served(arena.state, reviewer)
        self.tasks: list[Task] = []
        """What the latest iteration was played for, by the numbers in the episodes' keys."""
        self.dropped: list[Trajectory] = []
        """Episodes of the latest iteration that the machinery dropped."""
        # Drawn before anything is trained: a split without tasks is told now, not hours later.
        (first,) = self.arena.tasks("train", 1, recipe.seed)
        if not needs_person(recipe.environment):
            self._check_potential(self.arena.try_out(first))
        self.validation = self.arena.tasks(
            "validation", recipe.rl.evaluation_episodes, recipe.evaluation.seed
        )

    def _check_potential(self, reset: Reset) -> None:
        if self.recipe.rl.rewards.shaping and not reset.checklist:
            raise UsageError(
                f"rl.rewards.shaping is given, but environment {self.recipe.environment.name} "
                "lists no checklist, so the potential would be 0 throughout; leave it out."
            )

    def play(
        self, tasks: Sequence[Task], policy: Policy, *, key: tuple[int, int], version: int
    ) -> list[Trajectory]:
        """One sampled episode per task, those dropped by the machinery's faults included."""
        ranks = self.trainer.ranks
        with self._playing():
            played = self.arena.play(
                tasks,
                policy,
                key=key,
                count_tokens=self.count_tokens,
                actor_version=version,
                label="",
                ranks=ranks,
            )
        return ranks.gather(played)  # outside: inside, others may still be going forward

    def count_tokens(self, messages: list[Message]) -> int:
        """Length of a prompt by the actor's own tokenizer and template."""
        return len(encode_prompt(self.tokenizer, messages))

    def _playing(self) -> AbstractContextManager[None]:
        """Inside, who plays may be asked, by each process in its own time."""
        if isinstance(self.sampler, VllmSampler):
            return self.sampler.playing()
        return self.trainer.playing(self.recipe.distributed.gather)

    def collect(self, iteration: int, version: int, count: int | None = None) -> list[Trajectory]:
        """One iteration's episodes, on fresh training tasks; ``count`` others than rl.episodes.

        Interrupted: they were given up.
        """
        rl, key = self.recipe.rl, (self.recipe.seed, iteration)
        self.tasks = self.arena.practice(count or rl.episodes, rl.episodes_per_task, key)
        policy: Policy = self.sampler.policy(version).at(temperature_at(rl, version))
        # One process may give up what it plays; several would wait for each other.
        alone = self.trainer.ranks.size == 1
        policy = Stoppable(policy) if alone else policy
        played = self.play(self.tasks, policy, key=key, version=version)
        self.dropped = [episode for episode in played if episode.error is not None]
        return kept(played)

    def evaluate(self, version: int) -> list[Trajectory]:
        """Validation tasks, the same each time. RunError if all episodes were dropped."""
        key = (self.recipe.evaluation.seed, EVALUATION_KEY)
        policy = self.sampler.policy(version).at(self.recipe.evaluation_sampling.temperature)
        episodes = self.play(self.validation, policy, key=key, version=version)
        kept(episodes)
        return episodes

    def reply(self, dialogues: Sequence[Sequence[Message]], version: int) -> list[str]:
        """What the actor says to each by its likeliest tokens, outside of any environment."""
        ranks, seed = self.trainer.ranks, self.recipe.evaluation.seed
        # A policy of its own: what an older actor has read must not be read on.
        policy = self.sampler.policy(version).at(self.recipe.evaluation_sampling.temperature)
        with self._playing():
            requests = [
                Request(dialogues[number], (), (seed, CLEAN_KEY, number, 0))
                for number in ranks.share(len(dialogues))
            ]
            said = [answer.text for answer in policy.generate(requests, greedy=True)]
        return ranks.gather(said)


def build_sampler(recipe: Recipe, trainer: AsymmetricPPOTrainer) -> Sampler | VllmSampler:
    """Who plays: the actor, its copy, or vLLM with its weights."""
    if recipe.rl.generation.engine == "vllm":
        return build_vllm(recipe, trainer)
    options, actor, tokenizer = recipe.rl.actor, trainer.actor, trainer.processing_class

    def make(model: Any) -> NativePolicy:
        return NativePolicy(
            model,
            tokenizer,
            temperature=options.temperature,
            max_new_tokens=options.max_new_tokens,
        )

    # A copy of a partitioned actor would hold nothing: it plays itself.
    return Sampler(actor, make, None if is_sharded(actor) else sampled_in(recipe))


def build_vllm(recipe: Recipe, trainer: AsymmetricPPOTrainer) -> VllmSampler:
    """vLLM, started around the actor."""
    options, actor, tokenizer = recipe.rl.generation.vllm, trainer.actor, trainer.processing_class
    context = context_length(actor.config)
    length = min(options.max_model_length or context, context)
    trl = start_engine(
        options,
        actor,
        accelerator=trainer.accelerator,
        tokenizer=tokenizer,
        length=None if length == NO_LIMIT else length,
    )
    engine = VllmEngine(trl, actor, stop_ids(tokenizer, actor.generation_config), trainer.ranks)
    limit = recipe.rl.actor.max_new_tokens
    policy = VllmPolicy(engine, tokenizer, context=length, max_new_tokens=limit)
    return VllmSampler(engine, policy, partial(trainer.clock, "weights"))


def corrects_sampling(recipe: Recipe) -> bool:
    """Whether something else than the actor itself samples its rollouts."""
    return recipe.rl.generation.engine == "vllm" or sampled_in(recipe) is not None


def sampled_in(recipe: Recipe) -> str | None:
    """The type of the copy that rollouts are sampled from; None: from the actor itself."""
    lora = recipe.model.lora
    _, autocast = precision(recipe.model.dtype, adapters=lora is not None)
    quantized = lora is not None and lora.quantize != "none"
    return copy_dtype(recipe.rl.generation.dtype, autocast=autocast, quantized=quantized)
