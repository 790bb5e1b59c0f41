"""What a rollout asks of a policy, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stages.interaction.trajectory import Message, Trajectory, Turn

Key = tuple[int, ...]
"""(seed, iteration, episode, turn): what a row's random numbers are keyed by."""


@dataclass(frozen=True, slots=True)
class Request:
    """One decision to be made. Nothing in it is privileged."""

    messages: Sequence[Message]
    """The state S_t."""
    tools: Sequence[Mapping[str, Any]]
    key: Key
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


class Session(Protocol):
    """Decisions of many episodes, asked for and answered in any order; closed at the end.

    What is answered when depends on counts alone, never on the clock.
    """

    def ask(self, requests: Sequence[Request]) -> list[int]:
        """Begin decisions; the numbers under which they will be answered, 0 and on."""
        ...

    def answers(self, least: int = 1) -> list[tuple[int, Generation]]:
        """Replies not yet given out, in the order they were asked for: at least so many, or all
        that are left."""
        ...

    def leave(self, episode: Key) -> None:
        """The decisions whose keys begin so have no successor: nothing of theirs is needed."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...


class Rounds:
    """A session with any policy: all that is asked is answered at once."""

    def __init__(self, policy: Policy, greedy: bool) -> None:
        self._policy, self._greedy = policy, greedy
        self._count = 0
        self._waiting: dict[int, Request] = {}

    def ask(self, requests: Sequence[Request]) -> list[int]:
        """As any session."""
        numbers = list(range(self._count, self._count + len(requests)))
        self._count += len(requests)
        self._waiting |= dict(zip(numbers, requests, strict=True))
        return numbers

    def answers(self, least: int = 1) -> list[tuple[int, Generation]]:
        """All of them."""
        asked, self._waiting = self._waiting, {}
        if not asked:
            return []
        made = self._policy.generate(list(asked.values()), greedy=self._greedy)
        return list(zip(asked, made, strict=True))

    def leave(self, episode: Key) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def session_with(policy: Policy, *, greedy: bool) -> Session:
    """The policy's own kind of session if it has one, else rounds."""
    own: Callable[..., Session] | None = getattr(policy, "session", None)
    return Rounds(policy, greedy) if own is None else own(greedy=greedy)
