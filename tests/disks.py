"""Disks that are full, by what the system itself does about them."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing more than ``size`` bytes to a file fails, as on a full disk; that needs no rights."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A file system of its own for a folder; the test is skipped where that is not allowed."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user may not mount a file system: {done.stderr.strip()}")
    try:
        yield
    finally:
        # Lazily: weights that were read may still be mapped into memory.
        subprocess.run(["umount", "-l", str(place)], check=True)
