"""The order in which rows are trained on: fixed before training, so that a resume is exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WINDOW = 50
"""Most batches among which rows of like length are looked for; never more than one pass holds,
or copies of one row would meet in a batch."""


def length_grouped_order(
    lengths: Sequence[int], *, batch_size: int, batches: int, generator: np.random.Generator
) -> list[int]:
    """Row indices for ``batches`` whole batches, rows of like length together.

    Rows come in successive random passes; within a window of some batches they are sorted by
    length, cut into batches, and the batches shuffled. Every row is used equally often (±1).
    """
    if not lengths:
        raise ValueError("there are no rows to order")
    order: list[int] = []
    window = min(WINDOW, max(len(lengths) // batch_size, 1))
    stream = np.empty(0, dtype=np.int64)
    while len(order) < batches * batch_size:
        count = min(window, batches - len(order) // batch_size) * batch_size
        while len(stream) < count:
            stream = np.concatenate([stream, generator.permutation(len(lengths))])
        taken, stream = stream[:count], stream[count:]
        by_length = sorted(taken.tolist(), key=lambda i: lengths[i])
        groups = np.asarray(by_length).reshape(-1, batch_size)
        order += groups[generator.permutation(len(groups))].reshape(-1).tolist()
    return order
