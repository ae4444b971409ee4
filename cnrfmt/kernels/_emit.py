"""Pieces of LLVM code that the intrinsics are put together from.

`at` and `base` are places in memory, which need no alignment; `builder` is llvmlite's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, ir, types

if not INTERPRETED:
    _I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

    def place(context: Any, builder: Any, array: Any, value: Any, offset: Any) -> Any:
        """A pointer to an element of an array, or from a pointer on."""
        if isinstance(array, types.CPointer):
            return builder.gep(value, [offset])
        data = context.make_array(array)(context, builder, value).data
        return builder.gep(data, [offset])

    def load(builder: Any, base: Any, at: Any, kind: Any) -> Any:
        """What stands at base[at], as this type."""
        return builder.load(builder.bitcast(builder.gep(base, [at]), kind.as_pointer()), align=1)

    def store(builder: Any, base: Any, at: Any, value: Any) -> None:
        """Put a value at base[at]."""
        builder.store(value, builder.bitcast(builder.gep(base, [at]), value.type.as_pointer()), align=1)

    def each(kind: Any, lanes: int, value: Any) -> Any:
        """The same constant in every lane."""
        return ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)

    def spread(builder: Any, value: Any, lanes: int) -> Any:
        """The same value in every lane."""
        vector = ir.VectorType(value.type, lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(undefined, value, _I32(0))
        return builder.shuffle_vector(one, undefined, each(_I32, lanes, 0))

    def shuffle(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
        """Lanes of two vectors, counted through both."""
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_I32, len(places)), places))

    def steps(builder: Any, count: Any, step: Callable[[Any, int], None], widths: tuple[int, ...] = (16, 8)) -> None:
        """Emit ``step(start, lanes)`` for as many elements at once as there are of these widths.

        Each is a multiple of the next, and `count` of the last.
        """
        done: Any = _I64(0)
        for lanes in widths:
            left = builder.sub(count, done)
            with cgutils.for_range(builder, builder.udiv(left, _I64(lanes)), intp=_I64) as loop:
                step(builder.add(done, builder.mul(loop.index, _I64(lanes))), lanes)
            done = builder.and_(count, _I64(-lanes))

    def byte_of(builder: Any, start: Any, bits: int) -> Any:
        """Where the code of an element starts whose number is a multiple of 8."""
        return builder.mul(builder.udiv(start, _I64(8)), _I64(bits))

    def _half(size: int) -> int:
        """The least power of two of bytes of which two, overlapping, make up `size`."""
        return 1 << ((size + 1) // 2 - 1).bit_length()

    def unpack(builder: Any, base: Any, at: Any, bits: int, lanes: int) -> Any:
        """The codes at base[at], in lanes of 32 bits."""
        size = bits * lanes // 8
        if size & (size - 1):
            half = _half(size)
            kind = ir.IntType(8 * half)
            pair: Any = ir.Constant(ir.VectorType(kind, 2), ir.Undefined)
            for k, skip in enumerate((0, size - half)):
                part = load(builder, base, builder.add(at, _I64(skip)), kind)
                pair = builder.insert_element(pair, part, _I32(k))
            loaded = builder.bitcast(pair, ir.VectorType(_I8, 2 * half))
            places = [k if k < half else k + 2 * half - size for k in range(size)]
        else:
            loaded = load(builder, base, at, ir.VectorType(_I8, size))
            places = list(range(size))
        zero = loaded.type.count
        taken = []
        for lane in range(lanes):
            byte, shift = divmod(lane * bits, 8)
            taken += [places[byte], places[byte + 1] if shift + bits > 8 else zero, zero, zero]
        lane_bytes = shuffle(builder, loaded, ir.Constant(loaded.type, [0] * zero), taken)
        wide = builder.bitcast(lane_bytes, ir.VectorType(_I32, lanes))
        shifts = [lane * bits % 8 for lane in range(lanes)]
        wide = builder.lshr(wide, ir.Constant(wide.type, shifts))
        return builder.and_(wide, each(_I32, lanes, (1 << bits) - 1))

    def together(builder: Any, codes: Any, bits: int) -> Any:
        """Eight codes each, of lanes of 8 bits, as one word of 8 * bits bits."""
        lanes, width = codes.type.count, 8
        # Two neighbours become one number of twice the width, until eight codes are one.
        while width < 64 and bits < 8:
            width *= 2
            used = bits * width // 16
            kind = ir.IntType(width)
            pairs = builder.bitcast(codes, ir.VectorType(kind, 8 * lanes // width))
            count = pairs.type.count
            high = builder.lshr(pairs, each(kind, count, width // 2 - used))
            high = builder.and_(high, each(kind, count, ((1 << used) - 1) << used))
            low = builder.and_(pairs, each(kind, count, (1 << used) - 1))
            codes = builder.or_(low, high)
        return builder.bitcast(codes, ir.VectorType(_I64, lanes // 8))

    def pack(builder: Any, base: Any, at: Any, bits: int, codes: Any) -> None:
        """Put the codes, in lanes of 8 bits, at base[at]."""
        lanes = codes.type.count
        size = bits * lanes // 8
        packed = builder.bitcast(together(builder, codes, bits), codes.type)
        stream = [8 * (k // bits) + k % bits for k in range(size)]
        if size & (size - 1):
            half = _half(size)
            for skip in (0, size - half):
                part = shuffle(builder, packed, packed, stream[skip : skip + half])
                store(builder, base, builder.add(at, _I64(skip)), part)
        else:
            store(builder, base, at, shuffle(builder, packed, packed, stream))
