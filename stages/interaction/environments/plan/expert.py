"""The scripted planner: asks about every step, plans them all, checks and submits."""

from __future__ import annotations

import random
from collections.abc import Sequence

from stages.interaction.actions import format_call
from stages.interaction.environments.base import Task
from stages.interaction.environments.plan.options import PlannerOptions
from stages.interaction.environments.plan.rules import shortest
from stages.interaction.environments.plan.tasks import careless, one_by_one, project_of
from stages.interaction.trajectory import Message


class Planner:
    """A policy ``(observations so far) -> action text`` for one episode."""

    def __init__(self, task: Task, habits: PlannerOptions, rng: random.Random) -> None:
        project = project_of(task.payload)
        draws = [rng.random() for _ in range(3)]
        if draws[0] < habits.ignores_workers:
            plan = careless(project)
        else:
            plan = one_by_one(project) if draws[1] < habits.one_by_one else shortest(project)
        self._actions = [format_call("describe", {"step": name}) for name in project.steps]
        self._actions += [
            format_call("schedule", {"step": name, "day": plan[name]}) for name in project.steps
        ]
        if draws[2] < habits.checks:
            self._actions.append(format_call("check", {}))

    def __call__(self, observations: Sequence[Message]) -> str:
        """The next action."""
        return self._actions.pop(0) if self._actions else format_call("submit", {})
