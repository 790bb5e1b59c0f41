"""A roll-back in two processes: one decides, all go back to the same weights at the same rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_commands import (
    alone,
    rows,
    together,
    words,
)

SICK = (
    "rl.iterations=5",
    "rl.evaluate_every=1",
    "rl.evaluation_episodes=4",
    "rl.actor.learning_rate=0.01",
    "rl.ppo.epochs=4",
    "rl.monitor.clip_fraction=roll_back",
    "rl.monitor.max_rollbacks=9",
)


@pytest.mark.full
def test_two_processes_roll_back_as_one_does(tmp_path: Path) -> None:
    sft = tmp_path / "sft"
    alone(*words("sft", sft))
    given = ("--sft", str(sft), "--no-reward")
    alone(*words("rl", tmp_path / "one", *given, sets=SICK))
    together("ddp", *words("rl", tmp_path / "two", *given, sets=SICK))
    told = [
        [json.loads(line) for line in (tmp_path / name / "alarms.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    steps = [[(row["step"], row["alarm"], row["done"]) for row in lines] for lines in told]
    assert steps[0] == steps[1]
    assert any("back to the actor of iteration" in done for _, _, done in steps[0])
    one, two = (rows(tmp_path / name) for name in ("one", "two"))
    assert [r["evaluation/success"] for r in one] == [r["evaluation/success"] for r in two]
    # The weights are not compared: the rate that makes a run sick also blows up last digits.
    assert len({json.dumps(best(tmp_path / name)) for name in ("one", "two")}) == 1


def best(run: Path) -> Any:
    """Which actor was the best."""
    return json.loads((run / "summary.json").read_text())["best"]["step"]
