"""The codes of one row on a grid, as a vector, with twins in numpy.

Nothing checks its bounds. The last step of a row reaches back over elements that are done already.

Numbers in single precision are rounded twice: a difference to the nearest float32, and that to the nearest integer. It
comes to the same as rounding once unless the float32 lies in the middle between two integers, since these middles are
float32 themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

Values = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

# Adding it leaves the nearest integer, ties to even, in the lowest bits of the sum.
_ROUNDER = 1.5 * 2**52
_SHORT_ROUNDER = 1.5 * 2**23
_LIMIT = 2.0**24
# Bit patterns of float32, and those of numbers that the shorter rounder rounds.
_MAGNITUDE, _MIDDLE, _SHORT_LIMIT = 0x7FFFFFFF, 0x3F000000, 1 << 22

if INTERPRETED:

    def grid_codes(
        values: Values,
        first: int,
        stored: npt.NDArray[Any] | None,
        stored_first: int,
        count: int,
        scale: float,
        stored_scale: float,
        step: float,
        out: Integers,
        at: int,
    ) -> tuple[int, bool]:
        """out[at + k] = v * scale - m * stored_scale, rounded, ties to even; both products are exact in float64.

        v are the values, m the stored integers, all 0 where there are none. Returns (c << 1) ^ (c >> 31) over all codes
        c together (or), and whether all m + c * step are below 2^24 in magnitude, which nothing is that isn't finite.
        """
        x = values[first : first + count].astype(np.float64) * scale
        m = np.zeros(count) if stored is None else stored[stored_first : stored_first + count].astype(np.float64)
        rounded = (x - m * stored_scale) + _ROUNDER
        codes = rounded.view(np.int64).astype(np.int32)
        sums = m + (rounded - _ROUNDER) * step
        out[at : at + count] = codes
        return int(np.bitwise_or.reduce(codes << 1 ^ codes >> 31)), bool((np.abs(sums) < _LIMIT).all())

    def short_codes(
        values: Values,
        first: int,
        stored: npt.NDArray[Any] | None,
        stored_first: int,
        count: int,
        scale: np.float32,
        stored_scale: np.float32,
        out: Integers,
        at: int,
    ) -> tuple[int, bool]:
        """As `grid_codes` in single precision, of stored integers below 2^23 in magnitude.

        The second of the results is whether the codes are surely the same: they are below 2^21 in magnitude, and no
        difference lies in the middle between two integers. Nothing is said of sums.
        """
        x, is_near = values[first : first + count] * scale, True
        if stored is not None:
            m = stored[stored_first : stored_first + count].astype(np.int32)
            is_near = bool(np.bitwise_or.reduce(m ^ m >> 31) < 1 << 23)
            x = x - m.astype(np.float32) * stored_scale
        rounded = x + np.float32(_SHORT_ROUNDER)
        codes = rounded.view(np.int32) - np.float32(_SHORT_ROUNDER).view(np.int32)
        rests = (x - (rounded - np.float32(_SHORT_ROUNDER))).view(np.int32) & np.int32(_MAGNITUDE)
        out[at : at + count] = codes
        every = int(np.bitwise_or.reduce(codes << 1 ^ codes >> 31))
        return every, is_near and 0 <= every < _SHORT_LIMIT and int(rests.max()) < _MIDDLE

else:
    from cnrfmt.kernels._emit import each, load, place, shuffle, spread
    from cnrfmt.kernels._emit import store as put

    _I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
    _F32, _F64 = ir.FloatType(), ir.DoubleType()

    def _steps(builder: Any, count: Any, lanes: int, step: Any) -> None:
        """Emit ``step(start)`` for each `lanes` elements; the last step may overlap the one before."""
        whole = builder.udiv(count, _I64(lanes))
        with cgutils.for_range(builder, whole, intp=_I64) as loop:
            step(builder.mul(loop.index, _I64(lanes)))
        rest = builder.urem(count, _I64(lanes))
        with builder.if_then(builder.icmp_unsigned("!=", rest, _I64(0))):
            step(builder.sub(count, _I64(lanes)))

    def _together(builder: Any, vector: Any) -> Any:
        """All lanes, by or."""
        width = vector.type.count
        while width > 1:
            width //= 2
            low, high = list(range(width)), list(range(width, 2 * width))
            vector = builder.or_(shuffle(builder, vector, vector, low), shuffle(builder, vector, vector, high))
        return builder.extract_element(vector, _I32(0))

    def _by_size(builder: Any, count: Any, loop: Any) -> None:
        """Emit ``loop(lanes)`` for 16 lanes, for 4 and for 1, as many as there are elements for."""

        def wide_enough(lanes: int) -> Any:
            return builder.icmp_unsigned(">=", count, _I64(lanes))

        with builder.if_else(wide_enough(16)) as (many, fewer):
            with many:
                loop(16)
            with fewer, builder.if_else(wide_enough(4)) as (some, few):
                with some:
                    loop(4)
                with few:
                    loop(1)

    def _zigzag(builder: Any, codes: Any) -> Any:
        """(c << 1) ^ (c >> 31) of each lane."""
        lanes = codes.type.count
        signs = builder.ashr(codes, each(_I32, lanes, 31))
        return builder.xor(builder.shl(codes, each(_I32, lanes, 1)), signs)

    @intrinsic
    def grid_codes(
        typing_context: Any,
        values: Any,
        first: Any,
        stored: Any,
        stored_first: Any,
        count: Any,
        scale: Any,
        stored_scale: Any,
        step: Any,
        out: Any,
        at: Any,
    ) -> Any:
        result = types.Tuple((types.int32, types.boolean))

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args
            values_at = place(context, builder, kinds[0], *args[:2])
            out_at = place(context, builder, kinds[8], *args[8:])
            is_absolute = isinstance(kinds[2], types.NoneType)
            if not is_absolute:
                stored_at = place(context, builder, kinds[2], *args[2:4])
                stored_kind = context.get_value_type(kinds[2].dtype)
            every = cgutils.alloca_once_value(builder, _I32(0))
            fits = cgutils.alloca_once_value(builder, _I1(1))

            def loop(lanes: int) -> None:
                wide, whole, mask = (ir.VectorType(kind, lanes) for kind in (_F64, _I32, _I1))
                scale, stored_scale, step = (spread(builder, value, lanes) for value in args[5:8])
                rounder = each(_F64, lanes, _ROUNDER)
                together, within = cgutils.alloca_once(builder, whole), cgutils.alloca_once(builder, mask)
                builder.store(each(_I32, lanes, 0), together)
                builder.store(each(_I1, lanes, 1), within)

                def take(start: Any) -> None:
                    x = load(builder, values_at, start, ir.VectorType(_F32, lanes))
                    x = builder.fmul(builder.fpext(x, wide), scale)
                    if not is_absolute:
                        m = load(builder, stored_at, start, ir.VectorType(stored_kind, lanes))
                        m = builder.sitofp(m, wide)
                        x = builder.fsub(x, builder.fmul(m, stored_scale))
                    x = builder.fadd(x, rounder)
                    codes = builder.trunc(builder.bitcast(x, ir.VectorType(_I64, lanes)), whole)
                    put(builder, out_at, start, codes)
                    total = builder.fmul(builder.fsub(x, rounder), step)
                    if not is_absolute:
                        total = builder.fadd(m, total)
                    below = builder.fcmp_ordered("<", total, each(_F64, lanes, _LIMIT))
                    above = builder.fcmp_ordered(">", total, each(_F64, lanes, -_LIMIT))
                    builder.store(builder.and_(builder.load(within), builder.and_(below, above)), within)
                    builder.store(builder.or_(builder.load(together), _zigzag(builder, codes)), together)

                _steps(builder, args[4], lanes, take)
                builder.store(_together(builder, builder.load(together)), every)
                all_of = builder.bitcast(builder.load(within), ir.IntType(lanes))
                builder.store(builder.icmp_unsigned("==", all_of, ir.IntType(lanes)(-1)), fits)

            _by_size(builder, args[4], loop)
            # A boolean in a tuple is what numba's type says, which needn't be one bit.
            fitting = context.cast(builder, builder.load(fits), types.boolean, types.boolean)
            return context.make_tuple(builder, result, [builder.load(every), fitting])

        size, real = types.intp, types.float64
        return result(values, size, stored, size, size, real, real, real, out, size), generate

    @intrinsic
    def short_codes(
        typing_context: Any,
        values: Any,
        first: Any,
        stored: Any,
        stored_first: Any,
        count: Any,
        scale: Any,
        stored_scale: Any,
        out: Any,
        at: Any,
    ) -> Any:
        result = types.Tuple((types.int32, types.boolean))

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args
            values_at = place(context, builder, kinds[0], *args[:2])
            out_at = place(context, builder, kinds[7], *args[7:])
            is_absolute = isinstance(kinds[2], types.NoneType)
            if not is_absolute:
                stored_at = place(context, builder, kinds[2], *args[2:4])
                stored_kind = context.get_value_type(kinds[2].dtype)
            every = cgutils.alloca_once_value(builder, _I32(0))
            is_sure = cgutils.alloca_once_value(builder, _I1(1))

            def loop(lanes: int) -> None:
                real, whole = (ir.VectorType(kind, lanes) for kind in (_F32, _I32))
                scale, stored_scale = (spread(builder, value, lanes) for value in args[5:7])
                rounder = each(_F32, lanes, _SHORT_ROUNDER)
                pattern = builder.bitcast(rounder, whole)
                together, rests, before = (cgutils.alloca_once(builder, whole) for _ in range(3))
                for found in (together, rests, before):
                    builder.store(each(_I32, lanes, 0), found)

                def take(start: Any) -> None:
                    x = builder.fmul(load(builder, values_at, start, real), scale)
                    if not is_absolute:
                        m = load(builder, stored_at, start, ir.VectorType(stored_kind, lanes))
                        if stored_kind != _I32:
                            m = builder.sext(m, whole)
                        else:
                            size = builder.xor(m, builder.ashr(m, each(_I32, lanes, 31)))
                            builder.store(builder.or_(builder.load(before), size), before)
                        x = builder.fsub(x, builder.fmul(builder.sitofp(m, real), stored_scale))
                    rounded = builder.fadd(x, rounder)
                    codes = builder.sub(builder.bitcast(rounded, whole), pattern)
                    put(builder, out_at, start, codes)
                    rest = builder.bitcast(builder.fsub(x, builder.fsub(rounded, rounder)), whole)
                    rest = builder.and_(rest, each(_I32, lanes, _MAGNITUDE))
                    most = builder.load(rests)
                    builder.store(builder.select(builder.icmp_signed(">", rest, most), rest, most), rests)
                    builder.store(builder.or_(builder.load(together), _zigzag(builder, codes)), together)

                _steps(builder, args[4], lanes, take)
                found = _together(builder, builder.load(together))
                builder.store(found, every)
                below = builder.icmp_signed("<", builder.load(rests), each(_I32, lanes, _MIDDLE))
                all_of = builder.bitcast(below, ir.IntType(lanes))
                sure = builder.icmp_unsigned("==", all_of, ir.IntType(lanes)(-1))
                sure = builder.and_(sure, builder.icmp_unsigned("<", found, _I32(_SHORT_LIMIT)))
                near = builder.icmp_unsigned("<", _together(builder, builder.load(before)), _I32(1 << 23))
                builder.store(builder.and_(sure, near), is_sure)

            _by_size(builder, args[4], loop)
            fitting = context.cast(builder, builder.load(is_sure), types.boolean, types.boolean)
            return context.make_tuple(builder, result, [builder.load(every), fitting])

        size, real = types.intp, types.float32
        return result(values, size, stored, size, size, real, real, out, size), generate
