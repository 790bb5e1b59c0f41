"""``aac compare`` on a study with ``supervision``: real stages, real supervisors, tiny models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.common.manifest import content_hash, read_manifest
from tests.aacli.test_compare import RECIPE
from tests.tiny_models import tiny_llama

STUDY = """
name: watched
recipe: tiny.yaml
seeds: [0]
set: {rl.iterations: 1, evaluation.episodes: 3}
variants:
  watcher:
    rl.critic.kind: q
    rl.critic.view.privileged: false
  later: {after: watcher, warm_start: watcher, rl.critic.kind: q, rl.critic.view.privileged: false}
supervision:
  actors: {sft: watcher, watcher: later}
  arms:
    none: {}
    screen-1: {by: critic}
    screen-3: {by: critic, proposals: 3}
    easy: {by: critic, proposals: 3, threshold: -100}
    review: {by: critic, mode: review}
    both: {by: critic, mode: both, proposals: 2}
    log-prob-3: {by: log-prob, proposals: 3}
"""
ARMS = ["none", "screen-1", "screen-3", "easy", "review", "both", "log-prob-3"]
OUT = Path("runs/compare/watched")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A working directory in which the study has run, and what the command printed."""
    place = tmp_path_factory.mktemp("place")
    (place / "tiny.yaml").write_text(RECIPE.format(actor=tiny_llama(place / "actor")))
    (place / "watched.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return place, CliRunner().invoke(app, ["compare", "watched.yaml", "--json"])


@pytest.fixture
def place(finished: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def figures(place: Path, actor: str, arm: str) -> dict[str, Any]:
    (file,) = (place / OUT / "seed-0/watched" / actor).glob(f"{arm}-*.json")
    content: dict[str, Any] = json.loads(file.read_text())["figures"]
    return content


def told(result: Any) -> list[str]:
    """The runs that were told of as they were done."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("[")]
    return [line.split("] ")[1].split(":")[0] for line in lines]


def test_both_actors_are_played_under_every_arm(finished):
    place, result = finished
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["supervision"]
    assert found["critics"] == {"sft": "watcher", "watcher": "later"}
    for actor in ("sft", "watcher"):
        rows = {row["arm"]: row for row in found["rows"] if row["actor"] == actor}
        assert list(rows) == ARMS
        proposals = {arm: rows[arm]["proposals_per_turn"] for arm in ARMS}
        assert proposals == dict(zip(ARMS, (1, 1, 3, 1, 1, 2, 3), strict=True))
        for arm, row in rows.items():
            assert (row["tokens_ratio"] > 1) is (proposals[arm] > 1)
            assert len(figures(place, actor, arm)["outcomes"]) == 3
            assert row["success"] == figures(place, actor, arm)["success"]
        alone = figures(place, actor, "none")
        for same in ("screen-1", "easy"):  # one proposal is what the actor would have done
            assert figures(place, actor, same) == alone


def test_arms_are_compared_with_the_first_task_by_task(finished):
    place, result = finished
    summary = json.loads(result.stdout)["supervision"]["summary"]["sft"]
    assert list(summary) == ARMS and "tasks" not in summary["none"]
    assert {arm: row["tasks"]["tasks"] for arm, row in summary.items() if arm != "none"} == (
        dict.fromkeys(ARMS[1:], 3)
    )
    page = (place / OUT / "supervision.md").read_text()
    assert "## sft, watched by the critic of watcher" in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| screen-3 |")]
    assert len(rows) == 2 and rows[0][1] == "3"
    assert "sft, under supervision" in result.stderr and "minus none" in result.stderr


def test_what_was_played_is_not_played_again_and_a_new_arm_is_alone(place, finished, aac):
    again = aac("compare", "watched.yaml", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads(finished[1].stdout) and told(again) == []
    Path("watched.yaml").write_text(STUDY + "    majority-2: {by: majority, proposals: 2}\n")
    more = aac("compare", "watched.yaml", "--json")
    assert told(more) == [f"seed 0, {a}, majority-2" for a in ("sft", "watcher")]
    assert len(json.loads(more.stdout)["supervision"]["rows"]) == 16


def test_another_critic_is_heard_again_by_those_it_watches(place, aac):
    weights = OUT / "seed-0/watcher/rl/critic/q/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4] ^= 1
    weights.write_bytes(bytes(content))
    again = aac("compare", "watched.yaml", "--json")
    assert again.exit_code == 0, again.output
    assert told(again) == [
        f"seed 0, sft, {arm}" for arm in ("screen-1", "screen-3", "easy", "review", "both")
    ]


def test_a_critic_is_trained_further_by_a_later_variant(finished):
    manifest = read_manifest(finished[0] / OUT / "seed-0/later/rl")
    lent = OUT / "seed-0/watcher/rl/critic"
    assert manifest.data[f"critic {lent}"] == content_hash(finished[0] / lent)
    assert manifest.parents["start"]["path"] == str(lent.parent)


def test_a_dry_run_names_what_is_left_to_be_played(place, aac):
    shutil.rmtree(OUT / "seed-0/watched/sft")
    result = aac("compare", "watched.yaml", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    left = [r["run"] for r in json.loads(result.stdout)["runs"] if r["state"] == "to do"]
    assert left == [f"seed 0, sft, {arm}" for arm in ARMS]
    assert not (OUT / "seed-0/watched/sft").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sft: watcher, ", "sft: nobody, ", "supervision.actors names nobody, expected variants"),
        ("{by: log-prob", "{by: log-prob, mode: both", "log-prob only ranks"),
        ("mode: review}", "mode: review, proposals: 2}", "review makes one proposal"),
        ("none: {}", "none: {proposals: 2}", "nobody watches"),
        ("none: {}", "a/b: {}", "names no folder"),
        ("{by: log-prob", "{by: reward", "arm log-prob-3 asks for the reward model"),
        ("by: log-prob", "by: logprob", "supervision.arms.log-prob-3.by"),
    ],
)
def test_bad_input_is_one_sentence(place, aac, old, new, said):
    assert old in STUDY
    Path("watched.yaml").write_text(STUDY.replace(old, new))
    result = aac("compare", "watched.yaml")
    assert result.exit_code == 2 and said in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
