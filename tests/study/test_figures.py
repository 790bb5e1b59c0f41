"""Figures of a run and of a study, worked by hand."""

from __future__ import annotations

import math

import pytest

from stages.study.figures import FIGURES, differences, summarise, training_figures
from stages.study.plot import band
from stages.study.tables import study_table

METRICS = [
    {"episode/success": 0.0, "critic/explained_variance": -9.0, "time/rollout_s": 4.0,
     "time/critic_s": 2.0, "time/evaluation_s": 1.0, "time/tokens_per_s": 500.0},
    {"episode/success": 0.2, "critic/explained_variance": -5.0, "time/rollout_s": 4.0,
     "time/critic_s": 1.0, "time/actor_s": 3.0, "time/evaluation_s": 0.0},
    {"episode/success": 0.4, "critic/explained_variance": 0.5, "time/rollout_s": 4.0,
     "time/critic_s": 1.0, "time/actor_s": 1.0, "time/evaluation_s": 9.0},
    {"episode/success": 0.6, "critic/explained_variance": None},
    {"episode/success": 0.8, "critic/explained_variance": 0.7},
]  # fmt: skip


def run(variant: str, seed: int, success: float | None) -> dict[str, object]:
    return {"variant": variant, "seed": seed, **dict.fromkeys(FIGURES), "success": success}


def test_training_figures_by_hand():
    found = training_figures(METRICS)
    assert found["success_auc"] == pytest.approx(0.4)  # warm-up iterations count
    assert found["explained_variance"] == pytest.approx(0.6)  # the first two and null do not
    assert found["seconds"] == pytest.approx(30.0)  # a rate is no phase
    assert found["critic_share"] == pytest.approx(4 / 20)  # of all but evaluation


def test_what_a_run_does_not_have_is_none():
    without = [{"episode/success": 0.5, "time/rollout_s": 2.0}] * 3
    found = training_figures(without)
    assert found["explained_variance"] is None and found["critic_share"] == 0.0
    assert set(training_figures([]).values()) == {None, 0}


def test_summary_and_paired_differences():
    rows = [
        run("full", 0, 0.5), run("full", 1, 0.7), run("full", 2, 0.9),
        run("blind", 0, 0.4), run("blind", 1, 0.6), run("blind", 2, 0.8),
        run("lame", 2, 0.1),
    ]  # fmt: skip
    names = ["full", "blind", "lame"]
    summary = summarise(rows, names)
    full = summary["full"]["success"]
    assert full["mean"] == pytest.approx(0.7) and full["seeds"] == 3
    assert 0.5 <= full["low"] < 0.7 < full["high"] <= 0.9
    assert summary["lame"]["success"] == {"mean": 0.1, "low": None, "high": None, "seeds": 1}
    assert summary["full"]["return"] == {"mean": None, "low": None, "high": None, "seeds": 0}
    against = differences(rows, names)
    assert list(against) == ["blind", "lame"]
    # The spread over seeds is the same in both, so that the difference is certain.
    blind = against["blind"]["success"]
    assert [blind[k] for k in ("mean", "low", "high")] == pytest.approx([-0.1] * 3)
    assert against["lame"]["success"]["mean"] == pytest.approx(-0.8)
    assert against["lame"]["success"]["seeds"] == 1


def test_a_figure_that_no_run_has_takes_no_rows():
    rows = [run("full", 0, 0.5), run("blind", 0, 0.4)]
    result = {
        "study": "s", "seeds": [0], "variants": {"full": {}, "blind": {}}, "episodes": 8,
        "split": "test", "summary": summarise(rows, ["full", "blind"]), "differences": {},
    }  # fmt: skip
    shown = [str(cell) for cell in study_table(result).columns[0].cells]
    assert shown == ["held-out success, %", "  full", "  blind"]


def test_band_of_curves():
    points = band([[0.0, 0.2, 0.5], [1.0, None, 0.5]])
    assert points[0] == (0.5, 0.0, 1.0)
    assert points[1] == (0.2, 0.2, 0.2)
    assert points[2] == (0.5, 0.5, 0.5)
    assert len(band([[0.1, 0.2], [0.3]])) == 1
    assert math.isnan(band([[None]])[0][0])
