"""Sixteen numbers that go through a computation together, one of each of sixteen rows.

Kernels write it as they would for one row: `Lanes` add, multiply and compare element by element.
Compiled, they are vectors, which LLVM splits where the machine's registers are narrower; under
``NUMBA_DISABLE_JIT=1`` they are numpy arrays. Each lane rounds as a single float32 does, whatever
the others hold. Nothing checks the bounds of loads and stores.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.kernels._halves import _has_instructions
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, numba, types

Values = npt.NDArray[np.float32]
Lanes = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

LANES = 16
# Adding and taking it away rounds to an integer, ties to even.
_ROUNDER = 1.5 * 2**23
_EXPONENT = 0x7F800000

if INTERPRETED:

    def each(x: np.float32) -> Lanes:
        """The same number in every lane."""
        return np.full(LANES, x, np.float32)

    def load(values: Values, at: int) -> Lanes:
        """The numbers from values[at] on."""
        return values[at : at + LANES].copy()

    def store(values: Values, at: int, lanes: Lanes) -> None:
        """Put them from values[at] on."""
        values[at : at + LANES] = lanes

    def select(mask: Mask, a: Lanes, b: Lanes) -> Lanes:
        """Lanes of a where the mask says so, of b elsewhere."""
        return np.where(mask, a, b)

    def least(a: Lanes, b: Lanes) -> Lanes:
        """The lesser of each pair; b's where they don't compare."""
        return np.where(a < b, a, b)

    def greatest(a: Lanes, b: Lanes) -> Lanes:
        """The greater of each pair; b's where they don't compare."""
        return np.where(a > b, a, b)

    def magnitude(x: Lanes) -> Lanes:
        """Without their signs."""
        return np.abs(x)

    def nearest_level(x: Lanes, top: Lanes) -> Lanes:
        """The nearest integers from 0 to `top`, ties to even; 0 or `top` for NaN."""
        return np.rint(least(greatest(x, each(np.float32(0))), top))

    def add_exact(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """The sum of c and a * b, which is exact, so that it doesn't matter whether it is rounded before."""
        return a * b + c

    def root(x: Lanes) -> Lanes:
        """The square roots."""
        return np.sqrt(x)

    def power_below(x: Lanes) -> Lanes:
        """The greatest powers of two that aren't above x, which is positive; 0 where it is denormal."""
        return (x.view(np.uint32) & np.uint32(_EXPONENT)).view(np.float32)

    def to_half(x: Lanes) -> Lanes:
        """The nearest half-precision numbers, ties to even."""
        return x.astype(np.float16).astype(np.float32)

    def to_bfloat(x: Lanes) -> Lanes:
        """The nearest bfloat16 numbers, ties to even; x isn't NaN."""
        bits = x.view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded & np.uint32(0xFFFF0000)).view(np.float32)

    def transpose(values: Values, first: int, stride: int, last: int, out: Values, at: int) -> None:
        """Write columns of rows that start at first, first + stride, ...; past row `last`, that one again.

        Sixteen columns of sixteen rows: column j from out[at + 16 * j] on.
        """
        for lane in range(LANES):
            start = first + min(lane, last) * stride
            out[at + lane : at + LANES * LANES : LANES] = values[start : start + LANES]

