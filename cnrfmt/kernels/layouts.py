"""Row-wise rows of any layout: codes of 2 to 8 bits, scales and biases, written and read.

Where a layout puts them is told by its geometry, eight numbers that every function here takes:

* `bits`, the size of a code;
* `group`, how many elements share a scale and a bias: a multiple of 8, or the number of elements;
* `codes_at`, `scales_at`, `biases_at`, where the codes, scales and biases start in a row;
* `scale_kind`, `bias_kind`, the kinds of number that they are; without biases, `bias_kind` is -1;
* `row_bytes`, the bytes of a row: as many as these take, and where the codes come last as in `head`,
  rounded up to a multiple of 16.

The code of x is rint((x - bias) * inverse) in float32, ties to even, clamped to 0 .. top, where
top = 2**bits - 1 and inverse = fl32(1 / scale), or 0 where that is infinite. Without a bias, it is
rint((x + top * scale) * (inverse / 2)), clamped, and where scale is 0 rint(x + (top + 1) / 2), clamped:
+0 for all x that are less than a half.
Values are those of the format: fl32(fl32(code * scale) + bias), or fl32((2 * code - top) * scale).

There is one kernel per number of bits, with bias and without, compiled when it is first called.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._decoders import decoders
from cnrfmt.kernels._encoders import encoder
from cnrfmt.kernels._halves import NO_PARAMETER

Rows = npt.NDArray[np.float32]


def encode_codes(
    rows: Rows,
    scales: Rows,
    biases: Rows,
    bad: Bytes,
    bits: int,
    group: int,
    codes_at: int,
    scales_at: int,
    biases_at: int,
    scale_kind: int,
    bias_kind: int,
    row_bytes: int,
    out: Bytes,
) -> None:
    """Encode rows of float32 under given parameters, one of each per row and group.

    `out` has `row_bytes` bytes per row, all of which are written. A row that is set in `bad` becomes
    zero. Without biases, `biases` isn't looked at.
    """
    encode = encoder(bits, bias_kind != NO_PARAMETER)
    encode(rows, scales, biases, bad, group, codes_at, scales_at, biases_at, scale_kind, bias_kind, row_bytes, out)


def decode_range(
    data: Bytes,
    offset: int,
    bits: int,
    group: int,
    codes_at: int,
    scales_at: int,
    biases_at: int,
    scale_kind: int,
    bias_kind: int,
    row_bytes: int,
    out: Rows,
) -> None:
    """out[i] = row i of those that start at `offset`, one after the other."""
    decode, _ = decoders(bits, bias_kind != NO_PARAMETER)
    decode(data, offset, group, codes_at, scales_at, biases_at, scale_kind, bias_kind, row_bytes, out)


def decode_rows(
    data: Bytes,
    offsets: Ids,
    bits: int,
    group: int,
    codes_at: int,
    scales_at: int,
    biases_at: int,
    scale_kind: int,
    bias_kind: int,
    row_bytes: int,
    out: Rows,
    targets: Ids,
) -> None:
    """out[targets[k]] = the row whose bytes start at offsets[k]."""
    _, decode = decoders(bits, bias_kind != NO_PARAMETER)
    decode(data, offsets, group, codes_at, scales_at, biases_at, scale_kind, bias_kind, row_bytes, out, targets)
