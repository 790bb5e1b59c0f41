"""The service desk through the real commands: demonstrations, reinforcement, what is logged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import pvariance

import pytest

from stages.interaction.rewards.mix import RewardMix
from stages.rl.pool import read_trajectories

RECIPE = Path(__file__).parents[2] / "recipes/service.yaml"
SMALL = {
    "sft.demonstrations": 48,
    "sft.steps": 12,
    "sft.batch_size": 8,
    "rl.iterations": 2,
    "rl.episodes": 8,
    "rl.evaluation_episodes": 2,
    "rl.critic.steps": 2,
    "rl.critic.warm_up.max_iterations": 0,
    "rl.ppo.epochs": 1,
    "environment.max_turns": 6,
    "rl.rewards.functions": "{chatty: tests.aacli.test_service:chatty, babble: babble}",
    "rl.rewards.weights": "{chatty: 1.0}",
    "rl.rewards.off_topic": "{threshold: 0.3}",
}


def chatty(turn, earlier) -> float:
    """What a careless person pays for: any words, every turn."""
    return float(bool(turn.action.text.strip()))


def figures(folder: Path) -> list[dict]:
    return [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_smoke_run_trains_and_reports_what_a_person_added(tmp_path, monkeypatch, aac):
    import torch
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    words = [w for key, value in SMALL.items() for w in ("--set", f"{key}={value}")]
    for stage in ("sft", "rl"):
        done = aac(stage, RECIPE, *words)
        assert done.exit_code == 0, done.stderr
    sft, rl = (tmp_path / "runs/service" / stage for stage in ("sft", "rl"))

    rows = figures(rl)
    assert all(math.isfinite(v) for row in rows for v in row.values())
    episodes = [e for file in (rl / "trajectories").glob("*") for e in read_trajectories(file)]
    assert len(episodes) == 16
    assert all(turn.action_ids for e in episodes for turn in e.turns)
    totals = [sum(RewardMix().totals(e)) for e in episodes]
    assert pvariance(totals) > 0
    before, after = (load_file(folder / "model.safetensors") for folder in (sft, rl))
    assert any(not torch.equal(before[name], after[name]) for name in before)

    paid = [t.rewards.get("chatty", 0.0) for e in episodes for t in e.turns]
    assert max(paid) == 1.0, "the raw component stays in the record"
    for row in rows:
        assert 0 < row["reward/chatty"] <= 0.1 + 1e-9, "a tenth of success at most, per episode"
        assert "reward/off_topic" in row and "reward/babble" in row
        assert row["episode/sick_simulator"] == 0.0
    longest = max(sum(t.rewards.get("chatty", 0.0) for t in e.turns) for e in episodes)
    assert longest > 1
    assert sum(row.get("reward/capped_chatty", 0.0) for row in rows) > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("rl.rewards.functions={mine: os}", "expected module:function or one of empty, babble"),
        ("rl.rewards.functions={mine: 'a:b'}", "mine has no weight; give rl.rewards.weights.mine"),
        ("rl.rewards.functions={success: 'a:b'}", "success is a component of its own"),
        ("rl.rewards.episode_caps={sub_gaol: 0.1}", "did you mean sub_goal"),
        ("rl.rewards.episode_caps={sub_goal: -1}", "expected a number of at least 0"),
    ],
)
def test_rewards_that_cannot_be_are_one_sentence(given, words, aac):
    result = aac("recipes", "validate", RECIPE, "--set", given)
    assert result.exit_code == 2 and words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_function_that_cannot_be_loaded_stops_the_run_at_once(aac, tmp_path):
    given = ("rl.rewards.functions={mine: 'nowhere:x'}", "rl.rewards.weights={mine: 1}")
    words = [w for text in given for w in ("--set", text)]
    result = aac("eval", RECIPE, "--policy", "null", *words)
    assert result.exit_code == 2
    assert "rl.rewards.functions.mine = nowhere:x cannot be loaded" in result.stderr


def test_env_check_says_what_fools_and_the_expert_win(aac):
    listed = aac("env", "list", "--json")
    assert {"service", "human", "sql"} <= set(json.loads(listed.stdout))
    result = json.loads(aac("env", "check", "service", "--json").stdout)
    assert result["policies"]["expert"]["success"] == 1.0
    assert result["policies"]["null"]["success"] == 0.0
    assert result["policies"]["random"]["success"] <= 0.05
    assert result["deterministic"] is True and result["steps_per_s"] > 0
    refused = aac("env", "check", "human")
    assert refused.exit_code == 2 and "aac chat" in refused.stderr
