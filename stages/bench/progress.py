"""How far the bench is, in lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stages.common.console import say
from stages.common.live import duration


@dataclass
class Progress:
    """Says which part runs and how long the rest takes at the pace so far."""

    planned: Mapping[str, float]
    """Seconds by part, in their order."""
    clock: Callable[[], float] = time.monotonic
    _begun: dict[str, float] = field(default_factory=dict)

    def tell(self, part: str, words: str) -> None:
        """One line; naming a part for the first time ends the one before."""
        self._begun.setdefault(part, self.clock())
        say(f"{part}: {words} (about {duration(self.left)} left)")

    @property
    def left(self) -> float:
        """Seconds until all is done."""
        *done, current = self._begun
        first, now = next(iter(self._begun.values())), self._begun[current]
        pace = (now - first) / sum(self.planned[part] for part in done) if done else 1.0
        ahead = sum(cost for part, cost in self.planned.items() if part not in done)
        return max(pace * ahead - (self.clock() - now), 0.0)
