"""Two policies on the same tasks: who solved what, and where they first act differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.common.errors import RunError
from stages.evaluation.intervals import mcnemar_p, paired_interval
from stages.interaction.trajectory import Trajectory

Pair = tuple[Trajectory, Trajectory]
"""The same task, played by the first and by the second."""
COUNTS = {
    (True, True): "both",
    (True, False): "won",
    (False, True): "lost",
    (False, False): "neither",
}
"""What a pair of outcomes is called, as seen by the first."""


@dataclass(frozen=True)
class Divergence:
    """The first turn in which two episodes of a task differ; 0 is the first turn."""

    pair: Pair
    turn: int

    @property
    def decisive(self) -> bool:
        """Whether exactly one of the two solved the task."""
        return self.pair[0].success != self.pair[1].success


def paired(first: Sequence[Trajectory], second: Sequence[Trajectory]) -> list[Pair]:
    """The tasks that both played to an end; what the machinery dropped is left out.

    Raises ValueError unless both played the same tasks in the same order, RunError if nothing is
    left.
    """
    if [t.task_id for t in first] != [t.task_id for t in second]:
        raise ValueError("the two did not play the same tasks in the same order")
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a.error is b.error is None]
    if not pairs:
        raise RunError(
            f"in each of {len(first)} tasks an episode was dropped by the environment's own faults;"
            " check it with aac env check."
        )
    return pairs


def duel(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Tasks won (only the first solved it), lost (only the second), both, neither; the difference
    of the two success shares with its 95 % interval, and the exact p of McNemar's test.
    """
    counts = tally(pairs)
    difference = paired_interval(counts["both"], counts["won"], counts["lost"], counts["neither"])
    return {
        "tasks": len(pairs),
        **counts,
        "difference": difference._asdict(),
        "p": mcnemar_p(counts["won"], counts["lost"]),
        "kinds": {
            kind: tally([pair for pair in pairs if pair[0].kind == kind])
            for kind in sorted({pair[0].kind for pair in pairs})
        },
    }


def tally(pairs: Sequence[Pair]) -> dict[str, int]:
    """How many pairs of each outcome."""
    names = [COUNTS[a.success, b.success] for a, b in pairs]
    return {name: names.count(name) for name in COUNTS.values()}


def divergences(pairs: Sequence[Pair]) -> list[Divergence]:
    """Where the two part, for each task in which they do; decisive ones first, else in order."""
    found = [Divergence(p, turn) for p in pairs if (turn := diverging_turn(*p)) is not None]
    return sorted(found, key=lambda divergence: not divergence.decisive)


def diverging_turn(first: Trajectory, second: Trajectory) -> int | None:
    """The first turn whose action reads otherwise, or that only one of them has."""
    texts = [[turn.action.text for turn in episode.turns] for episode in (first, second)]
    common = min(map(len, texts))
    for turn in range(common):
        if texts[0][turn] != texts[1][turn]:
            return turn
    return common if len(texts[0]) != len(texts[1]) else None
