"""Worlds of random words to measure in, as Gymnasium-like objects."""

from __future__ import annotations

import random
from typing import Any

WORDS = 1024
"""Words of the smaller models' language, ``w0``, ``w1``, and so on."""


class Prompts:
    """One turn: a prompt of random words, of random length, and any answer ends the episode."""

    def __init__(self, shortest: int = 24, longest: int = 64) -> None:
        self.shortest, self.longest = shortest, longest

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        """The prompt, which the seed decides."""
        rng = random.Random(seed)
        return _words(rng, rng.randint(self.shortest, self.longest)), {}

    def step(self, _: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The end."""
        return "", 0.0, True, False, {}


class Talk:
    """Says some random words after every answer, for as long as there are turns."""

    def __init__(self, said: int = 12) -> None:
        self.said = said
        self._random = random.Random(0)

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        """The first words; the seed decides these and all that follow."""
        self._random = random.Random(seed)
        return _words(self._random, self.said), {}

    def step(self, _: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Words, whatever was answered."""
        return _words(self._random, self.said), 0.1, False, False, {}


def _words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(WORDS)}" for _ in range(count))
