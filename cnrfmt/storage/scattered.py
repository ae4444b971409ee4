"""Reading many short ranges of a file in one call: a Python call for each would cost more than the reads."""

from __future__ import annotations

import os

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import INTERPRETED, jit
from cnrfmt.kernels._numba import types

if not INTERPRETED:
    _pread = types.ExternalFunction(
        "pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64)
    )

    @jit
    def _read_all(handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
        for k in range(len(offsets)):
            start = k * length
            want = min(length, len(buffer) - start)
            if _pread(np.int32(handle), buffer[start:].ctypes, np.uint64(want), offsets[k]) != want:
                return k
        return len(offsets)


def read_ranges(handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
    """Reads the ranges of `length` bytes at these offsets into `buffer`, one behind the other.

    The last ends with the buffer and may be shorter. Returns how many were read whole before the first that wasn't,
    for whatever reason: a caller asks for that one by itself to learn it.
    """
    if not INTERPRETED:
        return int(_read_all(handle, offsets, length, buffer))
    for k, offset in enumerate(offsets.tolist()):
        view = buffer[k * length : (k + 1) * length].data
        try:
            if os.preadv(handle, [view], offset) != len(view):
                return k
        except OSError:
            return k
    return len(offsets)
