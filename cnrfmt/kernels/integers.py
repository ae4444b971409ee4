"""Rows of integers: as codes of some bits and an exponent each, added up, and as the values that they stand for.

A kernel that decodes checks what it reads. It returns what is wrong, one of the numbers below, and with which row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._code_bits import code_bytes, pack_row, unpack_row
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import bit_length, pointer, prefetch_row

Integers = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]

SOUND, LENGTH, EXPONENT, WIDTH, RANGE, PADDING = range(6)
"""What is wrong: nothing, a group's length, an exponent, the bits of a row's codes, a code, a bit beyond the last."""
_MOST_EXPONENT, _MOST_BITS = 24, 26
_SINGLE_BIAS, _SINGLE_FRACTION = 127, 23
_CHECKED = 2048
"""Integers that are looked at before they become values."""


@helper
def _is_beyond(out: Integers, first: int, count: int, bits: int) -> bool:
    """Whether a code isn't below 2^bits in magnitude."""
    found = np.int32(0)
    for k in range(first, first + count):
        found |= abs(out[k])
    return bool(found >> bits)


@helper
def _padding(data: Bytes, at: int, count: int, bits: int) -> int:
    """What the codes' last byte has beyond the last code."""
    used = (count * bits) & 7
    if used:
        return int(data[at + code_bytes(count, bits) - 1]) >> used
    return 0


@helper
def _unpack(
    data: Bytes,
    at: int,
    limit: int,
    bits: int,
    exponent: int,
    most_bits: int,
    is_smallest: bool,
    out: Integers,
    first: int,
    count: int,
) -> int:
    """One row, as codes << exponent, and what is wrong with it."""
    # Codes that may be beyond the bounds of their exponent are looked at before they are shifted.
    is_bounded = bits <= most_bits - exponent
    shift = exponent if is_bounded else 0
    if not unpack_row(data, at, limit, bits, shift, out, first, count) and is_smallest:
        return WIDTH
    if _padding(data, at, count, bits):
        return PADDING
    if not is_bounded:
        if _is_beyond(out, first, count, most_bits - exponent):
            return RANGE
        for k in range(first, first + count):
            out[k] <<= exponent
    return SOUND


@jit
def code_widths(codes: npt.NDArray[np.int32], widths: Bytes) -> None:
    """widths[i] = the bits that the codes of row i need in two's complement; 0 if all are 0.

    That is as many as (c << 1) ^ (c >> 31), over all codes c together (or), takes to write.
    """
    flat, width = pointer(codes), codes.shape[1]
    for i in range(len(widths)):
        every = np.uint32(0)
        for k in range(i * width, (i + 1) * width):
            code = np.int32(flat[k])
            every |= np.uint32(code << np.int32(1)) ^ np.uint32(code >> np.int32(31))
        widths[i] = np.uint8(bit_length(np.uint64(every)))


@jit
def pack_rows(codes: npt.NDArray[np.int32], widths: Bytes, out: Bytes, at: int) -> int:
    """Put the codes of each row in widths[i] bits, 0 to 26, from out[at] on; returns where they end."""
    flat, target, width = pointer(codes), pointer(out), codes.shape[1]
    for i in range(len(widths)):
        bits = int(widths[i])
        if bits:
            pack_row(flat, i * width, width, bits, target, at, len(out))
            at += code_bytes(width, bits)
    return at


@jit
def unpack_rows(data: Bytes, at: int, widths: Bytes, exponents: Bytes, out: npt.NDArray[np.int32]) -> int:
    """out[i] = the codes that `pack_rows` put from data[at] on, shifted left by exponents[i]; returns where they end.

    For bytes of one's own making: nothing is checked.
    """
    flat, source, width = pointer(out), pointer(data), out.shape[1]
    for i in range(len(widths)):
        bits = int(widths[i])
        if bits:
            unpack_row(source, at, len(data), bits, int(exponents[i]), flat, i * width, width)
            at += code_bytes(width, bits)
        else:
            for k in range(i * width, (i + 1) * width):
                flat[k] = 0
    return at


@jit
def pack_groups(
    codes: npt.NDArray[np.int32], exponents: Bytes, widths: Bytes, group: int, out: Bytes, ends: Ids
) -> None:
    """Make groups of `group` rows, the last one maybe of fewer; ends[g] = where group g ends in `out`.

    `widths` are what `code_widths` says.
    """
    flat, target, width, at = pointer(codes), pointer(out), codes.shape[1], 0
    for number in range(len(ends)):
        first = number * group
        stop = min(first + group, len(widths))
        for i in range(first, stop):
            target[at] = exponents[i] if widths[i] else np.uint8(0)
            target[at + stop - first] = widths[i]
            at += 1
        at += stop - first
        for i in range(first, stop):
            bits = int(widths[i])
            if bits:
                pack_row(flat, i * width, width, bits, target, at, len(out))
                at += code_bytes(width, bits)
        ends[number] = at


