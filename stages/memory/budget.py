"""Bytes of one stage on one device: what is always there, and what each phase adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stages.memory.activations import (
    CHUNK_COPIES,
    LOSS_COPIES,
    SFT_CHUNK,
    activation_bytes,
    cache_bytes,
    forward_bytes,
    logit_bytes,
)
from stages.memory.architecture import Architecture
from stages.memory.job import Job, Play, Training
from stages.memory.strategies import (
    Precision,
    Strategy,
    Weights,
    host_bytes,
    model_states,
    precision_of,
)

Bytes = Mapping[str, float]
PARALLEL = 128
"""Environments played at once."""
SCORED_TOKENS = 16384
"""Padded tokens of one forward of the reward model as a scorer."""
READ_TOKENS = 4096
"""Prompt tokens of one forward in a rollout, unless one prompt is longer."""
ACTION_SHARE = 0.25
"""Of a row's tokens, at most about so many are actions where turns share one row."""
_GROWTH = 1.5
"""The KV cache grows by half when it is full, so up to a third of it is empty."""
_PICK_COPIES = 6
"""Sampling in float64: logits, their softmax, its exponential and a cumulated sum of twice the
width, in float32 matrices."""
_CRITIC_BYTES = 4 + 4 + 8 + 4
"""Per weight: float32 weight, gradient, Adam, and the target network."""


@dataclass(frozen=True)
class Budget:
    """The peak is what is held plus the largest phase."""

    stage: str
    strategy: Strategy
    held: Bytes
    phases: Mapping[str, Bytes]
    host: float = 0.0
    """Bytes of CPU memory per process, where something is moved there."""

    @property
    def busiest(self) -> str:
        """The phase with the peak."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def peak(self) -> float:
        """Bytes per device."""
        return sum(self.held.values()) + sum(self.phases[self.busiest].values())

    @property
    def components(self) -> dict[str, float]:
        """Bytes of each component where it is largest; their sum may exceed the peak."""
        found = dict(self.held)
        for phase in self.phases.values():
            for name, size in phase.items():
                found[name] = max(found.get(name, 0.0), size)
        return found


@dataclass(frozen=True)
class _Learner:
    """A model that learns in some stage."""

    model: Architecture
    weights: Weights
    precision: Precision
    has_head: bool
    """Whether its output layer is as wide as the vocabulary and learns."""

    @property
    def first_gradient(self) -> float:
        """The output layer's gradient is there while all activations still are."""
        return self.model.embedding_parameters * self.precision.gradients * self.has_head


def sft_budget(job: Job, strategy: Strategy, processes: int) -> Budget:
    """TRL's SFTTrainer: logits of a chunk of tokens at a time."""
    logits = logit_bytes(job.model, min(SFT_CHUNK, job.sft.tokens), CHUNK_COPIES)
    learner = _actor(job, _precision(job, strategy, job.sft.optimizer))
    held, phases = _trained(job.sft, learner, logits, strategy, processes)
    return Budget("sft", strategy, held, phases, _host(learner, strategy, processes))


def reward_budget(job: Job, training: Training, strategy: Strategy, processes: int) -> Budget:
    """TRL's RewardTrainer: the better and the worse reply of each pair in one forward."""
    precision = _precision(job, strategy, training.optimizer)
    learner = _Learner(job.judge, job.reward_weights, precision, has_head=False)
    held, phases = _trained(training, learner, 0.0, strategy, processes)
    return Budget("reward", strategy, held, phases, _host(learner, strategy, processes))


def rl_budget(job: Job, strategy: Strategy, processes: int) -> Budget:
    """PPO: the actor as in training, its frozen reference, the scorer, the critic; rollouts."""
    play = job.play
    learner = _actor(job, _precision(job, strategy, play.optimizer))
    states = model_states(learner.weights, strategy, processes, learner.precision)
    gradients = states.pop("gradients")
    tokens = play.forward_tokens
    logits = logit_bytes(job.model, _actions(play, tokens), LOSS_COPIES[play.kl_loss])
    waiting = gradients if play.accumulates else learner.first_gradient
    phases = {
        "rollout": _rollout(job, strategy, processes, learner.precision),
        "scoring": _scoring(job, learner.precision),
        "update": _backward(learner, play, tokens, logits) | {"gradients": waiting},
        "step": {"gradients": gradients},
    }
    if job.critic.features:
        phases["critic"] = {"critic's activations": 4.0 * job.critic.features}
    held = states | _companions(job, strategy, processes, learner.precision)
    return Budget("rl", strategy, held, phases, _host(learner, strategy, processes))


