"""The scheduler: order, several processes, failures, interrupts, time left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stages.common.errors import RunError
from stages.study.jobs import execute, threads_each, time_left
from tests.study.work import Toy, perform


def toys(folder: Path, **deeds: str) -> list[Toy]:
    """a; then b and c on a; then d on b and c."""
    needs = {"a": "", "b": "a", "c": "a", "d": "bc"}
    return [
        Toy(folder / name, {p: folder / p for p in parents}, deeds.get(name, ""))
        for name, parents in needs.items()
    ]


def test_every_task_runs_here_after_those_it_needs(tmp_path):
    told = []
    tell = lambda task, s: told.append((task.folder.name, s))  # noqa: E731
    assert execute(toys(tmp_path), perform, workers=1, tell=tell) == {}
    assert told == [(name, 1.5) for name in "abcd"]
    assert {int((tmp_path / name).read_text()) for name in "abcd"} == {os.getpid()}


def test_two_processes_work_at_once_and_each_task_waits_for_its_own(tmp_path):
    """The listener ends only when the speaker runs beside it, and ``late`` needs the listener."""
    os.mkfifo(tmp_path / "pipe")
    listener = Toy(tmp_path / "listener", deed="listen")
    late = Toy(tmp_path / "late", {"sft": listener.folder})
    speaker = Toy(tmp_path / "speaker", deed="speak")
    told: list[str] = []
    failed = execute(
        [listener, late, speaker],
        perform,
        workers=2,
        tell=lambda task, s: told.append(task.folder.name),
    )
    assert failed == {} and sorted(told) == ["late", "listener", "speaker"]
    assert told.index("late") > told.index("listener")
    assert str(os.getpid()) not in {(tmp_path / name).read_text() for name in told}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_failure_stops_only_what_needs_it(tmp_path, workers):
    told: list[str] = []
    failed = execute(
        toys(tmp_path, b="fail"),
        perform,
        workers=workers,
        tell=lambda task, s: told.append(task.folder.name),
    )
    assert sorted(told) == ["a", "c"]
    assert failed == {
        tmp_path / "b": "ValueError: it cannot be done",
        tmp_path / "d": f"needs {tmp_path / 'b'}, which failed",
    }


def test_an_interrupt_ends_everything(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        execute(toys(tmp_path, b="interrupt"), perform, workers=1, tell=lambda task, s: None)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_interrupt_ends_the_other_processes(tmp_path):
    import multiprocessing

    def interrupted(task: Toy, seconds: float) -> None:
        if task.folder.name == "c":
            raise KeyboardInterrupt

    os.mkfifo(tmp_path / "pipe")  # b listens at it for ever
    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        execute(toys(tmp_path, b="listen"), perform, workers=2, tell=interrupted)
    assert set(multiprocessing.active_children()) == before
    assert {p.name for p in tmp_path.iterdir()} == {"a", "c", "pipe"}


def test_a_worker_that_dies_is_told_of(tmp_path):
    with pytest.raises(RunError, match=r"a worker process died .* fewer --jobs"):
        execute(toys(tmp_path, b="die"), perform, workers=2, tell=lambda task, s: None)


def test_time_left_by_stage():
    took = [("sft", 10.0), ("rl", 30.0), ("rl", 50.0)]
    assert time_left(took, ["rl", "rl", "sft"], 1) == pytest.approx(40 + 40 + 10)
    assert time_left(took, ["rl", "rl", "sft"], 2) == pytest.approx(45)
    assert time_left(took, ["rl"], 2) == pytest.approx(40)
    assert time_left(took, ["reward"], 1) == pytest.approx(30)  # unseen: the mean of all
    assert time_left([], ["rl"], 1) is None


@pytest.mark.parametrize(
    ("asked", "workers", "threads"),
    [(None, 1, None), (6, 1, 6), (None, 2, 4), (2, 2, 2), (8, 2, 4), (None, 16, 1)],
)
def test_workers_share_the_cores(asked, workers, threads):
    assert threads_each(asked, workers, cores=8) == threads