@jit
def unpack_groups(
    data: Bytes,
    offset: int,
    bounds: Ids,
    group: int,
    last: int,
    skip: int,
    most_bits: int,
    out: npt.NDArray[np.int32],
    exponents: Bytes,
) -> tuple[int, int]:
    """Decode rows of consecutive groups into `out`, as codes << exponent, leaving out the first `skip`.

    Group g is data[offset + bounds[g] : offset + bounds[g + 1]], of `group` rows; the last one of `last` rows. Codes
    must be below 2^(most_bits - exponent) in magnitude. Returns what is wrong, and the row, counted from `skip` on.
    """
    source, flat, width, limit = pointer(data), pointer(out), out.shape[1], len(data)
    groups, row = len(bounds) - 1, -skip
    for number in range(groups):
        start, stop = offset + bounds[number], offset + bounds[number + 1]
        rows = last if number == groups - 1 else group
        at = start + 2 * rows
        if at > stop:
            return LENGTH, row
        end = at
        for i in range(rows):
            exponent, bits = int(source[start + i]), int(source[start + rows + i])
            if exponent > _MOST_EXPONENT:
                return EXPONENT, row + i
            if bits > _MOST_BITS or (bits == 0 and exponent):
                return WIDTH, row + i
            end += code_bytes(width, bits)
        if end != stop:
            return LENGTH, row
        for i in range(rows):
            exponent, bits = int(source[start + i]), int(source[start + rows + i])
            k = row + i
            if 0 <= k < len(out):
                exponents[k] = np.uint8(exponent)
                if bits:
                    wrong = _unpack(
                        source, at, limit, bits, exponent, most_bits, True, flat, k * width, width
                    )
                    if wrong:
                        return wrong, k
                else:
                    for j in range(k * width, (k + 1) * width):
                        flat[j] = 0
            at += code_bytes(width, bits)
        row += rows
    return SOUND, 0


@jit
def group_bounds(words: npt.NDArray[np.uint32], groups: int, end: int, first: int, out: Ids) -> None:
    """out[k] = where group first + k begins, by a directory of 32-bit words; `end` behind the last of the groups.

    For each 1024 groups the directory has 64 bits, and for each group what is to be added to them.
    """
    for k in range(len(out)):
        group = first + k
        if group == groups:
            out[k] = end
        else:
            at = group // 1024 * 1026
            base = np.int64(words[at]) | np.int64(words[at + 1]) << 32
            out[k] = base + np.int64(words[at + 2 + group % 1024])


@jit
def bounds_of_groups(
    words: npt.NDArray[np.uint32], groups: int, end: int, numbers: Ids, starts: Ids, stops: Ids
) -> None:
    """Where each of some groups begins and ends, by the same directory."""
    for k in range(len(numbers)):
        group_bounds(words, groups, end, numbers[k], starts[k : k + 1])
        group_bounds(words, groups, end, numbers[k] + 1, stops[k : k + 1])


@jit
def groups_of(positions: Ids, group: int, numbers: Ids) -> int:
    """List the groups, of `group` rows, that hold the rows at ascending positions; returns how many there are.

    `numbers` needs room for a group for each row.
    """
    count, stop = 0, -1
    for k in range(len(positions)):
        if positions[k] >= stop:
            number = positions[k] // group
            numbers[count], stop = number, (number + 1) * group
            count += 1
    return count


@jit
def pack_fixed(codes: npt.NDArray[np.int32], exponents: Bytes, bits: int, out: Bytes) -> None:
    """`out` = rows of an exponent and the codes in `bits` bits each."""
    flat, target, width = pointer(codes), pointer(out), codes.shape[1]
    row_bytes = 1 + code_bytes(width, bits)
    for i in range(len(exponents)):
        target[i * row_bytes] = exponents[i]
        pack_row(flat, i * width, width, bits, target, i * row_bytes + 1, len(out))


@helper
def _unpack_fixed(
    data: Bytes,
    at: int,
    limit: int,
    bits: int,
    most_bits: int,
    out: Integers,
    first: int,
    width: int,
) -> int:
    exponent = int(data[at])
    if exponent > _MOST_EXPONENT:
        return EXPONENT
    return _unpack(data, at + 1, limit, bits, exponent, most_bits, False, out, first, width)


