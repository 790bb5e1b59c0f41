"""Tables for people, made of the dictionaries that ``--json`` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from stages.common.titled import TitledTable

DASH = "–"

_RATES = {
    "success": "success",
    "out_of_budget": "out of budget",
    "invalid_actions": "invalid actions (of all turns)",
    "repeated_calls": "repeated calls (of all turns)",
    "loops": "loops",
    "same_error_again": "same error again (of all errors)",
    "recovery_after_error": "success after an error",
}
_NUMBERS = {"return": "return", "turns": "turns", "episodes": "episodes", "dropped": "dropped"}


def percent(value: float | None) -> str:
    """A share in percent; a dash where it is undefined."""
    return DASH if value is None else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 2) -> str:
    """A number, whole ones without decimals; a dash where it is undefined."""
    if value is None:
        return DASH
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def metrics_table(result: Mapping[str, Any]) -> Table:
    """One evaluation: its figures, its reward components and success by number of turns."""
    who = result.get("actor") or result.get("policy")
    how = "greedy" if result.get("greedy") else "sampled"
    table = plain_table(f"{who} ({how}, {result['split']} tasks)", "figure", "value")
    for key, words in _RATES.items():
        table.add_row(words, percent(result[key]))
    for key, words in _NUMBERS.items():
        table.add_row(words, number(result[key]))
    for name, value in result["dropped_at"].items():
        table.add_row(f"dropped at {name}", number(value))
    for name, value in result["components"].items():
        if value:
            table.add_row(f"reward: {name}", number(value, 3))
    for turns, part in result["success_by_turns"].items():
        table.add_row(f"success in {turns} turns", _share(part))
    return table


def groups_table(columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """Success per kind of task, per group, and over seen and unseen groups.

    ``columns`` maps a heading to the figures of one evaluation; all of the same tasks.
    """
    table = plain_table("success per kind and group of tasks", "tasks", *columns)
    for part in groups_rows(list(columns.values())):
        for row in part:
            table.add_row(*row)
        table.add_section()
    return table


def groups_rows(figures: Sequence[Mapping[str, Any]]) -> list[list[tuple[str, ...]]]:
    """Success per kind, per group, and over seen and unseen groups, name first."""
    parts = [
        [(name, *(_share(f[part].get(name)) for f in figures)) for name in figures[0][part]]
        for part in ("kinds", "groups")
    ]
    if figures[0]["unseen"] is not None:
        seen = ("groups seen in training", *(_share(f["seen"]) for f in figures))
        unseen = ("groups never seen", *(_share(f["unseen"]) for f in figures))
        parts.append([seen, unseen])
    return parts


def pipeline_table(summary: Mapping[str, Any]) -> Table:
    """What ``aac run`` ends with: the stages, and what they are to be compared with."""
    episodes = summary["baselines"]["base"]["episodes"]
    table = plain_table(f"success on {episodes} held-out tasks", "", *PIPELINE_HEADINGS)
    for part in pipeline_rows(summary):
        for row in part:
            table.add_row(*row)
        table.add_section()
    accuracy = summary["stages"].get("reward", {}).get("accuracy")
    if accuracy is not None:
        table.caption = f"reward model: accuracy {percent(accuracy)} on held-out pairs"
    return table


PIPELINE_HEADINGS = ("seconds", "sampled", "greedy", "return", "turns", "repeated")


def pipeline_rows(summary: Mapping[str, Any]) -> list[list[tuple[str, ...]]]:
    """The rows of ``aac run``'s table, name first: what to compare with, the stages, the sum."""
    compared = [
        (BASELINES.get(name, name), DASH, *_row(row)) for name, row in summary["baselines"].items()
    ]
    stages = [
        (
            name,
            number(float(row["seconds"]), 1),
            *(_row(row) if "sampled" in row else (DASH,) * 5),
        )
        for name, row in summary["stages"].items()
    ]
    return [compared, stages, [("all", number(float(summary["seconds"]), 1))]]


BASELINES = {
    "base": "base, zero-shot",
    "null": "says nothing",
    "random": "random calls",
    "most_frequent": "most frequent answer",
}
"""How those are called that are measured beside the stages."""


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    greedy = percent(row["success_greedy"]) if "success_greedy" in row else DASH
    return (
        percent(row["success_sampled"]),
        greedy,
        number(row["return"]),
        number(row["turns"]),
        percent(row["repeated_calls"]),
    )


def checks_table(result: Mapping[str, Any]) -> Table:
    """What ``aac env check`` found: the contract, then the scripted policies."""
    table = plain_table(f"environment {result['environment']}", "check or policy", "result")
    for name, row in result["checks"].items():
        verdict = {True: "kept", False: "BROKEN", None: "not tried"}[row["ok"]]
        table.add_row(name.replace("_", " "), f"{verdict}: {row['detail']}")
    table.add_section()
    for name, figures in result["policies"].items():
        shown = f"success {percent(figures['success'])}" if figures else DASH
        table.add_row(f"{name} policy", shown)
    if result["demonstrations"]:
        table.add_row("demonstrations", f"success {percent(result['demonstrations']['success'])}")
    table.add_row("steps per second", number(result["steps_per_s"], 0))
    return table


def _share(part: Mapping[str, Any] | None) -> str:
    if not part or part["success"] is None:
        return DASH
    return f"{percent(part['success'])} of {part['episodes']}"


def plain_table(title: str, first: str, *others: str) -> Table:
    """A table in the style of all reports: names at the left, figures at the right."""
    table = TitledTable(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def data_table(result: Mapping[str, Any]) -> Table:
    """What ``aac data check`` found in a file."""
    table = plain_table(str(result["file"]), "found", "rows")
    for name, count in result["shapes"].items():
        table.add_row(name, str(count))
    table.add_row("cannot be used", str(result["bad"]))
    for note, count in result["notes"].items():
        table.add_row(f"note: {note}", str(count))
    for name, count in (result["episodes"] or {}).items():
        table.add_row(name.replace("_", " "), str(count))
    table.add_row("read as it is by", ", ".join(result["readers"]) or DASH)
    table.add_row("can become (--to)", ", ".join(result["can_become"]) or DASH)
    return table


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """A text in lines of at most ``width`` characters; all but the first stand in by ``indent``."""
    lines = []
    for place, line in enumerate(text.splitlines() or [""]):
        first = "" if place == 0 else " " * indent
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=first,
            subsequent_indent=" " * indent,
            replace_whitespace=False,
            drop_whitespace=False,
        ) or [""]
    return "\n".join(line.rstrip() for line in lines)
