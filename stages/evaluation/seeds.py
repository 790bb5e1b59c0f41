"""One table over several seeds of the same recipe: ``python -m stages.evaluation.seeds DIR...``.

Each folder is the root of one ``aac run``; its ``summary.json`` holds the figures. Beside it may
lie what ``aac eval --json`` said of opponents: ``more-sft.json`` (SFT continued for as long as RL
took) and ``cloning.json`` (SFT on the successful episodes of RL).
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
from stages.common.run_folder import read_json

COLUMNS = {
    "SFT sampled": ("stages", "sft", "success_sampled"),
    "SFT greedy": ("stages", "sft", "success_greedy"),
    "reward accuracy": ("stages", "reward", "accuracy"),
    "RL sampled": ("stages", "rl", "success_sampled"),
    "RL greedy": ("stages", "rl", "success_greedy"),
    "RL unseen": ("stages", "rl", "unseen", "success"),
    "more SFT": ("more-sft", "success"),
    "cloning": ("cloning", "success"),
    "seconds": ("seconds",),
}
OPPONENTS = ("more-sft", "cloning")


def figures(folders: Sequence[Path]) -> list[dict[str, float | None]]:
    """The columns' figures of each run, None where a run has none.

    Raises UsageError when a summary is missing.
    """
    if not folders:
        raise UsageError("no run was given; name the folders that aac run wrote to.")
    known = [read_json(folder / "summary.json") | _opponents(folder) for folder in folders]
    return [{name: _at(s, path) for name, path in COLUMNS.items()} for s in known]


def table(names: Sequence[str], rows: Sequence[Mapping[str, float | None]]) -> Table:
    """Runs as rows, then their mean and their least value."""
    made = Table("run", *COLUMNS)
    for name, row in zip(names, rows, strict=True):
        made.add_row(name, *(_cell(row[column]) for column in COLUMNS))
    made.add_section()
    for name, reduce in (("mean", fmean), ("least", min)):
        made.add_row(name, *(_cell(_reduced(rows, column, reduce)) for column in COLUMNS))
    return made


def main() -> None:
    """The command."""
    folders = [Path(name) for name in sys.argv[1:]]
    try:
        show(table([folder.name for folder in folders], figures(folders)))
    except AacError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _reduced(rows: Sequence[Mapping[str, float | None]], column: str, reduce: Any) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return reduce(values) if values else None


def _opponents(folder: Path) -> dict[str, Any]:
    files = {name: folder / f"{name}.json" for name in OPPONENTS}
    return {name: read_json(file) for name, file in files.items() if file.is_file()}


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
