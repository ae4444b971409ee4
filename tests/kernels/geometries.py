"""Where the layouts put codes and parameters, and rows of them written and read in plain numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.float32]
Table = npt.NDArray[np.uint8]
# Float32, float16, bfloat16, as kernels are told them; -1 is none.
KINDS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ONE, HALF = np.float32(1), np.float32(0.5)


class Geometry(NamedTuple):
    bits: int
    group: int
    codes_at: int
    scales_at: int
    biases_at: int
    scale_kind: int
    bias_kind: int
    row_bytes: int


def size_of(kind: int) -> int:
    return 0 if kind < 0 else KINDS[kind].itemsize


def groups_of(dim: int, group: int) -> int:
    return -(-dim // group)


def tail(bits: int, dim: int) -> Geometry:
    return packed(bits, dim, dim, *((0, 0) if bits == 8 else (1, 1)))


def head(bits: int, dim: int) -> Geometry:
    size = 4 + -(-dim * bits // 8)
    return Geometry(bits, dim, 4, 0, 2, 1, 1, size + -size % 16)


def packed(bits: int, dim: int, group: int, scale_kind: int, bias_kind: int) -> Geometry:
    size, groups = -(-dim * bits // 8), groups_of(dim, group)
    biases_at = size + groups * size_of(scale_kind)
    row_bytes = biases_at + groups * size_of(bias_kind)
    return Geometry(bits, group, 0, size, 0 if bias_kind < 0 else biases_at, scale_kind, bias_kind, row_bytes)


# Of `packed`: with bias and without, in every kind of parameter.
PARAMETERS = [(0, 0), (1, 1), (2, 0), (0, -1), (1, -1), (2, -1)]


def every(bits: int, dim: int) -> list[Geometry]:
    """All geometries of the format for this width: groups that fill a row, and one that doesn't."""
    groups = {dim, *(group for group in (8, 24) if group < dim)}
    found = [packed(bits, dim, group, *kinds) for group in sorted(groups) for kinds in PARAMETERS]
    return [*found, tail(bits, dim), head(bits, dim)] if bits in (8, 4, 2) else found


def spread(parameters: Rows, group: int, dim: int) -> Rows:
    """One parameter per group as one per element."""
    return np.repeat(parameters, group, axis=1)[:, :dim]


def write_codes(codes: Table, bits: int) -> Table:
    each = np.unpackbits(codes[:, :, np.newaxis], axis=2, count=bits, bitorder="little")
    return np.packbits(each.reshape(len(codes), -1), axis=1, bitorder="little")


def read_codes(table: Table, geometry: Geometry, dim: int) -> Table:
    bits = geometry.bits
    stream = np.unpackbits(table[:, geometry.codes_at :], axis=1, count=dim * bits, bitorder="little")
    return np.packbits(stream.reshape(len(table), dim, bits), axis=2, bitorder="little")[:, :, 0]


def read_parameters(table: Table, at: int, kind: int, groups: int) -> Rows:
    data = np.ascontiguousarray(table[:, at : at + groups * size_of(kind)])
    return data.view(KINDS[kind]).astype(np.float32)


def reference_codes(rows: Rows, scales: Rows, biases: Rows, geometry: Geometry) -> Table:
    dim, top = rows.shape[1], np.float32((1 << geometry.bits) - 1)
    with np.errstate(all="ignore"):
        scale = spread(scales, geometry.group, dim)
        inverse = ONE / scale
        inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
        if geometry.bias_kind >= 0:
            level = (rows - spread(biases, geometry.group, dim)) * inverse
        else:
            level = np.where(scale == 0, rows + (top + ONE) * HALF, (rows + top * scale) * (inverse * HALF))
        return np.rint(np.clip(level, np.float32(0), top)).astype(np.uint8)


def reference_rows(rows: Rows, scales: Rows, biases: Rows, bad: Table, geometry: Geometry) -> Table:
    """The bytes of rows, from nothing but the description of their layout."""
    table = np.zeros((len(rows), geometry.row_bytes), np.uint8)
    packed_codes = write_codes(reference_codes(rows, scales, biases, geometry), geometry.bits)
    parts = [(geometry.codes_at, packed_codes), (geometry.scales_at, scales.astype(KINDS[geometry.scale_kind]))]
    if geometry.bias_kind >= 0:
        parts.append((geometry.biases_at, biases.astype(KINDS[geometry.bias_kind])))
    for at, part in parts:
        data = part.view(np.uint8).reshape(len(rows), -1)
        table[:, at : at + data.shape[1]] = data
    table[bad == 1] = 0
    return table


def reference_values(table: Table, geometry: Geometry, dim: int) -> Rows:
    """Two roundings with a bias: of the product, then of the sum; one without."""
    groups = groups_of(dim, geometry.group)
    codes = read_codes(table, geometry, dim).astype(np.float32)
    scale = spread(read_parameters(table, geometry.scales_at, geometry.scale_kind, groups), geometry.group, dim)
    with np.errstate(all="ignore"):
        if geometry.bias_kind < 0:
            return (2 * codes - np.float32((1 << geometry.bits) - 1)) * scale
        bias = read_parameters(table, geometry.biases_at, geometry.bias_kind, groups)
        product = codes * scale
        return product + spread(bias, geometry.group, dim)
