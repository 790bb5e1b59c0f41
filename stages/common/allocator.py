"""How this process keeps memory that it has freed."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

MIB = 2**20
KEPT, LARGE = 512 * MIB, 32 * MIB
"""Freed bytes at the end of the heap that are kept; blocks from which on none is kept."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


class _Heap(ctypes.Structure):
    """What glibc tells of its heaps: mallinfo2(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def keep_freed() -> None:
    """Keep freed memory for the next step, where the C library is glibc.

    It gives blocks back to the system at once, and training asks for the same blocks at every
    step: the system clears each page again before it is written, a tenth of a small model's time.
    Where the user has set how memory is allocated (MALLOC_...), that holds.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Give the system what lies free where that is much more than is kept, between two phases.

    Each phase asks for blocks of other sizes, which the holes of the last one do not fit: without
    this a long run would hold ever more of them. Where ``keep_freed`` does nothing, so does this.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Heap
        if library.mallinfo2().fordblks > 2 * KEPT:
            library.malloc_trim(KEPT)
