"""The first tab: what came of it, in a sentence, a table with intervals and four curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.evaluation.report.curves import key_of
from stages.evaluation.report.headline import Line, story
from stages.evaluation.report.markup import Html, element, joined, table, void
from stages.evaluation.report.runs import Run
from stages.evaluation.tables import DASH, PIPELINE_HEADINGS, groups_rows, percent, pipeline_rows

WIDE, PAD, LINE = 240, 6, 16
"""Of an interval's drawing: width, room at both ends, height of a line."""
Headlines = Sequence[Sequence[Line]]
"""The lines of each run."""


def overview(runs: Sequence[Run], headlines: Headlines, charts: Html) -> Html:
    """All of it. ``charts``: the few that tell most."""
    return joined(
        [
            *_stories(runs, headlines),
            _headline(runs, headlines),
            element("h2", "Curves that tell most"),
            charts,
            _alarms(runs),
            *(_pipeline(run, len(runs) == 1) for run in runs),
        ]
    )


def _stories(runs: Sequence[Run], headlines: Headlines) -> list[Html]:
    told = []
    for number, (run, lines) in enumerate(zip(runs, headlines, strict=True)):
        sentences = unbroken(" ".join(story(run, lines)))
        name = [key_of(number), " ", element("b", run.label), ": "] if len(runs) > 1 else []
        told.append(element("p", *name, sentences, class_="lead"))
    return told


def _headline(runs: Sequence[Run], headlines: Headlines) -> Html:
    """A row for everything that was measured, a column for each run."""
    order = dict.fromkeys((line["tasks"], line["when"]) for lines in headlines for line in lines)
    if not order:
        return Html("")
    found = [{(line["tasks"], line["when"]): line for line in lines} for lines in headlines]
    rows, part, single = [], "", len(runs) == 1
    for tasks, when in order:
        if tasks != part:
            rows.append(element("tr", element("th", tasks.capitalize(), colspan=9), class_="part"))
            part = tasks
        rows.append(_measured(when, [by.get((tasks, when)) for by in found], single))
    names = ["success", "95 % interval", "tasks"] if single else [run.label for run in runs]
    heads = [element("th", name, class_="number", scope="col") for name in names]
    head = element("tr", element("th", ""), *heads, element("th", _scale(), class_="bars"))
    whole = element("table", element("thead", head), element("tbody", *rows), class_="headline")
    return joined([element("h2", "Before and after"), element("div", whole, class_="scroll")])


def _measured(when: str, lines: Sequence[Line | None], single: bool) -> Html:
    places = {line["place"] for line in lines if line}
    place = f", {places.pop()}" if len(places) == 1 and "" not in places else ""
    cells = [element("th", when, element("span", place, class_="soft"), scope="row")]
    for line in lines:
        cells += [element("td", cell, class_="number") for cell in _cells(line, single)]
    return element("tr", *cells, element("td", _bars(lines), class_="bars"))


def _cells(line: Line | None, single: bool) -> list[Any]:
    """Mean, interval and tasks: a column each, or all in one."""
    if line is None:
        return [DASH] * (3 if single else 1)
    mean = element("span", unbroken(percent(line["mean"])), class_="big")
    ends = unbroken(f"{percent(line['low'])[:-2]} to {percent(line['high'])}")
    if single:
        return [mean, ends, f"{line['episodes']:,}"]
    below = element("span", f"{ends} of {line['episodes']:,}", class_="soft below")
    return [joined([mean, below])]


def _bars(lines: Sequence[Line | None]) -> Html:
    """Mean and interval of each run on a scale from 0 to 1."""
    high = LINE * max(len(lines), 1)
    shapes = [
        void("line", x1=_x(end), y1=0, x2=_x(end), y2=high, class_="axis") for end in (0, 0.5, 1)
    ]
    for number, line in enumerate(lines):
        if line is None:
            continue
        middle, kind = LINE * number + LINE / 2, f"k{number % 8}"
        ends = {"x1": _x(line["low"]), "x2": _x(line["high"]), "y1": middle, "y2": middle}
        shapes.append(void("line", **ends, class_=f"whisker {kind}"))
        shapes.append(void("circle", cx=_x(line["mean"]), cy=middle, r=4, class_=f"dot {kind}"))
    box = f"0 0 {WIDE} {high}"
    return element("svg", *shapes, viewBox=box, height=high, aria_hidden="true")


def unbroken(words: str) -> str:
    """No line ends before a sign of per cent."""
    return words.replace(" %", "\u00a0%")


def _scale() -> Html:
    """What the ends and the middle of the bars stand for."""
    places = {0: "start", 50: "middle", 100: "end"}
    marks = [
        element("text", f"{end} %", x=_x(end / 100), y=11, text_anchor=anchor)
        for end, anchor in places.items()
    ]
    return element("svg", *marks, viewBox=f"0 0 {WIDE} {LINE}", height=LINE, aria_hidden="true")


def _x(share: float) -> float:
    return round(PAD + share * (WIDE - 2 * PAD), 1)


def _alarms(runs: Sequence[Run]) -> Html:
    several = len(runs) > 1
    rows = []
    for run in runs:
        for row in run.alarms:
            name = element("code", row["alarm"])
            figures = element("span", f"({row.get('figures', '')})", class_="soft")
            means = joined([row.get("means", ""), " ", figures])
            done = row.get("done") or f"{row.get('action', '')}: {row.get('cure', '')}"
            own = [run.label] if several else []
            rows.append([f"iteration {row['step']}", *own, name, means, done])
    if not rows:
        return Html("")
    own = ["run"] if several else []
    headings = ["when", *own, "alarm", "it means", "done, or the usual cure"]
    return joined([element("h2", "Alarms"), table(headings, rows, numbers=False, class_="stack")])


def _pipeline(run: Run, alone: bool) -> Html:
    """The table that ``aac run`` ended with, and success by kind of task."""
    summary = run.pipeline
    if not summary.get("baselines", {}).get("base"):
        return Html("")
    parts = pipeline_rows(summary) if "seconds" in summary else []
    rows = [row for part in parts for row in part]
    whole = table(["", *PIPELINE_HEADINGS], [[*row, *[""] * (7 - len(row))] for row in rows])
    title = element("h2", "All stages" if alone else f"All stages: {run.label}")
    ready = summary.get("readiness", {}).get("advice", "")
    advice = element("p", "Before RL: ", ready, class_="soft") if ready else ""
    return joined([title, whole, advice, _kinds(summary)])


def _kinds(summary: Mapping[str, Any]) -> Html:
    columns = {"base": summary["baselines"]["base"]} | {
        name: row for name, row in summary["stages"].items() if "sampled" in row
    }
    figures = [row.get("sampled", {}) for row in columns.values()]
    if not all(row.get("kinds") for row in figures):
        return Html("")
    rows = [row for part in groups_rows(figures) for row in part]
    whole = table(["sampled", *columns], rows)
    return element("details", element("summary", "success by kind and group of task"), whole)
