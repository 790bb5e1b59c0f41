"""What a study says of supervision, as tables for the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from stages.evaluation.tables import DASH, plain_table

MARKDOWN = (
    "arm", "k", "success, %", "less the first, points", "the same, by tasks", "won : lost", "p",
    "tokens sampled / used", "tokens an episode",
)  # fmt: skip
BY_TASKS = (
    "By tasks: Newcombe's 95 % interval of the paired shares over all seeds; won and lost: tasks "
    "solved under this arm alone, and under the first alone; p: McNemar."
)
TERSE = "[{}, {}]"
"""An interval where there is little room."""


def supervision_tables(result: Mapping[str, Any]) -> list[Table]:
    """One table an actor: each arm's success, and how it compares with the first."""
    found = result["supervision"]
    return [_table(result, actor, rows) for actor, rows in found["summary"].items() if rows]


def supervision_markdown(result: Mapping[str, Any]) -> str:
    """The same with every figure, to be pasted."""
    found = result["supervision"]
    parts = [f"# Supervision: {result['study']}\n\n{_about(result)} {BY_TASKS}\n"]
    for actor, rows in found["summary"].items():
        lines = [_line(MARKDOWN), _line(["---"] * len(MARKDOWN))]
        lines += [_line(_cells(name, row, found["arms"][name])) for name, row in rows.items()]
        heading = f"## {actor}, watched by the critic of {found['critics'][actor]}"
        parts.append("\n".join([heading, "", *lines, ""]))
    return "\n".join(parts)


def _table(result: Mapping[str, Any], actor: str, rows: Mapping[str, Any]) -> Table:
    title = f"{actor}, under supervision"
    table = plain_table(title, "", "success, %", f"minus {next(iter(rows))}", "tokens")
    for name, row in rows.items():
        against = _with_ends(row["difference"], "{:+.1f}", TERSE) if "difference" in row else ""
        own = _with_ends(row["success"], "{:.1f}", TERSE)
        table.add_row(name, own, against, f"{row['tokens_ratio']:.1f}")
    table.caption = _about(result)
    return table


def _about(result: Mapping[str, Any]) -> str:
    seeds = ", ".join(map(str, result["seeds"]))
    return (
        f"{result['episodes']} held-out tasks ({result['split']}, sampled) for each of the seeds "
        f"{seeds}; in brackets bootstrap 95 % intervals over the seeds; tokens: sampled over used."
    )


def _cells(name: str, row: Mapping[str, Any], arm: Mapping[str, Any]) -> Sequence[str]:
    tasks = row.get("tasks")
    compared = ["", "", "", ""]
    if tasks:
        counts = f"{tasks['won']} : {tasks['lost']} of {tasks['tasks']}"
        both = [_points(row["difference"]), _points(tasks["difference"])]
        compared = [*both, counts, f"{tasks['p']:.2g}"]
    cost = [f"{row['tokens_ratio']:.2f}", f"{row['tokens_per_episode']:.0f}"]
    return [name, str(arm["proposals"]), _percent(row["success"]), *compared, *cost]


def _percent(interval: Mapping[str, Any]) -> str:
    return _with_ends(interval, "{:.1f}")


def _points(interval: Mapping[str, Any]) -> str:
    return _with_ends(interval, "{:+.1f}")


def _with_ends(interval: Mapping[str, Any], form: str, ends: str = "({} to {})") -> str:
    """``64.1 (60.2 to 67.0)``; without the interval where one seed has none."""
    mean, low, high = (
        DASH if interval[key] is None else form.format(100 * interval[key])
        for key in ("mean", "low", "high")
    )
    return mean if interval["low"] is None else f"{mean} {ends.format(low, high)}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
