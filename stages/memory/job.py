"""What of a recipe decides how much memory a run takes, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stages.memory.architecture import Architecture
from stages.memory.strategies import Weights


@dataclass(frozen=True)
class Training:
    """One stage that trains on ready rows (SFT, reward model)."""

    rows: int
    """Sequences of one forward."""
    length: int
    """Longest row in tokens."""
    accumulation: int = 1
    optimizer: str = "adamw"
    checkpointing: bool = False
    """Activations are computed again in the backward."""

    @property
    def tokens(self) -> int:
        """Padded tokens of one forward, at most."""
        return self.rows * self.length


@dataclass(frozen=True)
class Play:
    """One iteration of RL, over all processes; every number is the most it can be."""

    episodes: int
    turns: int
    prompt: int
    """Tokens of a prompt."""
    action: int
    """New tokens of a turn."""
    epochs: int
    minibatch_episodes: int
    microbatch_tokens: int
    kl_loss: str
    mixes_sft: bool
    optimizer: str = "adamw"
    checkpointing: bool = False

    @property
    def row(self) -> int:
        """Tokens of the longest training row."""
        return self.prompt + self.action

    @property
    def minibatch_tokens(self) -> int:
        """Of one optimizer step, if every turn were a row of its own."""
        return self.minibatch_episodes * self.turns * self.row

    @property
    def forward_tokens(self) -> int:
        """Padded tokens of one forward of the actor: a microbatch, but one whole row at least."""
        return max(self.row, min(self.microbatch_tokens, self.minibatch_tokens))

    @property
    def accumulates(self) -> bool:
        """Whether gradients of one piece are there while the next is computed."""
        return self.mixes_sft or self.minibatch_tokens > self.forward_tokens


@dataclass(frozen=True)
class Critic:
    """The critic that lives apart from the actor; all zero where there is none."""

    parameters: int = 0
    networks: int = 0
    """Copies of it that learn: members of an ensemble, Q beside V."""
    features: int = 0
    """Numbers that one forward keeps for the backward."""


@dataclass(frozen=True)
class Job:
    """A run of all stages."""

    model: Architecture
    """The actor."""
    judge: Architecture
    """What the reward model grows from."""
    bf16: bool
    """Type of computation; float32 else."""
    on_gpu: bool
    sft: Training
    reward: Training | None
    play: Play
    critic: Critic
    rank: int = 0
    """Of LoRA adapters; 0: all weights learn."""
    quantized: bool = False
    """Frozen weights are held in 4 bits."""
    embedding_frozen: bool = False
    copy_bytes: float = 0.0
    """Per weight, of a copy of the actor that rollouts are sampled from; 0: there is none."""
    engine_share: float = 0.0
    """Of each device, what vLLM keeps for itself beside training; 0: it does not play there."""

    @property
    def checkpointed(self) -> Job:
        """The same job with activation checkpointing in every stage."""
        reward = replace(self.reward, checkpointing=True) if self.reward else None
        sft, play = replace(self.sft, checkpointing=True), replace(self.play, checkpointing=True)
        return replace(self, sft=sft, reward=reward, play=play)

    @property
    def in_small_pieces(self) -> Job:
        """The same job with one row to a forward."""
        reward = replace(self.reward, rows=2, accumulation=2) if self.reward else None
        play = replace(self.play, microbatch_tokens=self.play.row)
        sft = replace(self.sft, rows=1, accumulation=2)
        return replace(self, sft=sft, reward=reward, play=play)

    @property
    def weights(self) -> Weights:
        """Of the actor."""
        model = self.model
        if self.rank:
            return Weights(model.adapter_parameters(self.rank), model.parameters)
        return self._split(model, model.parameters)

    @property
    def reward_weights(self) -> Weights:
        """Of the reward model."""
        if self.rank:
            return Weights(self.judge.adapter_parameters(self.rank), self.judge.trunk_parameters)
        return self._split(self.judge, self.judge.trunk_parameters)

    def _split(self, model: Architecture, parameters: int) -> Weights:
        frozen = model.embedding_parameters if self.embedding_frozen else 0
        return Weights(parameters - frozen, frozen)
