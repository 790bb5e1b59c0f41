"""Measured peaks: what a fresh process takes, and real stages against their plan."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from stages.common.errors import RunError
from stages.memory import check, device_check
from stages.memory.architecture import Architecture
from stages.memory.measure import Resident, Run, measured

MIB = 2**20


def test_resident_memory_sees_what_is_taken_and_given_back():
    before = Resident.count_anew()
    taken = mmap.mmap(-1, 64 * MIB)  # malloc might take what was freed before
    for page in range(0, 64 * MIB, mmap.PAGESIZE):
        taken[page] = 1
    held = Resident.read()
    assert held.now - before.now > 60 * MIB
    taken.close()
    again = Resident.read()
    assert again.now < held.now - 60 * MIB
    assert before.peak_until(again) == pytest.approx(64 * MIB, rel=0.1)


def test_device_check_says_why_it_does_nothing(capsys):
    assert device_check.main() == 0
    assert capsys.readouterr().out.strip() == device_check.SKIPPED


def test_a_check_that_fails_is_a_line_of_the_table():
    def broken() -> str:
        raise ValueError("no such kernel\nmore")

    line = device_check.timed("x", broken)
    assert line.result == "FAILED: ValueError: no such kernel"


def test_recipes_of_the_checks_are_valid(tmp_path: Path):
    from stages.recipe.load import load_recipe

    actor = tmp_path / "actor"
    actor.mkdir()
    trial = next(iter(check.trials(check.HELD_OUT)))
    file = check.write_recipe(trial, actor, tmp_path / "recipe.yaml")
    assert load_recipe(file).sft.max_length == trial.length
    assert load_recipe(device_check.write_recipe(actor, tmp_path)).reward.data is not None
    sizes = [m.parameters for m in check.HELD_OUT]
    assert not {m.name for m in check.TRIED} & {m.name for m in check.HELD_OUT}
    assert 20e6 < min(sizes) < max(sizes) < 120e6


@pytest.mark.full
def test_sft_takes_what_was_planned_and_a_failure_is_told(tmp_path: Path):
    trial = check.Trial(check.TRIED[0], "sft")
    row = check.compare(trial, tmp_path)
    assert abs(row.error) < check.TOLERANCE
    with pytest.raises(RunError, match="the measured rl run failed: aac rl needs an SFT folder"):
        measured(Run("rl", tmp_path / "recipe.yaml", tmp_path / "rl", {}))


@pytest.mark.full
def test_every_stage_of_the_device_check_runs_on_a_cpu_too(tmp_path: Path):
    """On a small model; the two checks that need CUDA say so."""
    actor = Architecture("tiny", 64, 2, 2, 2, 128, 2000)
    found = {line.what: line.result for line in device_check.lines(actor, tmp_path)}
    for stage in ("sft", "reward", "rl"):
        assert found[f"{stage}, one update"].startswith("peak "), found
    assert found["bf16 and nccl"].startswith("FAILED")
    assert found["vLLM"] == "not installed"
