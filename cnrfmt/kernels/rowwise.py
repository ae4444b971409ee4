"""Fused row-wise codes in the `tail` layout: the codes of a row, then its scale, then its bias.

A row's parameters are float32 under 8 bits, float16 under 4 and 2. Encoders choose codes and
parameters as FBGEMM's ``FloatToFused8BitRowwiseQuantized`` and
``FloatToFusedNBitRowwiseQuantizedSBHalf`` do, bit for bit; decoders follow the format:
fl32(fl32(code * scale) + bias).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._halves import float_of, half_of
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import clear, load_u16, load_u32, pointer, prefetch, prefetch_row, store
from cnrfmt.kernels._vectors import (
    dequantise_2,
    dequantise_4,
    dequantise_8,
    extremes,
    quantise_2,
    quantise_4,
    quantise_8,
)
from cnrfmt.kernels.errors import error_of

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]
Errors = npt.NDArray[np.float64]

_INFINITE = 0x7F800000
_EPSILON = np.float32(1e-8)
# Encoders work out the parameters of so many rows, then their codes. The parameters are a long chain
# of operations on single numbers, which the processor overlaps with the next row's only as long as
# no codes, waiting for them, stand in between.
_BLOCK = 16
# Rows that lie anywhere are asked for so long before their turn.
_AHEAD = 32
# Elements of a row that is short, and of a line of the cache.
_SHORT, _LINE = 64, 16
_GREATEST = np.finfo(np.float32).max
_ONE = np.float32(1)
# The key of -0. Where that is a row's least, there may be positive zeros that are equal to it.
_NEGATIVE_ZERO = -1
_HALF_ONE = np.uint16(0x3C00)


@helper
def _level(x: np.float32, low: np.float32, inverse: np.float32) -> int:
    """The nearest integer to (x - low) * inverse, ties to even, where that is less than 2**22."""
    return int(np.rint((x - low) * inverse))


@helper
def _zero_signs(values: Values, first: int, dim: int) -> tuple[np.float32, np.float32]:
    """Least and greatest of a row where one of them is a zero, with the operators' choice of sign.

    They keep eight running extremes, one for each column modulo 8, in which a later zero replaces an
    earlier one; then those of the eight and of the columns left over, in which it doesn't.
    """
    whole = first + dim - dim % 8
    low, high = _GREATEST, -_GREATEST
    for lane in range(first, first + min(8, whole - first)):
        lane_low, lane_high = values[lane], values[lane]
        for j in range(lane + 8, whole, 8):
            lane_low = values[j] if values[j] <= lane_low else lane_low
            lane_high = values[j] if values[j] >= lane_high else lane_high
        low = lane_low if lane_low < low else low
        high = lane_high if lane_high > high else high
    for j in range(whole, first + dim):
        low = values[j] if values[j] < low else low
        high = values[j] if values[j] > high else high
    return low, high


@helper
def _float_of_key(key: np.int32) -> np.float32:
    return np.int32(key if key >= 0 else key ^ 0x7FFFFFFF).view(np.float32)


@helper
def _first_of(positions: Ids | None, i: int, dim: int) -> int:
    """Where the i-th row to encode starts: each of them, or those at the positions given."""
    if positions is None:
        return i * dim
    return int(positions[i]) * dim


@helper
def _ask_ahead(values: Values, positions: Ids | None, i: int, dim: int) -> None:
    """While the codes of row i are made, ask for a later one: else memory would rest.

    Of rows that follow each other, it is the one that stands where this one does in the next block; what short ones
    need, the processor foresees by itself.
    """
    if positions is None:
        if dim > _SHORT:
            for element in range((i + _BLOCK) * dim, (i + _BLOCK + 1) * dim, _LINE):
                prefetch(values, element)
    elif i + _AHEAD < len(positions):
        first = int(positions[i + _AHEAD]) * dim
        for element in range(first, first + dim, _LINE):
            prefetch(values, element)
        prefetch(values, first + dim - 1)


@helper
def _are_finite(low_key: np.int32, high_key: np.int32) -> bool:
    """Whether a row with these extremes has finite elements only."""
    return bool(high_key < _INFINITE and low_key > ~_INFINITE)


@helper
def _is_finite(x: np.float32) -> bool:
    return bool(abs(x) < np.float32(np.inf))


@helper
def _decode_8(data: Bytes, at: int, out: Values, first: int, dim: int) -> None:
    scale = np.uint32(load_u32(data, at + dim)).view(np.float32)
    bias = np.uint32(load_u32(data, at + dim + 4)).view(np.float32)
    if dim >= 4:
        dequantise_8(data, at, scale, bias, out, first, dim)
    else:
        for j in range(min(3, dim)):
            out[first + j] = np.float32(data[at + j]) * scale + bias


@helper
def _decode_nbit(data: Bytes, at: int, bits: int, out: Values, first: int, dim: int) -> None:
    per_byte = 8 // bits
    size = (dim + per_byte - 1) // per_byte
    vector = dim - dim % per_byte if dim >= 4 else 0
    scale = float_of(load_u16(data, at + size))
    bias = float_of(load_u16(data, at + size + 2))
    if vector and bits == 4:
        dequantise_4(data, at, scale, bias, out, first, vector)
    elif vector:
        dequantise_2(data, at, scale, bias, out, first, vector)
    for rest in range(min(3, dim - vector)):
        j = vector + rest
        code = (int(data[at + j // per_byte]) >> (bits * (j % per_byte))) & ((1 << bits) - 1)
        out[first + j] = np.float32(code) * scale + bias


@helper
def _encode_8(rows: Rows, positions: Ids | None, out: Bytes, bad: Bytes, errors: Errors | None) -> int:
    dim = rows.shape[1]
    stride = dim + 8
    vector = dim if dim >= 4 else 0
    values, codes, is_bad = pointer(rows), pointer(out), pointer(bad)
    lows, inverses = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    decoded = np.empty(dim, np.float32)
    count = 0
    for start in range(0, len(out), _BLOCK):
        block = min(_BLOCK, len(out) - start)
        for k in range(block):
            i = start + k
            first, at = _first_of(positions, i, dim), i * stride
            low_key, high_key = extremes(values, first, dim)
            low, high = _float_of_key(low_key), _float_of_key(high_key)
            if low_key == _NEGATIVE_ZERO:
                low, high = _zero_signs(values, first, dim)
            reach = high - low
            if not (_are_finite(low_key, high_key) and _is_finite(reach)):
                is_bad[i] = 1
                count += 1
                clear(codes, at, stride)
                continue
            is_bad[i] = 0
            lows[k], inverses[k] = low, np.float32(255) / (reach + _EPSILON)
            store(codes, at + dim, reach / np.float32(255))
            store(codes, at + dim + 4, low)
        for k in range(block):
            i = start + k
            first, at = _first_of(positions, i, dim), i * stride
            _ask_ahead(values, positions, i, dim)
            if is_bad[i]:
                continue
            low, inverse = lows[k], inverses[k]
            if vector:
                quantise_8(values, first, vector, low, inverse, codes, at)
            for j in range(min(3, dim - vector)):
                level = _level(values[first + vector + j], low, inverse)
                codes[at + vector + j] = level & 0xFF
            if errors is not None:
                _decode_8(codes, at, decoded, 0, dim)
                errors[i] = error_of(values, first, pointer(decoded), 0, dim)
    return count


@jit
def encode_rows_8(rows: Rows, out: Bytes, bad: Bytes) -> int:
    """Encode rows of float32 in 8 bits; `out` has dim + 8 bytes per row.

    A row that the encoding can't hold (NaN, infinity, a range that overflows) is set to 1 in `bad`
    and zero in `out`; the others are set to 0 in `bad`. Returns how many are bad.
    """
    return _encode_8(rows, None, out, bad, None)


@jit
def encode_measured_8(rows: Rows, positions: Ids | None, out: Bytes, bad: Bytes, errors: Errors) -> int:
    """The same for the rows at `positions`, or all of them, with what decoding changes in each, as `row_errors` says.

    `out` has a row for each. Errors of bad rows aren't written.
    """
    return _encode_8(rows, positions, out, bad, errors)


@helper
def _encode_nbit(
    rows: Rows, positions: Ids | None, bits: int, out: Bytes, bad: Bytes, errors: Errors | None
) -> int:
    dim = rows.shape[1]
    per_byte = 8 // bits
    size = (dim + per_byte - 1) // per_byte
    vector = dim - dim % per_byte if dim >= 4 else 0
    stride = size + 4
    top = (1 << bits) - 1
    values, codes, is_bad = pointer(rows), pointer(out), pointer(bad)
    lows, inverses = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    decoded = np.empty(dim, np.float32)
    count = 0
    for start in range(0, len(out), _BLOCK):
        block = min(_BLOCK, len(out) - start)
        for k in range(block):
            i = start + k
            first, at = _first_of(positions, i, dim), i * stride
            low_key, high_key = extremes(values, first, dim)
            low, high = _float_of_key(low_key), _float_of_key(high_key)
            if low_key == _NEGATIVE_ZERO:
                low, high = _zero_signs(values, first, dim)
            half_low = half_of(low)
            low = float_of(half_low)
            half_scale = half_of((high - low) / np.float32(top))
            scale = float_of(half_scale)
            inverse = _ONE / scale
            # With a bias that is infinite, the scale is as well.
            if not (_are_finite(low_key, high_key) and _is_finite(scale)):
                is_bad[i] = 1
                count += 1
                clear(codes, at, stride)
                continue
            if not _is_finite(inverse):
                half_scale, inverse = _HALF_ONE, _ONE
            is_bad[i] = 0
            lows[k], inverses[k] = low, inverse
            store(codes, at + size, half_scale)
            store(codes, at + size + 2, half_low)
        for k in range(block):
            i = start + k
            first, at = _first_of(positions, i, dim), i * stride
            _ask_ahead(values, positions, i, dim)
            if is_bad[i]:
                continue
            low, inverse = lows[k], inverses[k]
            if vector and bits == 4:
                quantise_4(values, first, vector, low, inverse, codes, at)
            elif vector:
                quantise_2(values, first, vector, low, inverse, codes, at)
            for j in range(min(3, size - vector // per_byte)):
                byte = 0
                done = vector + j * per_byte
                for slot in range(min(per_byte, dim - done)):
                    level = _level(values[first + done + slot], low, inverse)
                    byte |= min(max(level, 0), top) << (bits * slot)
                codes[at + done // per_byte] = byte
            if errors is not None:
                _decode_nbit(codes, at, bits, decoded, 0, dim)
                errors[i] = error_of(values, first, pointer(decoded), 0, dim)
    return count


@jit
def encode_rows_nbit(rows: Rows, bits: int, out: Bytes, bad: Bytes) -> int:
    """Encode rows of float32 in 4 or 2 bits; `out` has ceil(dim * bits / 8) + 4 bytes per row.

    A row that the encoding can't hold (NaN, infinity, bias or scale outside of half precision) is set
    to 1 in `bad` and zero in `out`; the others are set to 0 in `bad`. Returns how many are bad.
    """
    # Each call is compiled for its number of bits.
    if bits == 4:
        return _encode_nbit(rows, None, 4, out, bad, None)
    return _encode_nbit(rows, None, 2, out, bad, None)


@jit
def encode_measured_nbit(
    rows: Rows, positions: Ids | None, bits: int, out: Bytes, bad: Bytes, errors: Errors
) -> int:
    """The same for the rows at `positions`, or all of them, with what decoding changes in each, as `row_errors` says.

    `out` has a row for each. Errors of bad rows aren't written.
    """
    if bits == 4:
        return _encode_nbit(rows, positions, 4, out, bad, errors)
    return _encode_nbit(rows, positions, 2, out, bad, errors)


@jit
def decode_rows_8(data: Bytes, offsets: Ids, out: Rows, targets: Ids) -> None:
    """out[targets[k]] = the 8-bit row whose bytes start at offsets[k]."""
    dim = out.shape[1]
    values = out.reshape(out.size)
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, dim + 8)
        _decode_8(data, offsets[k], values, targets[k] * dim, dim)


@jit
def decode_range_8(data: Bytes, offset: int, out: Rows) -> None:
    """out[i] = row i of the 8-bit rows that start at `offset`, one after the other."""
    dim = out.shape[1]
    values = out.reshape(out.size)
    for i in range(len(out)):
        _decode_8(data, offset + i * (dim + 8), values, i * dim, dim)


@helper
def _row_bytes(dim: int, bits: int) -> int:
    """The bytes of a row of 4 or 2 bits."""
    return (dim * bits + 7) // 8 + 4


@jit
def decode_rows_nbit(data: Bytes, offsets: Ids, bits: int, out: Rows, targets: Ids) -> None:
    """out[targets[k]] = the 4- or 2-bit row whose bytes start at offsets[k]."""
    dim = out.shape[1]
    row_bytes = _row_bytes(dim, bits)
    values = out.reshape(out.size)
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, row_bytes)
        if bits == 4:
            _decode_nbit(data, offsets[k], 4, values, targets[k] * dim, dim)
        else:
            _decode_nbit(data, offsets[k], 2, values, targets[k] * dim, dim)


@jit
def decode_range_nbit(data: Bytes, offset: int, bits: int, out: Rows) -> None:
    """out[i] = row i of the 4- or 2-bit rows that start at `offset`, one after the other."""
    dim = out.shape[1]
    row_bytes = _row_bytes(dim, bits)
    values = out.reshape(out.size)
    for i in range(len(out)):
        if bits == 4:
            _decode_nbit(data, offset + i * row_bytes, 4, values, i * dim, dim)
        else:
            _decode_nbit(data, offset + i * row_bytes, 2, values, i * dim, dim)
