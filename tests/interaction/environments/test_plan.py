"""Plans are judged by rules, and the shortest plan really is one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stages.interaction.actions import format_call, parse_action
from stages.interaction.environments.base import SPLITS, Step, Task
from stages.interaction.environments.plan import PlanEnvironment, PlannerOptions, PlanOptions
from stages.interaction.environments.plan.rules import Project, Work, broken_rules, length, shortest
from stages.interaction.environments.plan.tasks import project_of

HOUSE = Project(
    {
        "floor": Work(2, 1),
        "wall": Work(3, 2, ("floor",)),
        "paint": Work(1, 1, ("wall",)),
        "garden": Work(2, 1),
    },
    workers=2,
    deadline=6,
)


def use(environment: PlanEnvironment, name: str, **arguments: Any) -> Step:
    return environment.step(parse_action(format_call(name, arguments)))


def play(environment: PlanEnvironment, task: Task) -> list[Step]:
    expert, seen = environment.demonstrate(task, 0), environment.reset(task).messages
    steps: list[Step] = []
    while not steps or not steps[-1].terminated:
        steps.append(environment.step(parse_action(expert(seen), environment.tools)))
        seen = steps[-1].messages
    return steps


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        ({"floor": 1, "wall": 3, "paint": 6, "garden": 1}, []),
        ({"floor": 1, "wall": 2, "paint": 6, "garden": 5}, ["wall starts before floor is over"]),
        ({"floor": 1, "wall": 3, "paint": 6, "garden": 2}, ["day 3 needs 3 of 2 workers"]),
        ({"floor": 1, "wall": 3, "paint": 7, "garden": 1}, ["paint ends after day 6"]),
        ({"floor": 1, "wall": 3, "paint": 6}, ["garden not planned"]),
        ({}, ["floor, wall, paint, garden not planned"]),
    ],
)
def test_every_rule_by_hand(plan, wrong):
    assert [rule for rule in broken_rules(HOUSE, plan) if rule in wrong] == wrong
    assert bool(broken_rules(HOUSE, plan)) == bool(wrong)


def test_no_plan_at_all_is_shorter():
    """Oracle: every assignment of days, one by one."""
    for seed in range(4):
        task = PlanEnvironment(PlanOptions(steps=(4, 4), longest_step=2)).tasks("train", 1, seed)[0]
        project = project_of(task.payload)
        best = length(project)
        assert broken_rules(project, shortest(project)) == []
        tighter = Project(project.steps, project.workers, best - 1)
        for days in itertools.product(range(1, best), repeat=4):
            assert broken_rules(tighter, dict(zip(project.steps, days, strict=True)))


def test_the_clean_planner_always_succeeds():
    environment = PlanEnvironment(PlanOptions(expert=PlannerOptions.clean()))
    for task in environment.tasks("test", 40, 0):
        steps = play(environment, task)
        assert steps[-1].success and len(steps) <= environment.max_turns
        assert sum(s.rewards.get("sub_goal", 0.0) for s in steps) == pytest.approx(1.0)


@pytest.mark.parametrize("mistake", ["ignores_workers", "one_by_one"])
def test_each_mistake_breaks_a_rule(mistake):
    habits = PlannerOptions.clean().model_copy(update={mistake: 1.0, "checks": 1.0})
    environment = PlanEnvironment(PlanOptions(expert=habits))
    for task in environment.tasks("test", 20, 0):
        steps = play(environment, task)
        assert not steps[-1].success
        assert "day" in steps[-2].messages[0]["content"]  # check tells


def test_splits_share_no_project_and_options_have_their_effects():
    environment = PlanEnvironment()
    steps = [str(t.payload["steps"]) for s in SPLITS for t in environment.tasks(s, 50, 0)]
    assert len(set(steps)) == 150
    narrow = PlanOptions(steps=(3, 3), workers_of_project=(2, 2), slack_days=1)
    for task in PlanEnvironment(narrow).tasks("train", 10, 0):
        project = project_of(task.payload)
        assert (len(project.steps), project.workers) == (3, 2)
        assert project.deadline == length(project) + 1


def test_moving_a_step_pays_nothing():
    environment = PlanEnvironment()
    task = environment.tasks("train", 1, 0)[0]
    environment.reset(task)
    name = next(iter(task.payload["steps"]))
    assert use(environment, "describe", step=name).rewards
    assert use(environment, "describe", step=name).rewards == {}
    gained = [use(environment, "schedule", step=name, day=day).rewards for day in (1, 2, 1, 2)]
    assert gained[1:] == [{}, {}, {}]


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"steps must be \[fewest, most\] within 2 and 7"):
        PlanOptions(steps=(5, 9))
