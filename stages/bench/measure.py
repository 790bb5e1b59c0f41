"""Times of two or more sides of a comparison, taken in turn, and what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stages.common.errors import RunError


@dataclass(frozen=True)
class Times:
    """One repeat of one side."""

    seconds: float
    figures: Mapping[str, Any]
    """What it did: tokens, episodes."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some repeats."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """ValueError where there are none."""
        if not values:
            raise ValueError("no repeats were given")
        return cls(median(values), min(values), max(values))


def interleaved(sides: Mapping[str, Callable[[], Times]], repeats: int) -> dict[str, list[Times]]:
    """Every side once, then every side again: what slows the machine for a while slows them all.

    The first round is not counted: caches fill and libraries are read in it.
    """
    taken: dict[str, list[Times]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        for name, run in sides.items():
            times = run()
            if number:
                taken[name].append(times)
    return taken


def require_same_work(taken: Mapping[str, Sequence[Times]], names: Sequence[str]) -> dict[str, Any]:
    """The named figures, which all sides have to agree on in their last repeat; RunError if not."""
    told = {side: {n: times[-1].figures[n] for n in names} for side, times in taken.items()}
    first, *others = told.values()
    if any(other != first for other in others):
        raise RunError(f"the sides did not do the same work: {told}; nothing was compared.")
    return first


def middle(times: Sequence[Times]) -> float:
    """The median of the repeats' seconds."""
    return median(one.seconds for one in times)


def ratios(slow: Sequence[Times], fast: Sequence[Times]) -> Spread:
    """How many times longer ``slow`` takes, repeat by repeat."""
    return Spread.of([a.seconds / b.seconds for a, b in zip(slow, fast, strict=True)])


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """b of cost = a · sizeᵇ, fitted by least squares to the logarithms.

    Raises ValueError below two different sizes, or where a number is not above 0.
    """
    if min([*sizes, *costs], default=0) <= 0 or len(set(sizes)) < 2:
        raise ValueError(f"sizes {list(sizes)} and costs {list(costs)} give no exponent")
    x, y = [math.log(s) for s in sizes], [math.log(c) for c in costs]
    centre, level = sum(x) / len(x), sum(y) / len(y)
    along = sum((a - centre) * (b - level) for a, b in zip(x, y, strict=True))
    return along / sum((a - centre) ** 2 for a in x)


def growth(sizes: Sequence[float], costs: Sequence[Sequence[float]]) -> Spread:
    """The exponent of each repeat; ``costs``: of each size, one number a repeat."""
    return Spread.of([exponent(sizes, repeat) for repeat in zip(*costs, strict=True)])
