"""The recipe: one YAML for all stages, as frozen pydantic models that load no torch.

Every field carries a one-line description (its docstring); ``aac recipes show`` prints the
resolved recipe. Derived values are properties. Whole recipes stop at each stage's ``run``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from stages.interaction.environments import EnvironmentOptions
from stages.interaction.rewards.mix import DEFAULT_WEIGHTS, GOLD_DEPENDENT
from stages.recipe.critic import CriticSection, PoolSection
from stages.recipe.generation import GenerationSection
from stages.recipe.hindsight import HindsightSection, check_hindsight
from stages.recipe.model import ModelSection
from stages.recipe.monitor import ForgettingSection, MonitorSection
from stages.recipe.offline import OfflineSection, check_offline
from stages.recipe.rewards import RewardsSection
from stages.recipe.section import CheckpointedSection, Section
from stages.recipe.state import StateSection


class SftSection(CheckpointedSection):
    """Stage 1: supervised fine-tuning on (instruction, history, wanted reply)."""

    data: Path | None = None
    """JSON lines, JSON or parquet of dialogues; without it the environment demonstrates."""
    demonstrations: int = Field(2000, ge=1)
    """Episodes to demonstrate when there is no data file."""
    only_successful: bool = False
    """Keep only the dialogues marked as successful (cloning of successful episodes)."""
    steps: int = Field(300, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(16, ge=1)
    """Rows per optimizer step (and device), before accumulation."""
    gradient_accumulation: int = Field(1, ge=1)
    """Micro-steps per optimizer step; the batch per step is batch_size times this."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak rate; none: chosen by model size."""
    warmup_fraction: float = Field(0.05, ge=0, le=1)
    """Share of the steps with a rising rate; afterwards it falls linearly."""
    max_length: int = Field(1024, ge=8)
    """Longest row in tokens; longer dialogues lose their middle history, never the reply."""
    validation_fraction: float = Field(0.05, ge=0, lt=1)
    """Share of the dialogues held out for the validation loss."""
    checkpoint_every: int = Field(0, ge=0)
    """Optimizer steps between resumable checkpoints; 0: a quarter of all steps."""
    keep: Literal["last", "best"] = "last"
    """Which weights are handed over: the last, or those with the lowest validation loss, which is
    then measured every checkpoint_every steps."""
    trainer: dict[str, Any] = {}
    """Any further argument of TRL's SFTConfig."""

    @field_validator("keep")
    @classmethod
    def _measured_somewhere(cls, keep: str, info: ValidationInfo) -> str:
        if keep == "best" and info.data.get("validation_fraction") == 0:
            raise ValueError(
                "best is by the validation loss, but sft.validation_fraction is 0; set it above 0, "
                "or keep the last"
            )
        return keep


class RewardSection(CheckpointedSection):
    """Stage 2: reward model on (context, better reply, worse reply), Bradley-Terry."""

    data: Path | None = None
    """Preference rows; without it the SFT actor's replies are ranked by their outcome."""
    base: str = "sft"
    """Trunk: sft (the SFT actor), actor (model.actor), or a Hugging Face folder or id."""
    tasks: int = Field(300, ge=1)
    """Tasks to sample for preferences when there is no data file."""
    samples_per_task: int = Field(8, ge=2)
    """Episodes the SFT actor plays of each task."""
    discount: float = Field(0.5, gt=0, le=1)
    """Of rewards that follow a reply, per turn: small, later luck says less of it; 1 where only
    the end of an episode pays."""
    min_margin: float = Field(0.06, ge=0)
    """Least difference of mean discounted return (success = 1) between the two replies."""
    held_out_fraction: float = Field(0.15, gt=0, lt=1)
    """Share of the pairs (by task) kept for accuracy and margin."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the training pairs."""
    batch_size: int = Field(16, ge=1)
    """Pairs per optimizer step."""
    gradient_accumulation: int = Field(1, ge=1)
    """Micro-steps per optimizer step."""
    learning_rate: float | None = Field(None, gt=0)
    """Peak rate; none: chosen by model size."""
    max_length: int = Field(1024, ge=8)
    """Longest row in tokens; longer contexts lose their middle, never the judged reply."""
    checkpoint_every: int = Field(0, ge=0)
    """Optimizer steps between resumable checkpoints; 0: a quarter of all steps."""
    keep: Literal["last", "best"] = "last"
    """Which weights are handed over: the last, or those with the lowest held-out loss, which is
    then measured every checkpoint_every steps."""
    trainer: dict[str, Any] = {}
    """Any further argument of TRL's RewardConfig."""


