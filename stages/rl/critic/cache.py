"""What a network reads of an episode, made once and kept while the episode is in the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stages.interaction.trajectory import Trajectory


class EpisodeCache:
    """Calls ``make`` once per episode; episodes without a key are made afresh each time."""

    def __init__(self, make: Callable[[Trajectory], Any]) -> None:
        self._make = make
        self._kept: dict[tuple[int, ...], Any] = {}

    def __call__(self, episode: Trajectory) -> Any:
        """What ``make`` gives for the episode."""
        if not episode.key:
            return self._make(episode)
        if episode.key not in self._kept:
            self._kept[episode.key] = self._make(episode)
        return self._kept[episode.key]

    def forget(self, kept: Iterable[Trajectory]) -> None:
        """Drop all but the episodes of ``kept``."""
        keys = {e.key for e in kept}
        self._kept = {k: v for k, v in self._kept.items() if k in keys}
