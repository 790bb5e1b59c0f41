"""The parts of an RL run, built from the recipe's sections and wired to the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from stages.common.adapters import keep_upper, take_up
from stages.common.chat import encode_prompt, stop_ids
from stages.common.errors import UsageError
from stages.common.models import (
    count_parameters,
    load_actor,
    load_tokenizer,
    load_trained_actor,
)
from stages.common.precision import precision
from stages.common.rows import Row
from stages.common.run_folder import RunFolder, read_rows
from stages.common.sharding import is_sharded
from stages.interaction.arena import Arena, kept
from stages.interaction.environments import needs_person
from stages.interaction.environments.base import Reset, Task
from stages.interaction.generation import Policy, Request
from stages.interaction.native import NativePolicy
from stages.interaction.network import NO_LIMIT, context_length
from stages.interaction.rollout import Reviewer
from stages.interaction.trajectory import Message, Trajectory
from stages.recipe.models import Recipe, RlSection
from stages.recipe.ranges import default_learning_rate
from stages.rl.forgetting import CleanCheck, clean_exchanges, clean_rows
from stages.rl.hindsight import Hindsight, Replayer, Rescore
from stages.rl.kl import KlCoefficient
from stages.rl.learner import ActorLearner, Objective
from stages.rl.losses import linear
from stages.rl.pool import ExperiencePool
from stages.rl.rewarding import Rewarding
from stages.rl.rows import ActorRow, actor_rows, demonstration
from stages.rl.sampler import Sampler, copy_dtype
from stages.rl.saving import Stoppable
from stages.rl.shared import SharedHead
from stages.rl.trainer import AsymmetricPPOTrainer
from stages.rl.trl_adapter import ppo_config
from stages.rl.vllm_adapter import VllmEngine, VllmPolicy, VllmSampler, start_engine

EVALUATION_KEY = 1_000_000
"""Place in random keys, so that no two uses share numbers."""
TRAIN_TASKS, EVALUATION_KEY, CLEAN_KEY = 3, 1_000_000, 1_000_001
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
        policy = self.sampler.policy(version)
        with self._playing():
            requests = [
                Request(dialogues[number], (), (seed, CLEAN_KEY, number, 0))
                for number in ranks.share(len(dialogues))
            ]
            said = [answer.text for answer in policy.generate(requests, greedy=True)]
        return ranks.gather(said)


def build_clean_check(
    recipe: Recipe, trainer: AsymmetricPPOTrainer, learner: ActorLearner, player: Player, sft: Path
) -> CleanCheck:
    """On the dialogues that the recipe names, or those that stage 1 left in its folder."""
    options = recipe.rl.forgetting
    exchanges = clean_exchanges(options.data, sft, options.dialogues) if options.every else []
    length = min(recipe.sft.max_length, context_length(trainer.actor.config))
    rows = clean_rows(trainer.processing_class, exchanges, length)
    return CleanCheck(
        exchanges,
        rows,
        surprise=lambda rows: learner.surprise([demonstration(row) for row in rows]),
        reply=player.reply,
    )


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


def build_models(
    recipe: Recipe, sft: Path, tokenizer: Any, start: Path | None = None
) -> tuple[Any, Any | None]:
    """(actor, its reference), both from the SFT folder; None where adapters are switched off.

    ``start``: the folder that the actor's weights come from instead.
    """
    section = recipe.model
    dtype, _ = precision(section.dtype, adapters=section.lora is not None)
    source = sft if start is None or section.lora is not None else start
    actor = load_trained_actor(source, section, dtype=dtype, tokenizer=tokenizer, reference=True)
    if start is not None and section.lora is not None:
        take_up(actor, start)
    if section.activation_checkpointing:
        actor.activation_checkpointing_enable()
    if section.lora is None:
        return actor, load_actor(sft, dtype=dtype, shares=True).requires_grad_(False)
    if recipe.rl.actor.lora_layers is not None:
        keep_upper(actor, recipe.rl.actor.lora_layers)
    return actor, None


def build_trainer(
    recipe: Recipe,
    folder: RunFolder,
    sft: Path,
    rewarding: Rewarding,
    start: Path | None = None,
) -> AsymmetricPPOTrainer:
    """Actor (or its weights from ``start``) and reference from the SFT folder, and TRL's set-up
    around them."""
    tokenizer = load_tokenizer(sft, recipe.model.chat_template)
    actor, reference = build_models(recipe, sft, tokenizer, start)
    options, adapters = recipe.rl.actor, recipe.model.lora is not None
    rate = options.learning_rate or default_learning_rate(
        "rl", count_parameters(actor), adapters=adapters
    )
    arguments: dict[str, Any] = {
        "learning_rate": rate,
        **_schedule(rate, options.final_rate_fraction),
        "seed": recipe.seed,
        "max_grad_norm": options.max_grad_norm,
        "temperature": options.temperature,
        "gamma": recipe.rl.ppo.discount,
        "lam": recipe.rl.ppo.gae_lambda,
        "cliprange": recipe.rl.ppo.clip_range,
        "kl_coef": recipe.rl.ppo.kl_coef,
        "num_ppo_epochs": recipe.rl.ppo.epochs,
        "whiten_min_std": recipe.rl.ppo.whiten_min_std,
        "value_learning_rate": recipe.rl.critic.learning_rate,
        "run_name": f"{recipe.name}-rl",
        "project": recipe.tracking.project,
    }
    _check_extra(recipe.rl.trainer)
    try:
        config = ppo_config(
            folder.path, iterations=recipe.rl.iterations, **(arguments | recipe.rl.trainer)
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"rl.trainer does not fit TRL's PPOConfig: {error}") from None
    trainer = AsymmetricPPOTrainer(
        config,
        actor=actor,
        reference=reference,
        reward_model=_prepared_with(rewarding, recipe.distributed.reward_model),
        tokenizer=tokenizer,
        value_head=build_head(recipe.rl, actor),
        autocast=precision(recipe.model.dtype, adapters=adapters)[1],
        ranks=folder.ranks,
    )
    trainer.cut_below(options.lora_layers)
    return trainer


def _prepared_with(rewarding: Rewarding, how: str) -> Any:
    """The reward model, where it is to be sharded like the actor; else it stays as it is."""
    return rewarding.scorer.model if rewarding.scorer and how == "sharded" else None


def build_head(rl: RlSection, actor: Any) -> SharedHead | None:
    """A fresh value head as wide as the actor's last hidden state, where the trunk is shared."""
    if not rl.critic.shared:
        return None
    return SharedHead(actor.get_output_embeddings().weight.shape[1], detach=rl.critic.detach)


