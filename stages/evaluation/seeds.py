"""Several seeds of the same recipe in tables: ``python -m stages.evaluation.seeds DIR...``.

Each folder is the root of one ``aac run``; its ``summary.json`` holds the figures of the stages.
Beside it may lie what ``aac eval --json`` said of them and their opponents on a larger set of
tasks: ``sft.json``, ``longer-sft.json`` (SFT with a quarter more steps: is SFT at its plateau?),
``more-sft.json`` (SFT continued for as long as RL took), ``cloning.json`` (SFT on the successful
episodes of RL) and ``rl.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from stages.common.console import show
from stages.common.errors import AacError, UsageError
from stages.common.files import read_json

STAGES = {
    "SFT sampled": ("stages", "sft", "success_sampled"),
    "SFT greedy": ("stages", "sft", "success_greedy"),
    "reward accuracy": ("stages", "reward", "accuracy"),
    "RL sampled": ("stages", "rl", "success_sampled"),
    "RL greedy": ("stages", "rl", "success_greedy"),
    "RL unseen": ("stages", "rl", "unseen", "success"),
    "seconds": ("seconds",),
}
ACTORS = {
    "SFT": "sft",
    "SFT, 25 % longer": "longer-sft",
    "SFT continued": "more-sft",
    "cloning": "cloning",
    "RL": "rl",
}
"""Name in the table -> file beside the summary, without its ending."""

Row = dict[str, float | None]


def figures(folders: Sequence[Path]) -> tuple[list[Row], list[Row]]:
    """Of each run the stages' figures, and every actor's success on the larger set of tasks.

    None stands where a run has none. Raises UsageError when a summary is missing.
    """
    if not folders:
        raise UsageError("no run was given; name the folders that aac run wrote to.")
    summaries = [read_json(folder / "summary.json") for folder in folders]
    stages = [{name: _at(s, path) for name, path in STAGES.items()} for s in summaries]
    actors = [
        {name: _at(_said(folder, file), ("success",)) for name, file in ACTORS.items()}
        for folder in folders
    ]
    return stages, actors


def kinds(folders: Sequence[Path]) -> dict[str, Row]:
    """Per kind of task the mean success over the runs, of each actor that was measured."""
    table: dict[str, Row] = {}
    for name, file in ACTORS.items():
        said = [_said(folder, file).get("kinds", {}) for folder in folders]
        for kind in sorted({k for row in said for k in row}):
            shares = [row[kind]["success"] for row in said if kind in row]
            table.setdefault(kind, dict.fromkeys(ACTORS))[name] = fmean(shares)
    return table


def over_runs(names: Sequence[str], rows: Sequence[Row]) -> Table:
    """Runs as rows, then their mean and their least value."""
    made = Table("run", *rows[0])
    for name, row in zip(names, rows, strict=True):
        made.add_row(name, *map(_cell, row.values()))
    made.add_section()
    for name, reduce in (("mean", fmean), ("least", min)):
        made.add_row(name, *(_cell(_reduced(rows, column, reduce)) for column in rows[0]))
    return made


def over_kinds(rows: Mapping[str, Row]) -> Table:
    """Kinds of task as rows, actors as columns."""
    made = Table("kind, mean of the runs", *ACTORS)
    for kind, row in rows.items():
        made.add_row(kind, *map(_cell, row.values()))
    return made


def main() -> None:
    """The command."""
    folders = [Path(name) for name in sys.argv[1:]]
    try:
        names, (stages, actors) = [folder.name for folder in folders], figures(folders)
        show(over_runs(names, stages))
        show(over_runs(names, actors))
        show(over_kinds(kinds(folders)))
    except AacError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _reduced(rows: Sequence[Row], column: str, reduce: Any) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return reduce(values) if values else None


def _said(folder: Path, actor: str) -> dict[str, Any]:
    file = folder / f"{actor}.json"
    return read_json(file) if file.is_file() else {}


def _at(content: Any, path: Sequence[str]) -> float | None:
    for part in path:
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value <= 1 else f"{value:.0f}"


if __name__ == "__main__":
    main()
