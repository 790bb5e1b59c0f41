"""The sampling temperature of training rollouts, rising over the updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.rl.pool import read_trajectories
from stages.rl.schedules import temperature_at
from tests.rl.test_run import Lab
from tests.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("heat"), tiny_llama)


def of(lab: Lab, **actor: float) -> Any:
    return lab.recipe(rl={"iterations": 5, "actor": actor}).rl


def test_temperature_moves_over_the_first_half_of_the_updates(lab: Lab) -> None:
    rising = of(lab, temperature=1.0, temperature_final=2.0)
    assert [temperature_at(rising, v) for v in range(5)] == pytest.approx([1, 1.5, 2, 2, 2])
    assert temperature_at(of(lab, temperature=0.7), 3) == 0.7


def test_rollouts_and_losses_are_at_one_temperature(lab: Lab, tmp_path: Path) -> None:
    """One step per update, so its ratios are those before it: exactly 1 if both agree."""
    heat = {"temperature": 1.0, "temperature_final": 3.0}
    one = {"epochs": 1, "minibatch_episodes": 4, "clip_range": 1e-3}
    hot = lab.rl(tmp_path / "hot", iterations=3, actor=heat, ppo=one)
    assert [row["actor/temperature"] for row in hot] == [1.0, 3.0, 3.0]
    assert [row["actor/clip_fraction"] for row in hot] == [0.0, 0.0, 0.0]
    lab.rl(tmp_path / "plain", iterations=3, ppo=one)

    def likelihood(name: str, iteration: int) -> float:
        file = tmp_path / name / "trajectories" / f"{iteration:05d}.jsonl"
        turns = [turn for episode in read_trajectories(file) for turn in episode.turns]
        return sum(sum(t.logprobs) for t in turns) / sum(len(t.logprobs) for t in turns)

    assert likelihood("hot", 0) == likelihood("plain", 0)
    assert likelihood("hot", 2) < likelihood("plain", 2)  # hotter: flatter
