"""The parts of an RL run, built from the recipe's sections and wired to the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stages.common.adapters import keep_upper, take_up
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
from stages.interaction.network import context_length
from stages.recipe.models import Recipe, RlSection
from stages.recipe.offline import actor_iterations
from stages.recipe.ranges import default_learning_rate
from stages.rl.forgetting import CleanCheck, clean_exchanges, clean_rows
from stages.rl.hindsight import Replayer
from stages.rl.learner import ActorLearner
from stages.rl.player import Player, corrects_sampling
from stages.rl.pool import ExperiencePool
from stages.rl.rewarding import Rewarding
from stages.rl.rows import ActorRow, actor_rows, demonstration
from stages.rl.shared import SharedHead
from stages.rl.trainer import AsymmetricPPOTrainer
from stages.rl.trl_adapter import ppo_config


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
            folder.path, iterations=actor_iterations(recipe.rl), **(arguments | recipe.rl.trainer)
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


def build_replayer(player: Player) -> Replayer:
    """What plays episodes again in other tasks of the player's environment."""
    context = context_length(player.trainer.actor.config)
    return Replayer(player.arena, player.tokenizer, player.count_tokens, context)
