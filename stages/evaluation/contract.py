"""The environment contract, tried out: each check plays an environment and tells what it saw.

A check returns (kept?, detail in words); kept is None where the check does not apply.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stages.common.errors import AacError, RunError, UsageError
from stages.evaluation.policies import random_policy
from stages.interaction.actions import parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments.base import SPLITS, Environment, Relabeller, Task
from stages.interaction.rewards.mix import SUCCESS
from stages.interaction.trajectory import Trajectory

DRAWN = 32
"""Tasks drawn of each split."""
SEED = 5

BAD_REPLIES = (
    "",
    "hello",
    "{",
    '{"name": "no_such_tool", "arguments": {}}',
    '{"name": 7, "arguments": []}',
    '{"name": "answer", "arguments": {"value": {"a": [null]}}}',
    "x" * 10_000,
    "\u0000\ud800",
)
"""What actors say on bad days; each must come back as an observation."""

Verdict = tuple[bool | None, str]


@runtime_checkable
class GoldChanger(Protocol):
    """Optional: an environment whose secrets can be changed, to prove that it keeps them."""

    def alter_gold(self, task: Task) -> Task:
        """The same task for the actor, judged by another gold answer."""
        ...


@runtime_checkable
class Substituting(Protocol):
    """Optional: an environment that gives another split's tasks for one it has none of."""

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """An absent split, and the split whose tasks it gives."""
        ...


