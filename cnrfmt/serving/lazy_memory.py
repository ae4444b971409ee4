"""Memory for many rows, of which at first a few are written here and there, and later all.

The first write to a page has the system clear it. Pages of 2 MiB, which numpy asks for, are right for memory that is
filled from one end to the other, and make later look-ups quicker; but a row that is written somewhere in a large array
would then wait until 2 MiB are cleared.
"""

from __future__ import annotations

import math
import mmap
import sys
from typing import Any

import numpy as np

from cnrfmt.arrays import Array

_LARGE = 2 << 20


def lazy_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array whose memory is taken page by page, by small ones, as it is written to; zero until then.

    Raises `MemoryError`.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if sys.platform == "win32" or nbytes < _LARGE:
        return np.empty(shape, dtype)
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(str(error)) from error
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


def fill_soon(rows: Array) -> None:
    """Says that all of these rows of such an array are written now: in pages as large as there are."""
    root = rows
    while isinstance(root.base, np.ndarray):
        root = root.base
    memory: Any = root.base
    if not isinstance(memory, mmap.mmap) or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    start = rows.ctypes.data - root.ctypes.data
    first, stop = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < stop:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE, first, stop - first)
        except OSError:
            # A system without large pages does with small ones.
            return
