"""Every alarm caused in a real run of ``aac rl``; what a run leaves for a person, and its use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.evaluation.report.picking import training_files
from stages.evaluation.report.runs import lines, read_run
from stages.evaluation.report.weighing import Payer
from stages.interaction.trajectory import Trajectory
from stages.rl.monitor import ALARMS
from tests.adapted import World, rows, tensors
from tests.rl.alarm_table import WOLF
from tests.rl.sick_runs import CRITIC, HEALTHY, SICK, SickRun, prepared, started
from tests.rl.sick_worlds import letters

CHEAP = ("a component is farmed at a reckless rate", "a reward that is no number")
"""In the default set; all others are slow together."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return prepared(tmp_path_factory.mktemp("caused"))


def told(folder: Path) -> list[dict[str, Any]]:
    file = folder / "alarms.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def aac(*words: Any, keys: str = "") -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], input=keys)


def test_there_is_a_run_for_every_alarm() -> None:
    assert {run.alarm for run in SICK.values()} == set(ALARMS)


@pytest.mark.parametrize(
    "name", [n if n in CHEAP else pytest.param(n, marks=pytest.mark.full) for n in SICK]
)
def test_its_cause_raises_the_alarm(name: str, world: World) -> None:
    run, folder = SICK[name], f"run-{list(SICK).index(name)}"
    done = started(world, folder, run)
    assert done.exit_code == run.exit_code, done.stderr
    said = [row for row in told(world.root / folder) if row["alarm"] == run.alarm]
    assert said and ALARMS[str(run.alarm)].cure == said[0]["cure"]
    assert f"alarm {run.alarm} at iteration {said[0]['step']}: " in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_raise_none(name: str, world: World) -> None:
    folder = f"healthy-{list(HEALTHY).index(name)}"
    assert started(world, folder, HEALTHY[name]).exit_code == 0
    assert {row["alarm"] for row in told(world.root / folder)} == WOLF.get(name, set())


def test_what_is_no_number_never_reaches_the_weights(world: World) -> None:
    run = SICK["a reward that is no number"]
    done = started(world, "nothing", run)
    assert done.exit_code == 1 and "Traceback" not in done.stderr
    assert "nothing was learned from these episodes" in done.stderr.splitlines()[-1]
    assert not (world.root / "nothing/model.safetensors").exists()
    assert not (world.root / "nothing/metrics.jsonl").exists()  # not one iteration was finished


@pytest.fixture(scope="module")
def farmed(world: World) -> Path:
    """The run that farms letters, with its audit folder."""
    over = {"rl__iterations": 6, "rl__evaluate_every": 2}
    assert started(world, "farmed", SICK[CHEAP[0]], **over).exit_code == 0
    return world.root / "farmed"


def test_each_evaluation_leaves_episodes_to_audit(farmed: Path) -> None:
    kept = json.loads(aac("audit", farmed, "--json").stdout)["picks"]
    assert {row["step"] for row in kept} == {2, 4, 6}
    assert all(row["reasons"] and row["turns"][0]["said"] for row in kept)
    farms = [row for row in kept if "without success, most of it by wordy" in str(row["reasons"])]
    assert farms and letters(farms[0]["turns"][0]["said"]) > 12
    assert not any("prompt_ids" in row["turns"][0] for row in kept)


def test_a_persons_keys_become_verdicts(farmed: Path) -> None:
    both = aac("audit", farmed, "--ask", "--pick", "x", "--verdict", "bad")
    assert both.exit_code == 2 and "give one of them" in both.stderr
    shown = aac("audit", farmed, "--ask", keys="x\nb 9\nb 1\ng\nq\n")
    assert shown.exit_code == 0, shown.stderr
    assert "x is no key" in shown.stdout and "turn 9 of" in shown.stdout
    verdicts = json.loads((farmed / "audit/verdicts.json").read_text())
    assert [row["verdict"] for row in verdicts.values()] == ["bad", "good"]
    read = aac("audit", farmed, "--show")
    assert max(map(len, read.stdout.splitlines())) <= 80
    assert "verdict: bad in turns 1" in read.stdout


def test_verdicts_become_penalties_that_the_actor_learns_from(world: World, farmed: Path) -> None:
    """All that the farming actor said in its last evaluation is marked; a fresh actor that starts
    there, with the same reward and the verdicts beside it, says it less often."""
    kept = json.loads(aac("audit", farmed, "--json").stdout)["picks"]
    for row in (row for row in kept if row["step"] == 6):
        done = aac("audit", farmed, "--pick", row["id"], "--verdict", "bad")
        assert done.exit_code == 0, done.stderr
    verdicts = {"verdicts": str(farmed / "audit/verdicts.json"), "similarity": 0.3}
    run = SICK[CHEAP[0]]
    over = {
        "rl__rewards__audited": verdicts,
        "rl__rewards__weights": {"wordy": 5.0, "audited": -10.0},
        "rl__iterations": 6,
    }
    assert started(world, "fined", run, **over).exit_code == 0
    before, after = rows(farmed), rows(world.root / "fined")
    assert min(row["reward/audited"] for row in after) < 0  # it is caught at it
    assert all(row["reward/audited"] == 0 for row in before)
    assert after[-1]["reward/wordy"] < before[-1]["reward/wordy"]
    fines = [row["reward/audited"] for row in after]
    assert fines[-1] > min(fines)


