"""The race: both sides at the same time, on half of the threads, then one judge."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Barrier
from types import SimpleNamespace

import pytest

from stages.bench.grpo_race import BUDGET, SEEDS, race
from stages.bench.grpo_work import Work
from stages.bench.measure import Times
from stages.bench.results import Bound
from stages.bench.setting import Setting


@dataclass(frozen=True)
class Played(Setting):
    """Sides that do not train; ``success`` by the name of the actor's folder."""

    success: dict = field(default_factory=dict)
    seen: list = field(default_factory=list)
    together: Barrier = field(default_factory=lambda: Barrier(2, timeout=10))

    @contextmanager
    def side(self, entry, **given):
        def train(_, seconds, saved):
            self.together.wait()  # broken unless the other side trains, too
            self.seen.append((entry.partition(":")[2], self.threads, seconds, given["work"].seed))
            return 3

        if entry.endswith(":Judge"):
            figure = self.success.get(given["actor"].name, 0.0)
            yield lambda: Times(1.0, {"success": figure})
        else:
            yield SimpleNamespace(ask=train)


def setting(tmp_path, *, quick, **success):
    return Played(tmp_path, 1, 4, quick, tmp_path / "log", success=success)


def test_three_seeds_each_side_with_half_of_the_threads(tmp_path):
    told = []
    figures = {"sft": 0.5} | {
        f"{side}-{k}": v for side, v in (("aac", 0.9), ("TRL", 0.6)) for k in SEEDS
    }
    played = setting(tmp_path, quick=False, **figures)
    start, results = race(played, told.append, tmp_path, Work())
    assert start == 0.5
    assert len(told) == 4
    expected = {(side, 2, BUDGET, seed) for side in ("RaceOurs", "RaceTheirs") for seed in SEEDS}
    assert set(played.seen) == expected
    assert [r.what for r in results] == [f"success after 90 s, seed {k}" for k in SEEDS]
    for result in results:
        assert result.sides == {"aac": 90.0, "TRL": 60.0}
        assert result.value.median == pytest.approx(1.5)
        assert result.aim == Bound(1)
        assert result.proof == {"batches": {"aac": 3, "TRL": 3}}


def test_a_side_that_solves_nothing_can_be_compared(tmp_path):
    _, (result,) = race(setting(tmp_path, quick=True), lambda _: None, tmp_path, Work())
    assert result.sides == {"aac": 0.0, "TRL": 0.0}
    assert result.value.median == 0.0
