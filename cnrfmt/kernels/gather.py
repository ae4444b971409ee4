"""Picking rows that lie anywhere in a table."""

from __future__ import annotations

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import copy, load_u32, load_u64, pointer, prefetch, store

# Rows are asked for so long before they are copied.
_AHEAD = 16
_LINE = 64
_WORD, _LONG = 4, 8


@helper
def _ask_for(data: Bytes, positions: Ids, k: int, row_bytes: int) -> None:
    """Ask for a row that is copied later."""
    if k + _AHEAD < len(positions):
        first = positions[k + _AHEAD] * row_bytes
        for line in range(first, first + row_bytes, _LINE):
            prefetch(data, line)
        # Rows needn't begin where a line of the cache does.
        prefetch(data, first + row_bytes - 1)


@jit
def gather(data: Bytes, positions: Ids, start: int, row_bytes: int, out: Bytes) -> None:
    """Copy the rows at positions[start], positions[start + 1], ... into `out`, as many as it holds.

    Row p of `data` begins at byte p * row_bytes. Positions that come after these are asked for as well, since they are
    likely to be gathered next.
    """
    source, target = pointer(data), pointer(out)
    count = out.size // row_bytes
    # What single values take is too little for a call that copies any number of bytes.
    if row_bytes == _WORD:
        for k in range(count):
            store(target, k * _WORD, load_u32(source, positions[start + k] * _WORD))
    elif row_bytes == _LONG:
        for k in range(count):
            store(target, k * _LONG, load_u64(source, positions[start + k] * _LONG))
    else:
        for k in range(count):
            _ask_for(data, positions, start + k, row_bytes)
            copy(target, k * row_bytes, source, positions[start + k] * row_bytes, row_bytes)
