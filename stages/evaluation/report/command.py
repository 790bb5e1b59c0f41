"""``aac report``: reads runs, writes the page and the pictures, shows figures at the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.common.console import show
from stages.common.errors import UsageError
from stages.common.files import write_text
from stages.common.live import sparkline
from stages.common.run_folder import check_place
from stages.evaluation.report.charts import points, sections
from stages.evaluation.report.episodes import Shown, Views, Writer
from stages.evaluation.report.headline import headline
from stages.evaluation.report.page import html_page
from stages.evaluation.report.picking import select
from stages.evaluation.report.pictures import write_pictures
from stages.evaluation.report.runs import Run, read_runs
from stages.evaluation.report.tokens import decoder_of
from stages.evaluation.report.weighing import Payer
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
"""Of an RL run at the terminal, reward and KL first, besides every component of the reward that
moves. Of other stages all figures."""
WIDTH = 30
"""Characters of a curve at the terminal."""
Report = dict[str, Any]


def report_command(
    paths: Sequence[Path],
    *,
    views: Views,
    output: Path | None = None,
    png: bool = False,
    episodes: int = 32,
) -> Report:
    """Write the page of one run or of several side by side and show their figures.

    ``views``: what the critic sees of an episode. ``episodes``: how many of each run are shown
    whole. Returns what ``--json`` prints: the figures of the run, or of several under ``runs``.
    """
    runs = read_runs(paths)
    file = _place(output or paths[0] / ("report.html" if len(runs) == 1 else "side-by-side.html"))
    results = [_figures(run) for run in runs]
    headlines = [result["headline"] for result in results]
    shown, pieces, told = _episodes(runs, views, episodes)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, html_page(runs, headlines, episodes=shown, pieces=pieces, told=told))
    made: Report = {"page": str(file)}
    if png:
        folder = file.with_name(f"{file.stem}-plots")
        charts = [chart for _, charts in sections(runs) for chart in charts]
        made["plots"] = [str(path) for path in write_pictures(folder, charts)]
    for result in results:
        _show(result)
    show(f"page: {file}")
    if png:
        show(f"plots: {folder} ({len(made['plots'])} files)")
    return {**(results[0] if len(runs) == 1 else {"runs": results}), **made}


def _place(file: Path) -> Path:
    if file.is_dir():
        raise UsageError(f"--output {file} is a folder; name a file.")
    check_place(file.parent)
    return file


def _figures(run: Run) -> Report:
    """What the page says of a run, as plain data."""
    return {
        "run": str(run.path),
        "stage": run.stage,
        "recipe": {name: run.recipe[name] for name in ("name", "seed") if name in run.recipe},
        "headline": headline(run),
        "summary": run.summary,
        "curves": _curves(run),
        "alarms": run.alarms,
        "audit": run.picks,
        "verdicts": run.verdicts,
    }


def _curves(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Name -> (step, value), only finite values."""
    names = dict.fromkeys(CURVES if run.stage == "rl" else ())
    group = "reward/" if run.stage == "rl" else f"{run.stage}/"
    names |= dict.fromkeys(n for row in run.rows for n in row if n.startswith(group))
    found = {name: points(run.rows, name) for name in names}
    return {n: list(zip(*xy, strict=True)) for n, xy in found.items() if any(xy[1])}


def _episodes(
    runs: Sequence[Run], views: Views, most: int
) -> tuple[list[Shown], list[str], list[Mapping[str, Any]]]:
    """Records of the episodes that are shown, their pieces of text, and words on each run's."""
    writer, shown, told = Writer(views), list[Shown](), list[Mapping[str, Any]]()
    for place, run in enumerate(runs):
        payer, decoder = Payer(run), decoder_of(run)
        selection = select(run, payer, most)
        shown += [writer.record(p, run.recipe, decoder, place) for p in selection.picked]
        note = {"sentence": selection.sentence, "note": payer.note, "no_view": _no_view(run)}
        told.append(note)
    return shown, writer.pieces.texts, told


def _no_view(run: Run) -> str:
    """Why the critic's view of an episode may be missing."""
    if not run.recipe:
        return "The view is made by the recipe, which is not known before the run is finished."
    if run.recipe.get("rl", {}).get("critic", {}).get("kind") == "none":
        return "This run has no critic."
    return "Left out to keep the page small; show fewer episodes with --episodes."


def _show(result: Report) -> None:
    for table in (_headline_table(result), _curves_table(result), _alarms_table(result)):
        if table.row_count:
            show(table)
    if result["audit"]:
        show(f"{len(result['audit'])} episodes to read: aac audit {result['run']}")


def _headline_table(result: Report) -> Any:
    table = plain_table(result["run"], "success", "mean", "95 % interval", "tasks")
    for line in result["headline"]:
        ends = f"{percent(line['low'])} to {percent(line['high'])}"
        table.add_row(line["what"], percent(line["mean"]), ends, str(line["episodes"]))
    return table


def _curves_table(result: Report) -> Any:
    table = plain_table("curves", "figure", "first", "last", "lowest", "highest", "")
    for name, pairs in result["curves"].items():
        values = [value for _, value in pairs]
        ends = (values[0], values[-1], min(values), max(values))
        table.add_row(name, *(number(v, 3) for v in ends), sparkline(values, WIDTH))
    return table


def _alarms_table(result: Report) -> Any:
    table = plain_table("alarms", "alarm", "iteration", "action")
    for row in result["alarms"]:
        table.add_row(row["alarm"], str(row["step"]), row["done"] or row["action"] or DASH)
    return table
