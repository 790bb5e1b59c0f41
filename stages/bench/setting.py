"""What every part of the bench is given: a ``Setting``, and a way to ``Tell``.

A part is a module with ``measure(setting, tell)``, which gives its section of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.bench.side import Side

Tell = Callable[[str], None]
"""Told what is being measured now."""


@dataclass(frozen=True)
class Setting:
    """Where, how often and with how much of the machine."""

    folder: Path
    """Scratch, gone at the end."""
    repeats: int
    threads: int
    """Of torch, on every side."""
    quick: bool
    """The smallest work that goes through everything; its figures mean nothing."""
    log: Path
    """Takes what the sides print."""
    quickstart: float | None = None
    """Seconds that a finished run of recipes/quickstart.yaml took."""

    def side(self, entry: str, **arguments: Any) -> Side:
        """``entry`` in a process of its own; see ``Side``."""
        return Side(entry, arguments, threads=self.threads, log=self.log)

    def fresh(self, name: str) -> Path:
        """A new folder."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder
