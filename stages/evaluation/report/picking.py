"""Which few of a run's many episodes go into its report, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.evaluation.audit import WHOLE, Pick
from stages.evaluation.report.runs import Run, lines
from stages.evaluation.report.weighing import Paid, Payer
from stages.interaction.trajectory import Trajectory

TRAINING = ("trajectories", "pool")
"""Folders of training episodes, a file an iteration; an offline run has only its pool."""
MOST_IN_WORDS = 60
"""Episodes of the audit beyond those that are shown whole."""


@dataclass(frozen=True)
class Picked:
    """One episode of the page. ``row`` alone: an older run kept no more of it than words."""

    id: str
    step: int
    """Iteration, from 1."""
    source: str
    """audit, last, first: a held-out evaluation's, or of the last or first iteration in training"""
    why: list[str]
    episode: Trajectory | None = None
    paid: Paid = field(default_factory=list)
    row: Pick = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """What is shown of a run, in the order in which it is listed."""

    picked: list[Picked]
    sentence: str
    """How many of how many, and which."""


def select(run: Run, payer: Payer, most: int) -> Selection:
    """At most ``most`` whole episodes: half of them from the audit, the rest from training.

    Of the audit the newest evaluations, and in words only what is left of it; of training the last
    and the first iteration, each with the best and the worst paid, then as many more as fit.
    """
    files = training_files(run.path)
    audit = _audited(run, payer, (most + 1) // 2 if files else most)
    whole = sum(picked.episode is not None for picked in audit)
    trained = list(_of_training(files, payer, most - whole)) if most > whole and files else []
    return Selection([*audit, *trained], _sentence(run, audit, len(trained), files))


def training_files(run: Path) -> dict[int, Path]:
    """Iteration (from 1) -> the file of its episodes, in order."""
    for folder in TRAINING:
        found = {int(f.stem) + 1: f for f in (run / folder).glob("*.jsonl") if f.stem.isdigit()}
        if found:
            return dict(sorted(found.items()))
    return {}


def _audited(run: Run, payer: Payer, most: int) -> list[Picked]:
    """The picks of the audit, newest first: ``most`` of them whole, a few more in words."""
    found: list[Picked] = []
    for step in dict.fromkeys(row["step"] for row in run.picks):
        rows = [row for row in run.picks if row["step"] == step]
        wanted = min(most - len(found), len(rows))
        whole = _episodes(run.path / WHOLE / f"{step:05d}.jsonl") if wanted > 0 else []
        for i, row in enumerate(rows):
            episode = whole[i] if i < wanted and len(whole) == len(rows) else None
            paid = payer(episode, step) if episode else [dict(t["paid"]) for t in row["turns"]]
            name = f"audit-{row['id']}"
            found.append(Picked(name, step, "audit", list(row["reasons"]), episode, paid, row))
    return found[: most + MOST_IN_WORDS]


def _of_training(files: dict[int, Path], payer: Payer, most: int) -> Iterator[Picked]:
    """Of the last iteration, then of the first; an odd one out goes to the last."""
    last, first = max(files), min(files)
    shares = {last: most} if last == first else {last: (most + 1) // 2, first: most // 2}
    for step, share in shares.items():
        if not share:
            continue
        episodes = [e for e in _episodes(files[step]) if e.turns]
        paid = [payer(episode, step) for episode in episodes]
        totals = [sum(sum(row.values()) for row in rows) for rows in paid]
        for i, why in _chosen(totals, share).items():
            source = "last" if step == last else "first"
            yield Picked(f"training-{step}-{i}", step, source, [why], episodes[i], paid[i])


def _chosen(totals: Sequence[float], most: int) -> dict[int, str]:
    """Places of the best and the worst paid, then of those that come first; and why."""
    if not totals:
        return {}
    order = sorted(range(len(totals)), key=lambda i: -totals[i])
    chosen = {order[0]: "best paid of its iteration"}
    chosen.setdefault(order[-1], "worst paid of its iteration")
    for i in range(len(totals)):
        chosen.setdefault(i, "one of its iteration's first")
    return dict(list(chosen.items())[:most])


def _sentence(run: Run, audit: Sequence[Picked], trained: int, files: dict[int, Path]) -> str:
    parts = []
    if run.picks:
        whole = sum(picked.episode is not None for picked in audit)
        words = len(audit) - whole
        more = f" (the newest; {words:,} more in words only)" if words else ""
        parts.append(f"{whole:,} of {len(run.picks):,} episodes kept for audit{more}")
    if files:
        count = sum(_count(file) for file in files.values())
        of = " of the last and of the first iteration" if len(files) > 1 else ""
        which = f" (best paid, worst paid and first few{of})" if trained else ""
        parts.append(f"{trained:,} of {count:,} episodes of training{which}")
    if not parts:
        return "This run keeps no episodes."
    return f"Here are {' and '.join(parts)}. More with --episodes."


def _episodes(file: Path) -> list[Trajectory]:
    return [Trajectory.from_json(row) for row in lines(file)]


def _count(file: Path) -> int:
    """Lines of a file, which is not read into memory whole."""
    with file.open("rb") as content:
        return sum(block.count(b"\n") for block in iter(lambda: content.read(1 << 20), b""))


def of_any(picked: Picked, name: str, default: Any = "") -> Any:
    """A field of its episode, or of the words that were kept of it."""
    if picked.episode is not None:
        return getattr(picked.episode, name)
    return picked.row.get(name, default)
