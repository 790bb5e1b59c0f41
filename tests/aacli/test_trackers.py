"""Trackers are told what metrics.jsonl is told, by the same names; read back from what they keep.

TensorBoard is in the dev extra; the others are tested where their packages are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.common import trackers
from stages.common.errors import UsageError
from stages.common.run_folder import RunFolder, RunRequest
from tests.tiny_models import tiny_llama

RECIPE = """
name: tiny
threads: 1
model: {{actor: {actor}}}
environment: {{name: sql, max_turns: 2}}
state: {{tool_prompt: none, max_tokens: 400}}
sft: {{data: dialogues.jsonl, steps: 2, batch_size: 2, validation_fraction: 0.3}}
reward: {{data: pairs.jsonl, batch_size: 2, max_length: 300, held_out_fraction: 0.3}}
rl:
  iterations: 2
  episodes: 2
  evaluate_every: 0
  evaluation_episodes: 2
  actor: {{max_new_tokens: 4, learning_rate: 0.001}}
  critic: {{steps: 1, batch_size: 2, hidden_size: 8, warm_up: {{max_iterations: 0}}}}
  ppo: {{epochs: 1, minibatch_episodes: 2}}
  rewards: {{reward_model: 0}}
"""
Curves = dict[str, dict[int, float]]


def furnished(tmp_path: Path) -> Path:
    """tiny.yaml, its model and its data."""
    (tmp_path / "tiny.yaml").write_text(RECIPE.format(actor=tiny_llama(tmp_path / "actor")))
    rows = [{"prompt": f"say {k}", "completion": f"the answer is {k}"} for k in range(8)]
    (tmp_path / "dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [{"prompt": f"how many {k}?", "chosen": f"{k}", "rejected": f"no {k} {k}"}
             for k in ("orders", "tables", "goals", "units", "answers", "errors")]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return tmp_path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folder, in which nothing is sent anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return furnished(tmp_path)


def written(folder: Path) -> Curves:
    """Name -> step -> value, by metrics.jsonl."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curves: Curves = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and value is not None:
                curves.setdefault(name, {})[row["step"]] = value
    return curves


