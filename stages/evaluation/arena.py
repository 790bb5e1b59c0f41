"""Where held-out episodes are played, and the same tasks for every policy that is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stages.common.console import progress
from stages.common.errors import RunError, UsageError
from stages.evaluation.metrics import episode_metrics
from stages.interaction.demonstrations import demonstrate_episodes
from stages.interaction.environments import make_environment
from stages.interaction.environments.base import Demonstrator, Environment, Task
from stages.interaction.generation import Policy
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.rollout import collect
from stages.interaction.states import StateProcessor, build_state
from stages.interaction.states.base import CountTokens, content_bytes
from stages.interaction.trajectory import Message, Trajectory

_BYTES_PER_TOKEN = 4
TRAINING_SAMPLE = 128
"""Training tasks looked at to tell what an actor may have seen."""


def about(messages: list[Message]) -> int:
    """Length in tokens by rule of thumb, for policies that have no tokenizer."""
    return content_bytes(messages) // _BYTES_PER_TOKEN


@dataclass(frozen=True)
class Arena:
    """The environment, what an actor is shown of it, and how the outcome is weighed."""

    environment: Any
    """Options of an environment (the recipe's section)."""
    state: Any
    """Options of the state processor: a mapping or the recipe's section."""
    mix: RewardMix = field(default_factory=RewardMix)
    parallel: int = 128
    """Environments played at once."""

    def served(self, state: Any) -> Arena:
        """The same world, shown through another state processor."""
        return replace(self, state=state)

    def make_environment(self) -> Environment:
        """A fresh instance."""
        return make_environment(self.environment)

    def play(
        self,
        tasks: Sequence[Task],
        policy: Policy,
        *,
        key: tuple[int, int] = (0, 0),
        greedy: bool = False,
        count_tokens: CountTokens = about,
    ) -> list[Trajectory]:
        """One episode per task, in task order; random numbers are keyed by ``key``."""
        with progress("playing", len(tasks)) as advance:
            return collect(
                tasks,
                make_environment=self.make_environment,
                make_state=self.states(count_tokens),
                policy=policy,
                key=key,
                parallel=self.parallel,
                greedy=greedy,
                on_episode=lambda _: advance(),
            )

    def demonstrate(
        self, tasks: Sequence[Task], *, seed: int, count_tokens: CountTokens = about
    ) -> list[Trajectory]:
        """The scripted expert's episodes. UsageError if the environment has none."""
        return demonstrate_episodes(
            tasks,
            make_environment=self.make_environment,
            make_state=self.states(count_tokens),
            seed=seed,
            parallel=self.parallel,
        )

    def has_expert(self) -> bool:
        """Whether the environment demonstrates."""
        environment = self.make_environment()
        try:
            return isinstance(environment, Demonstrator)
        finally:
            environment.close()

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        """Up to ``count`` distinct tasks of a split. UsageError if it holds none."""
        environment = self.make_environment()
        try:
            tasks = list(environment.tasks(split, count, seed))
        finally:
            environment.close()
        if not tasks:
            raise UsageError(
                f"environment {self.environment.name} has no task in the {split} split; give more"
                " questions, mark some with that split, or set evaluation.split."
            )
        return tasks

    def states(self, count_tokens: CountTokens) -> Callable[[], StateProcessor]:
        """What makes a state processor for one seat of a rollout."""
        return lambda: build_state(self.state, count_tokens)


@dataclass(frozen=True)
class HeldOut:
    """Fixed tasks on which one policy after another is measured."""

    arena: Arena
    tasks: Sequence[Task]
    seed: int
    """Keys the sampling."""
    training: Sequence[Task] = ()
    """A sample of the training tasks: their groups are the seen ones."""

    @classmethod
    def of(cls, arena: Arena, *, split: str, episodes: int, seed: int) -> HeldOut:
        """``episodes`` tasks of a split (fewer if there are fewer)."""
        tasks = arena.tasks(split, episodes, seed)
        return cls(arena, tasks, seed, _training_sample(arena, seed))

    def with_state(self, state: Any) -> HeldOut:
        """The same tasks, shown through another state processor."""
        return replace(self, arena=self.arena.served(state))

    def measure(
        self, policy: Policy, *, greedy: bool = False, count_tokens: CountTokens = about
    ) -> dict[str, Any]:
        """Play every task once. RunError if the machinery dropped all episodes."""
        key = (self.seed, 0)
        played = self.arena.play(
            self.tasks, policy, key=key, greedy=greedy, count_tokens=count_tokens
        )
        return self.figures(played)

    def measure_expert(self) -> dict[str, Any]:
        """The scripted expert on these tasks."""
        return self.figures(self.arena.demonstrate(self.tasks, seed=self.seed))

    def figures(self, played: Sequence[Trajectory]) -> dict[str, Any]:
        """The metrics of episodes of these tasks."""
        faults = [t.error for t in played if t.error is not None]
        if faults and len(faults) == len(played):
            raise RunError(
                f"all {len(played)} episodes were dropped by the environment's own faults:"
                f" {faults[0]}"
            )
        seen = {task.group for task in self.training}
        return episode_metrics(played, self.arena.mix, seen_groups=seen)


def _training_sample(arena: Arena, seed: int) -> list[Task]:
    """None where a person's file has no training tasks at all."""
    try:
        return arena.tasks("train", TRAINING_SAMPLE, seed)
    except UsageError:
        return []
