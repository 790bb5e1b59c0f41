"""What speed may not change: the rollout that was recorded before."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.interaction.golden import FILE, PLAYS, rollout


@pytest.mark.parametrize("name", PLAYS)
@pytest.mark.parametrize("parallel", [128, 2])
def test_a_recorded_rollout_comes_out_as_before(name: str, parallel: int) -> None:
    recorded = json.loads(FILE.read_text("utf-8"))[name]
    found = list(rollout(name, parallel=parallel, episodes=len(recorded)))
    assert [[turn[:2] for turn in e] for e in found] == [[t[:2] for t in e] for e in recorded]
    for episode, before in zip(found, recorded, strict=True):
        for turn, twin in zip(episode, before, strict=True):
            np.testing.assert_allclose(turn[2], twin[2], atol=1e-5, rtol=0)
