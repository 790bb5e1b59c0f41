"""A running summary of fixed length that takes in each turn as it leaves the window (F1)."""

from __future__ import annotations

from collections import deque
from typing import Any

from stages.interaction.environments.base import Reset
from stages.interaction.states.fitting import Meter
from stages.interaction.states.options import SummaryOptions
from stages.interaction.states.words import turn_words
from stages.interaction.states.writers import Merge, SummaryWriter, Written
from stages.interaction.trajectory import Turn

TITLE = "summary:"


class Summary:
    """One text under a title, merged turn by turn by a writer."""

    name = "summary"

    def __init__(self, options: SummaryOptions, meter: Meter, writer: SummaryWriter) -> None:
        self._budget = options.max_tokens
        self._meter, self._writer = meter, writer
        self._goal, self._text, self._by, self._merged = "", "", "", 0
        self._waiting: deque[tuple[int, str]] = deque()
        self._written: Written | None = None
        """What was asked of the writer and not yet read."""

    def reset(self, reset: Reset) -> None:
        """Forget everything and start an episode."""
        self._withdraw()
        self._goal, self._text, self._by, self._merged = reset.goal, "", "", 0
        self._waiting.clear()

    def update(self, turn: Turn) -> None:
        """Keep the turn until it leaves; a recorded summary is not written a second time."""
        if recorded := turn.produced.get(self.name):
            self._take_over(**recorded)
        self._waiting.append((turn.index, turn_words(turn)))

    def leave(self, left: int) -> None:
        """Ask the writer to merge what has left; it answers when the summary is shown."""
        gone = []
        while self._waiting and self._waiting[0][0] < left:
            gone.append(self._waiting.popleft()[1])
        if gone:
            room = self._budget - self._meter(f"{TITLE}\n") - 1
            merge = Merge(self._goal, self._now(), tuple(gone), max(room, 1))
            self._written = self._writer.submit(merge, self._meter)
            self._merged += len(gone)

    def render(self, query: str) -> str:
        """The summary as it stands, within its budget."""
        text = self._now()
        return self._meter.cut(f"{TITLE}\n{text}", self._budget) if text else ""

    def produced(self) -> dict[str, Any]:
        """Text, turns it covers, and the identity of its writer."""
        if not self._merged:
            return {}
        return {"text": self._now(), "turns": self._merged, "writer": self._by}

    def _take_over(self, text: str, turns: int, writer: str) -> None:
        """What the record says; in play it says what is known."""
        self._withdraw()
        while self._merged < turns and self._waiting:
            self._waiting.popleft()
            self._merged += 1
        self._text, self._by = text, writer

    def _withdraw(self) -> None:
        """What was asked of the writer is not wanted any more."""
        if self._written is not None:
            self._written.withdraw()
            self._written = None

    def _now(self) -> str:
        if self._written is not None:
            self._text, self._by = self._written.text(), self._written.writer
            self._written = None
        return self._text
