"""Debugging tasks are fair: a quick patch passes what is seen and fails what is hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.interaction.actions import format_call, parse_action
from stages.interaction.environments.base import SPLITS, Step, Task
from stages.interaction.environments.code import CodeEnvironment, CodeOptions, DebuggerOptions
from stages.interaction.environments.code.options import TEMPLATES, UNSEEN_WORDS

PATCHES = DebuggerOptions(
    quick_patch=1.0, half_fix=1.0, wrong_edit=0.0, look_first=1.0, experiment=0.0
)


def use(environment: CodeEnvironment, name: str, **arguments: Any) -> Step:
    return environment.step(parse_action(format_call(name, arguments)))


def play(environment: CodeEnvironment, task: Task) -> list[Step]:
    expert, seen = environment.demonstrate(task, 0), environment.reset(task).messages
    steps: list[Step] = []
    while not steps or not steps[-1].terminated:
        steps.append(environment.step(parse_action(expert(seen), environment.tools)))
        seen = steps[-1].messages
    return steps


@pytest.fixture(scope="module")
def environment() -> Iterator[CodeEnvironment]:
    made = CodeEnvironment(CodeOptions(time_limit_s=10.0, expert=DebuggerOptions.clean()))
    yield made
    made.close()


@pytest.fixture(scope="module")
def tasks(environment: CodeEnvironment) -> Sequence[Task]:
    return environment.tasks("test", 24, 3)


def test_the_clean_debugger_solves_every_task(environment, tasks):
    for task in tasks:
        steps = play(environment, task)
        assert steps[-1].success and steps[-1].rewards["success"] == 1.0
        assert steps[-2].messages[0]["content"] == "all 2 tests pass"


def test_quick_patches_and_half_fixes_pass_the_visible_tests_and_fail_the_hidden(tasks):
    patching = CodeEnvironment(CodeOptions(time_limit_s=10.0, expert=PATCHES))
    for task in tasks:
        steps = play(patching, task)
        assert steps[0].messages[0]["content"].startswith("2 of 2 tests fail: ")
        assert steps[-2].messages[0]["content"] == "all 2 tests pass"
        assert steps[-1].terminated and not steps[-1].success
    patching.close()


def test_submitting_the_program_as_it_is_fails(environment, tasks):
    for task in tasks[:6]:
        environment.reset(task)
        assert not use(environment, "submit").success


def test_another_right_program_is_right(environment):
    task = next(t for t in environment.tasks("train", 60, 0) if t.kind == "highest")
    environment.reset(task)
    for number in range(len(task.payload["lines"]), 1, -1):
        use(environment, "edit", line=number, code="")
    argument = task.payload["lines"][0].split("(")[1].split(")")[0]
    use(environment, "edit", line=2, code=f"    return sorted({argument})[-1]")
    assert use(environment, "submit").success


def test_tasks_repeat_and_splits_share_none(environment):
    drawn = {split: environment.tasks(split, 60, 0) for split in SPLITS}
    assert drawn["test"] == environment.tasks("test", 60, 0)
    everything = [task for tasks in drawn.values() for task in tasks]
    seen = [json.dumps([t.payload["lines"], t.payload["visible"]]) for t in everything]
    assert len(set(seen)) == 180
    assert {t.kind for t in drawn["train"]} == set(TEMPLATES)
    assert {t.group for t in drawn["train"]}.isdisjoint(UNSEEN_WORDS)
    assert sum(t.group in UNSEEN_WORDS for t in drawn["test"]) == 30


def test_options_have_their_effects():
    options = CodeOptions(two_bugs=1.0, templates=("second",), visible_tests=3, hidden_tests=9)
    for task in CodeEnvironment(options).tasks("train", 5, 0):
        facts = task.payload
        assert task.kind == "second" and len(facts["fixes"]) == 2
        assert (len(facts["visible"]), len(facts["hidden"])) == (3, 9)
    small = CodeEnvironment(CodeOptions(time_limit_s=0.3, memory_mb=64, max_bytes=100))
    small.reset(small.tasks("train", 1, 0)[0])
    assert "0.3 s" in use(small, "python", code="while True: pass").messages[0]["content"]
    shown = use(small, "python", code="print('x' * 500)").messages[0]["content"]
    assert shown == "x" * 100 + " ..."
    assert "MemoryError" in use(small, "python", code="x = 'a' * 50_000_000").messages[0]["content"]
    small.close()


def test_every_step_pays_once(environment, tasks):
    task = next(t for t in tasks if len(t.payload["fixes"]) == 1)
    environment.reset(task)
    number, fix = next(iter(task.payload["fixes"].items()))
    first = use(environment, "edit", line=int(number), code=fix)
    again = use(environment, "edit", line=int(number), code=fix)
    assert first.rewards == {"right_tool": 1.0, "right_arguments": 1.0, "sub_goal": 0.5}
    assert again.rewards == {}
    assert use(environment, "test").rewards == {"sub_goal": 0.25}
    assert use(environment, "test").rewards == {}


def test_an_endless_program_costs_and_the_episode_goes_on(environment, tasks):
    quick = CodeEnvironment(CodeOptions(time_limit_s=0.5))
    quick.reset(tasks[0])
    use(quick, "edit", line=2, code="    while True: pass")
    step = use(quick, "test")
    late = "the program took longer than 0.5 s and was stopped"
    assert step.messages[0]["content"] == f"error: {late}"
    assert step.rewards == {"invalid": 1.0} and not step.terminated
    assert not use(quick, "submit").success
    quick.close()


def test_the_critic_sees_what_is_still_wrong_and_the_actor_does_not(environment, tasks):
    reset = environment.reset(tasks[0])
    (number, fix), *_ = tasks[0].payload["fixes"].items()
    assert f"line {number}: {fix.strip()}" in reset.privileged["remaining_sub_goals"]
    assert fix.strip() not in reset.messages[0]["content"]
    step = use(environment, "edit", line=int(number), code=fix)
    assert f"line {number}: {fix.strip()}" not in step.privileged["remaining_sub_goals"]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("environment.templates=[sort]", "unknown templates ['sort']"),
        ("environment.unseen_words=[cabbage]", "unseen_words ['cabbage']"),
        ("environment.isolation=thread2", "environment.isolation = 'thread2'"),
    ],
)
def test_wrong_options_are_told(option, says):
    shown = CliRunner().invoke(app, ["recipes", "validate", "recipes/code.yaml", "--set", option])
    assert shown.exit_code == 2
    assert says in shown.stderr.replace("\n", " ")
