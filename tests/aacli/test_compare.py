"""``aac compare`` as a person types it: real stages, tiny models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.common.manifest import read_manifest
from tests.tiny_models import tiny_llama

RECIPE = """
name: tiny
threads: 1
model: {{actor: {actor}}}
environment: {{name: sql, max_turns: 3}}
state: {{tool_prompt: none, max_tokens: 512}}
sft: {{demonstrations: 4, steps: 2, batch_size: 2, max_length: 700}}
rl:
  iterations: 3
  episodes: 4
  evaluate_every: 0
  evaluation_episodes: 2
  actor: {{max_new_tokens: 8, learning_rate: 1e-3}}
  critic: {{steps: 2, batch_size: 4, hidden_size: 8, warm_up: {{max_iterations: 1}}}}
  ppo: {{epochs: 1, minibatch_episodes: 2}}
  rewards: {{reward_model: 0}}
evaluation: {{episodes: 6}}
"""
STUDY = """
name: views
recipe: tiny.yaml
seeds: [0, 3]
set: {evaluation.episodes: 5}
variants:
  full: {}
  blind: {rl.critic.view.history: false, rl.critic.view.privileged: false}
"""
OUT = Path("runs/compare/views")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A working directory in which the study has run, and what the command printed."""
    place = tmp_path_factory.mktemp("place")
    (place / "tiny.yaml").write_text(RECIPE.format(actor=tiny_llama(place / "actor")))
    (place / "views.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return place, CliRunner().invoke(app, ["compare", "views.yaml", "--json"])


@pytest.fixture
def place(finished: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stamps(folder: Path) -> dict[str, int]:
    """When each file of the runs was written."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.parent != folder]
    return {str(p): p.stat().st_mtime_ns for p in files}


def test_every_variant_runs_under_every_seed_from_that_seeds_sft(finished):
    place, result = finished
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert found == json.loads((place / OUT / "compare.json").read_text())
    runs = [(row["variant"], row["seed"]) for row in found["rows"]]
    assert runs == [("full", 0), ("blind", 0), ("full", 3), ("blind", 3)]
    for row in found["rows"]:
        assert row["iterations"] == len(row["curve"]) == 3 and row["seconds"] > 0
        assert 0 < row["critic_share"] < 1 and 0 <= row["success"] <= 1
        manifest = read_manifest(place / row["folder"])
        assert manifest.seed == row["seed"]
        view = manifest.recipe["rl"]["critic"]["view"]
        assert view["history"] is view["privileged"] is (row["variant"] == "full")
        shared = read_manifest(place / OUT / f"seed-{row['seed']}/sft")
        assert manifest.parents["sft"]["hash"] == shared.content_hash and shared.stage == "sft"
    sfts = {p.relative_to(place / OUT) for p in (place / OUT).glob("**/sft*")}
    assert sfts == {Path("seed-0/sft"), Path("seed-3/sft")}
    hashes = {read_manifest(place / OUT / folder).content_hash for folder in sfts}
    assert len(hashes) == 2
    assert (found["episodes"], found["split"]) == (5, "test")
    assert set(found["summary"]) == {"full", "blind"} and set(found["differences"]) == {"blind"}
    assert found["summary"]["full"]["return"]["seeds"] == 2
    assert (place / OUT / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_people_see_a_line_for_each_run_and_a_table(finished):
    lines = finished[1].stderr.splitlines()
    assert lines[0] == "6 runs, 0 done before"
    done = [line.split("; ")[0] for line in lines if line.startswith("[")]
    assert [line.split(":")[0] for line in done] == [
        "[1/6] seed 0, sft",
        "[2/6] seed 0, full",
        "[3/6] seed 0, blind",
        "[4/6] seed 3, sft",
        "[5/6] seed 3, full",
        "[6/6] seed 3, blind",
    ]
    assert "success 0.0 %" in done[1] and lines[1].endswith(" left")
    assert not any(line.startswith(("sft:", "rl:")) for line in lines)  # the stages are silent
    table = "\n".join(lines)
    assert "study views: 2 variants, 2 seeds" in table and "minus full" in table


def test_what_is_finished_is_never_run_again(place, finished, aac, monkeypatch):
    from stages.study import jobs

    monkeypatch.setattr(jobs, "stage_function", None)
    monkeypatch.setattr(jobs, "measure_actor", None)
    before = stamps(OUT)
    again = aac("compare", "views.yaml", "--json", "--plot", "other/picture.png")
    assert again.exit_code == 0, again.output
    assert "6 runs, 6 done before" in again.stderr
    assert json.loads(again.stdout) == json.loads(finished[1].stdout)
    assert stamps(OUT) == before and Path("other/picture.png").is_file()
    quiet = aac("compare", "views.yaml", "-q")
    assert "done before" not in quiet.stdout and "minus full" in quiet.stdout


def test_a_larger_study_runs_only_what_is_new(place, aac):
    before = stamps(OUT)
    text = STUDY + "  late: {rl.ppo.gae_lambda: 1}\n"
    Path("views.yaml").write_text(text)
    result = aac("compare", "views.yaml", "--seeds", "3,", "--json")
    assert result.exit_code == 0, result.output
    assert [line for line in result.stderr.splitlines() if line.startswith("[")] != []
    assert "4 runs, 3 done before" in result.stderr
    found = json.loads(result.stdout)
    assert [(r["variant"], r["seed"]) for r in found["rows"]] == [
        ("full", 3), ("blind", 3), ("late", 3),
    ]  # fmt: skip
    assert found["summary"]["late"]["success"]["low"] is None  # one seed has no interval
    assert before.items() <= stamps(OUT).items()


def test_an_interrupted_study_goes_on(place, aac, monkeypatch):
    from stages.rl.player import Player

    shutil.rmtree(OUT / "seed-3/blind")
    shutil.rmtree(OUT / "seed-3/full/rl")
    before = stamps(OUT)
    real, played = Player.collect, []

    def cut(self: Any, iteration: int, version: int) -> Any:
        played.append(iteration)
        if len(played) == 6:  # in the last iteration of the second run
            raise KeyboardInterrupt
        return real(self, iteration, version)

    monkeypatch.setattr(Player, "collect", cut)
    words = ("compare", "views.yaml", "--set", "rl.checkpoint_every=0")
    assert aac(*words).exit_code == 130
    assert (OUT / "seed-3/full/rl/manifest.json").is_file()
    assert not (OUT / "seed-3/blind/rl/manifest.json").exists()
    full = stamps(OUT / "seed-3/full")
    played.extend(range(10))
    result = aac(*words, "--json")
    assert result.exit_code == 0, result.output
    assert "6 runs, 5 done before" in result.stderr and len(played) == 6 + 10 + 3
    assert len(json.loads(result.stdout)["rows"]) == 4
    assert before.items() <= stamps(OUT).items() and full == stamps(OUT / "seed-3/full")


def test_a_finished_run_of_another_recipe_is_refused_and_overwritten_when_told(place, aac):
    words = ("compare", "views.yaml", "--set", "rl.iterations=1", "--seeds", "0,")
    before = stamps(OUT)
    refused = aac(*words)
    assert refused.exit_code == 2 and "changed: rl.iterations" in refused.stderr
    assert "seed-0/full/rl was made with another recipe" in refused.stderr
    assert stamps(OUT) == before
    done = aac(*words, "--overwrite", "--json")
    assert done.exit_code == 0, done.output
    assert [row["iterations"] for row in json.loads(done.stdout)["rows"]] == [1, 1]
    assert stamps(OUT / "seed-0/sft").items().isdisjoint(before.items())


def test_a_failed_run_is_told_at_the_end_and_tried_again(place, aac):
    Path("views.yaml").write_text(STUDY + "  lost: {rl.critic.trunk: no/such/encoder}\n")
    for _ in range(2):
        result = aac("compare", "views.yaml")
        assert result.exit_code == 1
        assert "2 of 8 runs failed; the same command tries them again" in result.stderr
        assert "seed 3, lost: " in result.stderr and "no/such/encoder" in result.stderr
        assert "minus full" in result.stdout
        found = json.loads((OUT / "compare.json").read_text())
        assert len(found["rows"]) == 4 and set(found["failed"]) == {"seed 0, lost", "seed 3, lost"}


def test_sft_runs_of_another_study_are_used(place, aac):
    words = ("--vary", "rl.ppo.epochs=2", "--seeds", "1", "--sft-root", OUT)
    result = aac("compare", "tiny.yaml", *words, "--output-dir", "mine", "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["variant"], row["folder"]) == ("epochs=2", "mine/seed-0/epochs=2/rl")
    assert read_manifest(Path(row["folder"])).parents["sft"]["path"] == str(OUT / "seed-0/sft")
    assert not Path("mine/seed-0/sft").exists()


def test_a_dry_run_shows_what_is_left_and_trains_nothing(place, aac):
    shutil.rmtree(OUT / "seed-3")
    before = stamps(OUT)
    result = aac("compare", "views.yaml", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    states = {row["run"]: row["state"] for row in json.loads(result.stdout)["runs"]}
    assert [run for run, state in states.items() if state == "to do"] == [
        "seed 3, sft", "seed 3, full", "seed 3, blind",
    ]  # fmt: skip
    assert stamps(OUT) == before
    Path("views.yaml").write_text(STUDY + "  lost: {rl.critic.trunk: no/such/encoder}\n")
    bad = aac("compare", "views.yaml", "--dry-run")
    assert bad.exit_code == 2 and "seed 0, lost: " in bad.stderr and "no/such" in bad.stderr
    assert stamps(OUT) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tiny.yaml", "--vary", "rl.ppo.epoch=1,2"), "did you mean rl.ppo.epochs"),
        (("tiny.yaml", "--seeds", "none"), "--seeds none is not understood"),
        (("views.yaml", "--vary", "rl.iterations=1"), "names its variants"),
        (("views.yaml", "--resume", "there"), "aac compare takes auto or never"),
        (("nowhere.yaml",), "nowhere.yaml does not exist"),
        (("views.yaml", "--sft-root", "nowhere"), "--sft-root nowhere holds no finished"),
    ],
)
def test_bad_input_is_one_sentence(place, aac, words, sentence):
    result = aac("compare", *words)
    assert result.exit_code == 2 and result.stdout == ""
    assert sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1


@pytest.mark.full
def test_two_processes_give_the_same_runs(place, finished, aac):
    result = aac("compare", "views.yaml", "--output-dir", "two", "--jobs", 2, "--json")
    assert result.exit_code == 0, result.output
    ours, theirs = (json.loads(r.stdout)["rows"] for r in (result, finished[1]))
    timed = {"seconds", "critic_share", "folder"}
    for one, other in zip(ours, theirs, strict=True):
        assert {k: v for k, v in one.items() if k not in timed} == {
            k: v for k, v in other.items() if k not in timed
        }
    assert result.stderr.count("\n[") == 6 and "sft: " not in result.stderr.replace(", sft: ", "")
