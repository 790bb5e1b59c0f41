"""A run folder is never silently overwritten, half-written or confused with a person's files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common.errors import HandoffError, UsageError
from stages.common.manifest import Manifest
from stages.common.run_folder import (
    RunFolder,
    RunRequest,
    is_finished,
    read_json,
    read_rows,
    write_json,
    write_rows,
)


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
    assert not again.finished and again.checkpoint() is None
    assert [p.name for p in again.path.iterdir()] == [".aac-run.json"]


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


def test_unfinished_run_resumes_from_its_newest_whole_checkpoint(request_):
    run = RunFolder.open(request_, "sft")
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11.tmp", "best"):
        (run.checkpoints / name).mkdir(parents=True)
    run.metrics.write(9, {"sft/loss": 1.0})
    again = RunFolder.open(request_, "sft")
    assert again.checkpoint() == run.checkpoints / "checkpoint-10"
    assert len(again.metrics.rows()) == 1


def test_resume_never_starts_from_nothing(request_):
    run = RunFolder.open(request_, "sft")
    (run.checkpoints / "checkpoint-9").mkdir(parents=True)
    fresh = RunFolder.open(replace(request_, resume="never"), "sft")
    assert fresh.checkpoint() is None and not run.checkpoints.exists()


def test_unfinished_run_without_checkpoint_starts_its_metrics_anew(request_):
    RunFolder.open(request_, "sft").metrics.write(1, {"sft/loss": 1.0})
    assert RunFolder.open(request_, "sft").metrics.rows() == []


def test_named_checkpoint_must_exist(request_, tmp_path):
    with pytest.raises(UsageError, match="no checkpoint folder"):
        RunFolder.open(replace(request_, resume=str(tmp_path / "nowhere")), "sft")
    assert not request_.output_dir.exists()


def test_metrics_are_json_lines_and_can_be_cut_back(request_):
    metrics = RunFolder.open(request_, "rl").metrics
    for step in (1, 2, 3):
        metrics.write(step, {"reward/total": step / 2, "actor/kl": math.nan})
    with metrics.path.open("a") as file:
        file.write('{"step": 4, "reward/to')  # as a kill leaves it
    metrics.keep_until(2)
    assert [json.loads(line) for line in metrics.path.read_text().splitlines()] == [
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