def by_tensorboard(folder: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {
        name: {event.step: event.value for event in read.Scalars(name)}
        for name in read.Tags()["scalars"]
    }


def by_mlflow(folder: Path) -> Curves:
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("aac")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    run = runs[f"tiny-{folder.name}"]
    assert run.info.status == "FINISHED"
    names = run.data.metrics
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    return {name: {m.step: m.value for m in rows} for name, rows in histories.items()}


READERS: dict[str, Callable[[Path], Curves]] = {"tensorboard": by_tensorboard, "mlflow": by_mlflow}


def test_all_three_stages_tell_tensorboard_what_they_write(place, aac):
    pytest.importorskip("tensorboard")
    done = aac("run", "tiny.yaml", "--set", "tracking.report_to=[tensorboard]",
               "--set", "rl.rewards.reward_model=0.1", "--set", "evaluation.episodes=2",
               "--set", "evaluation.readiness=false")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    for stage, name in (("sft", "sft/loss"), ("reward", "reward/loss"), ("rl", "reward/total")):
        folder = Path("runs/tiny") / stage
        found, expected = by_tensorboard(folder), written(folder)
        assert name in expected
        assert found.keys() == expected.keys()
        for curve in expected:
            assert found[curve] == pytest.approx(expected[curve], rel=1e-5)
    assert "reward/held_out_accuracy" in by_tensorboard(Path("runs/tiny/reward"))
    assert not list(Path("runs").glob("*_*")), "an event file lies outside of its run"


@pytest.mark.full
def test_mlflow_has_a_run_of_each_stage(place, aac):
    pytest.importorskip("mlflow")
    for stage in ("sft", "rl"):
        done = aac(stage, "tiny.yaml", "--set", "tracking.report_to=[mlflow]")
        assert done.exit_code == 0, done.stderr
        folder = Path("runs/tiny") / stage
        found, expected = by_mlflow(folder), written(folder)
        assert found.keys() == expected.keys()
        for curve in expected:
            assert found[curve] == pytest.approx(expected[curve], rel=1e-5)


@pytest.mark.full
def test_wandb_offline_keeps_a_run_for_later(place, aac):
    pytest.importorskip("wandb")
    words = ("--set", "tracking.report_to=[wandb]", "--set", "tracking.project=teas")
    done = aac("sft", "tiny.yaml", *words)
    assert done.exit_code == 0, done.stderr
    assert "wandb:" not in done.stdout + done.stderr
    (kept,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert b"sft/loss" in content and b"train/loss" not in content and b"teas" in content


@pytest.mark.full
def test_trackio_keeps_its_own_database(place, aac):
    pytest.importorskip("trackio")
    done = aac("sft", "tiny.yaml", "--set", "tracking.report_to=[trackio]")
    assert done.exit_code == 0, done.stderr
    assert "Trackio" not in done.stdout + done.stderr
    content = b"".join(p.read_bytes() for p in Path("trackio").rglob("*") if p.is_file())
    assert b"sft/loss" in content and b"train/loss" not in content


def test_what_is_not_installed_is_named_before_anything_is_done(place, aac, monkeypatch):
    real = trackers.find_spec
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "wandb" else real(name))
    for command in ("sft", "run", "rl"):
        result = aac(command, "tiny.yaml", "--set", "tracking.report_to=[wandb]")
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr == (
            "aac: tracking.report_to has 'wandb', but the Python package wandb is not installed; "
            "run pip install wandb, or take the name out.\n"
        )
    assert not Path("runs").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    """wandb makes a folder wandb where it runs, which Python takes for a package."""
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(UsageError, match="pip install trackio"):
        trackers.check_trackers(["trackio"])


def test_an_unknown_tracker_is_told_the_known(place, aac):
    result = aac("sft", "tiny.yaml", "--set", "tracking.report_to=[tensorbord]")
    assert result.exit_code == 2
    assert "tracking.report_to.0 = 'tensorbord' is not allowed" in result.stderr
    assert "did you mean tensorboard" in result.stderr


class Fragile:
    """An integration that stops working after its first step."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, dict[str, float]]] = []
        self.ended = False

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        pass

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any, model: Any) -> None:
        if self.heard:
            raise OSError("no route to host\nmore")
        self.heard.append((state.global_step, logs))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.ended = True


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Fragile:
    made = Fragile()
    monkeypatch.setattr(trackers, "_integration", lambda name, folder: made)
    return made


def test_a_tracker_that_fails_is_let_go_and_training_goes_on(tmp_path, fragile, capsys):
    folder = RunFolder.open(RunRequest(tmp_path / "run"), "sft")
    trainer = SimpleNamespace(args=SimpleNamespace(project="p"), model=None)
    with trackers.tracked(["mlflow"], trainer, folder):
        for step in (1, 2, 3):
            folder.metrics.write(step, {"sft/loss": 1.5, "sft/nothing": float("nan")})
    assert len(folder.metrics.rows()) == 3
    assert fragile.heard == [(1, {"sft/loss": 1.5})]
    told = "mlflow is told nothing more, as it failed at step 2: no route to host.\n"
    assert capsys.readouterr().err == told


def test_a_tracker_that_does_not_start_is_told_in_one_sentence(tmp_path, fragile, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no key given.\nhelp")

    monkeypatch.setattr(fragile, "on_train_begin", refuse)
    folder = RunFolder.open(RunRequest(tmp_path / "run"), "sft")
    trainer = SimpleNamespace(args=SimpleNamespace(project="p"), model=None)
    expected = r"has 'mlflow', which does not start \(no key given\); set it up"
    with pytest.raises(UsageError, match=expected), trackers.tracked(["mlflow"], trainer, folder):
        pytest.fail("entered")
