"""The curves of runs and the alarms on them, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.evaluation.report.catalogue import FIRST, SECTIONS, Plot, label_of
from stages.evaluation.report.runs import Row, Run

Points = tuple[list[float], list[float]]
"""Steps and values."""
Chart = dict[str, Any]
"""``stage``, ``title``, ``note``, ``unit``, ``whole`` (the axis goes from 0 to 1), ``x`` (what a
step is) and ``stacked``; ``lines``, each with ``label``, ``name`` of its metric, number of its
``run``, ``x`` and ``y``; ``alarms``, each with ``step``, ``run``, ``of`` (its
label), ``name``, ``means`` and ``own``: whether it speaks of this chart's figures."""
LEAST = 0.001
"""Seconds of a phase that did nothing."""
DIGITS, MOST_POINTS = 5, 1500
"""Significant digits of a value; values of a line, beyond which only every second, third, ... is
kept."""


def sections(runs: Sequence[Run]) -> list[tuple[str, list[Chart]]]:
    """All charts with anything to draw, under their headings: RL first, then the stages before it.

    Of one run a chart holds several figures; of several runs each figure has a chart of its own,
    in which the runs lie over each other.
    """
    made = []
    for stage, headings in SECTIONS.items():
        found = {n: own for n, run in enumerate(runs) if (own := _of_stage(run, stage))}
        for heading, plots in headings.items():
            charts = [chart for plot in plots for chart in _charts(plot, found, len(runs) > 1)]
            if charts:
                made.append((heading, charts))
    return made


def first_charts(runs: Sequence[Run]) -> list[Chart]:
    """The few that tell most, for the first tab."""
    stage = runs[0].stage
    found = {n: run for n, run in enumerate(runs) if run.stage == stage}
    plots = {p.title: p for plots in SECTIONS[stage].values() for p in plots}
    return [
        chart
        for title in FIRST[stage]
        for chart in _charts(plots[title], found, len(runs) > 1)[-1:]
    ]


def all_figures(run: Run) -> list[dict[str, Any]]:
    """Every metric that is a number: ``name``, ``first``, ``last``, ``low``, ``high``."""
    names = dict.fromkeys(name for row in run.rows for name in row if name != "step")
    figures = []
    for name in names:
        _, values = points(run.rows, name)
        if values:
            ends = {"first": values[0], "last": values[-1]}
            figures.append({"name": name, **ends, "low": min(values), "high": max(values)})
    return figures


def points(rows: Sequence[Row], name: str) -> Points:
    """The finite values of a metric and their steps."""
    found = [(row["step"], row[name]) for row in rows if _is_number(row.get(name))]
    return [float(step) for step, _ in found], [float(value) for _, value in found]


def _charts(plot: Plot, runs: Mapping[int, Run], apart: bool) -> list[Chart]:
    names = dict.fromkeys(
        name for run in runs.values() for row in run.rows for name in row if plot.holds(name)
    )
    least = LEAST if plot.unit == "seconds" else 0.0
    drawn = {name: lines for name in names if (lines := _lines(name, runs, apart, least))}
    if not drawn:
        return []
    if not apart:
        together = [line for lines in drawn.values() for line in lines]
        return [_chart(plot, plot.title, together, list(drawn), runs)]
    titles = {n: plot.title if len(drawn) == 1 else f"{plot.title}: {label_of(n)}" for n in drawn}
    return [_chart(plot, titles[name], lines, [name], runs) for name, lines in drawn.items()]


def _chart(
    plot: Plot, title: str, lines: list[Any], names: Sequence[str], runs: Mapping[int, Run]
) -> Chart:
    return {
        "stage": next(iter(runs.values())).stage,
        "title": title,
        "note": plot.note,
        "unit": plot.unit,
        "whole": plot.whole,
        "x": next(iter(runs.values())).unit,
        "stacked": plot.stacked and len({line["run"] for line in lines}) == 1,
        "lines": lines,
        "alarms": [
            {
                "step": row["step"],
                "run": number,
                "of": run.label,
                "name": row["alarm"],
                "means": row.get("means", ""),
                "own": any(name in str(row.get("figures", "")) for name in names),
            }
            for number, run in runs.items()
            for row in run.alarms
        ],
    }


def _lines(name: str, runs: Mapping[int, Run], apart: bool, least: float) -> list[dict[str, Any]]:
    """The metric of each run that has it; nothing where none is ever above ``least`` in size."""
    found = {number: points(run.rows, name) for number, run in runs.items()}
    if not any(abs(value) > least for _, values in found.values() for value in values):
        return []
    return [
        {
            "label": runs[number].label if apart else label_of(name),
            "name": name,
            "run": number,
            "x": _thinned(steps),
            "y": [float(f"{value:.{DIGITS}g}") for value in _thinned(values)],
        }
        for number, (steps, values) in found.items()
        if values
    ]


def _thinned(values: list[float]) -> list[float]:
    stride = math.ceil(len(values) / MOST_POINTS)
    return values if stride <= 1 else [*values[:-1:stride], values[-1]]


def _of_stage(run: Run, stage: str) -> Run | None:
    """The run itself, or the earlier stage beside it, under the run's label; None: neither."""
    found = next((r for r in (run, *run.earlier) if r.stage == stage), None)
    return replace(found, label=run.label) if found else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
