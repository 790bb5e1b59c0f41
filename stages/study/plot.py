"""A study's result as a picture: training success over iterations, final success by seed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.evaluation.intervals import bootstrap_interval


def band(curves: Sequence[Sequence[float | None]]) -> list[tuple[float, float, float]]:
    """Mean and bootstrap 95 % interval at each iteration, over curves of one variant's seeds.

    Curves end where the shortest does. Where one of several has no value it takes no part, where
    none has, all three are NaN; with one value the band has no width.
    """
    points = []
    for values in zip(*curves, strict=False):
        known = [value for value in values if value is not None]
        interval = bootstrap_interval(known) if known else (np.nan, np.nan, np.nan)
        mean, low, high = (float(interval[0] if end is None else end) for end in interval)
        points.append((mean, low, high))
    return points


def plot_study(result: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a ``compare.json`` as PNG, whole or not at all."""
    # Not pyplot: no window, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(result["summary"])
    figure = Figure(figsize=(11, 4.2 + 0.12 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    curves, dots = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, name in enumerate(names):
        rows = [row for row in result["rows"] if row["variant"] == name]
        _curve(curves, [row["curve"] for row in rows], name, f"C{place}")
        _dots(dots, [row["success"] for row in rows], result["summary"][name]["success"], place)
    curves.set(xlabel="iteration", ylabel="success of training episodes", ylim=(0, 1))
    curves.xaxis.get_major_locator().set_params(integer=True)
    curves.legend(loc="lower right", fontsize="small")
    dots.set(xlabel="final held-out success", xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
    dots.set_yticks(range(len(names)), names)
    for axes in (curves, dots):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{result['study']} ({len(result['seeds'])} seeds, bands: 95 % bootstrap)")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    figure.savefig(temporary, format="png", dpi=150)
    os.replace(temporary, path)


def _curve(axes: Any, curves: Sequence[Sequence[float | None]], name: str, colour: str) -> None:
    points = np.array(band(curves)).reshape(-1, 3)
    iterations = np.arange(1, len(points) + 1)
    axes.plot(iterations, points[:, 0], color=colour, label=name)
    axes.fill_between(iterations, points[:, 1], points[:, 2], color=colour, alpha=0.2, linewidth=0)


def _dots(axes: Any, values: Sequence[float], interval: Mapping[str, Any], place: int) -> None:
    """One dot a seed, and the mean with its interval as a line."""
    colour = f"C{place}"
    axes.plot(values, [place] * len(values), "o", color=colour, alpha=0.5, markersize=5)
    axes.plot([interval["mean"]], [place], "|", color=colour, markersize=18, markeredgewidth=2)
    if interval["low"] is not None:
        axes.plot([interval["low"], interval["high"]], [place, place], color=colour)