@jit
def unpack_fixed(
    data: Bytes, offset: int, bits: int, most_bits: int, out: npt.NDArray[np.int32], exponents: Bytes
) -> tuple[int, int]:
    """Decode rows of an exponent and codes of `bits` bits from data[offset] on, as codes << exponent.

    Returns what is wrong, and the row.
    """
    source, flat, width = pointer(data), pointer(out), out.shape[1]
    row_bytes = 1 + code_bytes(width, bits)
    for k in range(len(out)):
        at = offset + k * row_bytes
        exponents[k] = source[at]
        wrong = _unpack_fixed(source, at, len(data), bits, most_bits, flat, k * width, width)
        if wrong:
            return wrong, k
    return SOUND, 0


@jit
def unpack_fixed_at(
    data: Bytes, offsets: Ids, bits: int, most_bits: int, out: npt.NDArray[np.int32], targets: Ids
) -> tuple[int, int]:
    """The same for rows that begin at data[offsets[k]], into out[targets[k]]."""
    source, flat, width = pointer(data), pointer(out), out.shape[1]
    row_bytes = 1 + code_bytes(width, bits)
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, row_bytes)
        wrong = _unpack_fixed(source, offsets[k], len(data), bits, most_bits, flat, targets[k] * width, width)
        if wrong:
            return wrong, k
    return SOUND, 0


@jit
def add(total: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]) -> None:
    """total[i] += rows[i], modulo 2^32."""
    target, source = pointer(total), pointer(rows)
    for k in range(rows.size):
        target[k] += source[k]


@jit
def add_at(total: npt.NDArray[np.int32], targets: Ids, rows: npt.NDArray[np.int32]) -> None:
    """total[targets[i]] += rows[i], modulo 2^32."""
    target, source, width = pointer(total), pointer(rows), rows.shape[1]
    for i in range(len(targets)):
        first = targets[i] * width
        for j in range(width):
            target[first + j] += source[i * width + j]


@jit
def out_of_range(rows: npt.NDArray[np.int32], least: int, greatest: int) -> int:
    """The first row with an integer that isn't within these bounds; -1 if there is none."""
    flat, width = pointer(rows), rows.shape[1]
    for i in range(len(rows)):
        found = False
        for k in range(i * width, (i + 1) * width):
            found |= (flat[k] < least) | (flat[k] > greatest)
        if found:
            return i
    return -1


@jit
def values(rows: npt.NDArray[np.int32], floor: int, out: Rows) -> None:
    """Put the integers, below 2^24 in magnitude, times 2^floor: exact. `out` may be the same memory."""
    source, target = pointer(rows), pointer(out)
    step = np.int32((_SINGLE_BIAS + floor) << _SINGLE_FRACTION).view(np.float32)
    for k in range(rows.size):
        target[k] = np.float32(source[k]) * step


@jit
def checked_values(rows: npt.NDArray[np.int32], least: int, greatest: int, floor: int) -> int:
    """Make the integers times 2^floor, as `values` does, float32 in their own place.

    Returns a row with an integer that isn't within the bounds, where it stops; -1 if there is none.
    """
    flat, width, low, high = pointer(rows), rows.shape[1], np.int32(least), np.int32(greatest)
    step = np.int32((_SINGLE_BIAS + floor) << _SINGLE_FRACTION).view(np.float32)
    # What was looked at is still in the nearest cache when it is changed.
    some = max(1, _CHECKED // max(1, width))
    for first in range(0, len(rows), some):
        stop = min(first + some, len(rows))
        beyond = np.int32(0)
        for k in range(first * width, stop * width):
            # One of the two is negative, or wraps around to be.
            beyond |= np.int32(flat[k] - low) | np.int32(high - flat[k])
        if beyond < 0:
            return first + out_of_range(rows[first:stop], least, greatest)
        for k in range(first * width, stop * width):
            flat[k] = np.float32(np.float32(flat[k]) * step).view(np.int32)
    return -1


@jit
def log_values(rows: npt.NDArray[np.int32], base: int, shift: int, out: Rows) -> None:
    """Put the numbers of logarithmic codes: +0 for 0, the float32 of pattern base + ((k - 1) << shift) for k > 0.

    `out` may be the same memory.
    """
    source, target = pointer(rows), pointer(out)
    for k in range(rows.size):
        code = int(source[k])
        target[k] = np.int32(base + ((code - 1) << shift) if code else 0).view(np.float32)
