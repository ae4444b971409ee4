"""Codes as tokens and back: of a code c, z is (c << 1) ^ (c >> 31), a token by itself below 32.

From 32 on a token says the length of z and the two bits below its highest; what is below these are extra bits. Loops
are written as vectors, each with a twin in numpy; over what is shorter than one, they are scalar.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._jit import INTERPRETED, helper
from cnrfmt.kernels._machine import load_u32
from cnrfmt.kernels._numba import cgutils, intrinsic, ir, types
from cnrfmt.kernels._rans_models import TOKENS, Symbols, whole
from cnrfmt.kernels._rans_steps import has_instructions

Codes = npt.NDArray[np.int32]
"""Of one dimension here: rows one after the other."""

SMALL = 32
"""Tokens below it are all there is to know of a code."""
SMALL_CODE = 16
"""|c| below it are of these."""
_LANES = 16
_WORD = 4
"""Extra bits of a code, 25 at most, are in the word of four bytes that begins where they do, or before."""
_TOKEN_BASE = 4 * (127 + 5) - SMALL
"""The upper bits of the float32 of 32, less the token."""


@helper
def zigzag(code: int) -> int:
    """Codes as numbers from 0 on: 0, -1, 1, -2, ..."""
    return (code << 1) ^ (code >> 63)


@helper
def token_of(z: int) -> int:
    """The token that stands for z, which is below 2^26: from 32 on, what a float32 has of it in its upper bits.

    They are the length and two bits more; the lowest two are taken away, so that nothing is rounded.
    """
    if z < SMALL:
        return z
    return whole(np.float32(z & ~3).view(np.uint32) >> np.uint32(21)) - _TOKEN_BASE


@helper
def extra_bits(token: int) -> int:
    """The number of extra bits of a token from 32 on."""
    return 3 + ((token - SMALL) >> 2)


if INTERPRETED:

    def _weigh(codes: Codes, at: int, width: int) -> tuple[int, int]:
        some = codes[at : at + width].astype(np.int64)
        return int(np.abs(some).sum()), int(np.bitwise_or.reduce(np.abs(some)))

    def _fold(codes: Codes, at: int, width: int, class_: int, symbols: Symbols, first: int) -> None:
        some = codes[at : at + width].astype(np.int64)
        z = (some << 1) ^ (some >> 63)
        large = ((z & ~3).astype(np.float32).view(np.uint32) >> 21).astype(np.int64) - _TOKEN_BASE
        symbols[first : first + width] = class_ * TOKENS + np.where(z < SMALL, z, large)

    def _put_extra(codes: Codes, at: int, count: int, out: Bytes, to: int) -> tuple[int, int, int]:
        held, n_bits = 0, 0
        for code in codes[at : at + count].tolist():
            z = zigzag(code)
            size = z.bit_length() - 3 if z >= SMALL else 0
            held |= (z & ((1 << size) - 1)) << n_bits
            n_bits += size
        n_bytes, rest = divmod(n_bits, 8)
        out[to : to + n_bytes] = np.frombuffer(held.to_bytes(n_bytes + 1, "little"), np.uint8)[:n_bytes]
        return held >> (8 * n_bytes), rest, to + n_bytes

    def _unfold(
        data: Bytes, at: int, stop: int, symbols: Symbols, first: int, count: int, most_bits: int, out: Codes, to: int
    ) -> tuple[int, int]:
        some = symbols[first : first + count].astype(np.int64)
        token, e = some & 0xFF, some >> 8
        size = np.where(token < SMALL, 0, 3 + ((token - SMALL) >> 2))
        ends = size.cumsum()
        byte = np.minimum(at + ((ends - size) >> 3), stop - _WORD)
        word = (data[byte[:, None] + np.arange(_WORD)].astype(np.int64) << (8 * np.arange(_WORD))).sum(axis=1)
        low = word >> (ends - size - 8 * (byte - at) & 31) & ((1 << size) - 1)
        z = np.where(token < SMALL, token, (4 | (token & 3)) << size | low)
        out[to : to + count] = ((z >> 1) ^ -(z & 1)) << e
        return int(ends[-1]), int(np.bitwise_or.reduce((z + 1 >> 1) >> (most_bits - e)))

else:
    from cnrfmt.kernels._emit import each, load, place, shuffle, spread, store

    _I8, _I16, _I32, _I64 = (ir.IntType(size) for size in (8, 16, 32, 64))
    _VECTOR, _HALVES, _WORDS = (ir.VectorType(kind, _LANES) for kind in (_I32, _I16, _I64))

    def _all(number: int) -> Any:
        return each(_I32, _LANES, number)

    def _steps(builder: Any, count: Any, step: Any) -> None:
        """Emit ``step(start, skip)`` for 16 of at least 16 elements; the last step goes over `skip` of them again."""
        whole = builder.udiv(count, _I64(_LANES))
        with cgutils.for_range(builder, whole, intp=_I64) as loop:
            step(builder.mul(loop.index, _I64(_LANES)), None)
        rest = builder.urem(count, _I64(_LANES))
        with builder.if_then(builder.icmp_unsigned("!=", rest, _I64(0))):
            step(builder.sub(count, _I64(_LANES)), builder.sub(_I64(_LANES), rest))

    def _zigzag(builder: Any, codes: Any) -> Any:
        return builder.xor(builder.shl(codes, _all(1)), builder.ashr(codes, _all(31)))

    def _reduce(builder: Any, vector: Any, combine: Any) -> Any:
        lanes = vector.type.count
        while lanes > 1:
            lanes //= 2
            halves = (range(lanes), range(lanes, 2 * lanes))
            vector = combine(*(shuffle(builder, vector, vector, list(half)) for half in halves))
        return builder.extract_element(vector, _I32(0))

    def _real_bits(builder: Any, z: Any) -> Any:
        """The bits of float32 numbers that are z but for its lowest two bits, so that nothing is rounded."""
        real = builder.sitofp(builder.and_(z, _all(~3)), ir.VectorType(ir.FloatType(), _LANES))
        return builder.bitcast(real, _VECTOR)

    def _any(builder: Any, mask: Any) -> Any:
        return builder.icmp_unsigned("!=", builder.bitcast(mask, _I16), _I16(0))

    def _from_lane(builder: Any, skip: Any) -> Any:
        """Whether a lane isn't one of the first."""
        lanes = ir.Constant(_VECTOR, list(range(_LANES)))
        return builder.icmp_signed(">=", lanes, spread(builder, builder.trunc(skip, _I32), _LANES))

    @intrinsic
    def _weigh(typing_context: Any, codes: Any, at: Any, width: Any) -> Any:
        result = types.UniTuple(types.int64, 2)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = place(context, builder, signature.args[0], *args[:2])
            total = cgutils.alloca_once_value(builder, each(_I64, _LANES, 0))
            seen = cgutils.alloca_once_value(builder, _all(0))

            def step(start: Any, skip: Any) -> None:
                code = load(builder, base, start, _VECTOR)
                if skip is not None:
                    code = builder.select(_from_lane(builder, skip), code, _all(0))
                sign = builder.ashr(code, _all(31))
                size = builder.sub(builder.xor(code, sign), sign)
                builder.store(builder.add(builder.load(total), builder.zext(size, _WORDS)), total)
                builder.store(builder.or_(builder.load(seen), size), seen)

            _steps(builder, args[2], step)
            seen_bits = builder.zext(_reduce(builder, builder.load(seen), builder.or_), _I64)
            both = [_reduce(builder, builder.load(total), builder.add), seen_bits]
            return context.make_tuple(builder, result, both)

        return result(codes, types.intp, types.intp), generate

    @intrinsic
    def _fold(
        typing_context: Any, codes: Any, at: Any, width: Any, class_: Any, symbols: Any, first: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = place(context, builder, signature.args[0], *args[:2])
            out = place(context, builder, signature.args[4], *args[4:])
            model = builder.trunc(builder.mul(args[3], _I64(TOKENS)), _I16)
            model = spread(builder, model, _LANES)

            def step(start: Any, skip: Any) -> None:
                z = _zigzag(builder, load(builder, base, start, _VECTOR))
                large = builder.sub(builder.lshr(_real_bits(builder, z), _all(21)), _all(_TOKEN_BASE))
                token = builder.select(builder.icmp_unsigned("<", z, _all(SMALL)), z, large)
                store(builder, out, start, builder.or_(builder.trunc(token, _HALVES), model))

            _steps(builder, args[2], step)
            return context.get_dummy_value()

        size = types.intp
        return types.void(codes, size, size, size, symbols, size), generate

    @intrinsic
    def _put_extra(typing_context: Any, codes: Any, at: Any, count: Any, out: Any, to: Any) -> Any:
        result = types.UniTuple(types.int64, 3)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = place(context, builder, signature.args[0], *args[:2])
            out = place(context, builder, signature.args[3], args[3], _I64(0))
            held, n_bits = (cgutils.alloca_once_value(builder, _I64(0)) for _ in range(2))
            to = cgutils.alloca_once_value(builder, args[4])
            pairs = ir.VectorType(_I64, _LANES // 2)

            def put(bits: Any, size: Any) -> None:
                """At most 7 bits are held, and two codes have at most 46 more."""
                now = builder.or_(builder.load(held), builder.shl(bits, builder.load(n_bits)))
                store(builder, out, builder.load(to), now)
                n = builder.add(builder.load(n_bits), size)
                builder.store(builder.add(builder.load(to), builder.lshr(n, _I64(3))), to)
                builder.store(builder.lshr(now, builder.and_(n, _I64(~7))), held)
                builder.store(builder.and_(n, _I64(7)), n_bits)

            with cgutils.for_range(builder, builder.udiv(args[2], _I64(_LANES)), intp=_I64) as loop:
                z = _zigzag(builder, load(builder, base, builder.mul(loop.index, _I64(_LANES)), _VECTOR))
                large = builder.icmp_unsigned(">=", z, _all(SMALL))
                with builder.if_then(_any(builder, large)):
                    length = builder.sub(builder.lshr(_real_bits(builder, z), _all(23)), _all(127 + 2))
                    size = builder.select(large, length, _all(0))
                    low = builder.and_(z, builder.sub(builder.shl(_all(1), size), _all(1)))
                    # Two neighbours become one word.
                    low, size = builder.bitcast(low, pairs), builder.bitcast(size, pairs)
                    half, mask = each(_I64, _LANES // 2, 32), each(_I64, _LANES // 2, 0xFFFF_FFFF)
                    first = builder.and_(size, mask)
                    bits = builder.or_(builder.and_(low, mask), builder.shl(builder.lshr(low, half), first))
                    size = builder.add(first, builder.lshr(size, half))
                    for lane in range(_LANES // 2):
                        put(builder.extract_element(bits, _I32(lane)), builder.extract_element(size, _I32(lane)))
            return context.make_tuple(builder, result, [builder.load(number) for number in (held, n_bits, to)])

        size = types.intp
        return result(codes, size, size, out, size), generate

    def _gather(builder: Any, base: Any, byte: Any) -> Any:
        """The four bytes from each place on."""
        if has_instructions():
            vectors = ir.FunctionType(_VECTOR, [_VECTOR, base.type, _VECTOR, ir.VectorType(ir.IntType(1), 16), _I32])
            name = "llvm.x86.avx512.mask.gather.dpi.512"
            function = cgutils.get_or_insert_function(builder.module, vectors, name)
            return builder.call(function, [_all(0), base, byte, each(ir.IntType(1), _LANES, 1), _I32(1)])
        words: Any = ir.Constant(_VECTOR, ir.Undefined)
        for lane in range(_LANES):
            word = load(builder, base, builder.sext(builder.extract_element(byte, _I32(lane)), _I64), _I32)
            words = builder.insert_element(words, word, _I32(lane))
        return words

    def _running_sums(builder: Any, numbers: Any) -> Any:
        for step in (1, 2, 4, 8):
            moved = shuffle(builder, _all(0), numbers, list(range(_LANES - step, 2 * _LANES - step)))
            numbers = builder.add(numbers, moved)
        return numbers

    @intrinsic
    def _unfold(
        typing_context: Any,
        data: Any,
        at: Any,
        stop: Any,
        symbols: Any,
        first: Any,
        count: Any,
        most_bits: Any,
        out: Any,
        to: Any,
    ) -> Any:
        result = types.UniTuple(types.int64, 2)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = builder.bitcast(place(context, builder, signature.args[0], *args[:2]), _I8.as_pointer())
            symbols = place(context, builder, signature.args[3], *args[3:5])
            out = place(context, builder, signature.args[7], *args[7:])
            last = builder.sub(builder.sub(args[2], args[1]), _I64(_WORD))
            last, most = (spread(builder, builder.trunc(number, _I32), _LANES) for number in (last, args[6]))
            # The number of bits so far in every lane.
            n_bits, beyond, code = (cgutils.alloca_once_value(builder, _all(0)) for _ in range(3))

            def step(start: Any, skip: Any) -> None:
                symbol = builder.zext(load(builder, symbols, start, _HALVES), _VECTOR)
                token, e = builder.and_(symbol, _all(0xFF)), builder.lshr(symbol, _all(8))
                large = builder.icmp_unsigned(">=", token, _all(SMALL))
                if skip is not None:
                    large = builder.and_(large, _from_lane(builder, skip))
                builder.store(token, code)
                with builder.if_then(_any(builder, large)):
                    size = builder.lshr(builder.sub(token, _all(SMALL - 4 * 3)), _all(2))
                    size = builder.select(large, size, _all(0))
                    before = builder.load(n_bits)
                    ends = builder.add(_running_sums(builder, size), before)
                    builder.store(shuffle(builder, ends, ends, [_LANES - 1] * _LANES), n_bits)
                    bit = builder.sub(ends, size)
                    byte = builder.lshr(bit, _all(3))
                    byte = builder.select(builder.icmp_signed("<", byte, last), byte, last)
                    shift = builder.and_(builder.sub(bit, builder.shl(byte, _all(3))), _all(31))
                    low = builder.lshr(_gather(builder, data, byte), shift)
                    low = builder.and_(low, builder.sub(builder.shl(_all(1), size), _all(1)))
                    high = builder.shl(builder.or_(builder.and_(token, _all(3)), _all(4)), size)
                    builder.store(builder.select(large, builder.or_(high, low), token), code)
                z = builder.load(code)
                magnitude = builder.lshr(builder.add(z, _all(1)), _all(1))
                odd = builder.neg(builder.and_(z, _all(1)))
                new = builder.shl(builder.xor(builder.lshr(z, _all(1)), odd), e)
                over = builder.lshr(magnitude, builder.sub(most, e))
                if skip is not None:
                    # Others were put by the step before.
                    own = _from_lane(builder, skip)
                    new = builder.select(own, new, load(builder, out, start, _VECTOR))
                    over = builder.select(own, over, _all(0))
                builder.store(builder.or_(builder.load(beyond), over), beyond)
                store(builder, out, start, new)

            _steps(builder, args[5], step)
            bits = builder.extract_element(builder.load(n_bits), _I32(0))
            over = _reduce(builder, builder.load(beyond), builder.or_)
            return context.make_tuple(builder, result, [builder.zext(number, _I64) for number in (bits, over)])

        size = types.intp
        return result(data, size, size, symbols, size, size, size, out, size), generate


@helper
def weigh(codes: Codes, at: int, width: int) -> tuple[int, int]:
    """The sum of |c| over a row, and all these |c| joined by or."""
    if width >= _LANES:
        return _weigh(codes, at, width)
    total, seen = 0, 0
    for k in range(at, at + width):
        size = abs(whole(codes[k]))
        total += size
        seen |= size
    return total, seen


@helper
def fold(codes: Codes, at: int, width: int, class_: int, symbols: Symbols, first: int) -> None:
    """Put the tokens of a row of a class from symbols[first] on, 128 for each class; |c| is below 2^25."""
    if width >= _LANES:
        _fold(codes, at, width, class_, symbols, first)
        return
    for k in range(width):
        symbols[first + k] = class_ * TOKENS + token_of(zigzag(whole(codes[at + k])))


@helper
def put_extra(codes: Codes, at: int, count: int, out: Bytes, to: int) -> int:
    """Put the extra bits of codes from out[to] on; where they end; eight bytes after may be written."""
    done = count & ~(_LANES - 1)
    held, n_bits, to = _put_extra(codes, at, done, out, to)
    for k in range(at + done, at + count):
        z = zigzag(whole(codes[k]))
        if z >= SMALL:
            size = extra_bits(token_of(z))
            held |= (z & ((1 << size) - 1)) << n_bits
            n_bits += size
        while n_bits >= 8:
            out[to] = held & 0xFF
            held >>= 8
            n_bits -= 8
            to += 1
    if n_bits:
        out[to] = held
        to += 1
    return to


@helper
def unfold(
    data: Bytes, at: int, stop: int, symbols: Symbols, first: int, count: int, most_bits: int, out: Codes, to: int
) -> tuple[int, int]:
    """Put the codes of tokens, shifted by the exponent in the upper byte of their symbols.

    Parameters
    ----------
    data, at, stop
        Extra bits are data[at:stop]; before them, there are four bytes or more.
    symbols, first, count
        Tokens are in the lower bytes of symbols[first : first + count].
    most_bits
        |c| must be below 2^(most_bits - e).
    out, to
        Codes are put from out[to] on.

    Returns
    -------
    How many extra bits the tokens ask for: if it is more than there are, codes may be anything. And whether a code is
    out of bounds, as a number that isn't 0.
    """
    if count >= _LANES:
        return _unfold(data, at, stop, symbols, first, count, most_bits, out, to)
    n_bits, beyond = 0, 0
    for k in range(count):
        symbol = whole(symbols[first + k])
        z, e = symbol & 0xFF, symbol >> 8
        if z >= SMALL:
            size = extra_bits(z)
            byte = min(at + (n_bits >> 3), stop - _WORD)
            low = whole(load_u32(data, byte)) >> ((n_bits - 8 * (byte - at)) & 31) & ((1 << size) - 1)
            z = (4 | (z & 3)) << size | low
            n_bits += size
        beyond |= ((z + 1) >> 1) >> (most_bits - e)
        if not beyond:
            out[to + k] = ((z >> 1) ^ -(z & 1)) << e
    return n_bits, beyond
