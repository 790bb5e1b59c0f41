"""``aac report``: one self-contained page of an RL run, and its figures at the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.common.console import show
from stages.common.errors import UsageError
from stages.common.files import read_json, write_text
from stages.common.live import sparkline
from stages.common.records import read_records
from stages.common.run_folder import MetricsWriter, check_place
from stages.evaluation.audit import FOLDER, read_picks, read_verdicts, run_folder
from stages.evaluation.intervals import share_interval
from stages.evaluation.report_page import html_page
from stages.evaluation.tables import DASH, number, percent, plain_table

CURVES = (
    "reward/total",
    "episode/success",
    "evaluation/success",
    "actor/kl",
    "actor/entropy",
    "actor/clip_fraction",
    "actor/grad_norm",
    "critic/explained_variance",
    "clean/perplexity_ratio",
    "clean/lost",
)
"""What is drawn, reward and KL first, besides every component of the reward that moves."""
WIDTH = 30
"""Characters of a curve at the terminal."""
Report = dict[str, Any]


def report_command(path: Path, output: Path | None = None) -> Report:
    """Write the page of a run and show its figures; returns what ``--json`` prints."""
    run = run_folder(path)
    result = report_of(run)
    file = output or path / "report.html"
    if file.is_dir():
        raise UsageError(f"--output {file} is a folder; name a file.")
    check_place(file.parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, html_page(result))
    for table in (_headline_table(result), _curves_table(result), _alarms_table(result)):
        if table.row_count:
            show(table)
    if result["audit"]:
        show(f"{len(result['audit'])} episodes to read: aac audit {path}")
    show(f"page: {file}")
    return {**result, "page": str(file)}


def report_of(run: Path) -> Report:
    """All that the page says, as plain data. UsageError where there is no RL run."""
    rows = MetricsWriter(run / "metrics.jsonl").rows()
    if not rows:
        raise UsageError(f"{run} holds no metrics.jsonl of aac rl; name the folder of an RL run.")
    return {
        "run": str(run),
        "recipe": _recipe(run),
        "headline": _headline(run),
        "summary": _optional(run / "summary.json"),
        "curves": _curves(rows),
        "alarms": _lines(run / "alarms.jsonl"),
        "audit": read_picks(run) if list((run / FOLDER).glob("*.jsonl")) else [],
        "verdicts": read_verdicts(run),
    }


def _headline(run: Path) -> list[dict[str, Any]]:
    """Success with its interval: by the pipeline's test tasks if it ran, and on validation."""
    lines = []
    stages = _optional(run.parent / "summary.json").get("stages", {})
    for name, words in (("sft", "before RL"), ("rl", "after RL")):
        for how in ("sampled", "greedy"):
            if figures := stages.get(name, {}).get(how):
                lines.append(_share(f"{words}, held-out tasks, {how}", figures))
    told = _lines(run / "evaluations.jsonl")
    if told:
        best = max(told, key=lambda row: row["success"])
        for words, row in (("first", told[0]), ("best", best), ("last", told[-1])):
            lines.append(_share(f"{words} evaluation (iteration {row['step']})", row))
    return lines


def _share(words: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    interval = share_interval(figures["success"], figures["episodes"])
    return {"what": words, "episodes": figures["episodes"], **interval._asdict()}


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Name -> (iteration, value), only finite values."""
    names = dict.fromkeys(CURVES)
    names |= dict.fromkeys(n for row in rows for n in row if n.startswith("reward/"))
    curves = {}
    for name in names:
        found = [(row["step"], row[name]) for row in rows if _is_number(row.get(name))]
        if any(value for _, value in found):
            curves[name] = found
    return curves


def _headline_table(result: Report) -> Any:
    table = plain_table(result["run"], "success", "mean", "95 % interval", "tasks")
    for line in result["headline"]:
        ends = f"{percent(line['low'])} to {percent(line['high'])}"
        table.add_row(line["what"], percent(line["mean"]), ends, str(line["episodes"]))
    return table


def _curves_table(result: Report) -> Any:
    table = plain_table("curves", "figure", "first", "last", "lowest", "highest", "")
    for name, points in result["curves"].items():
        values = [value for _, value in points]
        ends = (values[0], values[-1], min(values), max(values))
        table.add_row(name, *(number(float(v), 3) for v in ends), sparkline(values, WIDTH))
    return table


def _alarms_table(result: Report) -> Any:
    table = plain_table("alarms", "alarm", "iteration", "action")
    for row in result["alarms"]:
        table.add_row(row["alarm"], str(row["step"]), row["done"] or row["action"] or DASH)
    return table


def _recipe(run: Path) -> dict[str, Any]:
    """Name and seed, where a finished run's manifest tells."""
    recipe = _optional(run / "manifest.json").get("recipe", {})
    return {name: recipe[name] for name in ("name", "seed") if name in recipe}


def _optional(file: Path) -> dict[str, Any]:
    return dict(read_json(file)) if file.is_file() else {}


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file() or file.stat().st_size == 0:
        return []
    return [row for _, row in read_records(file)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
