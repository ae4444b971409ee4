"""Memory for buffers that are needed one after the other, and let go in the same order."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from cnrfmt.arrays import Bytes

_MOST = 32 << 20
_SHARE = 8
"""A slab takes at most so many bytes, and one of so many parts of the limit."""
_LINE = 64
_LARGE = 1 << 20
"""Bytes that are asked of the system itself."""


class Slabs:
    """Cuts buffers out of large blocks of memory, which the system gives sooner than many small ones.

    A block is let go when the last of its buffers is. So where a limit holds, one block of it is kept aside.

    Parameters
    ----------
    sizes
        Bytes of the buffers to come, in order.
    limit
        How many bytes may be taken at a time; None for any number.
    """

    def __init__(self, sizes: Sequence[int], limit: int | None) -> None:
        self._left = sum(_rounded(size) for size in sizes)
        self._block = _MOST if limit is None else min(_MOST, limit // _SHARE)
        # Blocks that hold no two buffers aren't made.
        if self._block < 2 * max((_rounded(size) for size in sizes), default=0):
            self._block = 0
        self._limit = None if limit is None else limit - self._block
        self._free: Bytes = np.empty(0, np.uint8)

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes of buffers may be held at a time."""
        return self._limit is None or nbytes <= self._limit

    def take(self, size: int) -> Bytes:
        """The next buffer. Not safe to call from several threads at a time."""
        whole = _rounded(size)
        if len(self._free) < whole:
            self._free = _memory(max(whole, min(self._block, self._left)))
        buffer, self._free = self._free[:size], self._free[whole:]
        self._left -= whole
        if not self._left:
            # Even a rest keeps its block.
            self._free = np.empty(0, np.uint8)
        return buffer


def _memory(size: int) -> Bytes:
    """Fresh memory, which goes back to the system when nothing refers to it any more.

    What threads get from the C library stays with them: each may keep tens of megabytes that were freed.
    """
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, np.uint8)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)


def _rounded(size: int) -> int:
    """Whole lines of the cache, so that no two threads write to the same one."""
    return -(-size // _LINE) * _LINE