def test_verdicts_without_a_bad_one_are_refused(world: World, farmed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "verdicts.json"
    empty.write_text("{}")
    words = world.refused(
        "rl", "--sft", world.root / "sft", rl__rewards__audited={"verdicts": str(empty)}
    )
    assert "marks no action as bad" in words


def test_report_is_one_page_that_tells_it_all(farmed: Path) -> None:
    done = aac("report", farmed)
    assert done.exit_code == 0, done.stderr
    page = (farmed / "report.html").read_text()
    alarm = told(farmed)[0]["alarm"]
    for word in (alarm, "actor/kl", "95 % interval", "without success"):
        assert word in page
    assert "first evaluation (iteration 2)" in done.stdout and alarm in done.stdout
    data = json.loads(aac("report", farmed, "--json", "--output", farmed / "x.html").stdout)
    assert [row["step"] for row in data["alarms"]] == [row["step"] for row in told(farmed)]
    assert (farmed / "x.html").read_text() == page


def test_report_pays_what_training_paid(farmed: Path) -> None:
    """The mean over an iteration's episodes, paid anew from its folder, is what it logged."""
    run = read_run(farmed)
    payer = Payer(run)
    for step, file in training_files(farmed).items():
        paid = [payer(Trajectory.from_json(row), step) for row in lines(file)]
        for name in ("success", "wordy"):
            mean = sum(turn.get(name, 0.0) for turns in paid for turn in turns) / len(paid)
            assert mean == pytest.approx(rows(farmed)[step - 1][f"reward/{name}"], abs=1e-9)


def test_report_of_no_run_is_refused(tmp_path: Path) -> None:
    done = aac("report", tmp_path)
    assert done.exit_code == 2 and "holds no metrics.jsonl of a stage" in done.stderr


def test_the_clean_check_compares_with_the_sft_actor(world: World, farmed: Path) -> None:
    summary = json.loads((farmed / "summary.json").read_text())
    table = rows(farmed)
    assert summary["clean"]["sft"]["clean/perplexity"] > 1
    for row in (row for row in table if "clean/perplexity" in row):
        ratio = row["clean/perplexity"] / summary["clean"]["sft"]["clean/perplexity"]
        assert row["clean/perplexity_ratio"] == pytest.approx(ratio, rel=1e-9)
    assert [row["step"] for row in table if "clean/perplexity" in row] == [2, 4, 6]


def test_an_actor_that_forgot_too_much_is_never_the_best(world: World) -> None:
    """The first evaluation is within the bound by far, the second is not but succeeds as much."""
    run = SICK["a rate a hundred times too large"]
    over = {"rl__iterations": 4, "rl__keep": "best", "rl__forgetting__max_perplexity": 1.0001}
    done = started(world, "none-fit", run, **over)
    assert done.exit_code == 0
    end = json.loads((world.root / "none-fit/summary.json").read_text())
    assert end["best"] == {}
    assert "the last actor is kept" in done.stderr
    off = started(world, "off", run, **{**over, "rl__forgetting__every": 0})
    assert off.exit_code == 0 and "clean" not in json.loads(
        (world.root / "off/summary.json").read_text()
    )
    assert json.loads((world.root / "off/summary.json").read_text())["best"]["step"] in (2, 4)
    assert tensors(world.root / "off").keys() == tensors(world.root / "none-fit").keys()


def test_the_entropy_bonus_decays_and_each_model_has_a_rate(world: World) -> None:
    """0.05 to 0.01 in a straight line over four iterations, by hand; the actor's rate stays."""
    critic = {**CRITIC, "kind": "v", "learning_rate": 0.007}
    bonus = {"rl__ppo__entropy_coef": 0.05, "rl__ppo__entropy_coef_final": 0.01}
    run = SickRun(None, {**bonus, "rl__critic": critic, "rl__iterations": 4})
    assert started(world, "decays", run).exit_code == 0
    table = rows(world.root / "decays")
    line = [0.05, 0.05 - 0.04 / 3, 0.05 - 0.08 / 3, 0.01]
    assert [row["actor/entropy_coef"] for row in table] == pytest.approx(line, rel=1e-9)
    assert {row["actor/learning_rate"] for row in table} == {0.002}
    assert {row["critic/learning_rate"] for row in table} == {0.007}
