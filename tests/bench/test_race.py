"""The race: both sides at the same time, on half of the threads, then one judge."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Barrier
from types import SimpleNamespace

import pytest

from stages.bench import grpo_race
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
            return {"batches": 3, "seconds": 91.0}

        if entry.endswith(":Judge"):
            figure = self.success.get(given["actor"].name, 0.0)
            yield lambda: Times(1.0, {"success": figure})
        else:
            yield SimpleNamespace(ask=train, wait=lambda: None)


def setting(tmp_path, *, quick, **success):
    return Played(tmp_path, 1, 4, quick, tmp_path / "log", success=success)


def test_three_seeds_each_side_with_half_of_the_threads(tmp_path):
    told = []
    figures = {"sft": 0.5} | {f"aac-{k}": 0.9 for k in SEEDS}
    figures |= {"TRL-0": 0.6, "TRL-1": 0.9, "TRL-2": 0.3}
    played = setting(tmp_path, quick=False, **figures)
    start, result = race(played, told.append, tmp_path, Work())
    assert start == 0.5
    assert len(told) == 4
    expected = {(side, 2, BUDGET, seed) for side in ("RaceOurs", "RaceTheirs") for seed in SEEDS}
    assert set(played.seen) == expected
    assert result.what == "success after 90 s" and result.aim == Bound(1)
    assert result.sides == {"aac": 90.0, "TRL": 60.0}
    assert (result.value.median, result.value.most) == pytest.approx((1.5, 3))
    assert list(result.proof) == ["seed 0", "seed 1", "seed 2"]
    assert result.proof["seed 2"]["TRL"] == {"batches": 3, "seconds": 91.0, "success": 0.3}


def test_a_side_that_solves_nothing_can_be_compared(tmp_path):
    _, result = race(setting(tmp_path, quick=True), lambda _: None, tmp_path, Work())
    assert result.sides == {"aac": 0.0, "TRL": 0.0}
    assert result.value.median == 1.0


def test_trl_stops_after_a_whole_batch_and_its_start_up_is_not_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(grpo_race.time, "perf_counter", lambda: now[0])
    clock, control = grpo_race._clock(90, steps=4), SimpleNamespace(should_training_stop=False)
    now[0] = 50  # of start-up
    clock.on_train_begin(None, None, control)
    for step, second in ((40, 139), (41, 141), (43, 143)):
        now[0] = second
        clock.on_step_end(None, SimpleNamespace(global_step=step), control)
        assert not control.should_training_stop
    now[0] = 145
    clock.on_step_end(None, SimpleNamespace(global_step=44), control)
    assert control.should_training_stop and clock.spent == 95
