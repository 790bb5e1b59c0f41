"""A project's rules, and the shortest plan that keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """One step: days it takes, workers it keeps busy, steps that must be over before it."""

    days: int
    workers: int
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Project:
    """Steps by name, workers there are on any day, and the last day."""

    steps: Mapping[str, Work]
    workers: int
    deadline: int = 0


Plan = Mapping[str, int]
"""Step to its first day, from 1."""


def broken_rules(project: Project, plan: Plan) -> list[str]:
    """What is wrong with a plan, in words; nothing if it is right and whole."""
    missing = [name for name in project.steps if name not in plan]
    wrong = [f"{', '.join(missing)} not planned"] if missing else []
    for name, first in plan.items():
        for before in project.steps[name].after:
            if before in plan and first <= last_day(project, plan, before):
                wrong.append(f"{name} starts before {before} is over")
    for day in range(1, 1 + max((last_day(project, plan, n) for n in plan), default=0)):
        busy = sum(
            project.steps[name].workers
            for name, first in plan.items()
            if first <= day <= last_day(project, plan, name)
        )
        if busy > project.workers:
            wrong.append(f"day {day} needs {busy} of {project.workers} workers")
    late = [n for n in plan if last_day(project, plan, n) > project.deadline]
    return wrong + [f"{name} ends after day {project.deadline}" for name in late]


def last_day(project: Project, plan: Plan, name: str) -> int:
    """The day on which a planned step ends."""
    return plan[name] + project.steps[name].days - 1


def shortest(project: Project) -> dict[str, int]:
    """A plan that ends as early as any.

    Steps are put, in every order their dependencies allow, on the first day that has room: one of
    these plans is a shortest (Sprecher, Kolisch & Drexl 1995: active schedules hold an optimum).
    """
    return min(_plans(project, {}), key=lambda plan: _end(project, plan))


def _plans(project: Project, plan: dict[str, int]) -> Iterator[dict[str, int]]:
    if len(plan) == len(project.steps):
        yield plan
        return
    for name, work in project.steps.items():
        if name not in plan and all(before in plan for before in work.after):
            yield from _plans(project, {**plan, name: _first_day(project, plan, name)})


def _first_day(project: Project, plan: Plan, name: str) -> int:
    work = project.steps[name]
    day = 1 + max((last_day(project, plan, before) for before in work.after), default=0)
    while not all(_room(project, plan, d) >= work.workers for d in range(day, day + work.days)):
        day += 1
    return day


def _room(project: Project, plan: Plan, day: int) -> int:
    busy = (project.steps[n].workers for n in plan if plan[n] <= day <= last_day(project, plan, n))
    return project.workers - sum(busy)


def _end(project: Project, plan: Plan) -> int:
    return max(last_day(project, plan, name) for name in plan)


def length(project: Project) -> int:
    """Days that the shortest plan takes."""
    return _end(project, shortest(project))
