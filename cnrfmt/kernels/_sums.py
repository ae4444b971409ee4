"""Sums over the elements of one row, as vectors, with a twin in numpy.

The order of the additions is part of what they are: the same sums come out on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

Values = npt.NDArray[np.float32]

_LANES = 8

if INTERPRETED:

    def squares(values: Values, first: int, decoded: Values, at: int, count: int) -> tuple[np.float64, np.float64]:
        """The sums of the squares of what decoding changed, and of the values, in float64.

        The values start at values[first], what they were decoded to at decoded[at]. Eight sums, one for each element
        modulo 8, run over a whole number of 8 elements. Then the upper half of them is added to the lower, until one
        is left, and to that the elements that remain.
        """
        x = values[first : first + count].astype(np.float64)
        change = decoded[at : at + count].astype(np.float64) - x
        totals = []
        for terms in (change * change, x * x):
            lanes = np.zeros(_LANES)
            whole = count - count % _LANES
            for eight in terms[:whole].reshape(-1, _LANES):
                lanes = lanes + eight
            while len(lanes) > 1:
                lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
            total = lanes[0]
            for term in terms[whole:]:
                total = total + term
            totals.append(total)
        return totals[0], totals[1]

else:
    from cnrfmt.kernels._emit import load, place, shuffle

    _I64, _F32, _F64 = ir.IntType(64), ir.FloatType(), ir.DoubleType()

    @intrinsic
    def squares(typing_context: Any, values: Any, first: Any, decoded: Any, at: Any, count: Any) -> Any:
        result = types.UniTuple(types.float64, 2)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values_at = place(context, builder, signature.args[0], *args[:2])
            decoded_at = place(context, builder, signature.args[2], *args[2:4])
            vector = ir.VectorType(_F64, _LANES)

            def terms(at: Any, narrow: Any, wide: Any) -> list[Any]:
                x, d = (builder.fpext(load(builder, base, at, narrow), wide) for base in (values_at, decoded_at))
                change = builder.fsub(d, x)
                return [builder.fmul(change, change), builder.fmul(x, x)]

            lanes = [cgutils.alloca_once(builder, vector) for _ in range(2)]
            for sums in lanes:
                builder.store(ir.Constant(vector, [0.0] * _LANES), sums)
            whole = builder.udiv(args[4], _I64(_LANES))
            with cgutils.for_range(builder, whole, intp=_I64) as loop:
                at = builder.mul(loop.index, _I64(_LANES))
                for term, sums in zip(terms(at, ir.VectorType(_F32, _LANES), vector), lanes, strict=True):
                    builder.store(builder.fadd(builder.load(sums), term), sums)
            totals = [cgutils.alloca_once(builder, _F64) for _ in range(2)]
            for sums, total in zip(lanes, totals, strict=True):
                rest, width = builder.load(sums), _LANES
                while width > 1:
                    width //= 2
                    low, high = list(range(width)), list(range(width, 2 * width))
                    rest = builder.fadd(shuffle(builder, rest, rest, low), shuffle(builder, rest, rest, high))
                builder.store(builder.extract_element(rest, ir.IntType(32)(0)), total)
            done = builder.mul(whole, _I64(_LANES))
            with cgutils.for_range(builder, builder.sub(args[4], done), intp=_I64) as loop:
                at = builder.add(done, loop.index)
                for term, total in zip(terms(at, _F32, _F64), totals, strict=True):
                    builder.store(builder.fadd(builder.load(total), term), total)
            return context.make_tuple(builder, result, [builder.load(total) for total in totals])

        return result(values, types.intp, decoded, types.intp, types.intp), generate
