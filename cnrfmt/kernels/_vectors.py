"""Loops over the elements of one row, written as vectors, each with a twin in numpy.

LLVM's own vectoriser leaves what remains of a row after the last whole step to a scalar loop, which
for the usual 16 to 64 elements is most of the row. Here the last step reaches back instead, over
elements that are done already: all of these loops may do an element twice. LLVM splits the vectors
where the machine's registers are narrower.

Nothing checks its bounds. The loops over codes take at least 4 elements, and a whole number of
bytes of codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

Values = npt.NDArray[np.float32]

_ALL_BUT_SIGN = 0x7FFFFFFF
# Adding it leaves the nearest integer, ties to even, in the lowest bits of the sum.
_ROUNDER = 1.5 * 2**23

if INTERPRETED:

    def extremes(values: Values, first: int, count: int) -> tuple[np.int32, np.int32]:
        """The least and greatest key of values[first : first + count].

        Keys are integers in the order of the floats that they stand for. What isn't finite has keys
        outside of those that are, on either side; -0 has -1, just below that of +0.
        """
        bits = values[first : first + count].view(np.int32)
        keys = bits ^ ((bits >> 31) & np.int32(_ALL_BUT_SIGN))
        return keys.min(), keys.max()

    def _quantiser(bits: int) -> Any:
        def quantise(
            values: Values,
            first: int,
            count: int,
            low: np.float32,
            inverse: np.float32,
            out: Bytes,
            at: int,
        ) -> None:
            """Write codes from out[at] on: (x - low) * inverse, rounded, ties to even.

            Below 8 bits they are clamped; 8-bit ones must be within bounds by themselves.
            """
            level = (values[first : first + count] - low) * inverse
            if bits < 8:
                level = np.minimum(np.maximum(level, np.float32(0)), np.float32((1 << bits) - 1))
            each = (level + np.float32(_ROUNDER)).view(np.uint32).astype(np.uint8)
            shifts = np.arange(0, 8, bits, dtype=np.uint8)
            packed = np.bitwise_or.reduce(each.reshape(-1, len(shifts)) << shifts, axis=1)
            out[at : at + len(packed)] = packed

        return quantise

    def _dequantiser(bits: int) -> Any:
        def dequantise(
            data: Bytes,
            at: int,
            scale: np.float32,
            bias: np.float32,
            out: Values,
            first: int,
            count: int,
        ) -> None:
            """out[first + k] = code k * scale + bias, rounded twice; codes start at data[at]."""
            shifts = np.arange(0, 8, bits, dtype=np.uint8)
            packed = data[at : at + count * bits // 8]
            codes = (packed[:, np.newaxis] >> shifts & np.uint8((1 << bits) - 1)).ravel()
            out[first : first + count] = codes.astype(np.float32) * scale + bias

        return dequantise

else:
    _I8, _I16, _I32, _I64 = (ir.IntType(size) for size in (8, 16, 32, 64))
    _F32 = ir.FloatType()

    def _place(context: Any, builder: Any, array: Any, value: Any, offset: Any) -> Any:
        if isinstance(array, types.CPointer):
            return builder.gep(value, [offset])
        data = context.make_array(array)(context, builder, value).data
        return builder.gep(data, [offset])

    def _load(builder: Any, base: Any, at: Any, kind: Any) -> Any:
        return builder.load(builder.bitcast(builder.gep(base, [at]), kind.as_pointer()), align=1)

    def _store(builder: Any, base: Any, at: Any, value: Any) -> None:
        place = builder.bitcast(builder.gep(base, [at]), value.type.as_pointer())
        builder.store(value, place, align=1)

    def _each(kind: Any, lanes: int, value: Any) -> Any:
        """The same constant in every lane."""
        return ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)

    def _spread(builder: Any, value: Any, lanes: int) -> Any:
        """The same value in every lane."""
        vector = ir.VectorType(value.type, lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(undefined, value, _I32(0))
        return builder.shuffle_vector(one, undefined, _each(_I32, lanes, 0))

    def _steps(builder: Any, count: Any, lanes: int, step: Any) -> None:
        """Emit ``step(start)`` for each `lanes` elements; the last step may overlap the one before."""
        whole = builder.udiv(count, _I64(lanes))
        with cgutils.for_range(builder, whole, intp=_I64) as loop:
            step(builder.mul(loop.index, _I64(lanes)))
        rest = builder.urem(count, _I64(lanes))
        with builder.if_then(builder.icmp_unsigned("!=", rest, _I64(0))):
            step(builder.sub(count, _I64(lanes)))

    def _wide_or_narrow(builder: Any, count: Any, loop: Any) -> None:
        """Emit ``loop(lanes)`` with as many lanes as `count` fills."""
        enough = builder.icmp_unsigned(">=", count, _I64(16))
        with builder.if_else(enough) as (wide, narrow):
            with wide:
                loop(16)
            with narrow:
                loop(4)

    @intrinsic
    def extremes(typing_context: Any, values: Any, first: Any, count: Any) -> Any:
        result = types.UniTuple(types.int32, 2)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = _place(context, builder, signature.args[0], *args[:2])
            base = builder.bitcast(base, _I32.as_pointer())
            count = args[2]
            low = cgutils.alloca_once_value(builder, _I32(0x7FFFFFFF))
            high = cgutils.alloca_once_value(builder, _I32(-0x80000000))

            def keep(value: Any, place: Any, order: str) -> None:
                kept = builder.load(place)
                better = builder.icmp_signed(order, value, kept)
                builder.store(builder.select(better, value, kept), place)

            def loop(lanes: int) -> None:
                vector = ir.VectorType(_I32, lanes)
                lows = cgutils.alloca_once(builder, vector)
                highs = cgutils.alloca_once(builder, vector)
                builder.store(_each(_I32, lanes, 0x7FFFFFFF), lows)
                builder.store(_each(_I32, lanes, -0x80000000), highs)

                def step(start: Any) -> None:
                    bits = _load(builder, base, start, vector)
                    sign = builder.ashr(bits, _each(_I32, lanes, 31))
                    key = builder.xor(bits, builder.and_(sign, _each(_I32, lanes, _ALL_BUT_SIGN)))
                    keep(key, lows, "<")
                    keep(key, highs, ">")

                _steps(builder, count, lanes, step)
                for vectors, place, order in ((lows, low, "<"), (highs, high, ">")):
                    reduced, width = builder.load(vectors), lanes
                    while width > 1:
                        width //= 2
                        undefined = ir.Constant(reduced.type, ir.Undefined)
                        first, second = (
                            builder.shuffle_vector(
                                reduced,
                                undefined,
                                ir.Constant(ir.VectorType(_I32, width), list(half)),
                            )
                            for half in (range(width), range(width, 2 * width))
                        )
                        better = builder.icmp_signed(order, first, second)
                        reduced = builder.select(better, first, second)
                    builder.store(builder.extract_element(reduced, _I32(0)), place)

            few = builder.icmp_unsigned("<", count, _I64(4))
            with builder.if_else(few) as (then, otherwise):
                with then:
                    loop(1)
                with otherwise:
                    _wide_or_narrow(builder, count, loop)
            return context.make_tuple(builder, result, [builder.load(low), builder.load(high)])

        return result(values, types.intp, types.intp), generate

    def _quantiser(bits: int) -> Any:
        per_byte = 8 // bits

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
                values_at = _place(context, builder, signature.args[0], *args[:2])
                codes_at = _place(context, builder, signature.args[5], *args[5:])

                def loop(lanes: int) -> None:
                    low, inverse = (_spread(builder, args[i], lanes) for i in (3, 4))

                    def step(start: Any) -> None:
                        level = _load(builder, values_at, start, ir.VectorType(_F32, lanes))
                        level = builder.fmul(builder.fsub(level, low), inverse)
                        if bits < 8:
                            for order, bound in ((">", 0.0), ("<", float((1 << bits) - 1))):
                                limit = _each(_F32, lanes, bound)
                                within = builder.fcmp_ordered(order, level, limit)
                                level = builder.select(within, level, limit)
                        level = builder.fadd(level, _each(_F32, lanes, _ROUNDER))
                        code = builder.bitcast(level, ir.VectorType(_I32, lanes))
                        code = builder.trunc(code, ir.VectorType(_I8, lanes))
                        if bits < 8:
                            # All the codes of a byte are one wider number; its bytes move together.
                            wider, size = (_I16 if bits == 4 else _I32), lanes // per_byte
                            group = builder.bitcast(code, ir.VectorType(wider, size))
                            packed = group
                            for k in range(1, per_byte):
                                by = _each(wider, size, (8 - bits) * k)
                                packed = builder.or_(packed, builder.lshr(group, by))
                            code = builder.trunc(packed, ir.VectorType(_I8, size))
                        _store(builder, codes_at, builder.udiv(start, _I64(per_byte)), code)

                    _steps(builder, args[2], lanes, step)

                _wide_or_narrow(builder, args[2], loop)
                return context.get_dummy_value()

            real = types.float32
            size = types.intp
            return types.void(values, size, size, real, real, out, size), generate

        return quantise

    def _dequantiser(bits: int) -> Any:
        per_byte = 8 // bits

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
                codes_at = _place(context, builder, signature.args[0], *args[:2])
                out_at = _place(context, builder, signature.args[4], *args[4:6])

                def loop(lanes: int) -> None:
                    scale, bias = (_spread(builder, args[i], lanes) for i in (2, 3))
                    size = lanes // per_byte

                    def step(start: Any) -> None:
                        at = builder.udiv(start, _I64(per_byte))
                        code = _load(builder, codes_at, at, ir.VectorType(_I8, size))
                        if bits < 8:
                            wider = _I16 if bits == 4 else _I32
                            packed = builder.zext(code, ir.VectorType(wider, size))
                            group = packed
                            for k in range(1, per_byte):
                                by = _each(wider, size, (8 - bits) * k)
                                group = builder.or_(group, builder.shl(packed, by))
                            mask = int.from_bytes(bytes([(1 << bits) - 1] * per_byte), "little")
                            group = builder.and_(group, _each(wider, size, mask))
                            code = builder.bitcast(group, ir.VectorType(_I8, lanes))
                        code = builder.zext(code, ir.VectorType(_I32, lanes))
                        value = builder.uitofp(code, ir.VectorType(_F32, lanes))
                        value = builder.fadd(builder.fmul(value, scale), bias)
                        _store(builder, out_at, start, value)

                    _steps(builder, args[6], lanes, step)

                _wide_or_narrow(builder, args[6], loop)
                return context.get_dummy_value()

            real = types.float32
            size = types.intp
            return types.void(data, size, real, real, out, size, size), generate

        return dequantise


quantise_8, quantise_4, quantise_2 = map(_quantiser, (8, 4, 2))
dequantise_8, dequantise_4, dequantise_2 = map(_dequantiser, (8, 4, 2))
