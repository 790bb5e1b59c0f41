"""Collecting trajectories: many environments at once, one batched decision per tick.

What an episode becomes depends on its key alone, not on which others are played beside it:
episodes are admitted in task order, by counts, and every turn's random numbers are keyed by
(seed, iteration, episode, turn).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stages.common.errors import AacError
from stages.common.messages import encodable
from stages.interaction.actions import parse_action
from stages.interaction.environments.base import Environment, Reset, Step, Task
from stages.interaction.generation import Generation, Policy, Request
from stages.interaction.rewards.functions import REWARD_FUNCTIONS, RewardFunction
from stages.interaction.states.base import StateOverflow, StateProcessor
from stages.interaction.trajectory import REVIEW, Message, Trajectory, Turn

Reviewer = Callable[[Sequence[Trajectory]], Sequence[str]]
"""Unfinished episodes, without privileged facts -> the review of each one's newest turn in words,
which the actor may be shown with that turn."""


def collect(  # noqa: PLR0913 (the one place where the parts of a rollout meet)
    tasks: Sequence[Task],
    *,
    make_environment: Callable[[], Environment],
    make_state: Callable[[], StateProcessor],
    policy: Policy,
    reviewer: Reviewer | None = None,
    reward_functions: Mapping[str, RewardFunction] = REWARD_FUNCTIONS,
    key: tuple[int, ...] = (0, 0),
    parallel: int = 64,
    greedy: bool = False,
    actor_version: int = 0,
    max_turns: int | None = None,
    indices: Sequence[int] | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play one episode per task; the trajectories come back in task order.

    ``reviewer`` is asked after every tick, for all episodes that go on; its words are stored on
    the turn. ``max_turns`` is the environment's own unless given. ``indices`` are the episodes'
    numbers in their keys (their positions in ``tasks`` unless given: a process that plays a share
    of an iteration passes the numbers of its share). An exception of an environment drops its
    episode (``Trajectory.error``); one of the policy, or an AacError, ends the collection.
    """
    numbers = range(len(tasks)) if indices is None else indices
    waiting = list(zip(range(len(tasks)), tasks, numbers, strict=True))[::-1]
    done: dict[int, Trajectory] = {}
    running: list[_Episode] = []
    seats: list[_Seat] = []
    rules = _Rules(reward_functions, max_turns)
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                place, task, number = waiting.pop()
                seat = seats.pop() if seats else _Seat(make_environment, make_state)
                record = Trajectory(task.id, task.kind, task.group, "", key=(*key, number))
                record = replace(record, actor_version=actor_version)
                running.append(_Episode(place, task, seat, rules, record))
            acted = _tick(running, policy, greedy)
            _go_on([episode for episode in acted if not episode.finished], reviewer)
            for episode in [e for e in running if e.finished]:
                running.remove(episode)
                seats.append(episode.seat)
                done[episode.place] = episode.trajectory()
                if on_episode is not None:
                    on_episode(done[episode.place])
    finally:
        for seat in [*seats, *(episode.seat for episode in running)]:
            seat.close()
    return [done[place] for place in range(len(tasks))]


def _tick(running: Sequence[_Episode], policy: Policy, greedy: bool) -> list[_Episode]:
    """One decision of every episode that still wants one; returns those."""
    asking = [(episode, request) for episode in running if (request := episode.request())]
    if not asking:
        return []
    replies = policy.generate([request for _, request in asking], greedy=greedy)
    for (episode, request), reply in zip(asking, replies, strict=True):
        episode.act(request, reply)
    return [episode for episode, _ in asking]


def _go_on(acted: Sequence[_Episode], reviewer: Reviewer | None) -> None:
    """The newest turns enter the states, reviewed all at once if there is a reviewer."""
    if reviewer is None or not acted:
        reviews: Sequence[str] = [""] * len(acted)
    else:
        reviews = reviewer([episode.unprivileged() for episode in acted])
    for episode, review in zip(acted, reviews, strict=True):
        episode.go_on(review)


@dataclass(frozen=True)
class _Rules:
    """What holds for every episode of a collection."""

    reward_functions: Mapping[str, RewardFunction]
    max_turns: int | None


class _Seat:
    """An environment and a state processor, used by one episode after another."""

    def __init__(
        self, make_environment: Callable[[], Environment], make_state: Callable[[], StateProcessor]
    ) -> None:
        self._make = make_environment
        self.environment = make_environment()
        self.state = make_state()

    def renew(self) -> None:
        """After a fault nothing of the instance is trusted."""
        self.close()
        self.environment = self._make()

    def close(self) -> None:
        """Free what the environment holds; a fault in that can no longer hurt anyone."""
        try:
            self.environment.close()
        except Exception:
            return


