"""What is measured of a run, and what a study says of its variants: means, intervals, differences.

Every figure is a plain number, or None where it is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from stages.evaluation.intervals import bootstrap_interval

Row = Mapping[str, Any]
"""One run: ``variant``, ``seed``, then its figures."""
SETTLING = 2
"""Iterations whose explained variance is left out: the critic has seen nothing, or next to it."""
FIGURES = {
    "success": "held-out success",
    "success_auc": "mean training success",
    "explained_variance": "explained variance",
    "return": "held-out return",
    "critic_share": "critic's share of time",
    "episodes": "episodes learnt from",
    "seconds": "seconds of training",
}
"""Figures by their keys, in words."""


def training_figures(rows: Sequence[Row]) -> dict[str, float | None]:
    """Figures of a run's ``metrics.jsonl``, warm-up iterations included.

    ``success_auc`` is the mean of ``episode/success`` over the iterations; ``explained_variance``
    the mean after the first two iterations of what is defined; ``seconds`` the sum over all
    phases and iterations (not lost by an interruption); ``critic_share`` that of the critic,
    evaluation left out of the whole.
    """
    phases = {name for row in rows for name in row if _is_phase(name)}
    spent = {name: sum(row.get(name) or 0.0 for row in rows) for name in phases}
    working = sum(seconds for name, seconds in spent.items() if name != "time/evaluation_s")
    return {
        "success_auc": _mean(success_curve(rows)),
        "explained_variance": _mean([r.get("critic/explained_variance") for r in rows[SETTLING:]]),
        "critic_share": spent.get("time/critic_s", 0.0) / working if working else None,
        "seconds": sum(spent.values()),
    }


def success_curve(rows: Sequence[Row]) -> list[float | None]:
    """Success of the training episodes in each iteration."""
    return [row.get("episode/success") for row in rows]


def summarise(rows: Sequence[Row], variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Mean over the seeds and bootstrap 95 % interval of each figure, by variant."""
    return {
        variant: {
            name: _interval([row[name] for row in rows if row["variant"] == variant])
            for name in FIGURES
        }
        for variant in variants
    }


def differences(rows: Sequence[Row], variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each other variant minus the first, paired by seed, with bootstrap 95 % interval.

    A seed that only one of the two has, or in which one is undefined, takes no part.
    """
    first, *others = variants
    at = {(row["variant"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    return {
        variant: {
            name: _interval([_minus(at, name, (variant, s), (first, s)) for s in seeds])
            for name in FIGURES
        }
        for variant in others
    }


def _minus(
    at: Mapping[tuple[str, int], Row], name: str, one: tuple[str, int], other: tuple[str, int]
) -> float | None:
    if one not in at or other not in at:
        return None
    value, reference = at[one][name], at[other][name]
    return None if value is None or reference is None else value - reference


def _interval(values: Sequence[float | None]) -> dict[str, float | int | None]:
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "low": None, "high": None, "seeds": 0}
    return {**bootstrap_interval(known)._asdict(), "seeds": len(known)}


def _is_phase(name: str) -> bool:
    """``time/rollout_s`` is a phase, ``time/tokens_per_s`` a rate."""
    return name.startswith("time/") and name.endswith("_s") and not name.endswith("_per_s")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(known) if known else None