class ActorSection(Section):
    """How the actor is updated and how it samples."""

    learning_rate: float | None = Field(None, gt=0)
    """Peak rate; none: chosen by model size (a tenth of SFT's or less for 7B-class)."""
    final_rate_fraction: float = Field(0.1, ge=0, le=1)
    """The rate falls linearly to this share of its peak over the run."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping by norm."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of training rollouts, at which log-probs and losses are taken too."""
    temperature_final: float | None = Field(None, gt=0)
    """Temperature it moves to, linearly over the first half of the run; none: it stays. Above that
    of evaluation it makes the actor surer than it plays: slips of a hot actor cost it reward."""
    max_new_tokens: int = Field(96, ge=1)
    """Longest action in tokens."""
    lora_layers: int | None = Field(None, ge=1)
    """With model.lora: only adapters of this many uppermost layers learn in RL; none: all."""


class PpoSection(Section):
    """The objective."""

    epochs: int = Field(2, ge=1)
    """Passes over each iteration's episodes."""
    minibatch_episodes: int = Field(8, ge=1)
    """Episodes per optimizer step."""
    microbatch_tokens: int = Field(8192, ge=64)
    """Padded tokens per forward; a minibatch is accumulated over such pieces."""
    clip_range: float = Field(0.2, gt=0)
    """ε of the clipped ratio."""
    discount: float = Field(1.0, gt=0, le=1)
    """γ per turn."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ over turns: nearer 1 less bias, more variance."""
    entropy_coef: float = Field(0.01, ge=0)
    """Entropy bonus at the start."""
    entropy_coef_final: float = Field(0.0, ge=0)
    """Entropy bonus at the end; it moves linearly."""
    kl_coef: float = Field(0.05, ge=0)
    """Weight of KL(π‖π_ref)."""
    kl_target: float | None = Field(None, gt=0)
    """KL to the reference, in nats per token, that kl_coef is steered to; none: it stays."""
    kl_gain: float = Field(0.1, gt=0, le=1)
    """K_β of that controller (arXiv:1909.08593); a fifth of it is the most an iteration changes."""
    kl_loss: Literal["k2", "full", "in_reward"] = "k2"
    """k2: ½(log π/π_ref)², whose expected gradient is that of KL(π‖π_ref); full: exact sum over
    the vocabulary; in_reward: subtracted from each turn's reward instead."""
    sft_coef: float = Field(0.0, ge=0)
    """β of the SFT loss mixed in."""
    sft_data: Literal["sft", "successes", "hindsight"] = "sft"
    """sft: the rows of stage 1, against forgetting; successes: the pool's own successful episodes
    (self-imitation), which makes the sampled actor surer of what it has found; hindsight: those,
    and the failures that rl.hindsight has made successes of another task."""
    whiten_min_std: float = Field(1e-4, gt=0)
    """Below this spread advantages are only centred."""

    @field_validator("kl_target")
    @classmethod
    def _steers_something(cls, target: float | None, info: ValidationInfo) -> float | None:
        if target is not None and info.data.get("kl_coef") == 0:
            raise ValueError(
                f"{target:g} steers rl.ppo.kl_coef, which is 0 and stays so; give it a start above "
                "0, or leave kl_target out"
            )
        return target


