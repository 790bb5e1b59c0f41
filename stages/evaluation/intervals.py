"""How sure a measured mean, share or difference is: intervals and one exact test.

Pure functions of numbers. An interval of too few values to tell anything is ``None`` at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
_BLOCK = 2_000_000
"""Most numbers drawn at once, so that long inputs need little memory."""


class Interval(NamedTuple):
    """An estimate with the ends of its interval."""

    mean: float
    low: float | None
    high: float | None


def bootstrap_interval(
    values: Sequence[float], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Mean of ``values`` (n,) with the percentile bootstrap interval (Efron & Tibshirani 1993,
    section 13.3): n values are drawn with replacement ``resamples`` times, and the ends are the
    (1 − level)/2 and (1 + level)/2 quantiles (linear between order statistics) of their means.

    Paired differences are resampled as values of their own. With few values (under about ten) it
    is too narrow: it covers less than ``level``, since it knows only the spread it has seen. One
    value has no interval. Equal input gives equal output. ValueError for no values, values that
    are not finite, or a level outside (0, 1).
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"expected a list of finite numbers, got shape {array.shape}: {values}")
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level {level} must lie in (0, 1), resamples {resamples} be at least 1")
    mean = float(array.mean())
    if array.size == 1:
        return Interval(mean, None, None)
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    step = max(1, _BLOCK // array.size)
    for start in range(0, resamples, step):
        part = means[start : start + step]
        part[:] = array[rng.integers(array.size, size=(len(part), array.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


def share_interval(share: float, total: int, *, level: float = LEVEL) -> Interval:
    """A share of ``total`` trials with the score interval of Wilson 1927; ValueError for none."""
    if total < 1 or not 0 <= share <= 1:
        raise ValueError(f"expected a share of at least one trial, got {share} of {total}")
    low, high = _wilson(share, total, level)
    return Interval(share, low, high)


def paired_interval(
    both: int, first_only: int, second_only: int, neither: int, *, level: float = LEVEL
) -> Interval:
    """Difference of two success shares on the same n tasks, p₁ − p₂ = (first_only − second_only)/n,
    with the score interval of Newcombe 1998 (Stat. Med. 17:2635, method 10).

    With Wilson's limits (l₁, u₁), (l₂, u₂) of p₁ = (both + first_only)/n and
    p₂ = (both + second_only)/n, and φ the correlation of the two outcomes, the ends are
    Δ − √((p₁−l₁)² − 2φ(p₁−l₁)(u₂−p₂) + (u₂−p₂)²) and
    Δ + √((u₁−p₁)² − 2φ(u₁−p₁)(p₂−l₂) + (p₂−l₂)²).
    φ = (ad − bc)/√((a+b)(c+d)(a+c)(b+d)) with a, b, c, d in the order of the arguments; a positive
    numerator is shrunk by n/2, to not less than 0; φ is 0 where the root is. Unlike Wald's
    interval it stays within [−1, 1] and is not a point where nobody differs. ValueError for
    negative counts or no tasks.
    """
    total = _total(both, first_only, second_only, neither)
    shares = (both + first_only) / total, (both + second_only) / total
    (low_1, high_1), (low_2, high_2) = (_wilson(share, total, level) for share in shares)
    below_1, above_1 = shares[0] - low_1, high_1 - shares[0]
    below_2, above_2 = shares[1] - low_2, high_2 - shares[1]
    phi = _correlation(both, first_only, second_only, neither)
    difference = (first_only - second_only) / total
    down = below_1**2 - 2 * phi * below_1 * above_2 + above_2**2
    up = above_1**2 - 2 * phi * above_1 * below_2 + below_2**2
    # |φ| ≤ 1 keeps both at or above 0; rounding may not.
    ends = [math.sqrt(max(square, 0.0)) for square in (down, up)]
    return Interval(difference, difference - ends[0], difference + ends[1])


def mcnemar_p(first_only: int, second_only: int) -> float:
    """Two-sided p of the exact McNemar test: of the tasks that exactly one solved, the number that
    the first solved is Binomial(first_only + second_only, ½) if both are equally good.

    Twice the smaller tail, at most 1; 1 where nobody differs. ValueError for negative counts.
    """
    if first_only < 0 or second_only < 0:
        raise ValueError(f"counts must not be negative: {first_only}, {second_only}")
    differing = first_only + second_only
    tail = sum(math.comb(differing, k) for k in range(min(first_only, second_only) + 1))
    # Whole numbers of any size: 2**differing may be beyond the range of floats.
    return min(1.0, 2 * tail / 2**differing)


def _total(*counts: int) -> int:
    if min(counts) < 0 or sum(counts) == 0:
        raise ValueError(f"counts must not be negative, and not all 0: {counts}")
    return sum(counts)


def _wilson(share: float, total: int, level: float) -> tuple[float, float]:
    """Score interval of one share (Wilson 1927)."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _correlation(a: int, b: int, c: int, d: int) -> float:
    root = math.sqrt((a + b) * (c + d) * (a + c) * (b + d))
    numerator: float = a * d - b * c
    if numerator > 0:
        numerator = max(numerator - (a + b + c + d) / 2, 0.0)
    return numerator / root if root else 0.0
