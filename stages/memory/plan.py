"""``aac plan``: what a recipe needs on each device, what fits, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.memory.architecture import Architecture, architecture_of
from stages.memory.budget import Budget, reward_budget, rl_budget, sft_budget
from stages.memory.job import Critic, Job, Play, Training
from stages.memory.strategies import STRATEGIES, Strategy
from stages.recipe.critic import CriticSection
from stages.recipe.generation import GenerationSection
from stages.recipe.models import Recipe

GIB = 2**30
USABLE = 0.9
"""Share of a device that a plan may fill: the rest is the driver's, and lost between blocks."""
_BUCKETS, _VIEWS = 4096, 8


@dataclass(frozen=True)
class Plan:
    """Budgets of every stage under every strategy."""

    job: Job
    processes: int
    gpu_memory: float
    """Bytes of one device."""
    budgets: Mapping[str, Mapping[Strategy, Budget]]

    def peak(self, strategy: Strategy) -> float:
        """Bytes per device, over the stages."""
        return max(stage[strategy].peak for stage in self.budgets.values())

    def fits(self, strategy: Strategy) -> bool:
        """Whether every stage does."""
        return self.peak(strategy) <= USABLE * self.gpu_memory


def make_plan(job: Job, *, processes: int, gpu_memory: float) -> Plan:
    """All stages of a job under all strategies. ``gpu_memory`` in bytes."""
    engine = job.engine_share * gpu_memory
    budgets: dict[str, dict[Strategy, Budget]] = {
        "sft": {s: sft_budget(job, s, processes) for s in STRATEGIES},
        "rl": {s: _beside_vllm(rl_budget(job, s, processes), engine) for s in STRATEGIES},
    }
    reward = job.reward
    if reward is not None:
        trained = {s: reward_budget(job, reward, s, processes) for s in STRATEGIES}
        budgets = {"sft": budgets["sft"], "reward": trained, "rl": budgets["rl"]}
    return Plan(job, processes, gpu_memory, budgets)


def _beside_vllm(budget: Budget, engine: float) -> Budget:
    return replace(budget, held={**budget.held, "vLLM": engine}) if engine else budget


def changes(plan: Plan) -> list[str]:
    """What would make it fit, each tried: recipe keys, then more devices; best guesses first."""
    found = []
    for words, job, processes in _candidates(plan):
        tried = make_plan(job, processes=processes, gpu_memory=plan.gpu_memory)
        fitting = [s for s in STRATEGIES if tried.fits(s)]
        if fitting:
            peak = tried.peak(fitting[0]) / GIB
            found.append(f"{words}: {peak:.1f} GiB under {fitting[0]}")
    return found[:4]


def _candidates(plan: Plan) -> Iterator[tuple[str, Job, int]]:
    """(what to change, the job then, processes then)."""
    job, processes = plan.job, plan.processes
    smaller = job.in_small_pieces
    pieces = "sft.batch_size and reward.batch_size 1 (with accumulation), rl.ppo.microbatch_tokens "
    pieces += str(smaller.play.row)
    again = "model.activation_checkpointing: true"
    yield again, job.checkpointed, processes
    yield pieces, smaller, processes
    both = smaller.checkpointed
    yield f"{again}, {pieces}", both, processes
    if not job.rank:
        adapters = "model.lora: {rank: 32, alpha: 64}"
        yield f"{adapters}, {again}", replace(job.checkpointed, rank=32), processes
        yield f"{adapters}, {again}, {pieces}", replace(both, rank=32), processes
    for more in (2, 4, 8, 16, 32, 64):
        if more > processes:
            yield f"--processes {more}", job, more
            yield f"--processes {more}, {again}, {pieces}", both, more


