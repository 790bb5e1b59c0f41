"""Expert dialogues, played through the same rollout that reinforcement learning uses.

So every turn carries exactly the state messages the actor will be shown later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from stages.common.errors import UsageError
from stages.interaction.environments.base import Demonstrator, Environment, Task
from stages.interaction.generation import Generation, Request
from stages.interaction.rollout import Reviewer, collect
from stages.interaction.states.base import StateProcessor
from stages.interaction.trajectory import Message, Trajectory

Act = Callable[[Sequence[Message]], str]
"""The environment's newest messages -> the expert's action text."""


class ExpertPolicy:
    """An environment's scripted expert behind the policy interface: text only, no tokens.

    ``tasks`` are those of the rollout, by episode number. One act per episode, so an expert
    may remember.
    """

    def __init__(self, demonstrator: Demonstrator, tasks: Sequence[Task], seed: int) -> None:
        self._demonstrator = demonstrator
        self._tasks = tasks
        self._seed = seed
        self._acts: dict[int, Act] = {}

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """The expert's next action in each episode; ``greedy`` changes nothing."""
        return [Generation(text=self._next(request)) for request in requests]

    def _next(self, request: Request) -> str:
        episode, turn = request.key[-2:]
        if turn == 0:
            # Experts draw their mistakes from the seed and the task: an episode's number makes
            # repeated plays of one task differ.
            act = self._demonstrator.demonstrate(self._tasks[episode], self._seed + episode)
            self._acts[episode] = cast(Act, act)
        seen = request.previous.observation if request.previous else request.messages
        return self._acts[episode](seen)


def demonstrate_episodes(
    tasks: Sequence[Task],
    *,
    make_environment: Callable[[], Environment],
    make_state: Callable[[], StateProcessor],
    seed: int,
    **rollout: Any,
) -> list[Trajectory]:
    """The expert's episodes, in task order; further keywords go to ``collect``.

    Raises UsageError if the environment has no expert.
    """
    environment = make_environment()
    if not isinstance(environment, Demonstrator):
        raise UsageError(
            f"environment {environment.name!r} has no scripted expert: give dialogues in sft.data"
        )
    try:
        return collect(
            tasks,
            make_environment=make_environment,
            make_state=make_state,
            policy=ExpertPolicy(environment, tasks, seed),
            key=(seed, 0),
            **rollout,
        )
    finally:
        environment.close()


def saying(words: Sequence[Sequence[str]]) -> Reviewer:
    """Reviews demonstrations that are played again: ``words[k][t]`` of turn t of episode k."""
    return lambda episodes: [words[e.key[-1]][len(e.turns) - 1] for e in episodes]