class RlSection(CheckpointedSection):
    """Stage 3: asymmetric PPO."""

    iterations: int = Field(20, ge=1)
    """Collect-and-learn iterations."""
    episodes: int = Field(64, ge=2)
    """Episodes per iteration, over all processes."""
    episodes_per_task: int = Field(1, ge=1)
    """Episodes of each drawn task: above 1, what is compared within a task has company."""
    evaluate_every: int = Field(5, ge=0)
    """Iterations between held-out evaluations (validation split); 0: only at the end."""
    evaluation_episodes: int = Field(64, ge=1)
    """Episodes of each evaluation during training."""
    keep: Literal["last", "best"] = "last"
    """Which actor is handed over: the last, or the best on the validation split."""
    best_by: Literal["success", "return"] = "success"
    """Figure of an evaluation that makes an actor the best; see also forgetting.max_perplexity."""
    actor: ActorSection = ActorSection()
    """The actor."""
    generation: GenerationSection = GenerationSection()
    """How rollouts are sampled."""
    critic: CriticSection = CriticSection()
    """The critic."""
    pool: PoolSection = PoolSection()
    """The experience pool."""
    ppo: PpoSection = PpoSection()
    """The objective."""
    offline: OfflineSection = OfflineSection()
    """Learning from a static pool instead of playing."""
    rewards: RewardsSection = RewardsSection()
    """The reward."""
    hindsight: HindsightSection | None = None
    """Hindsight experience replay; {} takes the defaults."""
    monitor: MonitorSection = MonitorSection()
    """Alarms and what is done about them."""
    forgetting: ForgettingSection = ForgettingSection()
    """Whether the actor still knows what stage 1 taught it."""
    checkpoint_every: int = Field(0, ge=0)
    """Iterations between resumable checkpoints; 0: none by count."""
    trainer: dict[str, Any] = {}
    """Any further argument of TRL's PPOConfig."""

    @field_validator("pool")
    @classmethod
    def _sampled_by_someone(cls, pool: PoolSection, info: ValidationInfo) -> PoolSection:
        critic = info.data.get("critic")
        if pool.sampling == "prioritised" and critic and not critic.replays:
            raise ValueError(
                f"sampling is prioritised, but a critic of kind {critic.kind} and trunk "
                f"{critic.trunk} replays nothing by priority; set rl.pool.sampling: uniform"
            )
        return pool

    @model_validator(mode="after")
    def _learns_offline_or_plays(self) -> RlSection:
        check_offline(self)
        return self

    @field_validator("monitor")
    @classmethod
    def _can_act(cls, monitor: MonitorSection, info: ValidationInfo) -> MonitorSection:
        ppo = info.data.get("ppo")
        if (raising := monitor.uses("raise_kl")) and ppo and ppo.kl_coef == 0:
            raise ValueError(
                f"{raising[0]} = raise_kl doubles rl.ppo.kl_coef, which is 0 and stays so; give it "
                "a start above 0, or choose another action"
            )
        if (back := monitor.uses("roll_back")) and info.data.get("evaluate_every") == 0:
            raise ValueError(
                f"{back[0]} = roll_back needs the best actor so far, but rl.evaluate_every is 0; "
                "set it to 1 or more, or choose another action"
            )
        return monitor

    @field_validator("forgetting")
    @classmethod
    def _is_checked(cls, forgetting: ForgettingSection, info: ValidationInfo) -> ForgettingSection:
        monitor = info.data.get("monitor")
        if monitor and monitor.forgetting != "warn" and forgetting.every == 0:
            raise ValueError(
                f"every = 0 never looks, so rl.monitor.forgetting = {monitor.forgetting} can do "
                "nothing; set every to 1 or more, or leave that action out"
            )
        return forgetting

    @field_validator("episodes_per_task")
    @classmethod
    def _whole_tasks(cls, each: int, info: ValidationInfo) -> int:
        episodes = info.data.get("episodes", each)
        if episodes % each:
            raise ValueError(f"{each}, expected a number that divides rl.episodes ({episodes})")
        return each

    @model_validator(mode="after")
    def _learns_from_hindsight(self) -> RlSection:
        ppo, kind = self.ppo, self.critic.kind
        check_hindsight(self.hindsight, ppo.sft_data, sft_coef=ppo.sft_coef, critic_kind=kind)
        return self


