"""Global random numbers of an adapted world, kept apart from ours and equal for equal seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class OwnRandomness:
    """Many worlds draw from Python's and numpy's global generators, some even seed them."""

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None
        self._seed = 0

    def restart(self, seed: int) -> None:
        """The next ``lent`` block draws as after seeding with ``seed``."""
        self._state, self._seed = None, seed

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, the global generators are this world's; afterwards they are as before."""
        before = random.getstate(), np.random.get_state()
        if self._state is None:
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
        else:
            random.setstate(self._state[0])
            np.random.set_state(self._state[1])
        try:
            yield
        finally:
            self._state = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])
