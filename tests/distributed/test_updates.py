"""Two processes under real DeepSpeed make the updates that one makes, and hold half the actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.common.ranks import ALONE
from tests.distributed.launching import worker, zero
from tests.distributed.worker import JOBS, UPDATES, experience, resumed

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return experience(tmp_path_factory.mktemp("one"), ALONE)


def made_by_two(how: Path | str, folder: Path) -> dict[str, Any]:
    worker(how, folder)
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


def assert_goes_on(two: dict[str, Any], one: dict[str, Any], folder: Path) -> None:
    """What two processes saved before the last update, they and one process take up again."""
    alone = resumed(folder, two["saved"])
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