EXTRA_ARGUMENTS = (
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_kwargs",
    "lr_scheduler_type",
    "optim",
    "optim_args",
    "run_name",
    "warmup_steps",
    "weight_decay",
)
"""What ``rl.trainer`` may hold: all else has a field of its own, or belongs to TRL's own loop."""


def _check_extra(extra: dict[str, Any]) -> None:
    unknown = sorted(set(extra) - set(EXTRA_ARGUMENTS))
    if unknown:
        raise UsageError(
            f"rl.trainer has {', '.join(unknown)}, which would change nothing here; it takes "
            f"{', '.join(EXTRA_ARGUMENTS)}, and the rest of PPO has fields under rl."
        )


def _schedule(rate: float, final_fraction: float) -> dict[str, Any]:
    """Linear from the peak to its share, or constant."""
    if final_fraction == 1.0:
        return {"lr_scheduler_type": "constant"}
    kwargs = {"lr_end": rate * final_fraction, "power": 1.0}
    return {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": kwargs}


def build_learner(
    recipe: Recipe, trainer: AsymmetricPPOTrainer, sft: Path, pools: Sequence[ExperiencePool]
) -> ActorLearner:
    """The actor's learner, with what SFT mixing draws from: stage 1 or the ``pools``' successes."""
    ppo = recipe.rl.ppo
    own = ppo.sft_data != "sft"
    return ActorLearner(
        trainer,
        epochs=ppo.epochs,
        minibatch_episodes=ppo.minibatch_episodes,
        microbatch_tokens=ppo.microbatch_tokens,
        importance_cap=recipe.rl.generation.importance_cap if corrects_sampling(recipe) else None,
        sft_rows=(lambda: [row for pool in pools for row in successes(pool)])
        if own
        else _stage_one(sft, ppo.sft_coef),
    )


def successes(pool: ExperiencePool) -> list[ActorRow]:
    """Rows of the pool's successful episodes (self-imitation, Oh et al. 2018, arXiv:1806.05635)."""
    won = [e for e in pool.episodes if e.success and all(t.logprobs for t in e.turns)]
    return actor_rows(won, [[0.0] * len(e.turns) for e in won])


def _stage_one(sft: Path, coefficient: float) -> Callable[[], list[ActorRow]]:
    """The rows that stage 1 left in its folder, read only where they are mixed in."""
    if coefficient == 0:
        return list
    rows = [
        demonstration(Row(tuple(r["input_ids"]), tuple(r["action_mask"]))) for r in read_rows(sft)
    ]
    if not rows:
        raise UsageError(
            f"rl.ppo.sft_coef is {coefficient} but {sft} holds no training rows; "
            "run aac sft again or set it to 0"
        )
    return lambda: rows


def build_hindsight(
    recipe: Recipe, player: Player, pool: ExperiencePool, rescore: Rescore
) -> Hindsight | None:
    """What relabels failures into ``pool``, where the recipe asks for it."""
    section, trainer = recipe.rl.hindsight, player.trainer
    if section is None:
        return None
    context = context_length(trainer.actor.config)
    replayer = Replayer(player.arena, player.tokenizer, player.count_tokens, context)
    return Hindsight(
        replayer, pool, rescore, share=section.share, seed=recipe.seed, ranks=trainer.ranks
    )


def temperature_at(rl: RlSection, version: int) -> float:
    """Sampling temperature of the actor after so many updates.

    It moves over the first half of the run, with the updates and not with the iterations, so
    that all episodes of one update were sampled alike.
    """
    start, end = rl.actor.temperature, rl.actor.temperature_final
    return linear(start, end or start, 2 * version / max(rl.iterations - 1, 1))


def kl_coefficient(rl: RlSection) -> KlCoefficient:
    """The weight of the KL term, fixed or steered, at the start of a run."""
    return KlCoefficient(rl.ppo.kl_coef, rl.ppo.kl_target, rl.ppo.kl_gain)


def objective_at(rl: RlSection, iteration: int, version: int) -> Objective:
    """The coefficients of one iteration as planned; entropy moves linearly over the run."""
    temperature = temperature_at(rl, version)
    done = iteration / max(rl.iterations - 1, 1)
    return Objective(
        clip_range=rl.ppo.clip_range,
        kl_coef=rl.ppo.kl_coef,
        kl_loss=rl.ppo.kl_loss,
        entropy_coef=linear(rl.ppo.entropy_coef, rl.ppo.entropy_coef_final, done),
        sft_coef=rl.ppo.sft_coef,
        sft_temperature=1.0 if rl.ppo.sft_data == "sft" else temperature,
        temperature=temperature,
        max_grad_norm=rl.actor.max_grad_norm,
        vf_coef=rl.critic.value_weight,
    )
