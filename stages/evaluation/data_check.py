"""``aac data check``: what a person's file is, what is wrong with it, and what it can become."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.common.console import show, warn
from stages.common.errors import UsageError
from stages.common.files import write_lines
from stages.common.records import Record, read_records
from stages.evaluation.data_convert import CONVERSIONS, convertible
from stages.evaluation.data_shapes import EPISODES, PREFERENCES, Finding, examine
from stages.evaluation.tables import data_table

SHOWN = 20
"""Problems that are printed; ``--json`` has them all."""


def data_command(
    path: Path, *, to: str | None = None, output: Path | None = None, drop_bad: bool = False
) -> dict[str, Any]:
    """Check a file, show what was found, and convert its sound rows to ``output`` if asked.

    Returns the findings. UsageError if a row is in no known shape or not sound (nothing is
    written then), unless ``drop_bad``.
    """
    records = read_records(path)
    findings = [examine(record) for record in records]
    sound = [r for r, found in zip(records, findings, strict=True) if found.problem is None]
    result = {"file": str(path), **summary(records, findings), "can_become": []}
    if sound:
        result["can_become"] = convertible(sound)
    show(data_table(result))
    for problem in result["problems"][:SHOWN]:
        warn(problem)
    if result["bad"] and not drop_bad:
        more = f" (the first {SHOWN} are above)" if result["bad"] > SHOWN else ""
        raise UsageError(
            f"{path}: {result['bad']} of {result['rows']} rows cannot be used{more}; mend them, or "
            "leave them out with --drop-bad."
        )
    if to is not None and output is not None:
        rows = CONVERSIONS[to](sound)
        if not rows:
            raise UsageError(f"{path} gives no {to}: {_why_none(to)}.")
        write_lines(output, rows)
        result |= {"to": to, "output": str(output), "written": len(rows)}
        show(f"{len(rows)} {to} from {len(sound)} rows: {output}")
    return result


def summary(records: Sequence[Record], findings: Sequence[Finding]) -> dict[str, Any]:
    """Counts over all rows, and every problem in words."""
    problems = [found.problem for found in findings if found.problem]
    return {
        "rows": len(records),
        "shapes": dict(Counter(found.shape for found in findings)),
        "good": len(records) - len(problems),
        "bad": len(problems),
        "problems": problems,
        "notes": dict(Counter(note for found in findings for note in found.notes)),
        "readers": _readers(findings),
        "episodes": _episodes(records, findings),
    }


def _readers(findings: Sequence[Finding]) -> list[str]:
    """The commands that take such a file as it is."""
    sound = [found.shape for found in findings if found.problem is None]
    if not sound:
        return []
    preference = [shape.startswith(PREFERENCES) for shape in sound]
    if all(preference):
        return ["aac train-reward"]
    return [] if any(preference) else ["aac sft"]


def _episodes(records: Sequence[Record], findings: Sequence[Finding]) -> dict[str, int] | None:
    """How many won, on how many tasks, and on how many both happened; None without rewards."""
    kept = zip(records, findings, strict=True)
    rows = [r[1] for r, f in kept if f.problem is None and f.shape == EPISODES]
    if not rows:
        return None
    outcomes: dict[str, set[bool]] = defaultdict(set)
    for number, row in enumerate(rows):
        outcomes[str(row.get("task_id", number))].add(row["reward"] > 0)
    return {
        "episodes": len(rows),
        "successful": sum(row["reward"] > 0 for row in rows),
        "tasks": len(outcomes),
        "tasks_won_and_lost": sum(len(seen) == 2 for seen in outcomes.values()),
    }


def _why_none(to: str) -> str:
    if to == "preferences":
        return "no task was both won and lost, so nothing can be compared"
    return "it has no sound row"