@dataclass(frozen=True)
class Probe:
    """Some tasks, and for each the replies of an episode that was played once."""

    arena: Arena
    episodes: Sequence[Trajectory]
    tasks: Sequence[Task]

    @classmethod
    def of(cls, arena: Arena, tasks: Sequence[Task]) -> Probe:
        """Play the tasks, by the expert where there is one, then by random calls."""
        played = arena.play(tasks, random_policy())
        if arena.has_expert():
            played = [*arena.demonstrate(tasks, seed=SEED), *played]
        faults = [t.error for t in played if t.error]
        if faults:
            raise RunError(f"an episode failed: {faults[0]}")
        return cls(arena, played, [*tasks] * (len(played) // len(tasks)))

    def transcripts(self, change: Callable[[Task], Task] = lambda task: task) -> list[list[Any]]:
        """Say the same replies again, on one instance; what came back, task by task."""
        environment = self.arena.make_environment()
        try:
            return [
                replay(environment, change(task), [turn.action.text for turn in episode.turns])
                for task, episode in zip(self.tasks, self.episodes, strict=True)
            ]
        finally:
            environment.close()


def replay(environment: Environment, task: Task, replies: Sequence[str]) -> list[Any]:
    """All that is visible of an episode with these replies, and the rewards: two per turn."""
    reset = environment.reset(task)
    seen: list[Any] = [[reset.messages, reset.tools, reset.goal, reset.checklist]]
    for text in replies:
        step = environment.step(parse_action(text, reset.tools))
        seen += [[step.messages, step.checklist, step.terminated], dict(step.rewards)]
    return seen


def tasks_repeat(probe: Probe) -> Verdict:
    """The same arguments give the same tasks, and those are plain JSON."""
    first, second = (_drawn(probe.arena) for _ in "12")
    if first != second:
        return False, "tasks() gives other tasks when called again with the same arguments"
    for task in (t for tasks in first.values() for t in tasks):
        json.dumps(dict(task.payload), allow_nan=False)
    return True, f"{sum(map(len, first.values()))} tasks drawn twice"


def splits_disjoint(probe: Probe) -> Verdict:
    """No task occurs twice, in one split or in two."""
    ids = {split: [task.id for task in tasks] for split, tasks in _drawn(probe.arena).items()}
    everything = set().union(*ids.values())
    if len(everything) < DRAWN and all(set(names) == everything for names in ids.values()):
        return None, f"every split holds the same {len(everything)} tasks, too few to divide"
    for split, names in ids.items():
        if len(set(names)) < len(names):
            return False, f"the {split} split holds a task id twice"
        for other in ids:
            if other != split and set(ids[other]) & set(names):
                return False, f"the splits {split} and {other} share tasks"
    return True, f"no task of {', '.join(ids)} occurs twice"


def deterministic(probe: Probe) -> Verdict:
    """The same replies get the same observations and rewards."""
    return _equal(probe.transcripts(), probe.transcripts(), "when played again")


def reset_clears(probe: Probe) -> Verdict:
    """A used instance, left in the middle of an episode, starts afresh."""
    clean = probe.transcripts()
    environment = probe.arena.make_environment()
    used = []
    try:
        for task, episode in zip(probe.tasks, probe.episodes, strict=True):
            replies = [turn.action.text for turn in episode.turns]
            replay(environment, task, replies[: len(replies) // 2])
            used.append(replay(environment, task, replies))
    finally:
        environment.close()
    return _equal(clean, used, "on a used instance")


def plain_records(probe: Probe) -> Verdict:
    """Episodes survive JSON; rewards are indicators from 0 to 1, shares of success from -1 to 1."""
    for episode in probe.episodes:
        row = json.loads(json.dumps(episode.to_json(), allow_nan=False))
        if json.dumps(Trajectory.from_json(row).to_json()) != json.dumps(episode.to_json()):
            return False, f"the episode of {episode.task_id} changes on a trip through JSON"
        for turn in episode.turns:
            wrong = {n: v for n, v in turn.rewards.items() if not _is_indicator(n, v)}
            if wrong:
                return False, (
                    f"rewards must lie within 0 and 1, got {wrong}; an adapter divides those of "
                    "its world by reward_scale"
                )
    return True, f"{len(probe.episodes)} episodes"


def bad_replies(probe: Probe) -> Verdict:
    """What is wrong with a reply comes back as an observation, never as an exception."""
    environment = probe.arena.make_environment()
    try:
        for text in BAD_REPLIES:
            reset = environment.reset(probe.tasks[0])
            step = environment.step(parse_action(text, reset.tools))
            if step.success or not (step.messages or step.terminated):
                return False, f"the reply {text[:20]!r} gets no observation, or succeeds"
    finally:
        environment.close()
    return True, f"{len(BAD_REPLIES)} bad replies"


def gold_hidden(probe: Probe) -> Verdict:
    """With another gold answer nothing changes that an actor can see."""
    environment = probe.arena.make_environment()
    environment.close()
    if not isinstance(environment, GoldChanger):
        return None, "the environment has no alter_gold(task), so it cannot be tried"
    told, altered = probe.transcripts(), probe.transcripts(environment.alter_gold)
    if told == altered:
        return False, "alter_gold changed not even a reward, so nothing was tried"
    seen, seen_altered = ([_visible(t) for t in transcripts] for transcripts in (told, altered))
    return _equal(seen, seen_altered, "under another gold answer")


def relabelled(probe: Probe) -> Verdict:
    """What hindsight names another task for succeeds in it, when the same is said again.

    Episodes are tried as if another gold answer had made failures of them, where that can be had.
    """
    environment = probe.arena.make_environment()
    try:
        if not isinstance(environment, Relabeller):
            return None, "the environment has no relabel(task, trajectory), so it cannot be tried"
        named = 0
        for task, episode in zip(probe.tasks, probe.episodes, strict=True):
            played = environment.alter_gold(task) if isinstance(environment, GoldChanger) else task
            other = environment.relabel(played, episode)
            if other is None:
                continue
            named += 1
            if not _succeeds(environment, other, episode):
                return False, f"the episode of {task.id} fails in {other.id}, which it was given"
    finally:
        environment.close()
    if not named:
        return None, f"no other task was named for any of {len(probe.episodes)} episodes"
    return True, f"{named} of {len(probe.episodes)} episodes succeed in another task"


CHECKS: Mapping[str, Callable[[Probe], Verdict]] = {
    "tasks_repeat": tasks_repeat,
    "splits_disjoint": splits_disjoint,
    "deterministic": deterministic,
    "reset_clears": reset_clears,
    "plain_records": plain_records,
    "bad_replies": bad_replies,
    "gold_hidden": gold_hidden,
    "relabelled": relabelled,
}
"""By the name under which ``aac env check`` reports them."""


def try_contract(arena: Arena, tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
    """Every check: ``{name: {"ok": True, False or None, "detail"}}``.

    An exception of the environment is a broken contract, told in words.
    """
    try:
        probe = Probe.of(arena, tasks)
    except Exception as fault:
        return {"plays": {"ok": False, "detail": _told(fault)}}
    return {name: _tried(check, probe) for name, check in CHECKS.items()}


def _tried(check: Callable[[Probe], Verdict], probe: Probe) -> dict[str, Any]:
    try:
        ok, detail = check(probe)
    except Exception as fault:
        ok, detail = False, _told(fault)
    return {"ok": ok, "detail": detail}


def _told(fault: Exception) -> str:
    return str(fault) if isinstance(fault, AacError) else f"{type(fault).__name__}: {fault}"


def _drawn(arena: Arena) -> dict[str, list[Task]]:
    """Tasks of every split that has some of its own."""
    environment = arena.make_environment()
    try:
        absent = environment.stand_ins if isinstance(environment, Substituting) else {}
        own = [split for split in SPLITS if split not in absent]
        splits = {split: _tasks_of(environment, split) for split in own}
    finally:
        environment.close()
    return {split: tasks for split, tasks in splits.items() if tasks}


def _tasks_of(environment: Environment, split: str) -> list[Task]:
    """Some tasks of a split; none where the environment says that it has none."""
    try:
        return list(environment.tasks(split, DRAWN, SEED))
    except UsageError:
        return []


def _equal(first: list[Any], second: list[Any], when: str) -> Verdict:
    same = sum(a == b for a, b in zip(first, second, strict=True))
    return same == len(first), f"{same} of {len(first)} episodes equal {when}"


def _succeeds(environment: Environment, task: Task, episode: Trajectory) -> bool:
    """Whether the episode's replies, to the last, succeed in a task."""
    reset = environment.reset(task)
    steps = [environment.step(parse_action(t.action.text, reset.tools)) for t in episode.turns]
    return bool(steps) and steps[-1].terminated and steps[-1].success


def _visible(transcript: list[Any]) -> list[Any]:
    """The reset and the observations, without the rewards between them."""
    return [transcript[0], *transcript[1::2]]


def _is_indicator(name: str, value: float) -> bool:
    """An adapted world may pay success in shares as it goes, and take some of it back."""
    return math.isfinite(value) and (-1 if name == SUCCESS else 0) <= value <= 1
