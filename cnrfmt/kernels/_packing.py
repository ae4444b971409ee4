"""Codes of 2 to 8 bits, packed and unpacked as vectors, each loop with a twin in numpy.

The loops take a whole number of 8 elements, at least 8, whose codes are a whole number of bytes.
They read and write exactly these bytes, so that a row may end where a mapped file does: where no
single load or store has the size, two of them overlap. LLVM splits the vectors where the machine's
registers are narrower. Nothing checks its bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import intrinsic, ir, types

Values = npt.NDArray[np.float32]

# Adding it leaves the nearest integer, ties to even, in the lowest bits of the sum.
_ROUNDER = 1.5 * 2**23

if INTERPRETED:

    def _quantise(
        values: Values, first: int, count: int, bits: int, low: np.float32, inverse: np.float32
    ) -> npt.NDArray[np.uint8]:
        level = (values[first : first + count] - low) * inverse
        level = np.minimum(np.maximum(level, np.float32(0)), np.float32((1 << bits) - 1))
        codes = (level + np.float32(_ROUNDER)).view(np.uint32).astype(np.uint8)
        each = np.unpackbits(codes[:, np.newaxis], axis=1, count=bits, bitorder="little")
        return np.packbits(each, bitorder="little")

    def quantiser(bits: int) -> Any:
        """The loop for codes of so many bits."""

        def quantise(
            values: Values,
            first: int,
            count: int,
            low: np.float32,
            inverse: np.float32,
            out: Bytes,
            at: int,
        ) -> None:
            """Write codes from out[at] on: (x - low) * inverse, rounded, ties to even, and clamped."""
            out[at : at + count * bits // 8] = _quantise(values, first, count, bits, low, inverse)

        return quantise

    def word_quantiser(bits: int) -> Any:
        """As `quantiser`, for 8 elements."""

        def quantise_word(values: Values, first: int, low: np.float32, inverse: np.float32) -> np.uint64:
            """The codes of 8 elements, as a word."""
            word = np.zeros(8, np.uint8)
            word[:bits] = _quantise(values, first, 8, bits, low, inverse)
            return np.uint64(word.view(np.uint64)[0])

        return quantise_word

    def _dequantise(packed: Bytes, count: int, bits: int, biased: bool, scale: np.float32, bias: np.float32) -> Values:
        stream = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
        codes = np.packbits(stream, axis=1, bitorder="little").ravel().astype(np.float32)
        if biased:
            return codes * scale + bias
        return (2 * codes - np.float32((1 << bits) - 1)) * scale

    def dequantiser(bits: int, biased: bool) -> Any:
        """The loop for codes of so many bits, with a bias or without."""

        def dequantise(
            data: Bytes,
            at: int,
            scale: np.float32,
            bias: np.float32,
            out: Values,
            first: int,
            count: int,
        ) -> None:
            """out[first + k] = the value of code k of those that start at data[at].

            It is code * scale + bias, rounded twice. Without a bias, which isn't looked at then, it is
            (2 * code - top) * scale, top being the greatest code.
            """
            packed = data[at : at + count * bits // 8]
            out[first : first + count] = _dequantise(packed, count, bits, biased, scale, bias)

        return dequantise

    def word_dequantiser(bits: int, biased: bool) -> Any:
        """As `dequantiser`, for 8 elements."""

        def dequantise_word(word: np.uint64, scale: np.float32, bias: np.float32, out: Values, first: int) -> None:
            """out[first : first + 8] = the values of the codes in a word."""
            packed = np.array([word], np.uint64).view(np.uint8)
            out[first : first + 8] = _dequantise(packed, 8, bits, biased, scale, bias)

        return dequantise_word

else:
    from cnrfmt.kernels._emit import byte_of, each, load, pack, place, spread, steps, store, together, unpack

    _I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    _F32 = ir.FloatType()

    def _code_of(builder: Any, level: Any, bits: int) -> Any:
        """The codes of scaled elements, in lanes of 8 bits."""
        lanes = level.type.count
        for order, bound in ((">", 0.0), ("<", float((1 << bits) - 1))):
            limit = each(_F32, lanes, bound)
            within = builder.fcmp_ordered(order, level, limit)
            level = builder.select(within, level, limit)
        level = builder.fadd(level, each(_F32, lanes, _ROUNDER))
        codes = builder.bitcast(level, ir.VectorType(_I32, lanes))
        return builder.trunc(codes, ir.VectorType(_I8, lanes))

    def _level_of(builder: Any, base: Any, at: Any, lanes: int, low: Any, inverse: Any) -> Any:
        level = load(builder, base, at, ir.VectorType(_F32, lanes))
        low, inverse = (spread(builder, value, lanes) for value in (low, inverse))
        return builder.fmul(builder.fsub(level, low), inverse)

    def _value_of(builder: Any, codes: Any, bits: int, scale: Any, bias: Any | None) -> Any:
        """The values of codes in lanes of 32 bits; without a bias it is None."""
        lanes = codes.type.count
        if bias is None:
            codes = builder.sub(builder.add(codes, codes), each(_I32, lanes, (1 << bits) - 1))
        value = builder.sitofp(codes, ir.VectorType(_F32, lanes))
        value = builder.fmul(value, spread(builder, scale, lanes))
        return value if bias is None else builder.fadd(value, spread(builder, bias, lanes))

    def quantiser(bits: int) -> Any:
        @intrinsic
        def quantise(
            typing_context: Any,
            values: Any,
            first: Any,
            count: Any,
            low: Any,
            inverse: Any,
            out: Any,
            at: Any,
        ) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values_at = place(context, builder, signature.args[0], *args[:2])
                codes_at = place(context, builder, signature.args[5], *args[5:])

                def step(start: Any, lanes: int) -> None:
                    level = _level_of(builder, values_at, start, lanes, *args[3:5])
                    codes = _code_of(builder, level, bits)
                    pack(builder, codes_at, byte_of(builder, start, bits), bits, codes)

                steps(builder, args[2], step, (64, 32, 16, 8))
                return context.get_dummy_value()

            real, size = types.float32, types.intp
            return types.void(values, size, size, real, real, out, size), generate

        return quantise

    def word_quantiser(bits: int) -> Any:
        @intrinsic
        def quantise_word(typing_context: Any, values: Any, first: Any, low: Any, inverse: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values_at = place(context, builder, signature.args[0], *args[:2])
                level = _level_of(builder, values_at, _I64(0), 8, *args[2:])
                packed = together(builder, _code_of(builder, level, bits), bits)
                return builder.extract_element(packed, _I32(0))

            real = types.float32
            return types.uint64(values, types.intp, real, real), generate

        return quantise_word

    def dequantiser(bits: int, biased: bool) -> Any:
        @intrinsic
        def dequantise(
            typing_context: Any,
            data: Any,
            at: Any,
            scale: Any,
            bias: Any,
            out: Any,
            first: Any,
            count: Any,
        ) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                codes_at = place(context, builder, signature.args[0], *args[:2])
                out_at = place(context, builder, signature.args[4], *args[4:6])
                bias = args[3] if biased else None

                def step(start: Any, lanes: int) -> None:
                    codes = unpack(builder, codes_at, byte_of(builder, start, bits), bits, lanes)
                    store(builder, out_at, start, _value_of(builder, codes, bits, args[2], bias))

                steps(builder, args[6], step)
                return context.get_dummy_value()

            real, size = types.float32, types.intp
            return types.void(data, size, real, real, out, size, size), generate

        return dequantise

    def word_dequantiser(bits: int, biased: bool) -> Any:
        @intrinsic
        def dequantise_word(typing_context: Any, word: Any, scale: Any, bias: Any, out: Any, first: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                out_at = place(context, builder, signature.args[3], *args[3:])
                words = spread(builder, args[0], 8)
                words = builder.lshr(words, ir.Constant(words.type, [bits * lane for lane in range(8)]))
                codes = builder.trunc(words, ir.VectorType(_I32, 8))
                codes = builder.and_(codes, each(_I32, 8, (1 << bits) - 1))
                bias = args[2] if biased else None
                store(builder, out_at, _I64(0), _value_of(builder, codes, bits, args[1], bias))
                return context.get_dummy_value()

            real = types.float32
            return types.void(types.uint64, real, real, out, types.intp), generate

        return dequantise_word
