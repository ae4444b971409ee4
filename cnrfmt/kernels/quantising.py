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
from cnrfmt.kernels._grid_codes import grid_codes, short_codes
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import bit_length, pointer, prefetch, unsigned
from cnrfmt.kernels.errors import error_of

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
# Rows are asked for so long before their turn.
_AHEAD = 16
_LINE = 64
_DOUBLE_BIAS, _DOUBLE_FRACTION = 1023, 52
# Of codes that take so many bits, shifted, no sum with a stored integer below 2^23 comes to 2^24.
_SURE_BITS = 24


@helper
def _power(exponent: int) -> np.float64:
    """Two to this power."""
    return np.int64((_DOUBLE_BIAS + exponent) << _DOUBLE_FRACTION).view(np.float64)


@helper
def _ask_for(rows: npt.NDArray[Any], position: int, width: int, per_line: int) -> None:
    first = position * width
    for element in range(first, first + width, per_line):
        prefetch(rows, element)
    # Rows needn't begin where a line of the cache does.
    prefetch(rows, first + width - 1)


@helper
def _row(
    values: Values,
    first: int,
    stored: npt.NDArray[Any],
    stored_first: int,
    is_absolute: bool,
    width: int,
    floor: int,
    exponent: int,
    codes: Integers,
) -> tuple[int, bool]:
    """Quantises a row; returns the bits of its codes, and whether it could be."""
    scale, smaller, step = _power(-floor - exponent), _power(-exponent), _power(exponent)
    short, short_smaller = np.float32(scale), np.float32(smaller)
    if is_absolute:
        every, fits = short_codes(values, first, None, 0, width, short, short_smaller, codes, 0)
    else:
        every, fits = short_codes(values, first, stored, stored_first, width, short, short_smaller, codes, 0)
    if fits:
        bits = bit_length(unsigned(every))
        if bits + exponent <= _SURE_BITS:
            return bits, True
    if is_absolute:
        every, fits = grid_codes(values, first, None, 0, width, scale, smaller, step, codes, 0)
    else:
        every, fits = grid_codes(values, first, stored, stored_first, width, scale, smaller, step, codes, 0)
    return bit_length(unsigned(every)) if fits else 0, fits


@jit
def quantise_packed(
    values: Rows,
    positions: Ids,
    stored: npt.NDArray[Any],
    before: Ids,
    floor: int,
    exponents: Bytes,
    widths: Bytes,
    bad: Bytes,
    out: Bytes,
) -> int:
    """The codes of the rows at these positions, row after row, each in widths[k] bits; returns the bytes they take.

    `widths` are the bits that the codes of a row need, 0 if all are 0. `stored`, int32 or int16, has what is stored of
    row k at before[k]; it has no rows for an absolute part, for which neither counts. `exponents` has one of each row,
    0 to 24, which becomes 0 where all codes are 0. `out` must have room for codes of 26 bits, and for 8 bytes more.

    A row of which a value isn't finite, or a sum of stored integer and difference isn't below 2^24 in magnitude, is set
    to 1 in `bad`, and its codes are 0; the others are set to 0 in `bad`.
    """
    width, count = values.shape[1], len(positions)
    codes, at = np.empty(width, np.int32), 0
    source, known, scratch, target = pointer(values), pointer(stored), pointer(codes), pointer(out)
    is_absolute = len(stored) == 0
    for k in range(count):
        if k + _AHEAD < count:
            _ask_for(source, int(positions[k + _AHEAD]), width, _LINE // values.itemsize)
            if not is_absolute:
                _ask_for(known, int(before[k + _AHEAD]), width, _LINE // stored.itemsize)
        stored_first = 0 if is_absolute else int(before[k]) * width
        first, exponent = int(positions[k]) * width, int(np.int64(exponents[k]))
        bits, fits = _row(source, first, known, stored_first, is_absolute, width, floor, exponent, scratch)
        bad[k] = np.uint8(0 if fits else 1)
        widths[k] = np.uint8(bits)
        if bits == 0:
            exponents[k] = np.uint8(0)
        else:
            pack_row(scratch, 0, width, bits, target, at, len(out))
            at += code_bytes(width, bits)
    return at


@jit
def sampled_errors(
    values: Rows,
    positions: Ids,
    stored: npt.NDArray[Any],
    before: Ids,
    floor: int,
    exponents: Bytes,
    some: Ids,
    errors: npt.NDArray[np.float64],
) -> None:
    """errors[i] = the relative error of row some[i] if its steps have exponents[some[i]]; all else as above.

    Computed in float32, for rows whose values are finite.
    """
    width, count = values.shape[1], len(some)
    decoded, unit = np.empty(width, np.float32), np.float32(_power(floor))
    source, known, scratch = pointer(values), pointer(stored), pointer(decoded)
    is_absolute = len(stored) == 0
    for i in range(count):
        if i + _AHEAD < count:
            later = some[i + _AHEAD]
            _ask_for(source, int(positions[later]), width, _LINE // values.itemsize)
            if not is_absolute:
                _ask_for(known, int(before[later]), width, _LINE // stored.itemsize)
        k = some[i]
        first, step = int(positions[k]) * width, np.float32(_power(floor + int(np.int64(exponents[k]))))
        stored_first = 0 if is_absolute else int(before[k]) * width
        for j in range(width):
            base = np.float32(0) if is_absolute else np.float32(known[stored_first + j]) * unit
            scratch[j] = base + np.rint((source[first + j] - base) / step) * step
        errors[i] = error_of(source, first, scratch, 0, width)