else:
    from cnrfmt.kernels._emit import place

    _I1, _I32, _I64, _F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
    _VECTOR, _INTS, _BITS = (ir.VectorType(kind, LANES) for kind in (_F32, _I32, _I1))

    class _LanesType(types.Type):  # type: ignore[misc]
        """The numba type of a vector of numbers, or of their comparison."""

        def __init__(self, name: str, vector: Any) -> None:
            self.vector = vector
            super().__init__(name)

    _LANES, _MASK = _LanesType("Lanes", _VECTOR), _LanesType("Mask", _BITS)

    @numba.extending.register_model(_LanesType)
    class _LanesModel(numba.extending.models.PrimitiveModel):  # type: ignore[misc]
        """How LLVM holds them."""

        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, kind.vector)

    Emit = Callable[..., Any]

    def _operator(function: Any, operand: Any, result: Any, emit: Emit) -> None:
        """Give an operator between two vectors of a type a meaning."""

        def typing(context: Any) -> Any:
            def typer(a: Any, b: Any) -> Any:
                return result if a == b == operand else None

            return typer

        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, *args)

        numba.extending.type_callable(function)(typing)
        numba.extending.lower_builtin(function, operand, operand)(lower)

    for _function, _name in (
        (operator.add, "fadd"),
        (operator.sub, "fsub"),
        (operator.mul, "fmul"),
        (operator.truediv, "fdiv"),
    ):
        _operator(_function, _LANES, _LANES, lambda builder, a, b, name=_name: getattr(builder, name)(a, b))
    for _function, _name in ((operator.lt, "<"), (operator.gt, ">")):
        _operator(_function, _LANES, _MASK, lambda builder, a, b, name=_name: builder.fcmp_ordered(name, a, b))
    _operator(operator.and_, _MASK, _MASK, lambda builder, a, b: builder.and_(a, b))

    def _constant(kind: Any, value: Any) -> Any:
        return ir.Constant(ir.VectorType(kind, LANES), [value] * LANES)

    def _floats(x: float) -> Any:
        return _constant(_F32, x)

    def _ints(x: int) -> Any:
        return _constant(_I32, x)

    def _of_lanes(result: Any, *operands: Any) -> Callable[[Emit], Any]:
        """Make an intrinsic of these operands out of the code for its vectors."""

        def decorate(emit: Emit) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return emit(builder, *args)

            signature = result(*operands)
            if len(operands) == 1:
                return intrinsic(lambda typing_context, a: (signature, generate))
            if len(operands) == 2:
                return intrinsic(lambda typing_context, a, b: (signature, generate))
            return intrinsic(lambda typing_context, a, b, c: (signature, generate))

        return decorate

    @_of_lanes(_LANES, types.float32)
    def each(builder: Any, x: Any) -> Any:
        one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), x, _I32(0))
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), _ints(0))

    @_of_lanes(_LANES, _MASK, _LANES, _LANES)
    def select(builder: Any, mask: Any, a: Any, b: Any) -> Any:
        return builder.select(mask, a, b)

    @_of_lanes(_LANES, _LANES, _LANES)
    def least(builder: Any, a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", a, b), a, b)

    @_of_lanes(_LANES, _LANES, _LANES)
    def greatest(builder: Any, a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    def _masked(builder: Any, x: Any, mask: int) -> Any:
        return builder.bitcast(builder.and_(builder.bitcast(x, _INTS), _ints(mask)), _VECTOR)

    @_of_lanes(_LANES, _LANES)
    def magnitude(builder: Any, x: Any) -> Any:
        return _masked(builder, x, 0x7FFFFFFF)

    @_of_lanes(_LANES, _LANES)
    def power_below(builder: Any, x: Any) -> Any:
        return _masked(builder, x, _EXPONENT)

    @_of_lanes(_LANES, _LANES, _LANES)
    def nearest_level(builder: Any, x: Any, top: Any) -> Any:
        # The rounder's bits are the least of a run of floats that stand for 0, 1, 2, ...: as integers,
        # they are in the same order as the floats, and integers have more units to compare them.
        rounder = _floats(_ROUNDER)
        bits = builder.bitcast(builder.fadd(x, rounder), _INTS)
        for order, bound in ((">", rounder), ("<", builder.fadd(top, rounder))):
            limit = builder.bitcast(bound, _INTS)
            bits = builder.select(builder.icmp_signed(order, bits, limit), bits, limit)
        return builder.fsub(builder.bitcast(bits, _VECTOR), rounder)

    @_of_lanes(_LANES, _LANES)
    def root(builder: Any, x: Any) -> Any:
        function = ir.FunctionType(_VECTOR, [_VECTOR])
        return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.sqrt.v16f32"), [x])

    @_of_lanes(_LANES, _LANES, _LANES, _LANES)
    def add_exact(builder: Any, a: Any, b: Any, c: Any) -> Any:
        function = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.fmuladd.v16f32"), [a, b, c])

    @_of_lanes(_LANES, _LANES)
    def to_half_by_instructions(builder: Any, x: Any) -> Any:
        return builder.fpext(builder.fptrunc(x, ir.VectorType(ir.HalfType(), LANES)), _VECTOR)

    @_of_lanes(_LANES, _LANES)
    def to_half_by_bits(builder: Any, x: Any) -> Any:
        # Thirteen bits go, half of the last one that stays is added first. One unit of a denormal half is
        # one of a float32 between 0.5 and 1. Halves end at 65536.
        bits = builder.bitcast(x, _INTS)
        odd = builder.and_(builder.lshr(bits, _ints(13)), _ints(1))
        normal = _masked(builder, builder.bitcast(builder.add(builder.add(bits, odd), _ints(0xFFF)), _VECTOR), -0x2000)
        size = _masked(builder, x, 0x7FFFFFFF)
        tiny = builder.fsub(builder.fadd(size, _floats(0.5)), _floats(0.5))
        sign = builder.and_(bits, _ints(-0x80000000))

        def signed(value: Any) -> Any:
            return builder.bitcast(builder.or_(builder.bitcast(value, _INTS), sign), _VECTOR)

        half = builder.select(builder.fcmp_ordered("<", size, _floats(2.0**-14)), signed(tiny), normal)
        over = builder.fcmp_ordered(">=", size, _floats(65520))
        return builder.select(over, signed(_floats(float("inf"))), half)

    to_half = to_half_by_instructions if _has_instructions() else to_half_by_bits

    @_of_lanes(_LANES, _LANES)
    def to_bfloat(builder: Any, x: Any) -> Any:
        bits = builder.bitcast(x, _INTS)
        odd = builder.and_(builder.lshr(bits, _ints(16)), _ints(1))
        return _masked(builder, builder.bitcast(builder.add(builder.add(bits, odd), _ints(0x7FFF)), _VECTOR), -0x10000)

    def _place(context: Any, builder: Any, array: Any, value: Any, offset: Any) -> Any:
        return builder.bitcast(place(context, builder, array, value, offset), _VECTOR.as_pointer())

    @intrinsic
    def load(typing_context: Any, values: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_place(context, builder, signature.args[0], *args), align=4)

        return _LANES(values, types.intp), generate

    @intrinsic
    def store(typing_context: Any, values: Any, at: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[2], _place(context, builder, signature.args[0], *args[:2]), align=4)
            return context.get_dummy_value()

        return types.void(values, types.intp, _LANES), generate

    @intrinsic
    def transpose(typing_context: Any, values: Any, first: Any, stride: Any, last: Any, out: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, first, stride, last, out, at = args
            lines = []
            for lane in range(LANES):
                row = builder.select(builder.icmp_signed("<", _I64(lane), last), _I64(lane), last)
                place = builder.add(first, builder.mul(row, stride))
                lines.append(builder.load(_place(context, builder, signature.args[0], source, place), align=4))
            # Swap the off-diagonal blocks of 8 x 8, then those of 4 x 4 within, and so on.
            size = LANES // 2
            while size:
                upper = [LANES + k - size if k & size else k for k in range(LANES)]
                lower = [LANES + k if k & size else k + size for k in range(LANES)]
                for line in range(LANES):
                    if not line & size:
                        pair = lines[line], lines[line + size]
                        for k, lanes in ((line, upper), (line + size, lower)):
                            lines[k] = builder.shuffle_vector(*pair, ir.Constant(_INTS, lanes))
                size //= 2
            for column, line in enumerate(lines):
                place = builder.add(at, _I64(LANES * column))
                builder.store(line, _place(context, builder, signature.args[4], out, place), align=4)
            return context.get_dummy_value()

        size = types.intp
        return types.void(values, size, size, size, out, size), generate
