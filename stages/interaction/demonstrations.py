"""Expert dialogues, played through the same rollout that reinforcement learning uses.

So every turn carries exactly the state messages the actor will be shown later.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any, cast

from stages.common.errors import UsageError
from stages.interaction.environments.base import Demonstrator, Environment, Slip, Task
from stages.interaction.generation import Generation, Request
from stages.interaction.rollout import Reviewer, collect
from stages.interaction.states.base import StateProcessor
from stages.interaction.trajectory import SLIP, Message, Trajectory

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
        self.slips: set[tuple[int, int]] = set()
        """(episode, turn) of each action that is not to be learned."""

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
        text = self._acts[episode](seen)
        if isinstance(text, Slip):
            self.slips.add((episode, turn))
        return str(text)


def demonstrate_episodes(
    tasks: Sequence[Task],
    *,
    make_environment: Callable[[], Environment],
    make_state: Callable[[], StateProcessor],
    seed: int,
    **rollout: Any,
) -> list[Trajectory]:
    """The expert's episodes, in task order; further keywords go to ``collect``.

    A turn that is not to be learned has ``SLIP`` among its ``info``.

    Raises UsageError if the environment has no expert.
    """
    environment = make_environment()
    if not isinstance(environment, Demonstrator):
        raise UsageError(
            f"environment {environment.name!r} has no scripted expert: give dialogues in sft.data"
        )
    expert = ExpertPolicy(environment, tasks, seed)
    try:
        episodes = collect(
            tasks,
            make_environment=make_environment,
            make_state=make_state,
            policy=expert,
            key=(seed, 0),
            **rollout,
        )
    finally:
        environment.close()
    return [_marked(episode, expert.slips) for episode in episodes]


def _marked(episode: Trajectory, slips: Container[tuple[int, int]]) -> Trajectory:
    number = episode.key[-1]
    return episode.with_turns(
        [
            replace(turn, info={**turn.info, SLIP: True}) if (number, t) in slips else turn
            for t, turn in enumerate(episode.turns)
        ]
    )


def saying(words: Sequence[Sequence[str]]) -> Reviewer:
    """Reviews demonstrations that are played again: ``words[k][t]`` of turn t of episode k."""
    return lambda episodes: [words[e.key[-1]][len(e.turns) - 1] for e in episodes]