class EvaluationSection(Section):
    """Held-out evaluation."""

    split: Literal["train", "validation", "test"] = "test"
    """Which tasks."""
    episodes: int = Field(256, ge=1)
    """How many."""
    seed: int = Field(1000, ge=0, lt=2**32)
    """Chooses tasks and keys the sampling; apart from the training seed."""
    batch: int = Field(128, ge=1)
    """Environments played at once."""
    temperature: float | None = Field(None, gt=0)
    """Sampling temperature where it does not play greedily; none: rl.actor.temperature."""
    readiness: bool = True
    """Between SFT and RL: sampled pass@1 and pass@8 per kind of task (B9)."""
    readiness_tasks: int = Field(64, ge=1)
    """Tasks of the readiness check, each sampled eight times."""


class DistributedSection(Section):
    """How several processes (``--launch``) work together; nothing of it matters to one."""

    timeout_s: float = Field(1800, gt=0)
    """Seconds a process waits for the others before the run stops: longer than the longest play."""
    gather: Literal["auto", "rollout", "layer"] = "auto"
    """ZeRO-3 parameters while the actor plays: whole for the rollout, by layer, or by estimate."""
    reward_model: Literal["sharded", "replicated"] = "sharded"
    """Under ZeRO-3: sharded like the actor, or whole on every process."""


class TrackingSection(Section):
    """Where metrics go besides metrics.jsonl."""

    report_to: tuple[Literal["mlflow", "tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers; each needs its package (pip install tensorboard, ...)."""
    project: str = Field("aac", min_length=1)
    """Project or experiment that the runs go to, where a tracker has such."""


class Recipe(Section):
    """One experiment, all stages."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run folder: runs/<name>/{sft,reward,rl}."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Every random number is keyed by this."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; none: all cores."""
    model: ModelSection
    """The actor."""
    environment: EnvironmentOptions
    """The world it acts in."""
    state: StateSection = StateSection()
    """What it is shown."""
    sft: SftSection = SftSection()
    """Stage 1."""
    reward: RewardSection = RewardSection()
    """Stage 2."""
    rl: RlSection = RlSection()
    """Stage 3."""
    evaluation: EvaluationSection = EvaluationSection()
    """Held-out evaluation."""
    tracking: TrackingSection = TrackingSection()
    """Trackers."""
    distributed: DistributedSection = DistributedSection()
    """Several processes."""

    @property
    def evaluation_sampling(self) -> ActorSection:
        """How the actor samples where it is measured or talked to, instead of trained."""
        temperature = self.evaluation.temperature or self.rl.actor.temperature
        return self.rl.actor.model_copy(update={"temperature": temperature})

    @model_validator(mode="after")
    def _adapters_where_they_are_asked_for(self) -> Recipe:
        lora, rl = self.model.lora, self.rl
        if lora is None and rl.actor.lora_layers is not None:
            raise ValueError(
                f"rl.actor.lora_layers = {rl.actor.lora_layers} is about adapters, but there are "
                "none; give model.lora, or leave it out"
            )
        if lora and lora.quantize != "none" and rl.generation.dtype != "auto":
            raise ValueError(
                f"rl.generation.dtype = {rl.generation.dtype} merges the adapters into a copy, "
                f"which a base in {lora.quantize} cannot take up; set it to auto"
            )
        if lora and lora.quantize != "none" and rl.generation.engine == "vllm":
            raise ValueError(
                "rl.generation.engine = vllm is given weights with the adapters merged in, which a "
                f"base in {lora.quantize} cannot take up; set it to native"
            )
        return self

    @model_validator(mode="after")
    def _reviews_tell_no_secrets(self) -> Recipe:
        if self.state.review == "words":
            if self.rl.offline.active:
                raise ValueError("state.review = words needs play, but rl.offline.pool has none")
            critic, weights = self.rl.critic, {**DEFAULT_WEIGHTS, **self.rl.rewards.weights}
            if critic.kind != "v" or critic.shared or critic.view.privileged:
                raise ValueError(
                    "state.review = words shows the actor what the critic thinks, so it needs a "
                    "critic without privileged facts; set rl.critic.kind to v, rl.critic.trunk to "
                    "one of its own and rl.critic.view.privileged to false"
                )
            telling = [name for name in GOLD_DEPENDENT if weights[name]]
            if telling:
                raise ValueError(
                    "state.review = words shows the actor what a turn was worth, so no reward "
                    "before the end may depend on the right answer; set rl.rewards.weights of "
                    f"{', '.join(telling)} to 0"
                )
        return self
