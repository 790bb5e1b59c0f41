"""Figures kept on disk, named by the hash of all they depend on, so that none is measured twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.common.files import read_json, write_json
from stages.common.manifest import content_hash, fingerprint

Figures = dict[str, Any]


class FigureStore:
    """A folder of ``<name>-<hash>.json`` files."""

    def __init__(self, folder: Path, *, anew: bool) -> None:
        """``anew``: measure everything again."""
        self._folder = folder
        self._anew = anew
        self.seconds_saved = 0.0
        """What the figures that were found had cost when they were measured."""

    def get(self, name: str, depends_on: list[Any], measure: Callable[[], Figures]) -> Figures:
        """The figures of ``name``; measured only if ``depends_on`` (JSON-able) is new."""
        known = self.known(name, depends_on)
        if known is not None:
            return known
        start = time.perf_counter()
        figures = measure()
        self._folder.mkdir(parents=True, exist_ok=True)
        seconds = round(time.perf_counter() - start, 2)
        write_json(self._path(name, depends_on), {"seconds": seconds, "figures": figures})
        return figures

    def known(self, name: str, depends_on: list[Any]) -> Figures | None:
        """The figures of ``name`` if they need not be measured."""
        path = self._path(name, depends_on)
        if self._anew or not path.is_file():
            return None
        row = read_json(path)
        self.seconds_saved += row["seconds"]
        figures: Figures = row["figures"]
        return figures

    def _path(self, name: str, depends_on: list[Any]) -> Path:
        return self._folder / f"{name}-{fingerprint(depends_on)[:12]}.json"


def identity(actor: str) -> str:
    """What tells one actor from another: the hash of its folder's files, or its hub id."""
    return content_hash(Path(actor)) if Path(actor).is_dir() else actor
