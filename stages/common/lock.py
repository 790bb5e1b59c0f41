"""One process at a time writes into a folder. The system drops the lock of a process that ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from stages.common.errors import UsageError

LOCK = ".lock"
_held: dict[tuple[int, int], IO[str]] = {}
"""Open files by device and number. Closing any other file of the same name would drop the lock."""


def lock(folder: Path) -> None:
    """Keep every other process out of an existing folder until ``unlock`` or the process ends.

    UsageError while another one is in it. Raises OSError where the folder cannot be written.
    """
    path = folder / LOCK
    while True:
        if path.exists() and _number(path) in _held:
            return
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise UsageError(
                f"{folder} is being written by {_owner(file)}; wait until that has ended, or "
                "choose another --output-dir."
            ) from None
        except OSError:  # a file system without locks: better no lock than no run
            pass
        if path.exists() and _number(path) == _number(file.fileno()):
            break
        file.close()  # whoever had it has removed the file meanwhile
    _held[_number(path)] = file
    with suppress(OSError):  # who it is helps a person, but no more
        file.truncate(0)
        os.write(file.fileno(), f"process {os.getpid()} of {socket.gethostname()}".encode())


def unlock(folder: Path) -> None:
    """Let others in; the file goes, too."""
    path = folder / LOCK
    if path.exists() and (file := _held.pop(_number(path), None)):
        path.unlink()
        file.close()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, nobody else writes into an existing folder."""
    lock(folder)
    try:
        yield
    finally:
        unlock(folder)


def _number(file: Path | int) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino


def _owner(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read().strip() or "another process"