@dataclass
class _Episode:
    """One episode while it is played."""

    place: int
    task: Task
    seat: _Seat
    rules: _Rules
    record: Trajectory
    turns: list[Turn] = field(default_factory=list)
    finished: bool = False
    rewritten: Reset | None = None
    """The conversation as it now stands, if the newest step told another one."""

    def __post_init__(self) -> None:
        reset = self._guarded(lambda: self.seat.environment.reset(self.task))
        if reset is None:
            return
        reset = replace(reset, messages=encodable(reset.messages))
        limit = self.rules.max_turns or int(getattr(self.seat.environment, "max_turns", 0))
        if limit < 1:
            raise ValueError("collect() needs max_turns: the environment states none")
        self.seat.state.reset(reset)
        self.record = _opened(self.record, reset, limit)

    def request(self) -> Request | None:
        """The next decision, or None if there is none to be made any more."""
        if self.finished:
            return None
        try:
            messages = self.seat.state.render()
        except StateOverflow as overflow:
            self._out_of_room(str(overflow))
            return None
        previous = _visible(self.turns[-1]) if self.turns else None
        key = (*self.record.key, len(self.turns))
        return Request(messages, self.record.tools, key, previous)

    def act(self, request: Request, reply: Generation) -> None:
        """Carry a reply out and record the turn."""
        if reply.overflow:
            self._out_of_room("the prompt leaves no room for a reply in the model's context")
            return
        action = parse_action(reply.text, self.record.tools)
        step = self._guarded(lambda: self.seat.environment.step(action))
        if step is None:
            return
        step = replace(step, messages=encodable(step.messages))
        turn = Turn(
            index=len(self.turns),
            messages=tuple(request.messages),
            action=action,
            observation=step.messages,
            checklist=step.checklist,
            privileged=step.privileged,
            prompt_ids=tuple(reply.prompt_ids),
            action_ids=tuple(reply.ids),
            logprobs=tuple(reply.logprobs),
            produced=self.seat.state.produced(),
        )
        turn = self._rewarded(turn, step)
        self.turns.append(turn)
        if step.history is not None:
            self.rewritten = Reset(encodable(step.history), self.record.tools, self.record.goal)
        self._settle(step)

    def trajectory(self) -> Trajectory:
        """The record, complete once ``finished``."""
        return replace(self.record, turns=tuple(self.turns))

    def unprivileged(self) -> Trajectory:
        """The record so far without the facts that only a critic may see."""
        turns = tuple(replace(turn, privileged={}) for turn in self.turns)
        return replace(self.record, turns=turns, initial_privileged={})

    def go_on(self, review: str) -> None:
        """Take the newest turn, and its review if there is one, into the state."""
        turn = self.turns[-1]
        if review:
            turn = replace(turn, produced={**turn.produced, REVIEW: review})
            self.turns[-1] = turn
        if self.rewritten is not None:
            self.seat.state.reset(self.rewritten)
            self.rewritten = None
        else:
            self.seat.state.update(_visible(turn))

    def _rewarded(self, turn: Turn, step: Step) -> Turn:
        turn = replace(turn, info=step.info)
        rewards = dict(step.rewards)
        if step.terminated and step.success:
            rewards.setdefault("success", 1.0)
        for name, function in self.rules.reward_functions.items():
            if value := function(turn, self.turns):
                rewards[name] = value
        info = {**step.info, "repeated": bool(rewards.get("repeated"))}
        return replace(turn, rewards=rewards, info=info)

    def _settle(self, step: Step) -> None:
        over = step.terminated or step.truncated
        out = not over and len(self.turns) >= self.record.max_turns
        if over or out:
            self._finish(
                terminated=step.terminated or out,
                truncated=step.truncated and not step.terminated,
                success=step.success and step.terminated,
                out_of_budget=out,
            )

    def _out_of_room(self, reason: str) -> None:
        """A context that is full is a limit of the task, unless nothing ever fitted in."""
        if self.turns:
            self._finish(terminated=True, out_of_budget=True)
        else:
            self._finish(error=reason)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Run the environment; its faults end the episode, those meant for people the run."""
        try:
            return call()
        except AacError:
            raise
        except Exception as fault:
            self._finish(error=f"{type(fault).__name__}: {fault}")
            self.seat.renew()
            return None

    def _finish(self, **outcome: Any) -> None:
        self.finished = True
        self.record = replace(self.record, **outcome)


def _visible(turn: Turn) -> Turn:
    """What the actor's side may know of a turn: no privileged facts, rewards or statistics."""
    return replace(turn, privileged={}, rewards={}, info={})


def _opened(record: Trajectory, reset: Reset, max_turns: int) -> Trajectory:
    messages: tuple[Message, ...] = tuple(reset.messages)
    return replace(
        record,
        goal=reset.goal,
        initial_messages=messages,
        tools=tuple(reset.tools),
        initial_checklist=tuple(reset.checklist),
        initial_privileged=reset.privileged,
        max_turns=max_turns,
    )
