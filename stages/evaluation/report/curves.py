"""Places for curves on a page: title, words, legend and alarms; the page's script draws them."""

from __future__ import annotations

from collections.abc import Sequence

from stages.evaluation.report.charts import Chart
from stages.evaluation.report.markup import Html, element, void
from stages.evaluation.tables import percent


def key_of(number: int) -> Html:
    """A run's colour."""
    line = void("line", x1=0, y1=4, x2=14, y2=4, stroke_width=3)
    return element("svg", line, class_=f"k{number % 8}", width=14, height=8, aria_hidden="true")


def chart_figures(charts: Sequence[Chart], first: int, kind: str = "charts") -> Html:
    """Places for the curves, the first of which has this number."""
    made = [_figure(chart, first + place) for place, chart in enumerate(charts)]
    return element("div", *made, class_=kind)


def _figure(chart: Chart, number: int) -> Html:
    lines = chart["lines"]
    told = "; ".join(
        f"{line['label']} from {_short(line['y'][0], chart)} to {_short(line['y'][-1], chart)}"
        for line in lines
    )
    words = f"{chart['title']} by {chart['x']}: {told}"
    return element(
        "figure",
        element(
            "figcaption",
            element("h3", chart["title"], element("span", _now(chart), class_="soft")),
            element("p", chart["note"], class_="soft"),
        ),
        element("div", class_="plot", role="img", aria_label=words),
        element("ul", *_legend(chart), class_="legend"),
        element("ul", *_marks(chart), class_="marks"),
        data_chart=number,
    )


def _legend(chart: Chart) -> list[Html]:
    lines = chart["lines"]
    if len(lines) < 2:
        return []
    several = len({line["run"] for line in lines}) > 1
    made = []
    for place, line in enumerate(lines):
        sample = key_of(line["run"] if several else place)
        name = element("span", line["label"])
        made.append(
            element("li", element("button", sample, name, type="button", aria_pressed="true"))
        )
    return made


def _now(chart: Chart) -> str:
    """Where a single line ends."""
    lines = chart["lines"]
    return _short(lines[0]["y"][-1], chart) if len(lines) == 1 else ""


def _short(value: float, chart: Chart) -> str:
    if chart["unit"] == "share":
        return percent(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _marks(chart: Chart) -> list[Html]:
    """The alarms that speak of this chart's figures, in words."""
    several = len({line["run"] for line in chart["lines"]}) > 1
    told = []
    for alarm in (alarm for alarm in chart["alarms"] if alarm["own"]):
        who = f"{alarm['of']}, " if several else ""
        words = f"▼ {who}{chart['x']} {alarm['step']}: {alarm['name']}, {alarm['means']}"
        told.append(element("li", words))
    return told
