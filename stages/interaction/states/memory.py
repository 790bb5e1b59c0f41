"""Long-term memory: turns that have left the window, embedded and recalled by similarity (F3)."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np

from stages.common.errors import UsageError
from stages.interaction.environments.base import Reset
from stages.interaction.states.fitting import Line, Meter, fit
from stages.interaction.states.options import MemoryOptions
from stages.interaction.states.words import turn_parts
from stages.interaction.trajectory import Turn

TITLE = "memory:"


class Embedder(Protocol):
    """Texts to directions."""

    identity: str
    size: int

    def embed(self, texts: list[str]) -> np.ndarray:
        """(n, size) float32 rows of length 1; a text's row depends on it alone."""
        ...


class Memory:
    """A FAISS index of the episode's turns; the ``top_k`` nearest to the query are shown."""

    name = "memory"

    def __init__(self, options: MemoryOptions, meter: Meter, embedder: Embedder) -> None:
        self._budget, self._top = options.max_tokens, options.top_k
        self._meter, self.embedder = meter, embedder
        self._shown: list[tuple[int, float]] = []
        self._clear()

    def reset(self, reset: Reset) -> None:
        """Forget everything and start an episode."""
        self._clear()

    def update(self, turn: Turn) -> None:
        """Keep the turn until it leaves: what was done apart from what the user said."""
        self._waiting += [(turn.index, part) for part in turn_parts(turn)]

    def leave(self, left: int) -> None:
        """Embed what has left."""
        gone = []
        while self._waiting and self._waiting[0][0] < left:
            gone.append(self._waiting.popleft())
        if gone:
            self._index.add(self.embedder.embed([text for _, text in gone]))
            self._kept += gone

    def render(self, query: str) -> str:
        """The recalled turns, oldest first; the nearest goes first where room is short."""
        found = self._nearest(query) if self._kept else []
        lines = [Line(f"turn {turn + 1}: {text}", (turn, near)) for near, turn, text in found]
        text, shown = fit(self._meter, TITLE, lines, self._budget)
        self._shown = [line.place for line in shown]
        return text

    def produced(self) -> dict[str, Any]:
        """The turns that were recalled, how near they were, and by whose measure."""
        if not self._shown:
            return {}
        recalled = [{"turn": turn, "similarity": round(near, 4)} for turn, near in self._shown]
        return {"recalled": recalled, "embedder": self.embedder.identity}

    def _nearest(self, query: str) -> list[tuple[float, int, str]]:
        # One more, as the newest request is nearest to itself and is on show already.
        count = min(self._top + 1, len(self._kept))
        near, place = self._index.search(self.embedder.embed([query]), count)
        rows = zip(near[0].tolist(), place[0].tolist(), strict=True)
        found = [(score, *self._kept[number]) for score, number in rows]
        told = [row for row in found if row[2].removeprefix("user: ") not in query]
        # Equal turns are equally near: the older first, whatever the index's order.
        return sorted(told, key=lambda row: (-row[0], row[1]))[: self._top]

    def _clear(self) -> None:
        self._index = new_index(self.embedder.size)
        self._kept: list[tuple[int, str]] = []
        self._waiting: deque[tuple[int, str]] = deque()
        self._shown = []


def new_index(size: int) -> Any:
    """An exact inner-product index. UsageError if faiss is not installed."""
    try:
        import faiss
    except ImportError:
        raise UsageError(
            "state.memory keeps its turns in FAISS, which is not installed; install the extra "
            "(pip install 'aac[memory]'), or leave state.memory out."
        ) from None
    return faiss.IndexFlatIP(size)
