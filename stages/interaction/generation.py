"""What a rollout asks of a policy, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stages.interaction.trajectory import Message, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Request:
    """One decision to be made. Nothing in it is privileged."""

    messages: Sequence[Message]
    """The state S_t."""
    tools: Sequence[Mapping[str, Any]]
    key: tuple[int, ...]
    """(seed, iteration, episode, turn): what the row's random numbers are keyed by."""
    previous: Turn | None = None
    """The turn before, so that its sampled tokens can be kept as they are in the prompt."""
    max_tokens: int = 0
    """Most tokens of the prompt, where they are counted as the actor's; 0: nobody said."""
    so_far: Callable[[], Trajectory] | None = None
    """The episode up to here without privileged facts, for those who judge proposed actions."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One row's reply. A policy without tokens (an expert, an endpoint) fills in only ``text``."""

    prompt_ids: Sequence[int] = ()
    ids: Sequence[int] = ()
    """Sampled ids, the stop token included if it was sampled."""
    logprobs: Sequence[float] = ()
    """Log-probs of ``ids`` at the sampling temperature, over the whole vocabulary."""
    text: str = ""
    """The ids in words, without the stop token."""
    stopped: bool = True
    """Ended by a stop token, not by the limit of new tokens."""
    overflow: bool = False
    """The prompt leaves no room for a reply in the model's context: nothing was generated."""


@runtime_checkable
class Policy(Protocol):
    """Anything that answers states: a model, an expert, a script."""

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """One reply per request, in order; each depends on its own request only."""
        ...
