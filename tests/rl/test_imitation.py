"""SFT mixing over the actor's own successful episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from stages.rl.assembly import successes
from stages.rl.pool import ExperiencePool
from tests.rl.test_run import Lab, weights
from tests.rl.worlds import START, episode


def test_only_successful_episodes_with_tokens_are_imitated(tmp_path):
    won = replace(episode([([START], [4, 5], 1.0)], key=(0, 0, 0)), success=True)
    lost = replace(won, success=False, key=(0, 0, 1))
    bare = won.with_turns([replace(won.turns[0], prompt_ids=(), action_ids=(), logprobs=())])
    pool = ExperiencePool(tmp_path / "pool", max_episodes=8)
    assert successes(pool) == []
    pool.add(0, [won, lost, replace(bare, key=(0, 0, 2))])
    (row,) = successes(pool)
    assert row.ids[row.mask].tolist() == [4, 5]


def test_the_real_run_mixes_its_own_successes_in(tmp_path):
    """The shipped base solves some tasks almost untaught: there is something to imitate."""
    lab = Lab(tmp_path, lambda _: Path("recipes/base"))
    world = {"name": "sql", "max_turns": 8}
    options = {"episodes": 8, "actor": {"max_new_tokens": 48, "temperature": 0.3}}
    plain = lab.rl(tmp_path / "plain", environment=world, **options)
    mixing = {"ppo": {"sft_coef": 0.5, "sft_data": "successes"}}
    mixed = lab.rl(tmp_path / "mixed", environment=world, **options, **mixing)
    assert plain[0]["episode/success"] == mixed[0]["episode/success"] > 0
    assert mixed[0]["actor/sft_loss"] > 0 and "actor/sft_loss" not in plain[0]
    assert not torch.equal(weights(tmp_path / "plain"), weights(tmp_path / "mixed"))