def _actor(job: Job, precision: Precision) -> _Learner:
    learns = not (job.rank or job.embedding_frozen)
    return _Learner(job.model, job.weights, precision, has_head=learns)


def _trained(
    training: Training,
    learner: _Learner,
    logits: float,
    strategy: Strategy,
    processes: int,
) -> tuple[Bytes, dict[str, Bytes]]:
    """What is held, and the phases, of a stage that trains on ready rows."""
    states = model_states(learner.weights, strategy, processes, learner.precision)
    gradients = states.pop("gradients")
    waiting = gradients if training.accumulation > 1 else learner.first_gradient
    backward = _backward(learner, training, training.tokens, logits) | {"gradients": waiting}
    return states, {"backward": backward, "step": {"gradients": gradients}}


def _host(learner: _Learner, strategy: Strategy, processes: int) -> float:
    return host_bytes(learner.weights, strategy, processes, learner.precision)


def _precision(job: Job, strategy: Strategy, optimizer: str) -> Precision:
    return precision_of(
        strategy, bf16=job.bf16, optimizer=optimizer, rank=job.rank, quantized=job.quantized
    )


def _backward(
    learner: _Learner, work: Training | Play, tokens: int, logits: float
) -> dict[str, float]:
    precision = learner.precision
    kept = activation_bytes(learner.model, precision, tokens, checkpointing=work.checkpointing)
    cast = precision.cast * learner.weights.learned
    return {"activations": kept, "logits": logits} | ({"autocast copy": cast} if cast else {})


def _companions(
    job: Job, strategy: Strategy, processes: int, precision: Precision
) -> dict[str, float]:
    """What RL keeps beside the actor."""
    share = processes if strategy in ("zero3", "offload") else 1
    # With adapters, the reference is the actor with its adapters off.
    reference = 0 if job.rank else job.model.parameters * precision.weights / share
    scorer = job.judge.trunk_parameters * (2 if job.on_gpu else 4) if job.reward else 0
    critic = job.critic.parameters * job.critic.networks * _CRITIC_BYTES
    found = {
        "reference": reference,
        "reward model": float(scorer),
        "critic": float(critic),
        "copy to sample from": job.model.parameters * job.copy_bytes if strategy == "ddp" else 0.0,
    }
    return {name: size for name, size in found.items() if size}


def _actions(play: Play, tokens: int) -> int:
    """Action tokens of one forward, at most."""
    return int(tokens * max(play.action / play.row, ACTION_SHARE))


def _rows(job: Job, processes: int) -> int:
    """Episodes that one process plays at once."""
    return min(PARALLEL, -(-job.play.episodes // processes))


def _cache(job: Job, processes: int, precision: Precision) -> float:
    """The keys and values of all episodes that are played at once, at their longest."""
    tokens = int(_rows(job, processes) * _GROWTH * job.play.row)
    return cache_bytes(job.model, precision.compute, tokens)


def _rollout(
    job: Job, strategy: Strategy, processes: int, precision: Precision
) -> dict[str, float]:
    rows = _rows(job, processes)
    tokens = min(rows * job.play.prompt, max(READ_TOKENS, job.play.prompt))
    found = {
        "KV cache": _cache(job, processes, precision),
        "activations": forward_bytes(job.model, precision, tokens),
        "logits": logit_bytes(job.model, rows, _PICK_COPIES),
    }
    if strategy in ("zero3", "offload") and processes > 1:
        found["weights gathered to sample"] = job.weights.all * precision.weights
    return found


def _scoring(job: Job, precision: Precision) -> dict[str, float]:
    tokens = max(SCORED_TOKENS, job.reward.length) if job.reward else 0
    tokens = min(tokens, job.play.episodes * job.play.turns * job.play.row)
    return {"activations": forward_bytes(job.judge, precision, tokens)}
