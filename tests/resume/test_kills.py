"""A run killed at any moment goes on to the same end, bit for bit, as one that nobody disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.resume.lab import STAGES, Lab, assert_same, kills


@pytest.mark.parametrize("stage", STAGES)
def test_killed_twice(stage: str, lab: Lab, tmp_path: Path) -> None:
    for folder in kills(lab, stage, tmp_path, count=2, seed=0):
        assert_same(folder, lab.root / stage)


@pytest.mark.resume
@pytest.mark.parametrize("stage", STAGES)
def test_killed_ten_times(stage: str, lab: Lab, tmp_path: Path) -> None:
    """Five times while a checkpoint is written, five times anywhere."""
    for folder in kills(lab, stage, tmp_path, count=10, seed=1):
        assert_same(folder, lab.root / stage)
