"""Collecting trajectories: many environments at once, their decisions batched.

What an episode becomes depends on its key alone, not on which others are played beside it:
episodes are admitted in task order, by counts, and every turn's random numbers are keyed by
(seed, iteration, episode, turn).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import Any

from stages.common.errors import AacError
from stages.common.messages import encodable
from stages.interaction.actions import parse_action
from stages.interaction.crew import Crew, StepTimeout
from stages.interaction.environments.base import Environment, Reset, Step, Task
from stages.interaction.generation import Generation, Policy, Request, Session, session_with
from stages.interaction.rewards.functions import REWARD_FUNCTIONS, RewardFunction
from stages.interaction.states.base import StateOverflow, StateProcessor
from stages.interaction.trajectory import REVIEW, Action, Message, Trajectory, Turn

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
    crew: Crew | None = None,
) -> list[Trajectory]:
    """Play one episode per task; the trajectories come back in task order.

    ``reviewer`` is asked whenever turns have ended, for all of them that are not the last; its
    words are stored on the turn. ``max_turns`` is the environment's own unless given. ``indices``
    are the episodes' numbers in their keys (their positions in ``tasks`` unless given: a process
    that plays a share of an iteration passes its numbers). The ``crew`` carries out the
    environments' calls. What an environment raises drops its episode (``Trajectory.error``); the
    policy's errors and any AacError end the collection.
    """
    crew, on_episode = crew or Crew(), on_episode or _ignored
    places = range(len(tasks))
    waiting = list(zip(places, tasks, indices or places, strict=True))[::-1]
    running, seats, done = list[_Episode](), list[_Seat](), dict[int, Trajectory]()
    rules = _Rules(reward_functions, max_turns)
    decisions = _Decisions(session_with(policy, greedy=greedy), crew)
    try:
        while waiting or running:
            fresh = []
            for place, task, number in _taken(waiting, parallel - len(running)):
                seat = seats.pop() if seats else _Seat(make_environment, make_state)
                record = _record(task, (*key, number), actor_version)
                fresh.append(_Episode(place, task, seat, rules, record))
            running += fresh
            _start(fresh, crew)
            _go_on(decisions.made(running), reviewer)
            for episode in _ended(running):
                decisions.session.leave(episode.record.key)
                seats.append(episode.seat)
                on_episode(done.setdefault(episode.place, episode.trajectory()))
    finally:
        decisions.session.close()
        _close_all([*seats, *(episode.seat for episode in running)])
    return [done[place] for place in places]


def _ignored(_: Trajectory) -> None:
    """Nobody wants to know of single episodes."""


def _taken(waiting: list[Any], count: int) -> list[Any]:
    """Up to ``count`` of those who wait, last first."""
    return [waiting.pop() for _ in range(min(len(waiting), count))]


def _record(task: Task, key: tuple[int, ...], actor_version: int) -> Trajectory:
    return Trajectory(task.id, task.kind, task.group, "", key=key, actor_version=actor_version)


def _ended(running: list[_Episode]) -> list[_Episode]:
    """The episodes that are over; they are running no more."""
    ended = [episode for episode in running if episode.finished]
    running[:] = [episode for episode in running if not episode.finished]
    return ended


def _start(fresh: Sequence[_Episode], crew: Crew) -> None:
    """Start episodes in their environments."""
    for episode, reset in zip(fresh, crew.each([e.reset for e in fresh]), strict=True):
        episode.open(reset)


def _close_all(seats: Iterable[_Seat]) -> None:
    for seat in seats:
        seat.close()


class _Decisions:
    """What the episodes have asked of the policy."""

    def __init__(self, session: Session, crew: Crew) -> None:
        self.session, self._crew = session, crew
        self._open: dict[int, tuple[_Episode, Request]] = {}

    def made(self, running: Sequence[_Episode]) -> list[_Episode]:
        """All episodes have the decisions they want asked for; those whose decisions have been
        made and carried out, and that go on.

        As many at once as the crew has workers, so that slow environments wait together.
        """
        self._ask(running)
        if not self._open:
            return []
        answers = self.session.answers(max(self._crew.workers, 1))
        made = [(*self._open.pop(number), reply) for number, reply in answers]
        acting = [
            (episode, request, reply, action)
            for episode, request, reply in made
            if (action := episode.decide(reply)) is not None
        ]
        steps = self._crew.each([partial(episode.step, action) for episode, _, _, action in acting])
        for (episode, request, reply, action), step in zip(acting, steps, strict=True):
            episode.act(request, reply, action, step)
        return [episode for episode, _, _ in made if not episode.finished]

    def _ask(self, running: Sequence[_Episode]) -> None:
        waiting = {id(episode) for episode, _ in self._open.values()}
        idle = [episode for episode in running if id(episode) not in waiting]
        asking = [(episode, request) for episode in idle if (request := episode.request())]
        if asking:
            numbers = self.session.ask([request for _, request in asking])
            self._open |= dict(zip(numbers, asking, strict=True))


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
        self._made: Environment | None = None
        self.state = make_state()

    @property
    def environment(self) -> Environment:
        """The instance, made when it is first needed."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def renew(self, fault: Exception) -> None:
        """After a fault nothing of the instance is trusted; one that hangs may hang in closing."""
        if isinstance(fault, StepTimeout):
            Thread(target=_close, args=(self._made,), daemon=True).start()
        else:
            _close(self._made)
        self._made = None

    def close(self) -> None:
        """Free what the environment holds."""
        _close(self._made)
        self._made = None


def _close(environment: Environment | None) -> None:
    """Close an instance; a fault in that can no longer hurt anyone."""
    if environment is None:
        return
    try:
        environment.close()
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

    def reset(self) -> Reset:
        """Start the episode in its environment; may run in any thread."""
        return self.seat.environment.reset(self.task)

    def step(self, action: Action) -> Step:
        """Carry out an action in the environment; may run in any thread."""
        return self.seat.environment.step(action)

    def open(self, reset: Reset | Exception) -> None:
        """Take in what ``reset`` gave or raised."""
        if isinstance(reset, Exception):
            self._drop(reset, "reset")
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
        room = self.seat.state.max_tokens
        return Request(messages, self.record.tools, key, previous, room, self.unprivileged)

    def decide(self, reply: Generation) -> Action | None:
        """The action that a reply means; None if there was no room for one."""
        if reply.overflow:
            self._out_of_room("the prompt leaves no room for a reply in the model's context")
            return None
        return parse_action(reply.text, self.record.tools)

    def act(
        self, request: Request, reply: Generation, action: Action, step: Step | Exception
    ) -> None:
        """Record the turn, of which ``step`` says what came or what was raised."""
        if isinstance(step, Exception):
            self._drop(step, action.calls[-1].name[:40] if action.calls else "no call")
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

    def _drop(self, fault: Exception, last_action: str) -> None:
        """An environment's faults end the episode, those meant for people the run."""
        if isinstance(fault, AacError):
            raise fault
        self._finish(error=f"{type(fault).__name__}: {fault}", dropped_at=last_action)
        self.seat.renew(fault)

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
