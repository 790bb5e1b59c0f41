"""A run folder is never silently overwritten, half-written or confused with a person's files."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common.checkpoints import Origin
from stages.common.errors import HandoffError, UsageError
from stages.common.files import read_json, write_json
from stages.common.lock import lock, locked
from stages.common.manifest import Manifest
from stages.common.run_folder import (
    RunFolder,
    RunRequest,
    is_finished,
    read_rows,
    replaced,
    write_rows,
)

ORIGIN = Origin("recipe", "data", {"sft": "a"}, {"processes": 1, "mode": "one"})


@pytest.fixture
def request_(tmp_path: Path) -> RunRequest:
    return RunRequest(output_dir=tmp_path / "runs" / "demo" / "sft")


def manifest(stage: str = "sft") -> Manifest:
    return Manifest(
        stage=stage,
        recipe={},
        recipe_hash="",
        seed=0,
        versions={},
        base_model="base",
        content_hash="",
        files={},
        tokenizer_hash="",
        chat_template_hash="",
        state={},
    )


def finish(request: RunRequest, stage: str = "sft") -> RunFolder:
    run = RunFolder.open(request, stage)
    (run.path / "model.safetensors").write_bytes(b"weights")
    run.finish(manifest(stage), {"loss": 1.5})
    return run


def test_finish_writes_summary_and_manifest_and_marks_the_folder_finished(request_):
    run = RunFolder.open(request_, "sft")
    assert not is_finished(run.path)
    run.finish(manifest(), {"loss": 1.5})
    assert run.finished
    assert json.loads((run.path / "summary.json").read_text()) == {"loss": 1.5}
    assert Manifest.from_json(read_json(run.path / "manifest.json")) == manifest()
    assert sorted(p.name for p in run.path.iterdir()) == ["manifest.json", "summary.json"]


def test_finished_folder_is_refused_and_left_as_it_was(request_):
    run = finish(request_)
    with pytest.raises(HandoffError, match="--overwrite"):
        RunFolder.open(request_, "sft")
    assert run.finished and (run.path / "model.safetensors").read_bytes() == b"weights"


def test_overwrite_leaves_nothing_of_the_old_run(request_):
    run = finish(request_)
    (run.checkpoints / "checkpoint-5").mkdir(parents=True)
    run.metrics.write(1, {"a/b": 1.0})
    again = RunFolder.open(replace(request_, overwrite=True), "sft")
    assert not again.finished and again.checkpoint(ORIGIN) is None
    assert sorted(p.name for p in again.path.iterdir()) == [".aac-run.json", ".lock"]


def test_a_persons_own_folder_is_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="no run folder"):
            RunFolder.open(RunRequest(output_dir=tmp_path, overwrite=overwrite), "sft")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_folder_of_another_stage_is_refused_even_with_overwrite(request_):
    finish(request_)
    with pytest.raises(UsageError, match="belongs to the stage 'sft'"):
        RunFolder.open(replace(request_, overwrite=True), "rl")


def test_output_dir_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.open(RunRequest(output_dir=tmp_path / "out"), "sft")


def test_dry_run_checks_but_writes_nothing(request_):
    RunFolder.open(replace(request_, dry_run=True), "sft")
    assert not request_.output_dir.exists()
    finish(request_)
    with pytest.raises(HandoffError):
        RunFolder.open(replace(request_, dry_run=True), "sft")
    RunFolder.open(replace(request_, dry_run=True, overwrite=True), "sft")
    assert is_finished(request_.output_dir)


def saved(run: RunFolder, step: int, origin: Origin = ORIGIN) -> Path:
    """A checkpoint of one file."""
    with run.new_checkpoint(step, origin) as place:
        (place / "state.pt").write_bytes(b"weights" * step)
    return run.checkpoints / f"checkpoint-{step}"


def test_unfinished_run_goes_on_from_its_newest_checkpoint(request_):
    run = RunFolder.open(request_, "sft")
    run.metrics.write(9, {"sft/loss": 1.0})
    saved(run, 9)
    run.metrics.write(10, {"sft/loss": 0.5})
    newest = saved(run, 10)
    (run.checkpoints / "best").mkdir()
    with (run.path / "alarms.jsonl").open("w") as file:
        file.write('{"step": 11')  # as a kill leaves it
    run.metrics.write(11, {"sft/loss": 0.4})
    again = RunFolder.open(request_, "sft")
    assert again.checkpoint(ORIGIN) == newest
    assert [row["step"] for row in again.metrics.rows()] == [9, 10]  # cut back
    assert not (run.path / "alarms.jsonl").exists()


def test_going_on_from_an_older_checkpoint_leaves_the_newer_ones(request_):
    run = RunFolder.open(request_, "sft")
    for step in (4, 9):
        run.metrics.write(step, {"sft/loss": 1.0})
        saved(run, step)
    named = RunFolder.open(replace(request_, resume=str(run.checkpoints / "checkpoint-4")), "sft")
    assert named.checkpoint(ORIGIN) == run.checkpoints / "checkpoint-4"
    assert [p.name for p in run.checkpoints.iterdir()] == ["checkpoint-4"]
    assert [row["step"] for row in named.metrics.rows()] == [4]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"recipe": "b"}, "with another recipe"),
        ({"data": "b"}, "with other training data"),
        ({"parents": {"sft": "b"}}, "with another sft than there is now"),
        ({"parents": {}}, "with another sft"),
        ({"launch": {"processes": 2, "mode": "zero3"}}, "this is a run of 2 processes (zero3)"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_and_nothing_changes(request_, other, words):
    run = RunFolder.open(request_, "sft")
    saved(run, 3)
    run.metrics.write(4, {"sft/loss": 1.0})
    again = RunFolder.open(request_, "sft")
    with pytest.raises(UsageError, match="--resume never") as caught:
        again.checkpoint(replace(ORIGIN, **other))
    assert words in str(caught.value) and "checkpoint-3 was made" in str(caught.value)
    assert len(again.metrics.rows()) == 1


def test_resume_never_starts_from_nothing(request_):
    run = RunFolder.open(request_, "sft")
    saved(run, 9)
    fresh = RunFolder.open(replace(request_, resume="never"), "sft")
    assert fresh.checkpoint(ORIGIN) is None and not run.checkpoints.exists()


def test_unfinished_run_without_checkpoint_starts_its_metrics_anew(request_):
    RunFolder.open(request_, "sft").metrics.write(1, {"sft/loss": 1.0})
    assert RunFolder.open(request_, "sft").metrics.rows() == []


def test_named_checkpoint_must_exist(request_, tmp_path):
    with pytest.raises(UsageError, match="no checkpoint folder"):
        RunFolder.open(replace(request_, resume=str(tmp_path / "nowhere")), "sft")
    assert not request_.output_dir.exists()
    run = RunFolder.open(request_, "sft")
    (run.path / ".lock").unlink()
    with pytest.raises(UsageError, match="no checkpoint folder"):
        RunFolder.open(replace(request_, resume=str(tmp_path / "nowhere")), "sft")
    assert [p.name for p in run.path.iterdir()] == [".aac-run.json"]  # as it was


def test_metrics_are_json_lines(request_):
    metrics = RunFolder.open(request_, "rl").metrics
    for step in (1, 2):
        metrics.write(step, {"reward/total": step / 2, "actor/kl": math.nan})
    with metrics.path.open("a") as file:
        file.write('{"step": 4, "reward/to')  # as a kill leaves it
    assert metrics.rows() == [
        {"step": 1, "reward/total": 0.5, "actor/kl": None},
        {"step": 2, "reward/total": 1.0, "actor/kl": None},
    ]


def test_write_json_keeps_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Circular"):
        loop: list = []
        loop.append(loop)
        write_json(path, loop)
    assert read_json(path) == {"a": 1}


def test_read_json_says_what_is_wrong(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        read_json(tmp_path / "b.json")


def test_rows_for_a_later_stage(tmp_path):
    assert read_rows(tmp_path) == []
    rows = [{"input_ids": [1, 2], "action_mask": [False, True]}, {"input_ids": []}]
    write_rows(tmp_path, iter(rows))
    assert read_rows(tmp_path) == rows
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_bad_input_found_late_leaves_nothing_and_brings_the_old_run_back(tmp_path):
    run = RunFolder.open(RunRequest(tmp_path / "new"), "sft")
    with pytest.raises(UsageError), run.undone_on_bad_input():
        raise UsageError("row 7 is empty")
    assert not (tmp_path / "new").exists()

    old = tmp_path / "old"
    first = RunFolder.open(RunRequest(old), "sft")
    write_json(first.path / "manifest.json", {"stage": "sft"})
    (old / "weights").write_text("precious")
    again = RunFolder.open(RunRequest(old, overwrite=True), "sft")
    assert not (old / "weights").exists()
    with pytest.raises(UsageError), again.undone_on_bad_input():
        raise UsageError("row 7 is empty")
    assert (old / "weights").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_overwriting_a_half_done_overwrite_keeps_the_finished_run(request_):
    """It was the last that ran to its end; the half-done one is worth nothing."""
    run = finish(request_)
    over = replace(request_, overwrite=True)
    (RunFolder.open(over, "sft").path / "half").write_text("done")
    again = RunFolder.open(over, "sft")
    assert not (again.path / "half").exists()
    assert (replaced(run.path) / "model.safetensors").read_bytes() == b"weights"
    with pytest.raises(UsageError), again.undone_on_bad_input():
        raise UsageError("row 7 is empty")
    assert is_finished(run.path) and not replaced(run.path).exists()


def test_a_half_done_overwrite_goes_on_without_overwrite(request_):
    finish(request_)
    first = RunFolder.open(replace(request_, overwrite=True), "sft")
    saved(first, 3)
    again = RunFolder.open(request_, "sft")
    assert again.checkpoint(ORIGIN) == first.checkpoints / "checkpoint-3"
    again.finish(manifest(), {})
    assert not replaced(again.path).exists() and not again.checkpoints.exists()


HOLDER = """
import sys, time
from pathlib import Path
from stages.common.lock import lock
lock(Path(sys.argv[1]))
print("in", flush=True)
time.sleep(600)
"""


@pytest.fixture
def intruder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that writes into ``tmp_path/run``."""
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None and process.stdout.readline() == "in\n"
    yield process, tmp_path / "run"
    process.kill()
    process.communicate()


def test_two_processes_do_not_write_into_one_folder(intruder):
    process, path = intruder
    for options in ({}, {"overwrite": True}, {"resume": "never"}):
        with pytest.raises(UsageError) as caught:
            RunFolder.open(RunRequest(path, **options), "sft")
        assert f"is being written by process {process.pid} of " in str(caught.value)
        assert caught.value.exit_code == 2
    assert [p.name for p in path.iterdir()] == [".lock"]
    process.kill()  # a lock of a dead process is no obstacle
    process.wait()
    assert finish(RunRequest(path)).finished
    assert not (path / ".lock").exists()


def test_a_lock_that_was_given_back_lets_others_in(tmp_path):
    with locked(tmp_path):
        lock(tmp_path)  # the same process may come again
        refused = subprocess.run(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert f"is being written by process {os.getpid()} of" in refused.stderr
    assert list(tmp_path.iterdir()) == []
