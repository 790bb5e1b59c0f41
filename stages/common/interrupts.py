"""Ctrl-C and SIGTERM: the first asks a run to stop where its state is saved, the second ends it.

A command *listens*; what trains *defers* in its loop, looks at ``asked`` wherever all is in order,
saves, and raises ``Interrupted``. Outside of such loops an interrupt ends the command at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTICE = b"\nstopping where the state can be saved; once more ends it at once\n"


class Interrupted(KeyboardInterrupt):
    """A run that stopped as it was asked to; its message says what was saved."""


@dataclass
class _State:
    deferring: bool = False
    asked: bool = False
    pass_on: Callable[[int], None] | None = None


_state = _State()


@contextmanager
def listening() -> Iterator[None]:
    """For one command: inside, both signals raise KeyboardInterrupt, unless they are deferred."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _hear) for number in SIGNALS}
    _state.asked = False
    try:
        yield
    finally:
        _state.asked = False
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred(pass_on: Callable[[int], None] | None = None) -> Iterator[None]:
    """Inside, the first signal only sets ``asked``; one that nobody looked at ends it afterwards.

    ``pass_on`` is called with the number of the interrupt, 1 and 2: other processes do the work.
    """
    _state.deferring, _state.pass_on = True, pass_on
    try:
        yield
    finally:
        _state.deferring, _state.pass_on = False, None
    if _state.asked:
        raise KeyboardInterrupt


def asked() -> bool:
    """Whether somebody wants the run to stop."""
    return _state.asked


def _hear(number: int, frame: FrameType | None) -> None:
    first = _state.deferring and not _state.asked
    if _state.deferring and _state.pass_on is not None:
        _state.pass_on(1 if first else 2)
    if not first:
        raise KeyboardInterrupt
    _state.asked = True
    if os.isatty(2):  # print() is not to be called here: it may be what was interrupted
        os.write(2, _NOTICE)
