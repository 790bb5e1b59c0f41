"""The real commands in processes that can be killed. They are forked from one that has imported
everything, so that a start takes no time."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 300
"""Seconds; only a hang takes that long."""


class Command:
    """``aac WORDS...`` on its way."""

    def __init__(self, *words: Any, log: Path) -> None:
        """What it says goes to ``log``."""
        _preload()
        self.log = log
        self.process = CONTEXT.Process(target=_run, args=(list(map(str, words)), str(log)))
        self.process.start()

    @property
    def over(self) -> bool:
        return not self.process.is_alive()

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until(self, seen: Callable[[], bool]) -> bool:
        """Wait for something to be seen; False when the command ended before."""
        deadline = time.monotonic() + PATIENCE
        while not seen():
            if self.over:
                return False
            assert time.monotonic() < deadline, self.said
            time.sleep(0.0005)
        return True

    def signal(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def ended(self) -> int:
        """Its exit code; negative: the signal that killed it."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"it hangs\n{self.said}"
        return self.process.exitcode


def aac(*words: Any, log: Path) -> None:
    """A command to its good end."""
    command = Command(*words, log=log)
    assert command.ended() == 0, command.said


@cache
def _preload() -> None:
    """Once. A server that other tests have started would import everything at each start."""
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    CONTEXT.set_forkserver_preload(["tests.resume.preloaded"])


def _run(words: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.argv = ["aac", *words]
    from aacli.app import app

    app()
