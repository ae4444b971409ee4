"""Logarithmic codes: positive numbers to a relative precision, in 8, 12 or 16 bits.

Code 0 is +0; code k > 0 is the float32 with the bit pattern base + ((k - 1) << shift). Patterns of
positive floats are in their order and nearly logarithms, so that a code is off by at most the fraction
2^(shift - 24) of the number. Zero and denormal numbers are held exactly or not at all, and nothing
negative is held, not even -0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import load_u16, prefetch_row, store

Values = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

_LEAST_NORMAL = 0x00800000
_INFINITE = 0x7F800000
# The greatest shift leaves 32 octaves of 2^23 patterns for all the codes.
_WIDEST = 28
# Where values span more than that, they are counted by eighths of an octave.
_STEP = 20


@helper
def pattern_of(x: np.float32) -> np.int32:
    """The bits of a number."""
    return np.int32(np.float32(x).view(np.int32))


@jit
def plan(values: Values, bits: int) -> tuple[int, int]:
    """Base and shift for these values: the finest that holds all positive normal numbers among them.

    Where they span more than 32 octaves, the 32 (or a little less) that hold the most of them; of
    several such, the greatest.
    """
    steps = (1 << bits) - 2
    low, high = np.int32(_INFINITE), np.int32(0)
    for x in values:
        pattern = pattern_of(x)
        normal = _LEAST_NORMAL <= pattern < _INFINITE
        low = min(low, pattern) if normal else low
        high = max(high, pattern) if normal else high
    if high == 0:
        return _LEAST_NORMAL, 0
    base, shift = int(low), 0
    while shift < _WIDEST - bits and (steps << shift) < high - low:
        shift += 1
    if (steps << shift) < high - low:
        base = _fullest(values, (steps << shift) >> _STEP) << _STEP
    # The greatest code must be finite as well.
    return min(base, _INFINITE - 1 - (steps << shift)), shift


@helper
def _fullest(values: Values, length: int) -> int:
    """The last of the runs of `length` steps that hold the most positive normal numbers."""
    counts = np.zeros(_INFINITE >> _STEP, np.int64)
    for x in values:
        pattern = pattern_of(x)
        if _LEAST_NORMAL <= pattern < _INFINITE:
            counts[pattern >> _STEP] += 1
    held = counts[:length].sum()
    best, most = 0, held
    for first in range(1, len(counts) - length + 1):
        held += counts[first + length - 1] - counts[first - 1]
        if held >= most:
            best, most = first, held
    return max(best, _LEAST_NORMAL >> _STEP)


@helper
def _code(x: np.float32, top: int, base: int, shift: int) -> int:
    """The code of a number, or -1."""
    pattern = int(pattern_of(x))
    if pattern == 0:
        return 0
    if pattern < 0 or pattern >= _INFINITE:
        return -1
    distance = pattern - base
    if shift > 0:
        distance += (1 << (shift - 1)) - 1 + ((distance >> shift) & 1)
    step = distance >> shift
    if step < 0 or step > top or (pattern < _LEAST_NORMAL and base + (step << shift) != pattern):
        return -1
    return step + 1


@jit
def encode(values: Values, bits: int, base: int, shift: int, out: Bytes, bad: Bytes) -> int:
    """Encode numbers in 8, 12 or 16 bits, the nearest codes, ties to even; `out` has ceil(n * bits / 8) bytes.

    A number that has no code is set to 1 in `bad` and has code 0; the others are set to 0 in `bad`.
    Returns how many are bad.
    """
    top = (1 << bits) - 2
    count, before = 0, 0
    for k in range(len(values)):
        code = _code(values[k], top, base, shift)
        bad[k] = code < 0
        count += int(code < 0)
        code = max(code, 0)
        if bits == 8:
            store(out, k, np.uint8(code))
        elif bits == 16:
            store(out, 2 * k, np.uint16(code))
        elif k % 2 == 0:
            # If another follows, it fills the rest of the second byte.
            store(out, 3 * (k // 2), np.uint16(code))
            before = code
        else:
            store(out, 3 * (k // 2) + 1, np.uint16(before >> 8 | code << 4))
    return count


# The multipliers of the finaliser of MurmurHash3 (Austin Appleby, public domain), which mixes 32 bits.
_MIX_1, _MIX_2 = 0x85EBCA6B, 0xC2B2AE35
_WORD = 0xFFFFFFFF


@helper
def mixed(pattern: int) -> int:
    """A hash of 32 bits, which rounding by lot draws from."""
    word = pattern & _WORD
    word ^= word >> 16
    word = word * _MIX_1 & _WORD
    word ^= word >> 13
    word = word * _MIX_2 & _WORD
    return word ^ word >> 16


@jit
def dithered(
    values: Values, bits: int, base: int, shift: int, salt: int, codes: npt.NDArray[np.int32], bad: Bytes
) -> int:
    """The codes of numbers, rounded up or down by a hash of the number: on average by as much as they are apart.

    So growth by less than a code isn't rounded away again and again: a number between two codes becomes the upper one
    as often as it is nearer to it. Another `salt` (32 bits) hashes otherwise; what is a code's value already always has
    that one. A number that has no code is set to 1 in `bad` and has code 0; the others are set to 0 in `bad`. Returns
    how many are bad.
    """
    top = (1 << bits) - 2
    count = 0
    for k in range(len(values)):
        pattern = int(pattern_of(values[k]))
        code = 0
        if pattern != 0:
            step = (pattern - base + (mixed(pattern ^ salt) & ((1 << shift) - 1))) >> shift
            held = base <= pattern < _INFINITE and step <= top
            code = step + 1 if held and (pattern >= _LEAST_NORMAL or base + (step << shift) == pattern) else -1
        bad[k] = code < 0
        count += int(code < 0)
        codes[k] = max(code, 0)
    return count


@helper
def _value(code: np.int64, base: int, shift: int) -> np.float32:
    return np.int32(base + ((code - 1) << shift) if code else 0).view(np.float32)


@helper
def _load(data: Bytes, at: int, bits: int, position: int) -> np.int64:
    """The code at this position, whose first bit is in data[at]."""
    if bits == 8:
        return np.int64(data[at])
    word = np.int64(load_u16(data, at))
    if bits == 16:
        return word
    return word >> 4 if position & 1 else word & 0xFFF


@jit
def decode_range(data: Bytes, offset: int, first: int, bits: int, base: int, shift: int, out: Values) -> None:
    """out[k] = the value of the code at position first + k; the first bit of the first is in data[offset]."""
    # Where in that byte it stands.
    start = 4 * (first & 1) if bits == 12 else 0
    for k in range(len(out)):
        at = offset + (start + k * bits) // 8
        out[k] = _value(_load(data, at, bits, first + k), base, shift)


@jit
def decode_rows(
    data: Bytes,
    offsets: Ids,
    positions: Ids,
    bits: int,
    base: int,
    shift: int,
    out: Values,
    targets: Ids,
) -> None:
    """out[targets[k]] = the value of the code at positions[k], whose first bit is in data[offsets[k]]."""
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, 1)
        out[targets[k]] = _value(_load(data, offsets[k], bits, positions[k]), base, shift)


@jit
def codes_in_range(data: Bytes, offset: int, first: int, bits: int, out: Integers) -> None:
    """out[k] = the code at position first + k; the first bit of the first is in data[offset]."""
    start = 4 * (first & 1) if bits == 12 else 0
    for k in range(len(out)):
        out[k] = _load(data, offset + (start + k * bits) // 8, bits, first + k)


@jit
def codes_of_rows(data: Bytes, offsets: Ids, positions: Ids, bits: int, out: Integers, targets: Ids) -> None:
    """out[targets[k]] = the code at positions[k], whose first bit is in data[offsets[k]]."""
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, 1)
        out[targets[k]] = _load(data, offsets[k], bits, positions[k])
