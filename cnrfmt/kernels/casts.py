"""Rows as float16 or bfloat16: the nearest, ties to even, and back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._halves import BFLOAT16, FLOAT16, bfloat_of, float_of, float_of_bfloat, half_of
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import clear, load_u16, prefetch_row, store

Rows = npt.NDArray[np.float32]

_ALL_BUT_SIGN = 0x7FFFFFFF
# The least that rounds to infinity, as its bits.
_HALF_END = 0x477FF000
_BFLOAT_END = 0x7F7F8000


@helper
def _bits(x: np.float32) -> np.uint32:
    return np.uint32(np.float32(x).view(np.uint32))


@helper
def _narrow(x: np.float32, kind: int) -> np.uint16:
    return half_of(x) if kind == FLOAT16 else bfloat_of(x)


@helper
def _widen(number: np.uint16, kind: int) -> np.float32:
    return float_of(number) if kind == FLOAT16 else float_of_bfloat(number)


@helper
def _encode(rows: Rows, kind: int, out: Bytes, bad: Bytes) -> int:
    dim = rows.shape[1]
    end = _HALF_END if kind == FLOAT16 else _BFLOAT_END
    values, numbers = rows.reshape(rows.size), out.reshape(out.size)
    count = 0
    for i in range(len(rows)):
        first = i * dim
        greatest = np.uint32(0)
        for j in range(first, first + dim):
            greatest = max(greatest, np.uint32(_bits(values[j]) & np.uint32(_ALL_BUT_SIGN)))
            store(numbers, 2 * j, _narrow(values[j], kind))
        bad[i] = greatest >= end
        if greatest >= end:
            count += 1
            clear(numbers, 2 * first, 2 * dim)
    return count


@jit
def encode_rows(rows: Rows, kind: int, out: Bytes, bad: Bytes) -> int:
    """Encode rows of float32 as float16 (`kind` 1) or bfloat16 (2); `out` has 2 * dim bytes per row.

    A row that the encoding can't hold (NaN, infinity, or a number that would become infinite) is set to 1
    in `bad` and zero in `out`; the others are set to 0 in `bad`. Returns how many are bad.
    """
    if kind == FLOAT16:
        return _encode(rows, FLOAT16, out, bad)
    return _encode(rows, BFLOAT16, out, bad)


@helper
def _decode(data: Bytes, at: int, kind: int, out: Rows, first: int, count: int) -> None:
    for j in range(count):
        out[first + j] = _widen(load_u16(data, at + 2 * j), kind)


@jit
def decode_range(data: Bytes, offset: int, kind: int, out: Rows) -> None:
    """out[i] = row i of the rows that start at `offset`, one after the other."""
    values = out.reshape(out.size)
    if kind == FLOAT16:
        _decode(data, offset, FLOAT16, values, 0, out.size)
    else:
        _decode(data, offset, BFLOAT16, values, 0, out.size)


@helper
def _decode_rows(data: Bytes, offsets: Ids, kind: int, out: Rows, targets: Ids) -> None:
    dim = out.shape[1]
    values = out.reshape(out.size)
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, 2 * dim)
        _decode(data, offsets[k], kind, values, targets[k] * dim, dim)


@jit
def decode_rows(data: Bytes, offsets: Ids, kind: int, out: Rows, targets: Ids) -> None:
    """out[targets[k]] = the row whose bytes start at offsets[k]."""
    if kind == FLOAT16:
        _decode_rows(data, offsets, FLOAT16, out, targets)
    else:
        _decode_rows(data, offsets, BFLOAT16, out, targets)
