"""Codes under codebooks: for each row, or block of rows, the few numbers that it errs least from.

The codebook of up to 4096 elements is the best that there is; of more, the best of some thousand bins
that neighbours are put into, improved by a few of Lloyd's steps. Both zeros are +0 here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._clusters import Room, cluster, order, room_for
from cnrfmt.kernels._halves import FLOAT16, float_by_bits, float_of, half_of
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._lookups import assign, look_up
from cnrfmt.kernels._machine import clear, load_u16, load_u32, prefetch_row, store
from cnrfmt.kernels._vectors import extremes

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_INFINITE = 0x7F800000
_INFINITY = np.float32(np.inf)


@helper
def _rounded(x: float, kind: int) -> np.float32:
    value = np.float32(x) + np.float32(0)
    return float_of(half_of(value)) + np.float32(0) if kind == FLOAT16 else value


@helper
def _limit(low: np.float32, high: np.float32) -> np.float32:
    """The greatest number that is no farther from `low` than from `high`."""
    if low == high:
        return _INFINITY
    a, b = np.float64(low), np.float64(high)
    total = a + b
    # What the sum lost in rounding (Knuth's TwoSum).
    part = total - a
    lost = (a - (total - part)) + (b - part)
    middle = total / 2
    limit = np.float32(middle)
    if np.float64(limit) > middle or (np.float64(limit) == middle and lost < 0):
        key = np.int32(limit.view(np.int32))
        key = key - 1 if key > 0 else (key + 1 if key < 0 else np.int32(-0x7FFFFFFF))
        limit = np.int32(key).view(np.float32)
    return limit


@helper
def _is_nearest(ordered: Values, count: int, low: np.float32, high: np.float32) -> bool:
    """Whether a number is nearest to any: to those above `low` up to `high`."""
    k = 0
    while k < count and ordered[k] <= low:
        k += 1
    return bool(k < count and ordered[k] <= high)


@helper
def _choose(count: int, kind: int, room: Room, codebooks: Rows, at: int) -> bool:
    """The codebook of the elements in the room; False if one of its numbers overflows."""
    size = codebooks.shape[1]
    means, members = np.empty(size), np.empty(size, np.float32)
    order(count, room)
    found = cluster(count, size, room, means, members)
    kept = 0
    for k in range(found):
        value = _rounded(means[k], kind)
        if not abs(value) < _INFINITY:
            return False
        if kept == 0 or value > codebooks[at, kept - 1]:
            codebooks[at, kept], members[kept] = value, members[k]
            kept += 1
    # After rounding a number may be nearest to nothing, not even to a member of its cluster.
    found, kept, low = kept, 0, -_INFINITY
    for k in range(found):
        high = _limit(codebooks[at, k], codebooks[at, k + 1]) if k + 1 < found else _INFINITY
        if low < members[k] <= high or _is_nearest(room.ordered, count, low, high):
            codebooks[at, kept] = codebooks[at, k]
            kept += 1
        low = high
    for k in range(kept, size):
        codebooks[at, k] = codebooks[at, kept - 1]
    return True


@helper
def _is_finite(values: Values, first: int, count: int) -> bool:
    low, high = extremes(values, first, count)
    return bool(high < _INFINITE and low > ~_INFINITE)


@jit
def choose_shared(rows: Rows, bits: int, kind: int, block: int, codebooks: Rows, bad: Bytes) -> int:
    """codebooks[j] = the 2**bits numbers that rows j * block and so on err least from, ascending.

    They are float32 (`kind` 0) or rounded to float16 (1); a number that no element is nearest to is left
    out, and the last one repeated instead. Elements of at most so many distinct numbers are held exactly
    as float32. The last block may be shorter. Rows that aren't finite are left out of it. They are set to
    1 in `bad`, as are all rows of a block where a number is beyond float16; the others are set to 0.
    Returns how many are bad. A codebook of bad rows alone is zeros.
    """
    dim, size = rows.shape[1], 1 << bits
    values, most = rows.reshape(rows.size), min(block, len(rows)) * dim
    room = room_for(most, size)
    bad_rows = 0
    for start in range(0, len(rows), block):
        end, count = min(start + block, len(rows)), 0
        for i in range(start, end):
            bad[i] = not _is_finite(values, i * dim, dim)
            if not bad[i]:
                for j in range(dim):
                    # Both zeros become +0.
                    room.values[count + j] = values[i * dim + j] + np.float32(0)
                count += dim
        book = start // block
        sound = count > 0 and _choose(count, kind, room, codebooks, book)
        if not sound:
            for k in range(size):
                codebooks[book, k] = 0
        for i in range(start, end):
            bad[i] |= not sound
            bad_rows += int(bad[i])
    return bad_rows


def choose_codebooks(rows: Rows, bits: int, kind: int, codebooks: Rows, bad: Bytes) -> int:
    """As `choose_shared`, with a codebook for each row."""
    return choose_shared(rows, bits, kind, 1, codebooks, bad)


@helper
def _limits(codebooks: Rows, at: int, limits: Values) -> None:
    for k in range(len(limits)):
        limits[k] = _limit(codebooks[at, k], codebooks[at, k + 1])


@helper
def _assign_few(values: Values, first: int, count: int, bits: int, limits: Values, out: Bytes, at: int) -> None:
    """As `assign`, for fewer than 8 elements; the last byte is filled up with zeros."""
    word = 0
    for j in range(min(7, count)):
        code = 0
        for limit in limits:
            code += int(values[first + j] > limit)
        word |= code << (j * bits)
    for byte in range(min(4, (count * bits + 7) // 8)):
        out[at + byte] = (word >> (8 * byte)) & 0xFF


@jit
def encode_codes(
    rows: Rows,
    codebooks: Rows,
    bad: Bytes,
    bits: int,
    block: int,
    first: int,
    codes_at: int,
    out: Bytes,
) -> None:
    """Write the codes of each row from byte `codes_at` of its bytes on: the nearest numbers, of two the lower.

    Row i is held by codebooks[(first + i) // block]. The codes of rows that are bad are zero.
    """
    dim = rows.shape[1]
    values, data, stride = rows.reshape(rows.size), out.reshape(out.size), out.shape[1]
    whole = dim - dim % 8
    limits = np.empty((1 << bits) - 1, np.float32)
    last = -1
    for i in range(len(rows)):
        at = i * stride + codes_at
        if bad[i]:
            clear(data, at, stride - codes_at)
            continue
        book = (first + i) // block
        if book != last:
            _limits(codebooks, book, limits)
            last = book
        if whole:
            assign(values, i * dim, whole, bits, limits, data, at)
        if whole < dim:
            _assign_few(values, i * dim + whole, dim - whole, bits, limits, data, at + whole // 8 * bits)


@jit
def write_codebooks(codebooks: Rows, kind: int, out: Bytes) -> None:
    """Write each codebook at the start of a row of bytes."""
    size = 2 if kind == FLOAT16 else 4
    data, stride = out.reshape(out.size), out.shape[1]
    for i in range(len(codebooks)):
        for k in range(codebooks.shape[1]):
            if kind == FLOAT16:
                store(data, i * stride + k * size, half_of(codebooks[i, k]))
            else:
                store(data, i * stride + k * size, codebooks[i, k])


@helper
def _value(books: Bytes, book_at: int, kind: int, code: int) -> np.float32:
    if kind == FLOAT16:
        return float_by_bits(load_u16(books, book_at + 2 * code))
    return np.uint32(load_u32(books, book_at + 4 * code)).view(np.float32)


@helper
def _decode(
    data: Bytes, at: int, bits: int, books: Bytes, book_at: int, kind: int, out: Values, first: int, dim: int
) -> None:
    whole = dim - dim % 8
    if whole:
        look_up(data, at, bits, books, book_at, kind, out, first, whole)
    if whole < dim:
        at += whole // 8 * bits
        word = 0
        for byte in range(min(4, ((dim - whole) * bits + 7) // 8)):
            word |= int(data[at + byte]) << (8 * byte)
        for j in range(min(7, dim - whole)):
            code = (word >> (j * bits)) & ((1 << bits) - 1)
            out[first + whole + j] = _value(books, book_at, kind, code)


@helper
def _codebook_bytes(bits: int, kind: int) -> int:
    return (2 if kind == FLOAT16 else 4) << bits


@jit
def decode_range(data: Bytes, offset: int, bits: int, kind: int, out: Rows) -> None:
    """out[i] = row i of the rows, each with a codebook of its own, that start at `offset`."""
    dim = out.shape[1]
    values = out.reshape(out.size)
    size = _codebook_bytes(bits, kind)
    row_bytes = size + (dim * bits + 7) // 8
    for i in range(len(out)):
        at = offset + i * row_bytes
        _decode(data, at + size, bits, data, at, kind, values, i * dim, dim)


@jit
def decode_rows(data: Bytes, offsets: Ids, bits: int, kind: int, out: Rows, targets: Ids) -> None:
    """out[targets[k]] = the row, with a codebook of its own, whose bytes start at offsets[k]."""
    dim = out.shape[1]
    values = out.reshape(out.size)
    size = _codebook_bytes(bits, kind)
    row_bytes = size + (dim * bits + 7) // 8
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, row_bytes)
        _decode(data, offsets[k] + size, bits, data, offsets[k], kind, values, targets[k] * dim, dim)


@jit
def decode_range_shared(
    data: Bytes,
    offset: int,
    first: int,
    bits: int,
    books: Bytes,
    books_at: int,
    kind: int,
    block: int,
    out: Rows,
) -> None:
    """out[i] = the row at position first + i; the codes of these rows start at `offset`.

    Codebook j of the bytes `books`, where codebook 0 starts at `books_at`, serves the `block` positions
    from j * block on.
    """
    dim = out.shape[1]
    values = out.reshape(out.size)
    size, row_bytes = _codebook_bytes(bits, kind), (dim * bits + 7) // 8
    for i in range(len(out)):
        book_at = books_at + (first + i) // block * size
        _decode(data, offset + i * row_bytes, bits, books, book_at, kind, values, i * dim, dim)


@jit
def decode_rows_shared(
    data: Bytes,
    offsets: Ids,
    positions: Ids,
    bits: int,
    books: Bytes,
    books_at: int,
    kind: int,
    block: int,
    out: Rows,
    targets: Ids,
) -> None:
    """out[targets[k]] = the row at positions[k], whose codes start at offsets[k]; codebooks as above."""
    dim = out.shape[1]
    values = out.reshape(out.size)
    size, row_bytes = _codebook_bytes(bits, kind), (dim * bits + 7) // 8
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, row_bytes)
        book_at = books_at + positions[k] // block * size
        _decode(data, offsets[k], bits, books, book_at, kind, values, targets[k] * dim, dim)
