"""The HTML of ``aac report``: plain data in, one page without scripts or other files out.

Whatever a model or a world said is escaped: a page must not run what an agent wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from stages.evaluation.tables import percent

WIDE, HIGH = 240, 60
"""Pixels of a curve."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { text-align: left; padding: .2rem .8rem .2rem 0 }
.curves { display: flex; flex-wrap: wrap; gap: 1rem } figure { margin: 0 }
figcaption, .small { font-size: 12px; color: #555 } pre { white-space: pre-wrap; margin: .2rem 0 }
svg { background: #f5f5f5 } polyline { fill: none; stroke: #205080; stroke-width: 1.5 }
.bad { color: #a00000 } details { border-top: 1px solid #ccc; padding: .4rem 0 }
"""


def html_page(report: Mapping[str, Any]) -> str:
    """The whole page."""
    recipe = report["recipe"]
    name = f"{recipe.get('name', 'RL run')}, seed {recipe['seed']}" if recipe else "RL run"
    parts = [
        f"<h1>{escape(str(name))}</h1><p class='small'>{escape(report['run'])}</p>",
        _section("Success", _headline(report["headline"])),
        _section("Alarms", _alarms(report["alarms"]) or "<p>none was raised</p>"),
        _section("Curves", _curves(report["curves"])),
        _section("Episodes to read", _episodes(report["audit"], report["verdicts"])),
        _section("Final figures", _figures(report["summary"])),
    ]
    head = f"<meta charset='utf-8'><title>{escape(str(name))}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are text, not HTML."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(text)}</th>" for text in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _headline(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            line["what"],
            percent(line["mean"]),
            f"{percent(line['low'])} to {percent(line['high'])}",
            str(line["episodes"]),
        )
        for line in lines
    ]
    return _table(("", "success", "95 % interval", "tasks"), rows)


def _alarms(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (row["step"], row["alarm"], row["means"], row["figures"], row["done"] or row["action"])
        for row in lines
    ]
    return _table(("iteration", "alarm", "it means", "figures", "done"), rows)


def _curves(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    figures = "".join(_curve(name, points) for name, points in curves.items())
    return f"<div class='curves'>{figures}</div>"


def _curve(name: str, points: Sequence[tuple[int, float]]) -> str:
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    across = (WIDE - 8) / max(steps[-1] - steps[0], 1)
    up = (HIGH - 8) / (high - low) if high > low else 0.0
    drawn = " ".join(
        f"{4 + (step - steps[0]) * across:.1f},{HIGH - 4 - (value - low) * up:.1f}"
        for step, value in points
    )
    told = f"{escape(name)}: {values[0]:.3g} → {values[-1]:.3g} ({low:.3g} to {high:.3g})"
    line = f"<svg width='{WIDE}' height='{HIGH}'><polyline points='{drawn}'/></svg>"
    return f"<figure>{line}<figcaption>{told}</figcaption></figure>"


def _episodes(picks: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Any]) -> str:
    return "".join(_episode(row, verdicts.get(row["id"])) for row in picks)


def _episode(row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    end = "success" if row["success"] else "no success"
    title = f"{row['id']} · {end} · reward {row['return']:.2f} · {'; '.join(row['reasons'])}"
    said = f" · <b class='bad'>{escape(verdict['verdict'])}</b>" if verdict else ""
    turns = "".join(
        f"<pre><b>{number}.</b> {escape(turn['said'])}</pre>"
        + "".join(f"<pre class='small'>{escape(text)}</pre>" for text in turn["seen"])
        for number, turn in enumerate(row["turns"], start=1)
    )
    goal = f"<p>{escape(row['goal'])}</p>"
    return f"<details><summary>{escape(title)}{said}</summary>{goal}{turns}</details>"


def _figures(summary: Mapping[str, Any]) -> str:
    plain = [(n, v) for n, v in summary.items() if isinstance(v, int | float | str)]
    return _table(("figure", "value"), [(n, _short(v)) for n, v in plain])


def _short(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
