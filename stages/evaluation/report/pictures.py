"""The curves as PNG files, for papers, chats and terminals without a browser."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.common.files import write_bytes
from stages.evaluation.report.charts import Chart

SIZE, DPI = (6.0, 3.2), 160
COLOURS = ("#17589c", "#c2480c", "#177a5b", "#7b3fb5", "#8a6400", "#b01f68", "#4c5661", "#0b7285")
ALARM = "#a82a16"
"""As on the page, in its light scheme."""
LONGEST = 80
"""Characters of a file's name."""


def write_pictures(folder: Path, charts: Sequence[Chart]) -> list[Path]:
    """One file for each chart, named by its stage and title; the files, in order."""
    # Not pyplot: no window, no global state.
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    files: dict[Path, None] = {}
    for chart in charts:
        figure = Figure(figsize=SIZE, layout="constrained")
        _draw(figure.subplots(), chart)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DPI)
        name = f"{chart['stage']}-{_slug(chart['title'])}"
        file = folder / f"{name}.png"
        if file in files:
            file = folder / f"{name}-{len(files)}.png"
        write_bytes(file, content.getvalue())
        files[file] = None
    return list(files)


def _draw(axes: Any, chart: Chart) -> None:
    lines = chart["lines"]
    several = len({line["run"] for line in lines}) > 1
    places = [line["run"] if several else place for place, line in enumerate(lines)]
    colours = [COLOURS[place % len(COLOURS)] for place in places]
    if chart["stacked"]:
        steps, rows = _on_one_axis(chart)
        drawn = axes.stackplot(steps, rows, colors=colours, alpha=0.75)
    else:
        drawn = [
            axes.plot(line["x"], line["y"], color=colour, lw=1.4, ms=3, marker=_marker(line))[0]
            for line, colour in zip(lines, colours, strict=True)
        ]
    for alarm in chart["alarms"]:
        own = alarm["own"]
        axes.axvline(alarm["step"], color=ALARM, lw=1.2 if own else 0.6, ls="-" if own else ":")
    texts = [axes.set_title(chart["title"], loc="left", fontsize=10)]
    if len(lines) > 1:
        labels = [line["label"] for line in lines]
        texts += axes.legend(drawn, labels, fontsize=7, frameon=False, ncols=2).get_texts()
    for text in texts:
        text.set_parse_math(False)  # names come from tools and models, and a $ begins a formula
    axes.set_xlabel(chart["x"], fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if chart["unit"] == "share":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def _marker(line: Mapping[str, Any]) -> str | None:
    return "o" if len(line["x"]) < 12 else None


def _on_one_axis(chart: Chart) -> tuple[list[float], list[list[float]]]:
    """Every line at every step, 0 where it has none."""
    steps = sorted({x for line in chart["lines"] for x in line["x"]})
    known = [dict(zip(line["x"], line["y"], strict=True)) for line in chart["lines"]]
    return steps, [[own.get(step, 0.0) for step in steps] for own in known]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:LONGEST] or "curve"
