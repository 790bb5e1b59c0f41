"""The shipped recipe with a hole in its reward: with roll-backs it ends well, without them not.

(The short form of this, in a world of one turn, is in ``test_alarms``.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app

RECIPE = Path(__file__).parents[2] / "recipes/hackable.yaml"
ONLY_WARN = [
    f"rl.{setting}"
    for setting in (
        "keep=last",
        "monitor.reward_hacking=warn",
        "monitor.repetition=warn",
        "monitor.out_of_budget=warn",
    )
]


def aac(command: str, out: Path, *words: str, sets: list[str]) -> None:
    flags = [word for text in sets for word in ("--set", text)]
    line = [command, str(RECIPE), "--output-dir", str(out), *words, *flags, "--quiet"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.stderr


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.full
def test_roll_backs_save_what_farming_ruins(tmp_path: Path) -> None:
    sft = tmp_path / "sft"
    aac("sft", sft, sets=[])
    for name, sets in (("saved", []), ("ruined", ONLY_WARN)):
        aac("rl", tmp_path / name, "--sft", str(sft), sets=sets)
    ruined = [row["success"] for row in told(tmp_path / "ruined", "evaluations.jsonl")]
    table = told(tmp_path / "ruined", "metrics.jsonl")
    assert table[-1]["reward/total"] > table[0]["reward/total"] + 0.1  # it pays, and
    assert ruined[-1] < max(ruined) - 0.3
    assert any(
        row["alarm"] == "reward_hacking" for row in told(tmp_path / "ruined", "alarms.jsonl")
    )
    summary = json.loads((tmp_path / "saved/summary.json").read_text())
    assert summary["rollbacks"] >= 1
    assert summary["validation_success"] >= summary["best"]["success"] - 0.05
