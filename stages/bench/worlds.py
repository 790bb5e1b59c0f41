"""Worlds that are measured in, for both sides of a comparison."""

from __future__ import annotations

import random
from typing import Any

WORDS = 1024
"""Words of the models' language, ``w0`` to ``w1023``: any sequence of them reads back unchanged."""


class Prompts:
    """One turn: a prompt of random words, of random length, and whatever is answered is right.

    A Gymnasium-like object; the seed of ``reset`` decides the prompt.
    """

    def __init__(self, shortest: int = 24, longest: int = 64) -> None:
        self.shortest, self.longest = shortest, longest

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        """The prompt."""
        rng = random.Random(seed)
        count = rng.randint(self.shortest, self.longest)
        return " ".join(f"w{rng.randrange(WORDS)}" for _ in range(count)), {}

    def step(self, _: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The end."""
        return "", 0.0, True, False, {}
