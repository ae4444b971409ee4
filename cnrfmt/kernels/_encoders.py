"""Writing rows of codes, scales and biases: one kernel per number of bits, with a bias and without."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import clear, pointer, store
from cnrfmt.kernels._packing import quantiser, word_quantiser
from cnrfmt.kernels._parameters import size_of, store_parameter

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]

_ZERO, _HALF, _ONE, _INFINITY = np.float32(0), np.float32(0.5), np.float32(1), np.float32(np.inf)


@functools.cache
def encoder(bits: int, biased: bool) -> Any:
    """The kernel behind `layouts.encode_codes`."""
    quantise, quantise_word = quantiser(bits), word_quantiser(bits)
    top = np.float32((1 << bits) - 1)

    @helper
    def quantise_all(
        values: Values, first: int, count: int, low: np.float32, inverse: np.float32, out: Bytes, at: int
    ) -> None:
        """As `quantise`, for any number of elements; the last byte is filled up with zeros."""
        few = count & 7
        if count >= 8:
            quantise(values, first, count - few, low, inverse, out, at)
        if few:
            word = np.uint64(0)
            if count >= 8:
                word = quantise_word(values, first + count - 8, low, inverse) >> np.uint64((8 - few) * bits)
            else:
                for j in range(few):
                    level = min(max((values[first + j] - low) * inverse, _ZERO), top)
                    word |= np.uint64(np.rint(level)) << np.uint64(bits * j)
            at += (count >> 3) * bits
            for byte in range((few * bits + 7) >> 3):
                out[at + byte] = (word >> np.uint64(8 * byte)) & np.uint64(0xFF)

    @helper
    def constants_of(scale: np.float32, bias: np.float32) -> tuple[np.float32, np.float32]:
        """What is taken from an element, and what the difference is multiplied by."""
        inverse = _ONE / scale
        inverse = inverse if abs(inverse) < _INFINITY else _ZERO
        if biased:
            return bias, inverse
        if scale == _ZERO:
            return -(top + _ONE) * _HALF, _ONE
        return -(top * scale), inverse * _HALF

    def encode(
        rows: Rows,
        scales: Rows,
        biases: Rows,
        bad: Bytes,
        group: int,
        codes_at: int,
        scales_at: int,
        biases_at: int,
        scale_kind: int,
        bias_kind: int,
        row_bytes: int,
        out: Bytes,
    ) -> None:
        dim = rows.shape[1]
        values, codes = pointer(rows), pointer(out)
        all_scales, all_biases = pointer(scales), pointer(biases)
        groups = (dim + group - 1) // group
        whole = groups == 1 and dim & 7 == 0
        # Where no parameters follow, there is padding after the codes, up to a multiple of 16 bytes.
        padded = scales_at < codes_at
        for i in range(len(rows)):
            at = i * row_bytes
            if bad[i]:
                clear(codes, at, row_bytes)
                continue
            if padded:
                # Codes and parameters come on top of the zeros.
                store(codes, at + row_bytes - 16, np.uint64(0))
                store(codes, at + row_bytes - 8, np.uint64(0))
            scale_at, bias_at, to = at + scales_at, at + biases_at, at + codes_at
            first, left = i * dim, dim
            for k in range(i * groups, (i + 1) * groups):
                scale, bias = all_scales[k], _ZERO
                store_parameter(codes, scale_at, scale, scale_kind)
                if biased:
                    bias = all_biases[k]
                    store_parameter(codes, bias_at, bias, bias_kind)
                low, inverse = constants_of(scale, bias)
                if whole:
                    # The usual row, without what only others need.
                    quantise(values, first, dim, low, inverse, codes, to)
                    break
                quantise_all(values, first, min(group, left), low, inverse, codes, to)
                scale_at += size_of(scale_kind)
                bias_at += size_of(bias_kind)
                first += group
                left -= group
                to += (group >> 3) * bits

    encode.__qualname__ = f"encode_{bits}" + ("" if biased else "_biasless")
    return jit(encode)
