"""Keyed random numbers depend on their key alone, and different keys are unrelated."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stages.common.seeding import derived_seed, keyed_generator, seed_everything


def test_same_key_same_numbers_whatever_happened_before():
    first = keyed_generator(3, 1, 4).random(8)
    keyed_generator(9).random(100)
    np.testing.assert_array_equal(keyed_generator(3, 1, 4).random(8), first)
    np.testing.assert_array_equal(keyed_generator(np.int64(3), 1, 4).random(8), first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (1, 0)),
        ((0,), (0, 0)),
        ((1, 23), (12, 3)),
        ((1, 2), (2, 1)),
        ((-1,), (1,)),
        ((), (0,)),
    ],
)
def test_keys_that_look_alike_are_unrelated(one, other):
    a, b = keyed_generator(*one).random(2000), keyed_generator(*other).random(2000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1


def test_neighbouring_keys_fill_the_unit_interval_evenly():
    draws = np.array([keyed_generator(0, i).random() for i in range(4000)])
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    # Chi-square with 9 degrees of freedom: above 27.9 once in a thousand.
    assert ((counts - 400) ** 2 / 400).sum() < 27.9


def test_derived_seed_fits_an_int32():
    assert all(0 <= derived_seed(5, i) < 2**31 for i in range(100))
    assert derived_seed(5, 1) != derived_seed(5, 2)


def test_seed_everything_seeds_python_numpy_and_torch():
    import torch

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    seed_everything(11)
    first = draw()
    assert draw() != first
    seed_everything(11)
    assert draw() == first
