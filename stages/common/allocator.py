"""How this process keeps memory that it has freed."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

MIB = 2**20
KEPT, LARGE = 512 * MIB, 32 * MIB
"""Freed bytes at the end of the heap that are kept; blocks from which on none is kept."""
LARGE_MODEL, MODERATE = 50_000_000, 4 * MIB
"""Weights from which on a model is large, and blocks from which on none is kept then."""
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
    if _set_by_user():
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, LARGE)


def keep_less(weights: int) -> None:
    """Give moderate blocks back at once, too, where a model has as many weights as that.

    Its blocks are of many sizes, as no two batches are as long, so that those kept for one seldom
    fit the next and pile up: two of seven gigabytes at 135 M weights. Clearing pages takes no
    share of its time that can be measured; of a small model's it takes a third.
    """
    if weights < LARGE_MODEL or _set_by_user():
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, MODERATE)


def give_back() -> None:
    """Give the system the holes in the heap where they are much more than is kept at its end.

    Each phase asks for blocks of other sizes, which the holes of the last one do not fit: without
    this a long run would hold ever more of them. Where ``keep_freed`` does nothing, so does this,
    and where glibc is older than 2.33.
    """
    if _set_by_user():
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Heap
        library.malloc_trim.argtypes = [ctypes.c_size_t]
        heap = library.mallinfo2()
        # Of what glibc calls free, some was given back before: what is resident counts.
        if _private() - heap.uordblks - heap.hblkhd > 2 * KEPT:
            library.malloc_trim(KEPT)


def _set_by_user() -> bool:
    return any(name.startswith("MALLOC_") for name in os.environ)


def _private() -> int:
    """Resident bytes of this process that are not of files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident, shared = map(int, file.read().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
