"""The learners give what they gave before they were made faster, to float error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rl.golden import run


def flat(value: Any, name: str = "") -> dict[str, float]:
    """Every number with the path to it."""
    if isinstance(value, int | float):
        return {name: float(value)}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, part in pairs for k, v in flat(part, f"{name}/{key}").items()}


def test_losses_and_weights_are_what_they_were(tmp_path):
    recorded, now = flat(json.loads(run.FIGURES.read_text("utf-8"))), flat(run.figures(tmp_path))
    assert now.keys() == recorded.keys() and len(now) > 100
    assert now == pytest.approx(recorded, rel=1e-5, abs=1e-5, nan_ok=True)
