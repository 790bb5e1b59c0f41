"""Where episodes are played: an environment, what an actor is shown of it, and what pays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from threading import Lock
from typing import Any, cast

from stages.common.console import progress
from stages.common.errors import AacError, RunError, UsageError
from stages.common.ranks import ALONE, Ranks
from stages.common.seeding import derived_seed
from stages.interaction.crew import Crew
from stages.interaction.demonstrations import demonstrate_episodes
from stages.interaction.environments import make_environment, needs_person
from stages.interaction.environments.base import Demonstrator, Environment, Reset, Step, Task
from stages.interaction.generation import Policy
from stages.interaction.rewards.audited import audited
from stages.interaction.rewards.functions import (
    REWARD_FUNCTIONS,
    RewardFunction,
    reward_functions,
)
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.rewards.relevance import off_topic
from stages.interaction.rollout import Reviewer, collect
from stages.interaction.states import StateOptions, StateProcessor, build_state
from stages.interaction.states.base import CountTokens, content_bytes
from stages.interaction.trajectory import Action, Message, Trajectory

_BYTES_PER_TOKEN = 4
TRAIN_TASKS = 3
"""Place in random keys, so that no two uses share numbers."""


def about(messages: list[Message]) -> int:
    """Length in tokens by rule of thumb, for policies that have no tokenizer."""
    return content_bytes(messages) // _BYTES_PER_TOKEN


@dataclass(frozen=True)
class Arena:
    """One world for every stage: training, preferences and evaluation play in the same way."""

    environment: Any
    """Options of an environment (the recipe's section)."""
    state: Any
    """Options of the state processor: a mapping or the recipe's section."""
    mix: RewardMix = field(default_factory=RewardMix)
    parallel: int = 128
    """Environments played at once."""
    reviewer: Reviewer | None = None
    """Reviews turns while they are played, where the state shows reviews."""
    functions: Mapping[str, RewardFunction] = field(default_factory=lambda: REWARD_FUNCTIONS)
    """Reward functions that put components on every turn."""

    @classmethod
    def of(
        cls, environment: Any, state: Any, rewards: Any, *, writer: Any = None, parallel: int = 128
    ) -> Arena:
        """From a recipe's sections; reward-model scores take no part in its mix.

        ``writer``: folder or hub id of the frozen actor, where the state's summary is its own.
        """
        mix = RewardMix(rewards.weights, rewards.dense_cap, rewards.caps)
        functions = reward_functions(rewards.functions)
        if rewards.off_topic is not None:
            functions["off_topic"] = off_topic(rewards.off_topic)
        if rewards.audited is not None:
            functions["audited"] = audited(rewards.audited)
        served = StateOptions.of(state).written_by(writer)
        return cls(environment, served, mix, parallel, functions=functions)

    def served(self, state: Any, reviewer: Reviewer | None = None) -> Arena:
        """The same world, shown through another state processor, with reviews or without."""
        return replace(self, state=state, reviewer=reviewer)

    @property
    def at_once(self) -> int:
        """How many episodes are played beside each other: a person takes one at a time."""
        return 1 if needs_person(self.environment) else self.parallel

    def make_environment(self) -> Environment:
        """A fresh instance."""
        return make_environment(self.environment)

    def play(
        self,
        tasks: Sequence[Task],
        policy: Policy,
        *,
        key: tuple[int, ...] = (0, 0),
        greedy: bool = False,
        count_tokens: CountTokens = about,
        actor_version: int = 0,
        label: str = "playing",
        ranks: Ranks = ALONE,
    ) -> list[Trajectory]:
        """One episode per task, in task order; random numbers are keyed by ``key``.

        Episodes the machinery had to drop come back, too: their ``error`` says why. ``label``
        names the progress bar; without one there is none. Of several ``ranks`` each plays its
        share only; ``ranks.gather`` puts them together.
        """
        mine = ranks.share(len(tasks))
        with self._shown(label, len(mine)) as (make_environment, on_episode):
            return collect(
                [tasks[number] for number in mine],
                indices=mine,
                make_environment=make_environment,
                make_state=self.states(count_tokens),
                policy=policy,
                reviewer=self.reviewer,
                reward_functions=self.functions,
                key=key,
                parallel=self.at_once,
                greedy=greedy,
                actor_version=actor_version,
                on_episode=on_episode,
                crew=self.crew(),
            )

    @contextmanager
    def _shown(
        self, label: str, count: int
    ) -> Iterator[tuple[Callable[[], Environment], Callable[[Trajectory], None] | None]]:
        """What makes an environment, and what to call with each finished episode, so that a bar
        moves with both; no bar without a ``label``."""
        if not label:
            yield self.make_environment, None
            return
        with progress(label, count) as advance:
            way = _Way(advance, getattr(self.environment, "max_turns", 1))

            def counted() -> Environment:
                return cast(Environment, _Counted(self.make_environment(), way.turn))

            yield counted, way.ended

    def demonstrate(
        self, tasks: Sequence[Task], *, seed: int, count_tokens: CountTokens = about
    ) -> list[Trajectory]:
        """The scripted expert's episodes. UsageError if the environment has none."""
        with progress("demonstrations", len(tasks)) as advance:
            return demonstrate_episodes(
                tasks,
                make_environment=self.make_environment,
                make_state=self.states(count_tokens),
                seed=seed,
                reviewer=self.reviewer,
                reward_functions=self.functions,
                parallel=self.at_once,
                on_episode=lambda _: advance(),
                crew=self.crew(),
            )

    def crew(self) -> Crew:
        """As many steps at once as the environment's options say."""
        options = self.environment
        # An instance in a process of its own is timed there, from when it is asked.
        timed = getattr(options, "isolation", "process") == "thread"
        return Crew(getattr(options, "workers", 0), options.step_timeout_s if timed else None)

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
                " questions, mark some with that split, or choose another split."
            )
        return tasks

    def try_out(self, task: Task) -> Reset:
        """Begin one episode. UsageError if the environment fails at that, as all others would."""
        environment = self.make_environment()
        try:
            return environment.reset(task)
        except AacError:
            raise
        except Exception as fault:  # a world raises what it likes
            raise UsageError(
                f"environment {self.environment.name} fails at its first reset"
                f" ({type(fault).__name__}: {fault}); mend it, and check it with aac env check."
            ) from fault
        finally:
            environment.close()

    def draw(self, split: str, count: int, seed: int) -> list[Task]:
        """Exactly ``count`` tasks: a small set is gone through again and again."""
        return list(islice(cycle(self.tasks(split, count, seed)), count))

    def practice(self, count: int, each: int, key: tuple[int, int]) -> list[Task]:
        """Training tasks for ``count`` episodes, each task ``each`` times, in neighbouring places.

        ``key``: (seed, iteration).
        """
        tasks = self.draw("train", count // each, derived_seed(*key, TRAIN_TASKS))
        return [task for task in tasks for _ in range(each)]

    def states(self, count_tokens: CountTokens) -> Callable[[], StateProcessor]:
        """What makes a state processor for one seat of a rollout."""
        return lambda: build_state(self.state, count_tokens)


def kept(episodes: Sequence[Trajectory], *, blame: type[AacError] = RunError) -> list[Trajectory]:
    """The episodes that the machinery did not drop; raises ``blame`` if none is left.

    UsageError where nothing was trained yet, as a world that never works is the person's to mend.
    """
    whole = [episode for episode in episodes if episode.error is None and episode.turns]
    if not whole:
        raise blame(
            f"all {len(episodes)} episodes were dropped by the environment's own faults"
            f" ({episodes[0].error}); mend it, and check it with aac env check."
        )
    return whole


class _Way:
    """How far a bar has come, told by turns: episodes that are played beside each other end beside
    each other, too, and a bar of whole episodes would stand still and then leap."""

    def __init__(self, advance: Callable[..., None], limit: int) -> None:
        """``limit``: turns of the longest episode; each is that part of an episode's way."""
        self._advance, self._limit = advance, limit
        self._lock = Lock()  # environments take their steps in threads
        self._turns = self._episodes = 0
        self._told = 0.0

    def turn(self) -> None:
        """A turn was played."""
        self._move(turns=1)

    def ended(self, episode: Trajectory) -> None:
        """The rest of an episode's way."""
        self._move(episodes=1, turns=-len(episode.turns))

    def _move(self, *, episodes: int = 0, turns: int) -> None:
        with self._lock:
            self._episodes += episodes
            self._turns += turns
            now = self._episodes + self._turns / self._limit
            self._advance(now - self._told)
            self._told = now


class _Counted:
    """An environment whose steps are counted."""

    def __init__(self, environment: Environment, count: Callable[[], None]) -> None:
        self._environment, self._count = environment, count

    def step(self, action: Action) -> Step:
        """As the environment does."""
        step = self._environment.step(action)
        self._count()
        return step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)
