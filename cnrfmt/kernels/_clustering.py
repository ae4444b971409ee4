"""The inner loops of clustering in one dimension, written as vectors, each with a twin in numpy.

All of them know sorted numbers by sums over the first 0, 1, 2 ... of them: of the numbers, of their
squares, and how many they count for. The squared error about their mean of those from i up to j is
(squares[j] - squares[i]) - (sums[j] - sums[i])**2 * (1 / how many they count for).

Where each counts for one, `weights` are the inverses that `inverses_of` lists, and `middle` says where:
weights[middle - n] and weights[middle + 15 + n] are 1 / n, and minus infinity where n <= 0, so that no
cluster ends before it starts. Otherwise `middle` is -1, and `weights` are sums like the others.

Nothing checks its bounds, and loops read and write up to 8 elements beyond what they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._jit import INTERPRETED, helper
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

Doubles = npt.NDArray[np.float64]

LANES = 8
"""The ends that `fill_errors` takes at once, and what loops overrun their bounds by."""


@helper
def inverses_of(middle: int) -> Doubles:
    """Inverses of the numbers up to `middle`, in both orders; see above."""
    inverses = np.empty(2 * (middle + 2 * LANES))
    for k in range(len(inverses)):
        inverses[k] = -np.inf
    for n in range(1, middle + 1):
        inverses[middle - n] = inverses[middle + 2 * LANES - 1 + n] = 1 / n
    return inverses


if INTERPRETED:

    def costs_of(sums: Doubles, squares: Doubles, weights: Doubles, middle: int, start: Any, end: Any) -> Doubles:
        """The squared errors from some places, up to another."""
        total = sums[end] - sums[start]
        inverse = 1 / (weights[end] - weights[start]) if middle < 0 else weights[middle - (end - start)]
        costs: Doubles = (squares[end] - squares[start]) - total * total * inverse
        return costs

    def best_start(
        errors: Doubles,
        layer: int,
        sums: Doubles,
        squares: Doubles,
        weights: Doubles,
        middle: int,
        low: int,
        high: int,
        end: int,
    ) -> int:
        """Where the last cluster of the first `end` numbers starts best.

        That is from `low` to `high`, or up to 7 after that but before `end`; errors[layer + i] is the error
        of the first i numbers in the clusters before it. `low` it is where all that is infinite.
        """
        start = np.arange(low, min(low + (high - low + LANES) // LANES * LANES, end))
        found = errors[layer + start] + costs_of(sums, squares, weights, middle, start, end)
        return low + int(np.argmin(found)) if len(found) else low

    def fill_errors(
        errors: Doubles,
        layer: int,
        sums: Doubles,
        squares: Doubles,
        weights: Doubles,
        middle: int,
        low: int,
        high: int,
        first: int,
        out: int,
    ) -> None:
        """errors[out + end] = the least error of the first `end` numbers, for the 8 ends after `first`.

        The last cluster starts from `low` to `high`; what is before it is as in `best_start`.
        """
        for end in range(first + 1, first + 1 + LANES):
            start = np.arange(low, min(high + 1, end))
            found = errors[layer + start] + costs_of(sums, squares, weights, middle, start, end)
            errors[out + end] = min(found.min(initial=np.inf), np.inf)

else:
    from cnrfmt.kernels._emit import each, load, place, spread, store

    _I32, _I64, _F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
    _INFINITY = float("inf")

    def pointer(context: Any, builder: Any, array: Any, value: Any) -> Any:
        """Where an array starts."""
        return place(context, builder, array, value, _I64(0))

    def least(builder: Any, a: Any, b: Any) -> Any:
        """The lesser of each pair of lanes."""
        return builder.select(builder.fcmp_ordered("<", a, b), a, b)

    def cost_of(builder: Any, here: list[Any], there: list[Any], inverse: Any) -> Any:
        """The squared error between two places, each with its sums: of numbers, and of squares."""
        total, square = (builder.fsub(a, b) for a, b in zip(here, there, strict=True))
        return builder.fsub(square, builder.fmul(builder.fmul(total, total), inverse))

    def _inverse_of(builder: Any, here: Any, there: Any) -> Any:
        """What `inverses_of` lists, of a difference of two sums of weights."""
        weight = builder.fsub(here, there)
        above = builder.fcmp_ordered(">", weight, each(_F64, LANES, 0.0))
        inverse = builder.fdiv(each(_F64, LANES, 1.0), weight)
        return builder.select(above, inverse, each(_F64, LANES, -_INFINITY))

    def _both_weights(builder: Any, middle: Any, body: Callable[[bool], None]) -> None:
        """Emit ``body(whether weights are sums)`` for both, and the choice between them."""
        with builder.if_else(builder.icmp_signed("<", middle, _I64(0))) as (then, otherwise):
            with then:
                body(True)
            with otherwise:
                body(False)

    def _reduce(builder: Any, vector: Any, before: Callable[[Any, Any], Any]) -> Any:
        """The first of all lanes."""
        width = vector.type.count
        while width > 1:
            width //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            a, b = (
                builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(_I32, width), list(half)))
                for half in (range(width), range(width, 2 * width))
            )
            vector = builder.select(before(a, b), a, b)
        return builder.extract_element(vector, _I32(0))

    @intrinsic
    def best_start(
        typing_context: Any,
        errors: Any,
        layer: Any,
        sums: Any,
        squares: Any,
        weights: Any,
        middle: Any,
        low: Any,
        high: Any,
        end: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            errors, sums, squares, weights = (
                pointer(context, builder, signature.args[k], args[k]) for k in (0, 2, 3, 4)
            )
            layer, middle, low, high, end = (args[k] for k in (1, 5, 6, 7, 8))
            before, both = builder.gep(errors, [layer]), (sums, squares)
            doubles, places = ir.VectorType(_F64, LANES), ir.VectorType(_I64, LANES)
            best = cgutils.alloca_once_value(builder, each(_F64, LANES, _INFINITY))
            best_place = cgutils.alloca_once_value(builder, spread(builder, low, LANES))

            def scan(weighted: bool) -> None:
                here = [spread(builder, load(builder, base, end, _F64), LANES) for base in both]
                weight = spread(builder, load(builder, weights, end, _F64), LANES) if weighted else None
                span = builder.add(builder.sub(high, low), _I64(LANES))
                with cgutils.for_range(builder, builder.sdiv(span, _I64(LANES)), intp=_I64) as loop:
                    at = builder.add(low, builder.mul(loop.index, _I64(LANES)))
                    there = [load(builder, base, at, doubles) for base in both]
                    if weighted:
                        inverse = _inverse_of(builder, weight, load(builder, weights, at, doubles))
                    else:
                        inverse = load(builder, weights, builder.add(builder.sub(middle, end), at), doubles)
                    error = builder.fadd(load(builder, before, at, doubles), cost_of(builder, here, there, inverse))
                    kept = builder.load(best)
                    better = builder.fcmp_ordered("<", error, kept)
                    builder.store(builder.select(better, error, kept), best)
                    these = builder.add(spread(builder, at, LANES), ir.Constant(places, list(range(LANES))))
                    builder.store(builder.select(better, these, builder.load(best_place)), best_place)

            _both_weights(builder, middle, scan)
            error = builder.load(best)
            smallest = _reduce(builder, error, lambda a, b: builder.fcmp_ordered("<", a, b))
            equal = builder.fcmp_ordered("==", error, spread(builder, smallest, LANES))
            start = builder.select(equal, builder.load(best_place), each(_I64, LANES, 2**63 - 1))
            return _reduce(builder, start, lambda a, b: builder.icmp_signed("<", a, b))

        size = types.intp
        return size(errors, size, sums, squares, weights, size, size, size, size), generate

    @intrinsic
    def fill_errors(
        typing_context: Any,
        errors: Any,
        layer: Any,
        sums: Any,
        squares: Any,
        weights: Any,
        middle: Any,
        low: Any,
        high: Any,
        first: Any,
        out: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            errors, sums, squares, weights = (
                pointer(context, builder, signature.args[k], args[k]) for k in (0, 2, 3, 4)
            )
            layer, middle, low, high, first, out = (args[k] for k in (1, 5, 6, 7, 8, 9))
            before, both = builder.gep(errors, [layer]), (sums, squares)
            doubles, ends = ir.VectorType(_F64, LANES), builder.add(first, _I64(1))
            best = cgutils.alloca_once_value(builder, each(_F64, LANES, _INFINITY))

            def scan(weighted: bool) -> None:
                here = [load(builder, base, ends, doubles) for base in both]
                weight = load(builder, weights, ends, doubles) if weighted else None
                count = builder.add(builder.sub(high, low), _I64(1))
                with cgutils.for_range(builder, count, intp=_I64) as loop:
                    at = builder.add(low, loop.index)

                    def same(base: Any) -> Any:
                        return spread(builder, load(builder, base, at, _F64), LANES)

                    if weighted:
                        inverse = _inverse_of(builder, weight, same(weights))
                    else:
                        row = builder.add(builder.add(middle, builder.sub(ends, at)), _I64(2 * LANES - 1))
                        inverse = load(builder, weights, row, doubles)
                    cost = cost_of(builder, here, [same(base) for base in both], inverse)
                    builder.store(least(builder, builder.fadd(same(before), cost), builder.load(best)), best)

            _both_weights(builder, middle, scan)
            store(builder, errors, builder.add(out, ends), builder.load(best))
            return context.get_dummy_value()

        size = types.intp
        return types.void(errors, size, sums, squares, weights, size, size, size, size, size), generate
