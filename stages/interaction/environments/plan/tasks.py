"""Generated projects: deterministic, distinct, disjoint between the splits, and with a pitfall.

Every task's deadline can be kept, but not by ignoring the workers, nor by one step at a time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from stages.interaction.environments.base import Task
from stages.interaction.environments.plan.options import PlanOptions
from stages.interaction.environments.plan.rules import Project, Work, broken_rules, length
from stages.interaction.environments.splits import distinct, fingerprint_id, split_of

NAMES = (
    "design", "budget", "permit", "ground", "floor", "roof", "wall", "window", "paint", "garden",
    "kitchen", "power", "water", "road", "gate", "office",
)  # fmt: skip


def generate(options: PlanOptions, split: str, count: int, seed: int) -> list[Task]:
    """``count`` distinct tasks of a split."""
    return distinct(_draws(options, split, seed), split, count)


def project_of(payload: Mapping[str, Any]) -> Project:
    """The project of a task."""
    steps = {
        name: Work(int(row["days"]), int(row["workers"]), tuple(row["after"]))
        for name, row in payload["steps"].items()
    }
    return Project(steps, int(payload["workers"]), int(payload["deadline"]))


def careless(project: Project) -> dict[str, int]:
    """Every step as soon as those before it are over, workers or not."""
    return _in_order(project, lambda plan, work: [_over(project, plan, b) for b in work.after])


def one_by_one(project: Project) -> dict[str, int]:
    """Every step after the one before it."""
    return _in_order(project, lambda plan, work: [_over(project, plan, b) for b in plan])


def _in_order(project: Project, waits_for: Any) -> dict[str, int]:
    plan: dict[str, int] = {}
    for name, work in project.steps.items():
        plan[name] = 1 + max(waits_for(plan, work), default=0)
    return plan


def _over(project: Project, plan: Mapping[str, int], name: str) -> int:
    return plan[name] + project.steps[name].days - 1


def _draws(options: PlanOptions, split: str, seed: int) -> Iterator[Task | None]:
    rng = random.Random(f"plan/{split}/{seed}")
    while True:
        project = _draw(options, rng)
        steps = {name: asdict(work) for name, work in project.steps.items()}
        payload: dict[str, Any] = {"steps": steps, "workers": project.workers}
        fingerprint = json.dumps(payload)
        if split_of(fingerprint) != split:
            yield None
            continue
        deadline = length(project) + options.slack_days
        project = replace(project, deadline=deadline)
        if any(not broken_rules(project, plan(project)) for plan in (careless, one_by_one)):
            yield None
            continue
        kind = f"{len(steps)}_steps"
        payload = json.loads(json.dumps(payload | {"deadline": deadline}))
        yield Task(fingerprint_id(kind, fingerprint), kind, f"{project.workers}_workers", payload)


def _draw(options: PlanOptions, rng: random.Random) -> Project:
    names = rng.sample(NAMES, rng.randint(*options.steps))
    workers = rng.randint(*options.workers_of_project)
    steps: dict[str, Work] = {}
    for name in names:
        before = rng.sample(list(steps), min(len(steps), rng.choice((0, 1, 1, 2))))
        days = rng.randint(1, options.longest_step)
        steps[name] = Work(days, rng.randint(1, workers), tuple(sorted(before)))
    return Project(steps, workers)
