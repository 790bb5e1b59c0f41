"""The environment contract: one episode at a time, any number of instances.

Errors of the *agent* (a bad call, a wrong argument, SQL that does not parse) come back as
observations. Errors of the *environment* are exceptions: the episode is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from stages.interaction.trajectory import Action, ChecklistItem, Message, Trajectory

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Task:
    """One thing to be done. ``payload`` is the environment's own; it must be JSON-able."""

    id: str
    kind: str
    group: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reset:
    """The start of an episode.

    ``checklist`` may be shown to the actor, so it must not depend on the gold answer.
    ``privileged`` goes to the critic's first view only.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    goal: str
    checklist: tuple[ChecklistItem, ...] = ()
    privileged: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What came of one action.

    ``rewards`` are named raw components: indicators in [0, 1] (``success``, ``sub_goal``,
    ``right_tool``, ``right_arguments``, ``useful_result``, ``invalid``); the recipe weighs them.
    ``success`` may be graded, and paid in shares (below 0: taken back) over an episode's turns.
    ``terminated``: the task is over. ``truncated``: the machinery cut it (bootstrap).
    ``success`` is meaningful once the episode is over.
    """

    messages: tuple[Message, ...]
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    checklist: tuple[ChecklistItem, ...] = ()
    privileged: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Message, ...] | None = None
    """The whole conversation, where it is not the earlier one continued: a new segment begins."""


@runtime_checkable
class Environment(Protocol):
    """A world an agent can act in. Instances are reused: ``reset`` clears everything."""

    name: str

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split; the same arguments give the same tasks."""
        ...

    def reset(self, task: Task) -> Reset:
        """Start an episode."""
        ...

    def step(self, action: Action) -> Step:
        """Carry out one action of the actor."""
        ...

    def close(self) -> None:
        """Free what the instance holds."""
        ...


class Slip(str):
    """A demonstrated action that is wrong on purpose: it is done and shown, so that the recovery
    from it can be learned, but not learned itself (noise injection, arXiv:1703.09327)."""

    __slots__ = ()


@runtime_checkable
class Demonstrator(Protocol):
    """Optional: a scripted expert that can be imperfect in systematic, configurable ways."""

    def demonstrate(self, task: Task, seed: int) -> Sequence[str] | Any:
        """A policy ``(observations so far) -> action text`` for one episode of this task.

        What it returns may be a ``Slip``.
        """
        ...


@runtime_checkable
class Relabeller(Protocol):
    """Optional: an environment that can tell in hindsight what an episode was good for."""

    def relabel(self, task: Task, trajectory: Trajectory) -> Task | None:
        """Another training task in which the same actions succeed, None if there is none.

        ``task`` is the one that was played. A running episode of this instance goes on unharmed.
        """
        ...
