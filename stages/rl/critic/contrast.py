"""Good and bad side by side: pairs of things that can be compared but came out differently.

A thing carries its outcome and the groups it belongs to, the most specific first; it is compared
within the most specific group that holds a different outcome. So two replies to one state are
compared where the pool has them, else two turns of one task, and where all tasks of an iteration
are distinct, turns of tasks of one kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LEAST_MARGIN = 0.05
"""In units of success: below it a difference is shaping or luck, and makes no pair."""


@dataclass(frozen=True)
class Outcome:
    """What came of a thing, and the groups it may be compared in, the most specific first."""

    value: float
    groups: tuple[Hashable, ...]


class Contrasts:
    """All things that have a counterpart, drawn as (good, bad) pairs of their numbers."""

    def __init__(self, outcomes: Sequence[Outcome], *, min_margin: float = LEAST_MARGIN) -> None:
        members: dict[Hashable, list[int]] = defaultdict(list)
        for number, outcome in enumerate(outcomes):
            for group in outcome.groups:
                members[group].append(number)
        self._values = np.array([outcome.value for outcome in outcomes])
        self._margin = min_margin
        self._counterparts: list[tuple[int, np.ndarray]] = []
        arrays = {group: np.array(numbers) for group, numbers in members.items()}
        for number, outcome in enumerate(outcomes):
            found = (self._unlike(number, arrays[group]) for group in outcome.groups)
            others = next((f for f in found if len(f)), None)
            if others is not None:
                self._counterparts.append((number, others))

    def __len__(self) -> int:
        """How many things have a counterpart."""
        return len(self._counterparts)

    def draw(self, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """``count`` pairs (good, bad): one thing uniformly, then one of its counterparts."""
        pairs = []
        for place in rng.integers(len(self), size=count):
            one, others = self._counterparts[place]
            other = int(others[rng.integers(len(others))])
            better = self._values[one] > self._values[other]
            pairs.append((one, other) if better else (other, one))
        return pairs

    def _unlike(self, number: int, group: np.ndarray) -> np.ndarray:
        apart = np.abs(self._values[group] - self._values[number]) >= self._margin
        unlike: np.ndarray = group[apart]
        return unlike


def preference_loss(good: Tensor, bad: Tensor) -> Tensor:
    """−log σ(good − bad), the Bradley-Terry likelihood that ``good`` wins; (N,) from (N,).

    log 2 where both are alike. Bradley & Terry 1952. Raises ValueError when shapes differ.
    """
    if good.shape != bad.shape or good.dim() != 1:
        raise ValueError(f"good {tuple(good.shape)} and bad {tuple(bad.shape)} must be (N,) alike")
    return -torch.nn.functional.logsigmoid(good - bad)


def auc(good: Tensor, bad: Tensor) -> float:
    """Area under the ROC curve: the chance that a good one scores above a bad one, ties half.

    By ranks (Mann & Whitney 1947), with R the sum of the mean ranks of the good among all:
    (R − n(n + 1)/2) / (n·m). Args: (n,) and (m,) scores. nan where one of them is empty.
    """
    n, m = len(good), len(bad)
    if not n or not m:
        return float("nan")
    together = torch.cat([good, bad]).double()
    _, place, counts = together.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2)[place]
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))
