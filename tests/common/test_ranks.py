"""Shares and what stands in for missing ones; two real processes are in tests/distributed."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from stages.common.engine import load_whole_tensors, whole_tensors
from stages.common.errors import RunError
from stages.common.ranks import ALONE, Ranks
from stages.common.sharding import CONFIG, check_partitioned, mode, zero_stage


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_are_all_there_is_and_differ_by_one_at_most(size):
    shares = [Ranks(rank, size).share(7) for rank in range(size)]
    assert sorted(number for share in shares for number in share) == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_is_the_identity():
    assert ALONE.gather([ALONE.share(4)]) == [[0, 1, 2, 3]]
    assert ALONE.everyone({"a": 1}) == [{"a": 1}]
    assert ALONE.anyone(True) and not ALONE.anyone(False)
    with ALONE.main_first():
        assert ALONE.main


@pytest.fixture
def zero3(tmp_path, monkeypatch):
    """What accelerate's launcher tells its processes."""
    file = tmp_path / "zero3.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv(CONFIG, str(file))


def test_the_stage_is_read_from_what_the_launcher_says(zero3):
    assert (zero_stage(), mode()) == (3, "zero3")


def test_without_a_launcher_there_is_no_stage():
    assert (zero_stage(), mode()) == (0, "one")


def test_whole_parameters_where_zero3_was_asked_for_stop_the_run(zero3):
    """The trap: a trainer that takes no notice of the configuration trains unsharded."""
    with pytest.raises(RunError, match="holds 100% of the model's bytes where about 50%"):
        check_partitioned(nn.Linear(4, 4), Ranks(0, 2))
    check_partitioned(nn.Linear(4, 4), ALONE)


def test_whole_tensors_go_and_come_back():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    kept = whole_tensors(model)
    assert set(kept) == set(model.state_dict())
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    load_whole_tensors(model, kept)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name])
    with pytest.raises(KeyError):
        load_whole_tensors(model, {})
