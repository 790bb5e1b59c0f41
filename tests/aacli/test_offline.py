"""A pool collected, learnt from, measured, talked to and gone on from, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
  iterations: 2
  episodes: 4
  evaluate_every: 0
  evaluation_episodes: 2
  actor: {{max_new_tokens: 8, learning_rate: 1e-3}}
  critic: {{steps: 2, batch_size: 4, hidden_size: 8, warm_up: {{max_iterations: 0}}}}
  ppo: {{epochs: 1, minibatch_episodes: 2}}
  offline: {{steps: 2}}
  rewards: {{reward_model: 0}}
evaluation: {{episodes: 2}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE.format(actor=tiny_llama(tmp_path / "actor")))
    return tmp_path


def done(result: Any) -> str:
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def test_from_a_pool_to_an_actor_that_goes_on_online(place: Path, aac: Any) -> None:
    done(aac("sft", "tiny.yaml", "--quiet"))
    said = done(aac("collect", "experience", "tiny.yaml", "--episodes", "6"))
    assert "6 experience from 6 episodes" in said and "runs/tiny/experience.jsonl" in said
    assert "aac rl tiny.yaml --offline runs/tiny/experience.jsonl" in said
    pool, out = "runs/tiny/experience.jsonl", "runs/tiny/offline"
    done(aac("rl", "tiny.yaml", "--offline", pool, "--output-dir", out, "--dry-run"))
    assert not (place / out).exists()
    told = done(aac("rl", "tiny.yaml", "--offline", pool, "--output-dir", out))
    assert "training_episodes 6" in told
    assert f"aac eval tiny.yaml --actor {out}" in told
    assert read_manifest(place / out).recipe["rl"]["offline"]["pool"] == pool
    figures = json.loads(done(aac("eval", "tiny.yaml", "--actor", out, "--json")))
    assert figures["episodes"] == 2
    asked = ("--actor", out, "--question", "How many orders are there?")
    done(aac("chat", "tiny.yaml", *asked))
    done(aac("rl", "tiny.yaml", "--start", out, "--set", "rl.iterations=1"))
    parents = read_manifest(place / "runs/tiny/rl").parents
    assert set(parents) == {"sft", "start"}
    assert not any("changed" in parent for parent in parents.values())
    # and any run is a pool for the next
    again = ("--offline", "runs/tiny/rl", "--start", out, "--output-dir", "runs/tiny/again")
    assert "training_episodes 4" in done(aac("rl", "tiny.yaml", *again))


STUDY = """
name: chain
recipe: tiny.yaml
seeds: [0]
set: {rl.iterations: 1}
variants:
  online: {}
  offline: {rl.offline.pool: sft, rl.offline.episodes: 6}
  both: {after: offline}
"""


@pytest.mark.full
def test_a_study_compares_online_with_offline_and_then_online(place: Path, aac: Any) -> None:
    (place / "chain.yaml").write_text(STUDY)
    found = json.loads(done(aac("compare", "chain.yaml", "--json")))
    rows = {row["variant"]: row for row in found["rows"]}
    assert {name: row["episodes"] for name, row in rows.items()} == {
        "online": 4, "offline": 6, "both": 10,
    }  # fmt: skip
    assert rows["offline"]["success_auc"] is None and rows["both"]["success_auc"] is not None
    start = read_manifest(place / rows["both"]["folder"]).parents["start"]
    assert start["path"] == rows["offline"]["folder"]
    assert found["summary"]["both"]["episodes"]["mean"] == 10
    again = aac("compare", "chain.yaml", "--json")
    assert "4 runs, 4 done before" in again.stderr
