"""Targets, target network and pool through the whole RL stage: every option changes the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.common.errors import RunError
from stages.rl.player import Player
from tests.rl.test_run import Lab, weights
from tests.tiny_models import tiny_llama

VTRACE = {"off_policy": "vtrace"}
PRIORITISED = {"sampling": "prioritised", "priority_exponent": 1.0}
PERIODIC = {"target_update": "periodic", "target_period": 2}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("llama"), tiny_llama)


class Runs:
    """Runs by their options, each played once: (actor's weights, rows of metrics)."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self.root = lab, root
        self._done: dict[str, tuple[torch.Tensor, list[Any]]] = {}

    def __call__(self, **rl: Any) -> tuple[torch.Tensor, list[Any]]:
        name = repr(sorted(rl.items()))
        if name not in self._done:
            out = self.root / str(len(self._done))
            rows = self.lab.rl(out, **({"iterations": 4} | rl))
            self._done[name] = weights(out), timeless(rows)
        return self._done[name]


def timeless(rows: list[Any]) -> list[Any]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def runs(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    return Runs(lab, tmp_path_factory.mktemp("runs"))


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "n_step against λ": ({"critic": {"target": "n_step", "n_steps": 1}}, {}),
    "n_steps": (
        {"critic": {"target": "n_step", "n_steps": 1}},
        {"critic": {"target": "n_step", "n_steps": 3}},
    ),
    "vtrace": ({"critic": VTRACE}, {}),
    "rho_bar": ({"critic": VTRACE}, {"critic": VTRACE | {"rho_bar": 0.3, "c_bar": 0.3}}),
    "c_bar": ({"critic": VTRACE}, {"critic": VTRACE | {"c_bar": 0.3}}),
    "periodic": ({"critic": PERIODIC}, {}),
    "target_period": ({"critic": PERIODIC}, {"critic": PERIODIC | {"target_period": 1}}),
    "target_rate": ({"critic": {"target_rate": 0.1}}, {}),
    "prioritised": ({"pool": PRIORITISED}, {}),
    "priority_exponent": (
        {"pool": PRIORITISED},
        {"pool": PRIORITISED | {"priority_exponent": 0.3}},
    ),
    "max_bytes": ({"pool": {"max_bytes": 1}}, {}),
    "max_age": ({"pool": {"max_age": 0}}, {}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_option_changes_what_the_critic_learns_and_so_the_actor(
    name: str, runs: Runs
) -> None:
    (mine, rows), (other, others) = (runs(**options) for options in PAIRS[name])
    assert [r["critic/loss"] for r in rows] != [r["critic/loss"] for r in others]
    assert not torch.equal(mine, other)


def test_options_that_must_agree_do(runs: Runs) -> None:
    """A copy each time is a Polyak step of 1; exponent 0 is uniform: number for number."""
    copied, copied_rows = runs(critic=PERIODIC | {"target_period": 1})
    stepped, stepped_rows = runs(critic={"target_rate": 1.0})
    assert torch.equal(copied, stepped) and copied_rows == stepped_rows
    even, even_rows = runs(pool=PRIORITISED | {"priority_exponent": 0.0})
    plain, plain_rows = runs()
    assert torch.equal(even, plain) and even_rows == plain_rows


def test_effective_sample_size_is_one_on_policy_and_falls_with_age(runs: Runs) -> None:
    sizes = [row["critic/effective_sample_size"] for row in runs(critic=VTRACE)[1]]
    assert sizes[0] == pytest.approx(1.0, abs=1e-6)
    assert all(0 < size < 0.9999 for size in sizes[1:])
    assert "critic/effective_sample_size" not in runs()[1][0]


def test_the_pools_figures(runs: Runs) -> None:
    _, plain = runs()
    assert [row["pool/episodes"] for row in plain] == [4, 8, 12, 16]
    assert [row["pool/oldest_age"] for row in plain] == [0, 1, 2, 3]
    sizes = [row["pool/bytes"] for row in plain]
    assert sizes[0] > 1000 and sizes == sorted(sizes)
    _, small = runs(pool={"max_bytes": 1})
    assert [row["pool/episodes"] for row in small] == [4] * 4
    assert [row["pool/oldest_age"] for row in small] == [0] * 4
    assert small[0]["pool/bytes"] == sizes[0]


TOGETHER: dict[str, Any] = {
    "iterations": 4,
    "pool": PRIORITISED | {"max_episodes": 12},
    "critic": VTRACE | PERIODIC | {"target": "n_step", "n_steps": 2},
    "checkpoint_every": 1,
}


def test_same_seed_same_numbers_and_resume_is_exact(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two copies of the target network, with priorities that only memory held."""
    whole = lab.rl(tmp_path / "whole", **TOGETHER)
    assert timeless(lab.rl(tmp_path / "again", **TOGETHER)) == timeless(whole)
    assert torch.equal(weights(tmp_path / "again"), weights(tmp_path / "whole"))
    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 1:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Player, "collect", killed)
        lab.rl(tmp_path / "cut", **TOGETHER)
    rows = lab.rl(tmp_path / "cut", **TOGETHER)
    assert timeless(rows) == timeless(whole)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_vtrace_refuses_rows_without_behaviour_log_probs(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such episodes may lie in the pool, and a critic without V-trace learns from them."""
    real = Player.collect

    def unscored(self: Any, iteration: int, version: int) -> Any:
        return [
            episode.with_turns([replace(t, logprobs=()) for t in episode.turns])
            for episode in real(self, iteration, version)
        ]

    monkeypatch.setattr(Player, "collect", unscored)
    with pytest.raises(RunError, match=r"0 behaviour log-probs .* rl\.critic\.off_policy"):
        lab.rl(tmp_path / "vtrace", critic=VTRACE)
    warm_up = {"warm_up": {"max_iterations": 5, "min_explained_variance": 2.0}}
    rows = lab.rl(tmp_path / "plain", critic=warm_up)  # the actor stands still: nothing else asks
    assert rows[-1]["critic/loss"] >= 0 and rows[-1]["pool/episodes"] == 8
