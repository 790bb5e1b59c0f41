"""The same held-out tasks for every policy that is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.common.errors import UsageError
from stages.evaluation.metrics import episode_metrics
from stages.interaction.arena import Arena, about, kept
from stages.interaction.environments.base import Task
from stages.interaction.generation import Policy
from stages.interaction.player import LoadedActor
from stages.interaction.states.base import CountTokens
from stages.interaction.trajectory import Trajectory

TRAINING_SAMPLE = 128
"""Training tasks looked at to tell what an actor may have seen."""


@dataclass(frozen=True)
class HeldOut:
    """Fixed tasks on which one policy after another is measured."""

    arena: Arena
    tasks: Sequence[Task]
    seed: int
    """Keys the sampling."""
    training: Sequence[Task] = ()
    """A sample of the training tasks: their groups are the seen ones."""
    label: str = "playing"
    """Names the progress bar."""

    @classmethod
    def of(cls, arena: Arena, *, split: str, episodes: int, seed: int) -> HeldOut:
        """``episodes`` tasks of a split (fewer if there are fewer)."""
        tasks = arena.tasks(split, episodes, seed)
        return cls(arena, tasks, seed, _training_sample(arena, seed))

    def served(self, actor: LoadedActor) -> HeldOut:
        """The same tasks, shown as an actor was trained to see them."""
        return replace(self, arena=self.arena.served(actor.state, actor.reviewer))

    def measure(
        self, policy: Policy, *, greedy: bool = False, count_tokens: CountTokens = about
    ) -> dict[str, Any]:
        """Play every task once. UsageError if the environment's faults dropped all episodes."""
        return self.figures(self.play(policy, greedy=greedy, count_tokens=count_tokens))

    def play(
        self, policy: Policy, *, greedy: bool = False, count_tokens: CountTokens = about
    ) -> list[Trajectory]:
        """The episodes of every task, in their order; sampling is keyed alike for everyone."""
        key = (self.seed, 0)
        return self.arena.play(
            self.tasks,
            policy,
            key=key,
            greedy=greedy,
            count_tokens=count_tokens,
            label=self.label,
        )

    def measure_expert(self) -> dict[str, Any]:
        """The scripted expert on these tasks."""
        return self.figures(self.arena.demonstrate(self.tasks, seed=self.seed))

    def figures(self, played: Sequence[Trajectory]) -> dict[str, Any]:
        """The metrics of episodes of these tasks."""
        kept(played, blame=UsageError)
        seen = {task.group for task in self.training}
        return episode_metrics(played, self.arena.mix, seen_groups=seen)


def _training_sample(arena: Arena, seed: int) -> list[Task]:
    """None where a person's file has no training tasks at all."""
    try:
        return arena.tasks("train", TRAINING_SAMPLE, seed)
    except UsageError:
        return []
