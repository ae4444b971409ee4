"""Reading rows of codes, scales and biases: two kernels per number of bits, with a bias and without."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import load_u64, pointer, prefetch_row
from cnrfmt.kernels._packing import dequantiser, word_dequantiser
from cnrfmt.kernels._parameters import load_parameter, size_of

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]

_ZERO = np.float32(0)


def _row_decoder(bits: int, biased: bool) -> Any:
    dequantise, dequantise_word = dequantiser(bits, biased), word_dequantiser(bits, biased)
    mask = (1 << bits) - 1

    @helper
    def dequantise_last(
        data: Bytes,
        at: int,
        start: int,
        end: int,
        scale: np.float32,
        bias: np.float32,
        out: Values,
        first: int,
        count: int,
    ) -> None:
        """The last 8 elements of a group, or all of fewer; the row's bytes are data[start:end]."""
        done = max(count - 8, 0)
        at += (done * bits) >> 3
        shift = (done * bits) & 7
        if end - start >= 8:
            word_at = min(at, end - 8)
            shift += 8 * (at - word_at)
            word = load_u64(data, word_at)
        else:
            word = np.uint64(0)
            for byte in range(min(7, end - at)):
                word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        word >>= np.uint64(shift)
        if count >= 8:
            dequantise_word(word, scale, bias, out, first + done)
        else:
            for j in range(min(7, count)):
                code = int(word >> np.uint64(bits * j)) & mask
                if biased:
                    out[first + j] = np.float32(code) * scale + bias
                else:
                    out[first + j] = np.float32(2 * code - mask) * scale

    @helper
    def decode(
        data: Bytes,
        start: int,
        group: int,
        groups: int,
        codes_at: int,
        scales_at: int,
        biases_at: int,
        scale_kind: int,
        bias_kind: int,
        row_bytes: int,
        out: Values,
        first: int,
        dim: int,
    ) -> None:
        """out[first : first + dim] = the row that starts at data[start]."""
        at, scale_at, bias_at = start + codes_at, start + scales_at, start + biases_at
        if groups == 1 and dim & 7 == 0:
            # The usual row, without what only others need.
            scale = load_parameter(data, scale_at, scale_kind)
            bias = load_parameter(data, bias_at, bias_kind) if biased else _ZERO
            dequantise(data, at, scale, bias, out, first, dim)
            return
        left = dim
        for _ in range(groups):
            scale, bias = load_parameter(data, scale_at, scale_kind), _ZERO
            scale_at += size_of(scale_kind)
            if biased:
                bias = load_parameter(data, bias_at, bias_kind)
                bias_at += size_of(bias_kind)
            count = min(group, left)
            if count >= 8:
                dequantise(data, at, scale, bias, out, first, count & ~7)
            if count & 7:
                dequantise_last(data, at, start, start + row_bytes, scale, bias, out, first, count)
            at += (group >> 3) * bits
            first += group
            left -= group

    return decode


@functools.cache
def decoders(bits: int, biased: bool) -> tuple[Any, Any]:
    """The kernels behind `layouts.decode_range` and `layouts.decode_rows`."""
    decode = _row_decoder(bits, biased)

    def decode_range(
        data: Bytes,
        offset: int,
        group: int,
        codes_at: int,
        scales_at: int,
        biases_at: int,
        scale_kind: int,
        bias_kind: int,
        row_bytes: int,
        out: Rows,
    ) -> None:
        dim = out.shape[1]
        groups = (dim + group - 1) // group
        source, values = pointer(data), pointer(out)
        for i in range(len(out)):
            decode(
                source,
                offset + i * row_bytes,
                group,
                groups,
                codes_at,
                scales_at,
                biases_at,
                scale_kind,
                bias_kind,
                row_bytes,
                values,
                i * dim,
                dim,
            )

    def decode_rows(
        data: Bytes,
        offsets: Ids,
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
        dim = out.shape[1]
        groups = (dim + group - 1) // group
        source, values = pointer(data), pointer(out)
        for k in range(len(offsets)):
            prefetch_row(source, offsets, k, row_bytes)
            decode(
                source,
                offsets[k],
                group,
                groups,
                codes_at,
                scales_at,
                biases_at,
                scale_kind,
                bias_kind,
                row_bytes,
                values,
                targets[k] * dim,
                dim,
            )

    for kernel in (decode_range, decode_rows):
        kernel.__qualname__ = f"{kernel.__name__}_{bits}" + ("" if biased else "_biasless")
    return jit(decode_range), jit(decode_rows)
