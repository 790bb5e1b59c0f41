"""Intervals and the exact test, against hand-worked values, definitions and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stages.evaluation.intervals import (
    bootstrap_interval,
    mcnemar_p,
    paired_interval,
    share_interval,
)

Z = 1.959963984540054
"""97.5 % quantile of the normal distribution, from a printed table."""


def test_bootstrap_of_two_values_is_worked_by_hand():
    """The means of two draws from {0, 1} are 0, ½, 1 with chances ¼, ½, ¼: at 95 % the ends are
    0 and 1, at 40 % (quantiles 0.3 and 0.7) both are ½."""
    assert bootstrap_interval([0.0, 1.0]) == (0.5, 0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5, 0.5)


def test_bootstrap_equals_the_enumeration_of_all_resamples():
    values = [0.1, 0.35, 0.4, 0.9, 0.55]
    every = np.array([np.mean(draw) for draw in itertools.product(values, repeat=5)])
    mean, low, high = bootstrap_interval(values)
    assert mean == pytest.approx(0.46)
    assert (low, high) == pytest.approx(np.quantile(every, [0.025, 0.975]), abs=0.01)


def test_bootstrap_limits_and_repeatability():
    assert bootstrap_interval([0.25]) == (0.25, None, None)
    assert bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    values = [0.3, 0.7, 0.1, 0.45]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    shifted = bootstrap_interval([2 * value + 1 for value in values])
    assert shifted == pytest.approx([2 * end + 1 for end in bootstrap_interval(values)])
    narrow, wide = bootstrap_interval(values, level=0.5), bootstrap_interval(values)
    assert wide.low < narrow.low < narrow.high < wide.high
    many = [k / 3000 for k in range(3000)]  # drawn in several blocks
    mean, low, high = bootstrap_interval(many)
    spread = Z * float(np.std(many)) / math.sqrt(3000)
    assert (mean - low, high - mean) == pytest.approx((spread, spread), rel=0.03)


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.inf], [[1.0, 2.0]]])
def test_bootstrap_refuses_what_has_no_mean(bad):
    with pytest.raises(ValueError, match="finite numbers"):
        bootstrap_interval(bad)
    with pytest.raises(ValueError, match="level 1"):
        bootstrap_interval([1.0], level=1)


def wilson(successes: int, total: int) -> tuple[float, float]:
    """The two p at which |successes/total − p| is Z standard errors of p: roots of a quadratic."""
    share = successes / total
    roots = np.roots([1 + Z**2 / total, -(2 * share + Z**2 / total), share**2])
    return min(roots.real), max(roots.real)


def newcombe(a: int, b: int, c: int, d: int) -> tuple[float, float]:
    """Method 10 as the paper words it, step by step."""
    total = a + b + c + d
    first, second = (a + b) / total, (a + c) / total
    (l1, u1), (l2, u2) = wilson(a + b, total), wilson(a + c, total)
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    phi = 0.0
    if margins:
        cross = a * d - b * c
        corrected = cross if cross <= 0 else max(cross - total / 2, 0)
        phi = corrected / math.sqrt(margins)
    dl1, du1, dl2, du2 = first - l1, u1 - first, second - l2, u2 - second
    down = dl1**2 - 2 * phi * dl1 * du2 + du2**2
    up = du1**2 - 2 * phi * du1 * dl2 + dl2**2
    return first - second - math.sqrt(down), first - second + math.sqrt(up)


def test_paired_interval_worked_by_hand():
    """10 of 100 against 10 of 100, nobody alike: p = 0.1, Wilson (0.05523, 0.17437), φ = −1/9.

    ad − bc = 0·80 − 10·10 = −100, margins 10·90·10·90 = 900², φ = −100/900. Each arm:
    x = 0.04477, y = 0.07437; x² + y² + (2/9)xy = 0.002004 + 0.005531 + 0.000740 = 0.008275,
    whose root is 0.09097.
    """
    mean, low, high = paired_interval(0, 10, 10, 80)
    assert mean == 0
    assert (low, high) == pytest.approx((-0.09097, 0.09097), abs=2e-5)


@pytest.mark.parametrize(
    "counts",
    [(36, 12, 2, 0), (40, 9, 3, 48), (0, 0, 0, 7), (5, 0, 0, 0), (0, 3, 0, 0), (1, 1, 1, 1)],
)
def test_paired_interval_follows_the_paper(counts):
    found = paired_interval(*counts)
    assert (found.low, found.high) == pytest.approx(newcombe(*counts), rel=1e-9, abs=1e-9)
    assert -1 <= found.low <= found.mean <= found.high <= 1
    a, b, c, d = counts
    mirrored = paired_interval(a, c, b, d)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_paired_interval_uses_that_the_tasks_are_the_same():
    """The more the two agree on single tasks, the surer the same difference."""
    alike, apart = paired_interval(45, 10, 0, 45), paired_interval(20, 35, 25, 20)
    assert alike.mean == apart.mean
    assert alike.high - alike.low < 0.6 * (apart.high - apart.low)


def test_paired_interval_covers_the_truth_by_enumeration():
    """Over all tables of 16 tasks, weighed by their chance, the truth is inside in about 95 %."""
    total, chances = 16, (0.4, 0.25, 0.1, 0.25)
    covered = 0.0
    for a, b, c in itertools.product(range(total + 1), repeat=3):
        d = total - a - b - c
        if d < 0:
            continue
        ways = math.factorial(total) / math.prod(math.factorial(k) for k in (a, b, c, d))
        chance = ways * math.prod(p**k for p, k in zip(chances, (a, b, c, d), strict=True))
        interval = paired_interval(a, b, c, d)
        covered += chance * (interval.low <= chances[1] - chances[2] <= interval.high)
    assert 0.94 < covered < 0.985


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [(9, 1, 22 / 1024), (1, 9, 22 / 1024), (5, 0, 2 / 32), (3, 3, 1.0), (0, 0, 1.0), (2, 1, 1.0)],
)
def test_mcnemar_p_worked_by_hand(won, lost, p):
    assert mcnemar_p(won, lost) == pytest.approx(p, rel=1e-12)


def test_mcnemar_p_of_many_tasks():
    z = (1050 - 1000 - 0.5) / math.sqrt(2000 / 4)  # normal approximation of 1050 against 950
    assert mcnemar_p(1050, 950) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.01)


def test_counts_must_make_sense():
    for counts in ((0, 0, 0, 0), (1, -1, 2, 3)):
        with pytest.raises(ValueError, match="counts"):
            paired_interval(*counts)
    with pytest.raises(ValueError, match="counts"):
        mcnemar_p(-1, 2)


def test_the_interval_of_a_share_solves_wilsons_equation():
    """Its ends p are where |share − p| = z·√(p(1 − p)/n)."""
    mean, low, high = share_interval(0.3, 40)
    assert mean == 0.3
    for end in (low, high):
        assert abs(0.3 - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / 40), rel=1e-9)
    assert share_interval(0.0, 5).low == pytest.approx(0.0, abs=1e-12)
    for share, total in ((0.5, 0), (1.5, 3)):
        with pytest.raises(ValueError):
            share_interval(share, total)
