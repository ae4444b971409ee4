"""Small sets of numbers: sorted by counting, and clustered by trying everything; as vectors, with twins in numpy.

See `_clustering` for what is known of the numbers, and what loops overrun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

Values = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int32]

GROUP = 4
"""The ends that `least_errors` takes at once."""

if INTERPRETED:
    from cnrfmt.kernels._clustering import costs_of

    def rank(values: Values, count: int, ranks: Ranks) -> None:
        """ranks[k] = the place of values[k] among the `count` first ones, sorted; equal ones keep their order.

        `count` is a multiple of 16.
        """
        ranks[np.argsort(values[:count], kind="stable")] = np.arange(count, dtype=np.int32)

    def least_errors(
        size: int,
        count: int,
        sums: Doubles,
        squares: Doubles,
        weights: Doubles,
        middle: int,
        costs: Doubles,
        errors: Doubles,
    ) -> None:
        """errors[j * size + c] = the least squared error of the first j numbers in c clusters.

        That is for c < size and j <= `count`, a multiple of `GROUP`, where each number counts for one. The
        rows from count + 1 on hold the errors in 1 to `size` clusters for the last `GROUP` of j. `costs`
        is room for `GROUP` * (count + 8) numbers.
        """
        table = errors.reshape(-1, size)
        table[0], table[1 : count + 1, 0] = np.inf, np.inf
        table[0, 0] = 0
        for j in range(1, count + 1):
            best = (table[:j] + costs_of(sums, squares, weights, middle, np.arange(j), j)[:, np.newaxis]).min(axis=0)
            table[j, 1:] = best[:-1]
            table[count + 1 + (j - 1) % GROUP] = best

else:
    from cnrfmt.kernels._clustering import LANES, cost_of, least, pointer
    from cnrfmt.kernels._emit import each, load, shuffle, spread, store

    _I32, _I64 = ir.IntType(32), ir.IntType(64)
    _F32, _F64 = ir.FloatType(), ir.DoubleType()
    _INFINITY = float("inf")

    @intrinsic
    def rank(typing_context: Any, values: Any, count: Any, ranks: Any) -> Any:
        lanes = 16

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = pointer(context, builder, signature.args[0], args[0])
            out = pointer(context, builder, signature.args[2], args[2])
            count, vector = args[1], ir.VectorType(_I32, lanes)
            with cgutils.for_range(builder, builder.udiv(count, _I64(lanes)), intp=_I64) as block:
                first = builder.mul(block.index, _I64(lanes))
                after = builder.add(first, _I64(lanes))
                mine = load(builder, base, first, ir.VectorType(_F32, lanes))
                found = cgutils.alloca_once(builder, vector)
                builder.store(each(_I32, lanes, 0), found)

                def add(order: str, at: Any, mask: list[int] | None = None) -> None:
                    other = spread(builder, load(builder, base, at, _F32), lanes)
                    before = builder.fcmp_ordered(order, other, mine)
                    if mask is not None:
                        before = builder.and_(before, ir.Constant(before.type, mask))
                    builder.store(builder.add(builder.load(found), builder.zext(before, vector)), found)

                with cgutils.for_range(builder, first, intp=_I64) as loop:
                    add("<=", loop.index)
                for k in range(lanes):
                    at = builder.add(first, _I64(k))
                    add("<=", at, [int(lane > k) for lane in range(lanes)])
                    add("<", at, [int(lane < k) for lane in range(lanes)])
                with cgutils.for_range(builder, builder.sub(count, after), intp=_I64) as loop:
                    add("<", builder.add(after, loop.index))
                store(builder, out, first, builder.load(found))
            return context.get_dummy_value()

        return types.void(values, types.intp, ranks), generate

    def _sizes(builder: Any, size: Any, body: Callable[[int], None]) -> None:
        """Emit ``body(s)`` for codebooks of 4, 8 and 16 numbers, and the choice between them."""
        end = builder.append_basic_block("end")
        choice = builder.switch(size, end)
        for s in (4, 8, 16):
            block = builder.append_basic_block(f"size{s}")
            choice.add_case(_I64(s), block)
            builder.position_at_end(block)
            body(s)
            builder.branch(end)
        builder.position_at_end(end)

    @intrinsic
    def least_errors(
        typing_context: Any,
        size: Any,
        count: Any,
        sums: Any,
        squares: Any,
        weights: Any,
        middle: Any,
        costs: Any,
        errors: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            sums, squares, weights, costs, table = (
                pointer(context, builder, signature.args[k], args[k]) for k in (2, 3, 4, 6, 7)
            )
            count, middle, group, both = args[1], args[5], range(GROUP), (sums, squares)
            stride = builder.add(count, _I64(LANES))

            def cost_at(k: int, at: Any) -> Any:
                """Where the cost stands of the numbers from `at` to the k-th end of a group."""
                return builder.add(builder.mul(stride, _I64(k)), at)

            def write_costs(ends: list[Any]) -> None:
                vector = ir.VectorType(_F64, LANES)
                here = [[spread(builder, load(builder, base, end, _F64), LANES) for base in both] for end in ends]
                steps = builder.udiv(builder.add(ends[-1], _I64(LANES - 1)), _I64(LANES))
                with cgutils.for_range(builder, steps, intp=_I64) as step:
                    at = builder.mul(step.index, _I64(LANES))
                    there = [load(builder, base, at, vector) for base in both]
                    for k, end in enumerate(ends):
                        inverse = load(builder, weights, builder.add(builder.sub(middle, end), at), vector)
                        store(builder, costs, cost_at(k, at), cost_of(builder, here[k], there, inverse))

            def with_size(size: int) -> None:
                vector = ir.VectorType(_F64, size)
                infinite = each(_F64, size, _INFINITY)
                store(builder, table, _I64(0), ir.Constant(vector, [0.0] + [_INFINITY] * (size - 1)))
                best = [cgutils.alloca_once(builder, vector) for _ in group]

                def take(k: int, at: Any, before: Any) -> None:
                    """The last cluster of the k-th end of a group may start at `at`."""
                    cost = spread(builder, load(builder, costs, cost_at(k, at), _F64), size)
                    builder.store(least(builder, builder.fadd(before, cost), builder.load(best[k])), best[k])

                with cgutils.for_range(builder, builder.udiv(count, _I64(GROUP)), intp=_I64) as loop:
                    first = builder.mul(loop.index, _I64(GROUP))
                    ends = [builder.add(first, _I64(k + 1)) for k in group]
                    write_costs(ends)
                    for k in group:
                        builder.store(infinite, best[k])
                    with cgutils.for_range(builder, ends[0], intp=_I64) as start:
                        before = load(builder, table, builder.mul(start.index, _I64(size)), vector)
                        for k in group:
                            take(k, start.index, before)
                    for k in group:
                        found = builder.load(best[k])
                        row = builder.add(count, _I64(k + 1))
                        store(builder, table, builder.mul(row, _I64(size)), found)
                        # To be followed by one cluster more, so the lanes move up.
                        before = shuffle(builder, found, infinite, [size, *range(size - 1)])
                        store(builder, table, builder.mul(ends[k], _I64(size)), before)
                        for later in range(k + 1, GROUP):
                            take(later, ends[k], before)

            _sizes(builder, args[0], with_size)
            return context.get_dummy_value()

        size = types.intp
        return types.void(size, size, sums, squares, weights, size, costs, errors), generate
