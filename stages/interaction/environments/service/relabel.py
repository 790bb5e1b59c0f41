"""Hindsight: the wish that the end of a conversation fulfils.

The records stay as they were; only what the customer wishes, and tells without being asked, is
another. A customer with another wish replies otherwise, so that every candidate is tried out with
the agent's own words and calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from stages.interaction.environments.base import Task
from stages.interaction.environments.service.desk import Desk, NoSuchRecord, Records
from stages.interaction.environments.service.domains import OWNER, STATUS, Intent
from stages.interaction.environments.service.episode import words
from stages.interaction.environments.service.tasks import (
    NOT_OWNER,
    Case,
    Verdict,
    Wish,
    split_of,
    task_of,
)
from stages.interaction.environments.service.tools import problem
from stages.interaction.trajectory import Trajectory

Succeeds = Callable[[Task], bool]
"""Whether the episode's actions, said again, succeed in a task."""


def relabelled(task: Task, trajectory: Trajectory, succeeds: Succeeds) -> Task | None:
    """A training task with one wish, which these actions fulfil; None if there is none."""
    case = Case.of(task)
    if len(case.wishes) != 1 or not trajectory.terminated or trajectory.out_of_budget:
        return None
    candidates = [
        task_of(
            replace(case, wishes=(wish,), expected=ending.expected, told=ending.told), ending.kind
        )
        for ending in _endings(case, trajectory)
        for wish in _told_otherwise(ending.wish)
    ]
    random.Random(f"relabel/{task.id}/{trajectory.key}").shuffle(candidates)
    training = (c for c in candidates if split_of(c.id.rpartition("-")[2]) == "train")
    return next((other for other in training if other.id != task.id and succeeds(other)), None)


@dataclass(frozen=True)
class _Ending:
    """A wish, and what has to be true when it is served."""

    wish: Wish
    kind: str
    expected: Records
    told: tuple[Verdict, ...] = ()


def _endings(case: Case, trajectory: Trajectory) -> Iterator[_Ending]:
    """The wishes that the final records, and what the agent said, speak for."""
    before, after = case.records, _final_records(case, trajectory)
    altered = [
        (number, field, value)
        for number, row in after.items()
        for field, value in row.items()
        if before[number][field] != value
    ]
    if len(altered) > 1:
        return
    for number, field, value in altered:
        for intent in case.domain.writers.values():
            if intent.field == field and intent.becomes in ("", value):
                wish = _wish(case, intent, number, "" if intent.becomes else value)
                yield _Ending(wish, intent.name, after)
    if not altered:
        said = words(" ".join(turn.action.text for turn in trajectory.turns))
        for number in _found(case, trajectory):
            yield from (e for e in _unchanged(case, number) if said & _lower(e.told[0].words))


def _unchanged(case: Case, number: str) -> Iterator[_Ending]:
    """What is served without a change: something is told, or refused and told why."""
    record = case.records[number]
    for intent in case.domain.intents:
        if not intent.tool:
            verdict = Verdict(number, intent.field, (record[intent.field],))
            yield _Ending(_wish(case, intent, number), intent.name, case.records, (verdict,))
            continue
        others = [v for v in case.domain.fields[intent.field] if v != record[intent.field]]
        for value in others if intent.chosen else [""]:
            wish = _wish(case, intent, number, value)
            refused = f"{intent.name}, refused"
            if intent.allowed and record[STATUS] not in intent.allowed:
                verdict = Verdict(number, STATUS, (record[STATUS],))
                yield _Ending(wish, refused, case.records, (verdict,))
            if case.wishes[0].name != record[OWNER]:
                stranger = replace(wish, name=case.wishes[0].name)
                verdict = Verdict(number, "", NOT_OWNER)
                yield _Ending(stranger, refused, case.records, (verdict,))


def _wish(case: Case, intent: Intent, number: str, value: str = "") -> Wish:
    """The owner's wish; manners and what is told at once as the customer had them."""
    had = case.wishes[0]
    told = tuple(part for part in had.told if part != "value" or value)
    owner = case.records[number][OWNER]
    return replace(had, intent=intent.name, number=number, name=owner, value=value, told=told)


def _told_otherwise(wish: Wish) -> list[Wish]:
    """The same wish of customers who tell more or less of it at once."""
    every = ("number", "name", "value") if wish.value else ("number", "name")
    with_name = tuple(part for part in every if part in wish.told or part == "name")
    told = dict.fromkeys((wish.told, with_name, every, ()))
    return [
        replace(wish, told=parts, doubts=d) for parts in told for d in sorted({wish.doubts, False})
    ]


def _final_records(case: Case, trajectory: Trajectory) -> Mapping[str, Mapping[str, str]]:
    desk = Desk(case.domain, case.records)
    for call in (call for turn in trajectory.turns for call in turn.action.calls):
        if problem(call, case.domain) is None and call.name != case.domain.finder:
            try:
                desk.apply(desk.planned(call))
            except NoSuchRecord:
                continue
    return desk.records


def _found(case: Case, trajectory: Trajectory) -> list[str]:
    """Numbers of the records that were looked up."""
    calls = [call for turn in trajectory.turns for call in turn.action.calls]
    shown = [c for c in calls if c.name == case.domain.finder and not problem(c, case.domain)]
    numbers = dict.fromkeys(str(call.arguments[case.domain.noun]) for call in shown)
    return [number for number in numbers if number in case.records]


def _lower(said: tuple[str, ...]) -> set[str]:
    return {word.lower() for word in said}
