"""Carries out many environments' calls at once, each within a time limit.

A call that takes too long is given up: its result is ``StepTimeout``, the others' results are
untouched, and the thread that hangs in it no longer counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]


class StepTimeout(RuntimeError):
    """An environment took longer than it may."""


class Crew:
    """``workers`` threads; with 0 the calls are made one after the other, without a limit."""

    def __init__(self, workers: int = 0, timeout_s: float | None = None) -> None:
        self.workers = workers
        self._timeout_s = timeout_s

    def each(self, calls: Sequence[Call]) -> list[Any]:
        """Every call's result, in order; what it raised, if it raised an Exception."""
        if self.workers < 1:
            return [_outcome(call) for call in calls]
        seats = threading.Semaphore(self.workers)
        jobs = [_Job(call, seats) for call in calls]
        for job in jobs:
            threading.Thread(target=job.run, daemon=True).start()
        return [job.wait(self._timeout_s) for job in jobs]


@dataclass
class _Job:
    """One call on its way through a thread. The seat it takes is given back exactly once."""

    call: Call
    seats: threading.Semaphore
    result: Any = None
    started_s: float | None = None
    over: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        """In a thread of its own."""
        self.seats.acquire()
        with self.changed:
            self.started_s = time.monotonic()
            self.changed.notify_all()
        self._end(_outcome(self.call))

    def wait(self, timeout_s: float | None) -> Any:
        """The result; ``StepTimeout`` if it has not come that long after the call began."""
        with self.changed:
            self.changed.wait_for(lambda: self.started_s is not None)
            assert self.started_s is not None
            left = None if timeout_s is None else self.started_s + timeout_s - time.monotonic()
            self.changed.wait_for(lambda: self.over, left)
        if not self.over:
            self._end(StepTimeout(f"the environment took longer than {timeout_s:g} s"))
        return self.result

    def _end(self, result: Any) -> None:
        with self.changed:
            if self.over:
                return
            self.over, self.result = True, result
            self.changed.notify_all()
        self.seats.release()


def _outcome(call: Call) -> Any:
    try:
        return call()
    except Exception as fault:
        return fault
