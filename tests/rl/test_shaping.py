"""Potential-based shaping through the real run: logged by itself, and the actor feels it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.common.errors import UsageError
from stages.interaction.environments.sql.analyst import Analyst
from stages.interaction.trajectory import Action
from stages.rl.pool import read_trajectories
from tests.rl.test_run import Lab, weights
from tests.tiny_models import tiny_llama

SHAPED = {"shaping": {"potential": "checklist", "weight": 0.8}, "dense_cap": 0.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A random actor, which solves nothing."""
    return Lab(tmp_path_factory.mktemp("llama"), tiny_llama)


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checklist that a random actor gets on with: something of it is solved by long replies."""
    step = Analyst.step

    def longest(self: Any, action: Action) -> Any:
        self.said = len(action.text)
        return step(self, action)

    def items(self: Any) -> tuple[tuple[str, bool], ...]:
        said = getattr(self, "said", 0)
        return tuple((f"over {n}", said > n) for n in (0, 8, 16, 24))

    monkeypatch.setattr(Analyst, "step", longest)
    monkeypatch.setattr(Analyst, "_checklist", items)
    monkeypatch.setattr(Analyst, "reset", _forgets(Analyst.reset))


def _forgets(reset: Any) -> Any:
    def begun(self: Any, task: Any) -> Any:
        self.said = 0
        return reset(self, task)

    return begun


def test_it_is_logged_by_itself_and_moves_the_actor(
    lab: Lab, tmp_path: Path, progress: None
) -> None:
    plain = lab.rl(tmp_path / "plain", rewards={"dense_cap": 0.0}, ppo={"discount": 0.5})
    rows = lab.rl(tmp_path / "shaped", rewards=SHAPED, ppo={"discount": 0.5})
    assert not torch.equal(weights(tmp_path / "plain"), weights(tmp_path / "shaped"))
    assert "reward/shaping" not in plain[0]
    episodes = read_trajectories(tmp_path / "shaped/trajectories/00000.jsonl")
    assert [e.terminated for e in episodes] == [True] * 4
    expected = 0.0
    for e in episodes:
        phi = [0.8 * sum(done for _, done in t.checklist) / 4 for t in e.turns]
        before, after = [0.0, *phi[:-1]], [*phi[:-1], 0.0]
        expected += sum(0.5 * b - a for a, b in zip(before, after, strict=True)) / 4
    assert expected != 0.0
    assert rows[0]["reward/shaping"] == pytest.approx(expected)
    assert rows[0]["reward/total"] == pytest.approx(expected)  # the cap lets nothing else through


def test_at_a_discount_of_one_nothing_is_left_of_it_over_an_episode(
    lab: Lab, tmp_path: Path, progress: None
) -> None:
    rows = lab.rl(tmp_path / "rl", rewards=SHAPED, iterations=1)
    assert rows[0]["reward/shaping"] == pytest.approx(0.0, abs=1e-12)


def test_a_world_without_a_checklist_is_told_before_anything_is_played(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Analyst, "_checklist", lambda self: ())
    with pytest.raises(UsageError, match="environment sql lists no checklist"):
        lab.rl(tmp_path / "rl", rewards=SHAPED)
    assert not (tmp_path / "rl").exists()