def job_of(recipe: Recipe, model: Architecture, *, on_gpu: bool) -> Job:
    """The numbers of a recipe for a model of this shape."""
    section, reward = recipe.model, recipe.reward
    lora = section.lora
    quantized = lora is not None and lora.quantize != "none"
    again = section.activation_checkpointing
    weighed = recipe.rl.rewards.reward_model > 0
    bf16 = section.dtype == "bfloat16" or (section.dtype == "auto" and on_gpu)
    return Job(
        model=model,
        judge=_judge(recipe, model),
        bf16=bf16,
        on_gpu=on_gpu,
        sft=_training(recipe.sft, recipe.sft.batch_size, again),
        reward=_training(reward, 2 * reward.batch_size, again) if weighed else None,
        play=_play(recipe, again),
        critic=_critic(recipe.rl.critic, model),
        rank=lora.rank if lora else 0,
        quantized=quantized,
        embedding_frozen=any(text in "model.embed_tokens.weight" for text in section.frozen),
        copy_bytes=_copy_bytes(recipe, bf16=bf16, quantized=quantized),
        engine_share=_engine_share(recipe.rl.generation),
    )


def _copy_bytes(recipe: Recipe, *, bf16: bool, quantized: bool) -> float:
    """Per weight: where the actor computes in bf16, rollouts are sampled from a rounded copy."""
    if recipe.rl.generation.engine == "vllm":  # adapters are merged in a copy that goes over
        return (2.0 if bf16 else 4.0) if recipe.model.lora else 0.0
    dtype = recipe.rl.generation.dtype
    if dtype == "auto":
        return 2.0 if bf16 and not quantized else 0.0
    return {"float32": 4.0, "int8": 1.0}.get(dtype, 2.0)


def _engine_share(generation: GenerationSection) -> float:
    here = generation.engine == "vllm" and generation.vllm.mode == "colocate"
    return generation.vllm.gpu_memory_utilization if here else 0.0


def _judge(recipe: Recipe, model: Architecture) -> Architecture:
    """The reward model's trunk: the actor's, unless the recipe names another."""
    base = recipe.reward.base
    weighed = recipe.rl.rewards.reward_model > 0
    return architecture_of(base) if weighed and base not in ("sft", "actor") else model


def _training(section: Any, rows: int, checkpointing: bool) -> Training:
    again = checkpointing or bool(section.trainer.get("gradient_checkpointing", False))
    optimizer = str(section.trainer.get("optim", "adamw"))
    return Training(rows, section.max_length, section.gradient_accumulation, optimizer, again)


def _play(recipe: Recipe, checkpointing: bool) -> Play:
    rl, ppo = recipe.rl, recipe.rl.ppo
    return Play(
        episodes=rl.episodes,
        turns=recipe.environment.max_turns,
        prompt=recipe.state.max_tokens,
        action=rl.actor.max_new_tokens,
        epochs=ppo.epochs,
        minibatch_episodes=ppo.minibatch_episodes,
        microbatch_tokens=ppo.microbatch_tokens,
        kl_loss=ppo.kl_loss,
        mixes_sft=ppo.sft_coef > 0,
        optimizer=str(rl.trainer.get("optim", "adamw")),
        checkpointing=checkpointing,
    )


def _critic(section: CriticSection, model: Architecture) -> Critic:
    """About; a critic is light beside the actor unless it grows from a large trunk."""
    if section.kind == "none" or section.shared:
        return Critic()
    networks = section.ensemble * (1 if section.kind == "v" else 2)
    width = section.hidden_size
    if section.trunk == "light":
        return Critic(_BUCKETS * width + 12 * width * width, networks)
    tokens = 8192  # of one forward of an encoder
    if section.trunk in ("reward-model", "actor"):
        kept = tokens * model.layers * (10 * model.hidden + 4 * model.intermediate)
        return Critic(model.trunk_parameters, networks, kept)
    layers = section.layers
    if section.trunk != "scratch":
        file = Path(section.trunk) / "model.safetensors"
        size = file.stat().st_size // 4 if file.is_file() else 22_000_000
        return Critic(size, networks, tokens * 6 * 20 * 384)
    return Critic(_BUCKETS * width + 8 * layers * width**2, networks, tokens * layers * 20 * width)
