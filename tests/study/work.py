"""Tasks for the scheduler that other processes can import without anything heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Toy:
    """Writes its process to its file. With the deeds ``listen`` and ``speak`` two of them can
    only end while both are under way; other deeds go wrong.
    """

    folder: Path
    parents: Mapping[str, Path] = field(default_factory=dict)
    deed: str = ""


def perform(task: Toy) -> float:
    """What a worker does."""
    for parent in task.parents.values():
        assert parent.exists(), f"{task.folder.name} started before {parent.name} was done"
    if task.deed == "fail":
        raise ValueError("it cannot be done\nand more")
    if task.deed == "interrupt":
        raise KeyboardInterrupt
    if task.deed == "die":
        os._exit(9)
    if task.deed in ("listen", "speak"):
        # Opening a named pipe waits for the other end.
        with (task.folder.parent / "pipe").open("r" if task.deed == "listen" else "w"):
            pass
    task.folder.write_text(str(os.getpid()))
    return 1.5
