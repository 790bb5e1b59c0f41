"""A study's result as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from stages.evaluation.tables import DASH, plain_table
from stages.study.figures import FIGURES

IN_PERCENT = ("success", "success_auc", "critic_share")


def study_table(result: Mapping[str, Any]) -> Table:
    """Each figure of each variant with its interval, and the difference to the first variant."""
    first = next(iter(result["summary"]))
    seeds = len(result["seeds"])
    title = f"study {result['study']}: {len(result['variants'])} variants, {seeds} seeds"
    others = [f"minus {first}"] if result["differences"] else []
    table = plain_table(title, "", "mean [95 % interval]", *others)
    for name, words in FIGURES.items():
        if all(figures[name]["mean"] is None for figures in result["summary"].values()):
            continue  # offline, nothing is played in training
        table.add_row(f"{words}, %" if name in IN_PERCENT else words)
        for variant, figures in result["summary"].items():
            difference = result["differences"].get(variant, {}).get(name)
            cells = [_cell(name, difference, signed=True)] if difference else []
            table.add_row(f"  {variant}", _cell(name, figures[name]), *cells)
        table.add_section()
    table.caption = (
        f"success: {result['episodes']} held-out tasks ({result['split']}, sampled); intervals: "
        "bootstrap over the seeds, differences paired by seed"
    )
    return table


def plan_table(rows: list[dict[str, Any]]) -> Table:
    """What a dry run shows: each run, and whether it is done."""
    table = plain_table("runs of the study", "run", "stage", "state", "folder")
    for column in table.columns[1:]:
        column.justify, column.overflow = "left", "fold"
    for row in rows:
        table.add_row(row["run"], row["stage"], row["state"], row["folder"])
    return table


def _cell(name: str, interval: Mapping[str, Any], *, signed: bool = False) -> str:
    mean, low, high = (_number(name, interval[k], signed=signed) for k in ("mean", "low", "high"))
    return mean if interval["low"] is None else f"{mean} [{low}, {high}]"


def _number(name: str, value: float | None, *, signed: bool) -> str:
    if value is None:
        return DASH
    scaled, digits = (100 * value, 1) if name in IN_PERCENT else (value, 3)
    if name in ("seconds", "episodes"):
        digits = 0
    return f"{scaled:{'+' if signed else ''}.{digits}f}"
