"""Two processes under real DeepSpeed make the updates that one makes, and hold half the actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.common.ranks import ALONE
from tests.distributed.launching import worker, zero
from tests.distributed.worker import JOBS, UPDATES, Kind, experience, resumed

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return experience(tmp_path_factory.mktemp("one"), ALONE)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return experience(tmp_path_factory.mktemp("adapted"), ALONE, "lora")


def made_by_two(how: Path | str, folder: Path, *words: str) -> dict[str, Any]:
    worker(how, folder, *words)
    found: dict[str, Any] = torch.load(folder / "results.pt", weights_only=True)
    return found


def assert_same_updates(two: dict[str, Any], one: dict[str, Any]) -> None:
    """Losses, norms, gradients and parameters of every update."""
    assert len(two["metrics"]) == UPDATES
    for number in range(UPDATES):
        assert two["metrics"][number] == pytest.approx(one["metrics"][number], rel=1e-4, abs=1e-6)
        for kind in ("gradients", "weights"):
            theirs, ours = two[kind][number], one[kind][number]
            assert set(theirs) == set(ours)
            for name in ours:
                torch.testing.assert_close(theirs[name], ours[name], **CLOSE, msg=name)
    moved = [two["weights"][-1][n] - two["weights"][0][n] for n in two["weights"][0]]
    assert max(float(m.abs().max()) for m in moved) > 1e-3


def assert_goes_on(
    two: dict[str, Any], one: dict[str, Any], folder: Path, kind: Kind = "whole"
) -> None:
    """What two processes saved before the last update, they and one process take up again."""
    alone = resumed(folder, two["saved"], kind)
    for name, wanted in one["weights"][-1].items():
        torch.testing.assert_close(two["again"][name], wanted, **CLOSE, msg=name)
        torch.testing.assert_close(alone[name], wanted, **CLOSE, msg=name)


def assert_uneven_shares_come_out_even(two: dict[str, Any]) -> None:
    assert two["shares"] == [1, 9]
    assert len(set(two["pieces"])) == 1 and two["pieces"][0] > 1
    assert two["gathered"] == [0, 1, 4, 9, 16]
    assert two["aligned"] == [0.0, 0.0]


@pytest.mark.full
def test_zero3_equals_one_process(one: dict[str, Any], tmp_path: Path) -> None:
    two = made_by_two(zero(3, tmp_path), tmp_path)
    assert two["sharded"] == [True, True]
    assert max(share for held in two["held"] for share in held) <= 0.55
    assert_same_updates(two, one)
    assert_goes_on(two, one, tmp_path / "alone")
    assert_uneven_shares_come_out_even(two)
    for how in ("rollout", "layer"):
        assert two["sampled"][how] == one["sampled"][how]
        assert [len(ids) for ids in two["sampled"][how]] == list(JOBS)


@pytest.mark.full
@pytest.mark.parametrize("how", ["ddp", "zero2"])
def test_whole_parameters_equal_one_process(how: str, one: dict[str, Any], tmp_path: Path) -> None:
    two = made_by_two("ddp" if how == "ddp" else zero(2, tmp_path), tmp_path)
    assert two["sharded"] == [False, False]
    assert_same_updates(two, one)
    assert_goes_on(two, one, tmp_path / "alone")
    assert_uneven_shares_come_out_even(two)


@pytest.mark.full
@pytest.mark.parametrize("how", ["ddp", "zero2", "zero3"])
def test_adapters_equal_one_process(how: str, adapted: dict[str, Any], tmp_path: Path) -> None:
    """The reference is the actor with its adapters off, wherever its weights lie."""
    config = "ddp" if how == "ddp" else zero(int(how[-1]), tmp_path)
    two = made_by_two(config, tmp_path, "lora")
    assert two["sharded"] == [how == "zero3"]
    if how == "zero3":
        assert max(share for held in two["held"] for share in held) <= 0.55
    assert all(".lora_" in name for name in two["weights"][0])
    assert_same_updates(two, adapted)
    assert_goes_on(two, adapted, tmp_path / "alone", "lora")
    for mode in ("rollout", "layer"):
        assert two["sampled"][mode] == adapted["sampled"][mode]


@pytest.mark.full
def test_a_shared_trunk_under_ddp_equals_one_process(tmp_path: Path) -> None:
    """The head is fitted alone, then learns in the actor's update; SFT rows say nothing of it."""
    one = experience(tmp_path / "one", ALONE, "shared")
    two = made_by_two("ddp", tmp_path, "shared")
    for theirs, ours in zip(two["values"], one["values"], strict=True):
        for a, b in zip(theirs, ours, strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    assert two["head_loss"] == pytest.approx(one["head_loss"], rel=1e-4)
    assert any(name.endswith("head.linear.weight") for name in two["gradients"][0])
    assert all("critic/loss" in row for row in two["metrics"])
    assert_same_updates(two, one)
