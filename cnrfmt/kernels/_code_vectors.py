"""Codes of 1 to 26 bits as vectors, with twins in numpy. Nothing checks its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types

Integers = npt.NDArray[np.int32]

if INTERPRETED:

    def _joiner(lanes: int) -> Any:
        def join(codes: Integers, at: int, bits: int) -> np.uint64:
            """So many codes as one word, the first in its lowest bits."""
            masked = codes[at : at + lanes].astype(np.uint64) & np.uint64((1 << bits) - 1)
            return np.uint64(np.bitwise_or.reduce(masked << np.arange(0, lanes * bits, bits, dtype=np.uint64)))

        return join

    def join_eights(codes: Integers, first: int, count: int, bits: int, out: Bytes, at: int) -> None:
        """Put 8 * count codes of 1 to 8 bits from out[at] on, `bits` bytes for every eight of them.

        Up to 7 bytes behind them are set to zero.
        """
        for word in range(count):
            start = at + word * bits
            out[start : start + 8] = np.array([_join_eight(codes, first + 8 * word, bits)]).view(np.uint8)

    _join_eight = _joiner(8)

    def unpack_eights(data: Bytes, at: int, bits: int, exponent: int, out: Integers, first: int, count: int) -> int:
        """out[first : first + 8 * count] = the codes from data[at] on, shifted left by the exponent.

        Up to 8 bytes behind them are read. Returns a negative number if one of the codes needs all its bits.
        """
        stream = np.unpackbits(data[at : at + count * bits], bitorder="little").reshape(8 * count, bits)
        weights = 1 << np.arange(bits, dtype=np.int64)
        weights[-1] = -weights[-1]
        codes = (stream * weights).sum(axis=1)
        out[first : first + 8 * count] = codes << exponent
        half = 1 << (bits - 1) >> 1
        needed = (codes >= half) | (codes < -half) if bits > 1 else codes != 0
        return -1 if needed.any() else 0

else:
    from cnrfmt.kernels._emit import each, load, place, shuffle, spread, steps, store

    _I32, _I64 = ir.IntType(32), ir.IntType(64)
    _INTS, _WORDS = ir.VectorType(_I32, 8), ir.VectorType(_I64, 8)

    def _joiner(lanes: int) -> Any:
        @intrinsic
        def join(typing_context: Any, codes: Any, at: Any, bits: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                base = place(context, builder, signature.args[0], *args[:2])
                words = ir.VectorType(_I64, lanes)
                found = builder.zext(load(builder, base, _I64(0), ir.VectorType(_I32, lanes)), words)
                mask = builder.sub(builder.shl(_I64(1), args[2]), _I64(1))
                found = builder.and_(found, spread(builder, mask, lanes))
                shifts = builder.mul(spread(builder, args[2], lanes), ir.Constant(words, list(range(lanes))))
                found = builder.shl(found, shifts)
                width = lanes
                while width > 1:
                    width //= 2
                    low, high = list(range(width)), list(range(width, 2 * width))
                    found = builder.or_(shuffle(builder, found, found, low), shuffle(builder, found, found, high))
                return builder.extract_element(found, _I32(0))

            return types.uint64(codes, types.intp, types.intp), generate

        return join

    @intrinsic
    def join_eights(
        typing_context: Any, codes: Any, first: Any, count: Any, bits: Any, out: Any, at: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = place(context, builder, signature.args[0], *args[:2])
            target = place(context, builder, signature.args[4], *args[4:])
            bits = args[3]

            def shift_of(kind: Any, lanes: int, codes: int) -> Any:
                """The bits of so many codes, in every lane."""
                return spread(builder, builder.trunc(builder.mul(bits, _I64(codes)), kind), lanes)

            def join(start: Any, lanes: int) -> None:
                bytes_of = ir.VectorType(ir.IntType(8), lanes)
                found = builder.trunc(load(builder, source, start, ir.VectorType(_I32, lanes)), bytes_of)
                mask = builder.sub(builder.shl(_I32(1), builder.trunc(bits, _I32)), _I32(1))
                found = builder.and_(found, spread(builder, builder.trunc(mask, bytes_of.element), lanes))
                # Two neighbours become one number of twice the width, until eight codes are one.
                for width, codes in ((16, 1), (32, 2)):
                    found = _pairs(builder, found, width, shift_of(ir.IntType(width), 8 * lanes // width, codes))
                found = _pairs(builder, found, 64, spread(builder, builder.shl(bits, _I64(2)), lanes // 8))
                to = builder.gep(target, [builder.mul(builder.lshr(start, _I64(3)), bits)])
                for word in range(lanes // 8):
                    one = builder.extract_element(found, _I32(word))
                    store(builder, to, builder.mul(bits, _I64(word)), one)

            steps(builder, builder.shl(args[2], _I64(3)), join, (64, 16, 8))
            return context.get_dummy_value()

        size = types.intp
        return types.void(codes, size, size, size, out, size), generate

    def _pairs(builder: Any, numbers: Any, width: int, shift: Any) -> Any:
        """Numbers of twice the width, each of two neighbours, the second shifted left by so many bits."""
        kind = ir.IntType(width)
        count = shift.type.count
        both = builder.bitcast(numbers, ir.VectorType(kind, count))
        low = builder.and_(both, each(kind, count, (1 << width // 2) - 1))
        return builder.or_(low, builder.shl(builder.lshr(both, each(kind, count, width // 2)), shift))

    def _eights(builder: Any, source: Any, target: Any, args: Any, words: int, needed: Any) -> None:
        """The loop for codes of which eight are in so many words of 64 bits, which may overlap."""
        bits, exponent, count = args
        per_word = 8 // words
        # Where each word begins, and how far its codes are shifted.
        bytes_of, shifts = [], ir.Constant(_WORDS, [0] * 8)
        for word in range(words):
            start = builder.mul(bits, _I64(word * per_word))
            bytes_of.append(builder.lshr(start, _I64(3)))
            inside = builder.and_(start, _I64(7))
            for k in range(per_word):
                shift = builder.add(inside, builder.mul(bits, _I64(k)))
                shifts = builder.insert_element(shifts, shift, _I32(word * per_word + k))
        above = spread(builder, builder.sub(_I32(32), builder.trunc(bits, _I32)), 8)
        left = spread(builder, builder.trunc(exponent, _I32), 8)
        total = cgutils.alloca_once(builder, _INTS)
        builder.store(each(_I32, 8, 0), total)
        with cgutils.for_range(builder, count, intp=_I64) as loop:
            base = builder.gep(source, [builder.mul(loop.index, bits)])
            parts = [spread(builder, load(builder, base, at, _I64), per_word) for at in bytes_of]
            while len(parts) > 1:
                size = list(range(2 * parts[0].type.count))
                parts = [shuffle(builder, a, b, size) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            codes = builder.trunc(builder.lshr(parts[0], shifts), _INTS)
            codes = builder.shl(codes, above)
            change = builder.xor(codes, builder.shl(codes, each(_I32, 8, 1)))
            builder.store(builder.or_(builder.load(total), change), total)
            codes = builder.shl(builder.ashr(codes, above), left)
            store(builder, target, builder.shl(loop.index, _I64(3)), codes)
        found = builder.load(total)
        for lane in range(8):
            one = builder.extract_element(found, _I32(lane))
            builder.store(builder.or_(builder.load(needed), one), needed)

    @intrinsic
    def unpack_eights(
        typing_context: Any, data: Any, at: Any, bits: Any, exponent: Any, out: Any, first: Any, count: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = place(context, builder, signature.args[0], *args[:2])
            target = place(context, builder, signature.args[4], *args[4:6])
            bits, exponent, count = args[2], args[3], args[6]
            needed = cgutils.alloca_once_value(builder, _I32(0))

            def narrow(most: int) -> Any:
                return builder.icmp_unsigned("<=", bits, _I64(most))

            with builder.if_else(narrow(8)) as (one, more):
                with one:
                    _eights(builder, source, target, (bits, exponent, count), 1, needed)
                with more, builder.if_else(narrow(16)) as (two, four):
                    with two:
                        _eights(builder, source, target, (bits, exponent, count), 2, needed)
                    with four:
                        _eights(builder, source, target, (bits, exponent, count), 4, needed)
            return builder.sext(builder.load(needed), _I64)

        size = types.intp
        return types.int64(data, size, size, size, out, size, size), generate


join_four, join_two = map(_joiner, (4, 2))
