"""Every built-in environment trains through the real ``aac sft`` and ``aac rl``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from aacli.app import app
from stages.rl.pool import read_trajectories

RECIPE: dict[str, Any] = {
    "name": "world",
    "threads": 1,
    "model": {"actor": str(Path(__file__).parents[2] / "recipes/base")},
    "state": {"tool_prompt": "none", "max_tokens": 640, "checklist": False},
    "sft": {
        "demonstrations": 48,
        "steps": 24,
        "batch_size": 8,
        "max_length": 640,
        "learning_rate": 1e-3,
    },
    "rl": {
        "iterations": 2,
        "episodes": 8,
        "evaluate_every": 0,
        "evaluation_episodes": 2,
        "actor": {"max_new_tokens": 48, "learning_rate": 1e-4},
        "critic": {"steps": 2, "batch_size": 4, "warm_up": {"max_iterations": 1}},
        "ppo": {"epochs": 1, "minibatch_episodes": 4},
        "rewards": {"reward_model": 0},
    },
}


@pytest.mark.full
@pytest.mark.parametrize(
    "environment",
    [
        {"name": "code", "workers": 4, "isolation": "thread", "time_limit_s": 10},
        {"name": "report", "workers": 2},
        {"name": "plan"},
    ],
    ids=lambda options: options["name"],
)
def test_a_few_iterations(environment: dict[str, Any], tmp_path: Path) -> None:
    recipe = tmp_path / "world.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"environment": environment}))
    sft, rl = tmp_path / "sft", tmp_path / "rl"
    for words in (["sft", recipe, "--output-dir", sft], ["rl", recipe, "--sft", sft]):
        words += ["--output-dir", rl] if words[0] == "rl" else []
        result = CliRunner().invoke(app, [*map(str, words), "--quiet"])
        assert result.exit_code == 0, result.output + result.stderr
    rows = [json.loads(line) for line in (rl / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    losses = [v for row in rows for k, v in row.items() if k.endswith("loss")]
    assert losses and all(torch.isfinite(torch.tensor(losses)))
    assert all(row["episode/dropped"] == 0 for row in rows)
    episodes = [e for n in (0, 1) for e in read_trajectories(rl / f"trajectories/{n:05d}.jsonl")]
    assert all(turn.action_ids and turn.logprobs for e in episodes for turn in e.turns)
    paid = [sum(sum(turn.rewards.values()) for turn in e.turns) for e in episodes]
    assert torch.tensor(paid).var() > 0
    before, after = (load_file(folder / "model.safetensors") for folder in (sft, rl))
    assert any(not torch.equal(before[name].float(), after[name].float()) for name in before)
