"""Many environments at once: results in order, the slow given up, the crashed replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.evaluation.metrics import episode_metrics
from stages.evaluation.policies import random_policy
from stages.interaction.arena import Arena
from stages.interaction.crew import Crew, StepTimeout
from stages.interaction.environments import make_environment
from stages.interaction.environments.plan import PlanOptions
from stages.interaction.environments.remote import RemoteEnvironment, RemoteFault
from stages.interaction.generation import Generation, Request
from stages.interaction.states import StateOptions
from stages.interaction.trajectory import Action, Trajectory

STATE = StateOptions(checklist=False, tool_prompt="none")


def arena(**options: Any) -> Arena:
    return Arena(PlanOptions(**options), STATE, parallel=4)


def told(episodes: Sequence[Trajectory]) -> list[Any]:
    return [e.to_json() for e in episodes]


# ---- the crew


@pytest.mark.parametrize("workers", [0, 1, 3, 50])
def test_results_come_in_order_and_faults_in_their_places(workers):
    def call(n: int) -> int:
        if n % 5 == 3:
            raise ValueError(f"no {n}")
        return n * n

    results = Crew(workers).each([lambda n=n: call(n) for n in range(12)])
    assert [r for r in results if isinstance(r, int)] == [n * n for n in range(12) if n % 5 != 3]
    assert [str(results[n]) for n in (3, 8)] == ["no 3", "no 8"]


def test_calls_run_at_the_same_time_and_never_more_than_workers():
    together = threading.Barrier(3)
    now, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(30)  # three must be here at once, or this breaks
        with lock:
            now -= 1

    assert Crew(3).each([call] * 9) == [None] * 9
    assert most == 3


def test_a_call_that_hangs_is_given_up_and_stalls_nobody():
    release = threading.Event()
    calls = [release.wait, lambda: 1, release.wait, *[lambda: 2] * 6]
    start = time.monotonic()
    results = Crew(1, timeout_s=0.2).each(calls)
    assert time.monotonic() - start < 10
    release.set()
    assert [type(results[n]) for n in (0, 2)] == [StepTimeout] * 2
    assert results[1] == 1 and results[3:] == [2] * 6
    assert str(results[0]) == "the environment took longer than 0.2 s"


# ---- instances in processes of their own


def test_what_is_played_does_not_depend_on_where_it_is_played():
    here = arena()
    tasks = here.tasks("train", 5, 0)
    alone = told(here.play(tasks, random_policy(), label=""))
    for isolation in ("thread", "process"):
        there = arena(workers=3, isolation=isolation)
        assert told(there.play(tasks, random_policy(), label="")) == alone
    assert told(arena(workers=2).demonstrate(tasks, seed=3)) == told(
        here.demonstrate(tasks, seed=3)
    )
    assert multiprocessing.active_children() == []


class Saboteur:
    """Plays at random; before its third decision it stops one process and kills another."""

    def __init__(self) -> None:
        self.decisions = 0

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        self.decisions += 1
        if self.decisions == 3:
            stopped, killed, *_ = multiprocessing.active_children()
            os.kill(stopped.pid, signal.SIGSTOP)
            os.kill(killed.pid, signal.SIGKILL)
        return random_policy().generate(requests)


def test_a_process_that_hangs_and_one_that_dies_cost_two_episodes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    world = arena(workers=4, step_timeout_s=5.0)
    tasks = world.tasks("train", 8, 0)
    episodes = world.play(tasks, Saboteur(), label="")
    lost = {e.error for e in episodes if e.error}
    assert lost == {
        "StepTimeout: the environment took longer than 5 s and was killed",
        "RemoteFault: the environment's process died",
    }
    assert [e.task_id for e in episodes] == [t.id for t in tasks]
    figures = episode_metrics(episodes, world.mix)
    assert (figures["dropped"], figures["episodes"]) == (2, 6)
    assert sum(figures["dropped_at"].values()) == 2
    assert set(figures["dropped_at"]) <= {"describe", "schedule", "check", "submit"}
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_for_the_command_not_for_its_worlds():
    """A terminal sends it to all; a run that saves its state first needs them to its next step."""
    environment = make_environment(PlanOptions(workers=1))
    task = environment.tasks("train", 1, 0)[0]
    environment.reset(task)
    (process,) = multiprocessing.active_children()
    os.kill(process.pid, signal.SIGINT)
    assert environment.step(Action("")).messages
    assert multiprocessing.active_children() == [process]
    environment.close()


def test_faults_and_usage_errors_of_the_environment_come_through():
    environment = make_environment(PlanOptions(workers=1))
    assert isinstance(environment, RemoteEnvironment)
    task = environment.tasks("train", 1, 0)[0]
    broken = type(task)(task.id, task.kind, task.group, {"steps": {}})
    with pytest.raises(RemoteFault, match="KeyError: 'workers'"):
        environment.reset(broken)
    assert environment.reset(task).goal.startswith("Plan the steps")
    with pytest.raises(UsageError, match="unknown split 'dev'"):
        environment.tasks("dev", 1, 0)
    environment.close()
