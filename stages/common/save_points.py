"""When a checkpoint is due: by count, by the clock, or because somebody wants the run to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from stages.common import interrupts
from stages.common.ranks import ALONE, Ranks


class SavePoints:
    """Every process asks at the same steps, and all are told the same.

    When it says yes depends on the clock; what a run computes must not depend on when it does.
    """

    def __init__(
        self,
        *,
        every: int,
        minutes: float,
        ranks: Ranks = ALONE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``every`` so many steps and ``minutes`` after the last one; 0: not by that."""
        self.every, self.minutes, self.ranks, self._clock = every, minutes, ranks, clock
        self._last = clock()

    def due(self, step: int) -> bool:
        """Whether a checkpoint of this step should be written."""
        late = self.minutes > 0 and self._clock() - self._last >= 60 * self.minutes
        by_count = self.every > 0 and step % self.every == 0
        return self.ranks.anyone(by_count or late or interrupts.asked())

    def interrupted(self) -> bool:
        """Whether the run should stop here, once its state is saved."""
        return self.ranks.anyone(interrupts.asked())

    def saved(self) -> None:
        """A checkpoint was written: the clock starts again."""
        self._last = self._clock()
