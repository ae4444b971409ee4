"""Codes that are places in a codebook, chosen and looked up as vectors, each loop with a twin in numpy.

The loops take a whole number of 8 elements, at least 8, whose codes are a whole number of bytes; the
codes have 2, 3 or 4 bits. Nothing checks its bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._halves import FLOAT16
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import intrinsic, ir, types

Values = npt.NDArray[np.float32]

if INTERPRETED:

    def assign(values: Values, first: int, count: int, bits: int, limits: Values, out: Bytes, at: int) -> None:
        """Write codes from out[at] on: how many of the limits, which ascend, an element is greater than."""
        codes = np.searchsorted(limits, values[first : first + count]).astype(np.uint8)
        each = np.unpackbits(codes[:, np.newaxis], axis=1, count=bits, bitorder="little")
        out[at : at + count * bits // 8] = np.packbits(each, bitorder="little")

    def look_up(
        data: Bytes, at: int, bits: int, books: Bytes, book_at: int, kind: int, out: Values, first: int, count: int
    ) -> None:
        """out[first + k] = number code k of the codebook at books[book_at]; codes start at data[at]."""
        numbers = books[book_at : book_at + ((2 if kind == FLOAT16 else 4) << bits)]
        table = numbers.view(np.float16 if kind == FLOAT16 else np.float32).astype(np.float32)
        stream = np.unpackbits(data[at : at + count * bits // 8], bitorder="little")
        codes = np.packbits(stream.reshape(count, bits), axis=1, bitorder="little").ravel()
        out[first : first + count] = table[codes]

else:
    from cnrfmt.kernels._emit import byte_of, each, load, pack, place, shuffle, spread, steps, store, unpack

    _I8, _I16, _I32, _I64 = (ir.IntType(size) for size in (8, 16, 32, 64))
    _F32 = ir.FloatType()

    def _for_bits(builder: Any, bits: Any, body: Any) -> None:
        """Emit ``body(b)`` for each number of bits, and the choice between them."""
        end = builder.append_basic_block("end")
        choice = builder.switch(bits, end)
        for b in (2, 3, 4):
            block = builder.append_basic_block(f"bits{b}")
            choice.add_case(_I64(b), block)
            builder.position_at_end(block)
            body(b)
            builder.branch(end)
        builder.position_at_end(end)

    def _widen(builder: Any, halves: Any) -> Any:
        """The float32 of the same values as halves, which are given as their bits."""
        lanes = halves.type.count
        wide = builder.zext(halves, ir.VectorType(_I32, lanes))
        size = builder.and_(wide, each(_I32, lanes, 0x7FFF))
        sign = builder.shl(builder.and_(wide, each(_I32, lanes, 0x8000)), each(_I32, lanes, 16))
        moved = builder.shl(size, each(_I32, lanes, 13))
        usual = builder.add(moved, each(_I32, lanes, 0x38000000))
        tiny = builder.fmul(builder.uitofp(size, ir.VectorType(_F32, lanes)), each(_F32, lanes, 2.0**-24))
        tiny = builder.bitcast(tiny, wide.type)
        infinite = builder.or_(moved, each(_I32, lanes, 0x7F800000))
        is_tiny = builder.icmp_unsigned("<", size, each(_I32, lanes, 0x400))
        is_infinite = builder.icmp_unsigned(">=", size, each(_I32, lanes, 0x7C00))
        bits = builder.select(is_tiny, tiny, builder.select(is_infinite, infinite, usual))
        return builder.bitcast(builder.or_(bits, sign), ir.VectorType(_F32, lanes))

    @intrinsic
    def assign(
        typing_context: Any, values: Any, first: Any, count: Any, bits: Any, limits: Any, out: Any, at: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values_at = place(context, builder, signature.args[0], *args[:2])
            limits_at = place(context, builder, signature.args[4], args[4], _I64(0))
            codes_at = place(context, builder, signature.args[5], *args[5:])

            def with_bits(b: int) -> None:
                limits = [load(builder, limits_at, _I64(k), _F32) for k in range((1 << b) - 1)]

                def step(start: Any, lanes: int) -> None:
                    vector = ir.VectorType(_I32, lanes)
                    value = load(builder, values_at, start, ir.VectorType(_F32, lanes))
                    codes = each(_I32, lanes, 0)
                    for limit in limits:
                        above = builder.fcmp_ordered(">", value, spread(builder, limit, lanes))
                        codes = builder.add(codes, builder.zext(above, vector))
                    codes = builder.trunc(codes, ir.VectorType(_I8, lanes))
                    pack(builder, codes_at, byte_of(builder, start, b), b, codes)

                steps(builder, args[2], step)

            _for_bits(builder, args[3], with_bits)
            return context.get_dummy_value()

        size = types.intp
        return types.void(values, size, size, size, limits, out, size), generate

    @intrinsic
    def look_up(
        typing_context: Any,
        data: Any,
        at: Any,
        bits: Any,
        books: Any,
        book_at: Any,
        kind: Any,
        out: Any,
        first: Any,
        count: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            codes_at = place(context, builder, signature.args[0], *args[:2])
            book_at = place(context, builder, signature.args[3], *args[3:5])
            out_at = place(context, builder, signature.args[6], *args[6:8])
            is_half = builder.icmp_signed("==", args[5], _I64(FLOAT16))

            def with_bits(b: int) -> None:
                size = 1 << b
                with builder.if_else(is_half) as (then, otherwise):
                    with then:
                        halves = load(builder, book_at, _I64(0), ir.VectorType(_I16, size))
                        narrow, narrow_from = _widen(builder, halves), builder.block
                    with otherwise:
                        full, full_from = load(builder, book_at, _I64(0), ir.VectorType(_F32, size)), builder.block
                table = builder.phi(full.type)
                table.add_incoming(narrow, narrow_from)
                table.add_incoming(full, full_from)

                def step(start: Any, lanes: int) -> None:
                    codes = unpack(builder, codes_at, byte_of(builder, start, b), b, lanes)
                    # As many lanes as there are codes: so LLVM sees one instruction in the lines below.
                    wide = shuffle(builder, table, table, [k % size for k in range(max(size, lanes))])
                    found: Any = ir.Constant(ir.VectorType(_F32, lanes), ir.Undefined)
                    for lane in range(lanes):
                        code = builder.extract_element(codes, _I32(lane))
                        value = builder.extract_element(wide, code)
                        found = builder.insert_element(found, value, _I32(lane))
                    store(builder, out_at, start, found)

                steps(builder, args[8], step)

            _for_bits(builder, args[2], with_bits)
            return context.get_dummy_value()

        size = types.intp
        return types.void(data, size, size, books, size, size, out, size, size), generate
