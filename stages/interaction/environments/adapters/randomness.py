"""Global random numbers of an adapted world, kept apart from ours and equal for equal seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import mtrand


class OwnRandomness:
    """Many worlds draw from Python's and numpy's global generators, some even seed them.

    Not ``apart``: nothing is kept apart, as what is global cannot be where instances act at the
    same time in threads of one process.
    """

    def __init__(self, *, apart: bool = True) -> None:
        self._apart = apart
        self.restart(0)

    def restart(self, seed: int) -> None:
        """The next ``lent`` block draws as after seeding with ``seed``."""
        self._state: Any = random.Random(seed).getstate()
        self._bits = np.random.MT19937(seed)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, the global generators are this world's; afterwards they are as before."""
        if not self._apart:
            yield
            return
        state, bits = random.getstate(), mtrand.get_bit_generator()
        random.setstate(self._state)
        mtrand.set_bit_generator(self._bits)
        try:
            yield
        finally:
            self._state = random.getstate()
            random.setstate(state)
            mtrand.set_bit_generator(bits)
