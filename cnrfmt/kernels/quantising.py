"""From values to codes on a grid: rows picked from a table, less what is stored of them, in steps of their own.

The code of a value v in a row with the exponent e, of which the integer m is stored, is (v * 2^-floor - m) * 2^-e,
rounded in float64, ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._code_bits import code_bytes, pack_row
from cnrfmt.kernels._grid_codes import grid_codes
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import bit_length, pointer, prefetch, unsigned

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
# Rows that lie anywhere are asked for so long before their turn.
_AHEAD = 16
# Elements of a line of the cache, and of rows that the processor foresees by itself.
_LINE, _SHORT = 16, 64
_DOUBLE_BIAS, _DOUBLE_FRACTION = 1023, 52


@helper
def _power(exponent: int) -> np.float64:
    """Two to this power."""
    return np.int64((_DOUBLE_BIAS + exponent) << _DOUBLE_FRACTION).view(np.float64)


@helper
def _ask_ahead(values: Values, positions: Ids | None, k: int, count: int, width: int) -> None:
    if k + _AHEAD < count:
        if positions is not None:
            first = int(positions[k + _AHEAD]) * width
        elif width > _SHORT:
            first = (k + _AHEAD) * width
        else:
            return
        for element in range(first, first + width, _LINE):
            prefetch(values, element)
        prefetch(values, first + width - 1)


@helper
def _first_of(positions: Ids | None, k: int, width: int) -> int:
    if positions is None:
        return k * width
    return int(positions[k]) * width


@helper
def _row(
    values: Values,
    first: int,
    stored: npt.NDArray[Any],
    is_absolute: bool,
    k: int,
    width: int,
    floor: int,
    exponents: Bytes,
    codes: Integers,
    at: int,
    widths: Bytes,
    bad: Bytes,
) -> int:
    """Quantises row k; returns the bits of its codes, which are 0 if it is bad."""
    exponent = int(np.int64(exponents[k]))
    scale, smaller, step = _power(-floor - exponent), _power(-exponent), _power(exponent)
    if is_absolute:
        every, fits = grid_codes(values, first, None, 0, width, scale, smaller, step, codes, at)
    else:
        every, fits = grid_codes(values, first, stored, k * width, width, scale, smaller, step, codes, at)
    bits = 0
    if fits:
        bits = bit_length(unsigned(every))
    else:
        for j in range(width):
            codes[at + j] = 0
    bad[k] = np.uint8(0 if fits else 1)
    widths[k] = np.uint8(bits)
    if bits == 0:
        exponents[k] = np.uint8(0)
    return bits


@jit
def quantise(
    values: Rows,
    positions: Ids | None,
    stored: npt.NDArray[Any],
    floor: int,
    exponents: Bytes,
    codes: npt.NDArray[np.int32],
    widths: Bytes,
    bad: Bytes,
) -> int:
    """codes[k] = those of the row at positions[k], or of row k; widths[k] the bits that they need, 0 if all are 0.

    `stored`, int32 or int16 (n, width), is what is stored of these rows; it has no rows for an absolute part, for which
    that doesn't count. `exponents` has one of each row, 0 to 24, which becomes 0 where all codes are 0.

    A row of which a value isn't finite, or a sum of stored integer and difference isn't below 2^24 in magnitude, is set
    to 1 in `bad`, and its codes to 0; the others are set to 0 in `bad`. Returns how many are bad.
    """
    width, count, found = values.shape[1], len(exponents), 0
    source, target = pointer(values), pointer(codes)
    before, is_absolute = pointer(stored), len(stored) == 0
    for k in range(count):
        _ask_ahead(source, positions, k, count, width)
        first = _first_of(positions, k, width)
        _row(source, first, before, is_absolute, k, width, floor, exponents, target, k * width, widths, bad)
        found += int(bad[k])
    return found


@jit
def quantise_packed(
    values: Rows,
    positions: Ids | None,
    stored: npt.NDArray[Any],
    floor: int,
    exponents: Bytes,
    widths: Bytes,
    bad: Bytes,
    out: Bytes,
) -> int:
    """As `quantise`, but the codes go into `out`, row after row, each in widths[k] bits; returns the bytes they take.

    `out` must have room for codes of 26 bits.
    """
    width, count = values.shape[1], len(exponents)
    codes, at = np.empty(width, np.int32), 0
    source, scratch, target = pointer(values), pointer(codes), pointer(out)
    before, is_absolute = pointer(stored), len(stored) == 0
    for k in range(count):
        _ask_ahead(source, positions, k, count, width)
        first = _first_of(positions, k, width)
        bits = _row(source, first, before, is_absolute, k, width, floor, exponents, scratch, 0, widths, bad)
        if bits:
            pack_row(scratch, 0, width, bits, target, at, len(out))
            at += code_bytes(width, bits)
    return at
