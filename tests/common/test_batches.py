"""The training order: whole, fair, of like lengths, and fixed by its generator."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stages.common.batches import length_grouped_order


def order(count: int, size: int, batches: int, seed: int = 0) -> tuple[list[int], list[int]]:
    lengths = np.random.default_rng(5).integers(10, 200, size=count).tolist()
    generator = np.random.default_rng(seed)
    found = length_grouped_order(lengths, batch_size=size, batches=batches, generator=generator)
    return found, lengths


@pytest.mark.parametrize(("count", "size", "batches"), [(7, 4, 3), (100, 8, 60), (3, 16, 5)])
def test_every_row_is_used_equally_often(count: int, size: int, batches: int) -> None:
    found, _ = order(count, size, batches)
    assert len(found) == size * batches
    times = Counter(found)
    assert set(times) <= set(range(count))
    assert max(times.values()) - min(times[i] for i in range(count)) <= 1


def test_padding_is_rare_and_lengths_come_in_no_order() -> None:
    found, lengths = order(1000, 16, 100)
    groups = [[lengths[i] for i in found[k : k + 16]] for k in range(0, len(found), 16)]
    padded = sum(max(group) * 16 for group in groups)
    assert padded < 1.05 * sum(map(sum, groups))
    means = [np.mean(group) for group in groups[:50]]
    assert abs(np.corrcoef(means, np.arange(50))[0, 1]) < 0.4


def test_batches_of_a_small_set_hold_different_rows() -> None:
    found, _ = order(8, 8, 20)
    assert all(len(set(found[k : k + 8])) == 8 for k in range(0, len(found), 8))


def test_the_generator_decides() -> None:
    assert order(50, 4, 20, seed=1) == order(50, 4, 20, seed=1)
    assert order(50, 4, 20, seed=1) != order(50, 4, 20, seed=2)
    with pytest.raises(ValueError, match="no rows"):
        order(0, 4, 1)
