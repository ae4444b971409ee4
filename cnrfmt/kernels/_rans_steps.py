"""Steps of eight interleaved states, of which each takes in or gives a symbol.

Between symbols, states are below 2^32 and at least 2^16. Lanes depend on one another only in where their words are, so
that a processor works on eight at once; that still leaves it waiting for tables, so where it has the instructions, four
groups are encoded, or four or eight decoded, at once, each in a vector. Nothing checks the bounds of arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.kernels._jit import INTERPRETED, helper
from cnrfmt.kernels._machine import load_u16, pointer
from cnrfmt.kernels._numba import binding, cgutils, config, intrinsic, ir, types
from cnrfmt.kernels._rans_models import Slots, Symbols, whole

LANES = 8
GROUPS, MOST_GROUPS = 4, 8
"""Groups that are worked on at once, and that are decoded at once where there are as many."""


def has_instructions() -> bool:
    """Whether the processor has the instructions for vectors that are put together of some lanes, or of a table."""
    if INTERPRETED or config.CPU_NAME or config.CPU_FEATURES:
        return False
    return bool(binding.get_host_cpu_features().get("avx512vl"))


@helper
def _decode(data: Bytes, at: int, slots: Slots, symbol: int, x: int) -> tuple[int, int, int]:
    """One symbol; the state and where the words go on, then, and what becomes of the symbol."""
    entry = whole(slots[((symbol & 0xFF) << 12) + (x & 4095)])
    x = ((entry & 0xFFF) + 1) * (x >> 12) + (entry >> 12 & 0xFFF)
    # Loaded in any case, so that nothing hangs on a branch that can't be foreseen.
    word = whole(load_u16(data, at))
    low = whole(x < 65536)
    x = (x << 16 | word) if low else x
    return x, at + 2 * low, (symbol & 0xFF00) | entry >> 24


@helper
def decode_steps(
    data: Bytes,
    at: int,
    stop: int,
    slots: Slots,
    states: Ids,
    symbols: Symbols,
    first: int,
    width: int,
    k: int,
    count: int,
) -> tuple[int, int]:
    """Decode whole steps from symbol k on while 8 words are left; how many symbols that makes, and where words go on.

    Parameters
    ----------
    data, at, stop
        The words, where they go on, and where the last of them that may be loaded ends.
    states
        Of eight lanes.
    symbols
        From symbols[first] on; the low byte of each is its class, and gets the token.
    width
        So many symbols make a row, and are of one class.
    """
    data, slots, symbols = pointer(data), pointer(slots), pointer(symbols)
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    x4, x5, x6, x7 = states[4], states[5], states[6], states[7]
    row_end = k - k % max(width, 1) + width
    while k + LANES <= count and at + 2 * LANES <= stop:
        while row_end <= k:
            row_end += width
        i = first + k
        k += LANES
        if row_end < k:
            x0, at, symbols[i] = _decode(data, at, slots, whole(symbols[i]), x0)
            x1, at, symbols[i + 1] = _decode(data, at, slots, whole(symbols[i + 1]), x1)
            x2, at, symbols[i + 2] = _decode(data, at, slots, whole(symbols[i + 2]), x2)
            x3, at, symbols[i + 3] = _decode(data, at, slots, whole(symbols[i + 3]), x3)
            x4, at, symbols[i + 4] = _decode(data, at, slots, whole(symbols[i + 4]), x4)
            x5, at, symbols[i + 5] = _decode(data, at, slots, whole(symbols[i + 5]), x5)
            x6, at, symbols[i + 6] = _decode(data, at, slots, whole(symbols[i + 6]), x6)
            x7, at, symbols[i + 7] = _decode(data, at, slots, whole(symbols[i + 7]), x7)
            continue
        row, stop_row = whole(symbols[i]), first + min(row_end, count)
        while True:
            x0, at, symbols[i] = _decode(data, at, slots, row, x0)
            x1, at, symbols[i + 1] = _decode(data, at, slots, row, x1)
            x2, at, symbols[i + 2] = _decode(data, at, slots, row, x2)
            x3, at, symbols[i + 3] = _decode(data, at, slots, row, x3)
            x4, at, symbols[i + 4] = _decode(data, at, slots, row, x4)
            x5, at, symbols[i + 5] = _decode(data, at, slots, row, x5)
            x6, at, symbols[i + 6] = _decode(data, at, slots, row, x6)
            x7, at, symbols[i + 7] = _decode(data, at, slots, row, x7)
            i += LANES
            if i + LANES > stop_row or at + 2 * LANES > stop:
                break
        k = i - first
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    states[4], states[5], states[6], states[7] = x4, x5, x6, x7
    return k, at


@helper
def decode_last(
    data: Bytes, at: int, stop: int, slots: Slots, states: Ids, symbols: Symbols, first: int, k: int, count: int
) -> int:
    """As `decode_steps`, whatever is left, symbol by symbol; where the words end, or -1 if it is too early."""
    while k < count:
        lane = k & (LANES - 1)
        symbol, x = whole(symbols[first + k]), states[lane]
        entry = whole(slots[(symbol & 0xFF) << 12 | (x & 4095)])
        x = ((entry & 0xFFF) + 1) * (x >> 12) + (entry >> 12 & 0xFFF)
        if x < 65536:
            if at + 2 > stop:
                return -1
            x = x << 16 | whole(load_u16(data, at))
            at += 2
        states[lane] = x
        symbols[first + k] = (symbol & 0xFF00) | entry >> 24
        k += 1
    return at


@helper
def _encode(symbol: int, table: Words, x: int, words: Symbols, n: int) -> tuple[int, int]:
    """One symbol; the state and the number of words, then."""
    entry = whole(table[symbol])
    less = entry & 0xFFF
    words[n] = x & 0xFFFF
    high = whole(x >= (4096 - less) << 20)
    x = x >> 16 if high else x
    quotient = whole(np.uint64(x) * np.uint64(entry >> 30) >> np.uint64(entry >> 24 & 0x3F))
    # The remainder is x - quotient * f.
    return x + quotient * less + (entry >> 12 & 0xFFF), n + high


@helper
def encode_last(
    symbols: Symbols, first: int, count: int, table: Words, states: Ids, words: Symbols, at: int
) -> int:
    """Encode symbols[first : first + count], a phase, down to where whole steps are left; where words go on, then.

    Words are put from words[at] on, in the order in which they come; eight places after them may be written, too.
    """
    k = count
    while k & (LANES - 1):
        k -= 1
        lane = k & (LANES - 1)
        states[lane], at = _encode(whole(symbols[first + k]), table, states[lane], words, at)
    return at


@helper
def encode_steps(
    symbols: Symbols, first: int, count: int, table: Words, states: Ids, words: Symbols, at: int
) -> int:
    """As `encode_last`, the whole steps of a phase, from the last one on."""
    symbols, table, words = pointer(symbols), pointer(table), pointer(words)
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    x4, x5, x6, x7 = states[4], states[5], states[6], states[7]
    for k in range((count & -LANES) - LANES, -LANES, -LANES):
        i = first + k
        x7, at = _encode(whole(symbols[i + 7]), table, x7, words, at)
        x6, at = _encode(whole(symbols[i + 6]), table, x6, words, at)
        x5, at = _encode(whole(symbols[i + 5]), table, x5, words, at)
        x4, at = _encode(whole(symbols[i + 4]), table, x4, words, at)
        x3, at = _encode(whole(symbols[i + 3]), table, x3, words, at)
        x2, at = _encode(whole(symbols[i + 2]), table, x2, words, at)
        x1, at = _encode(whole(symbols[i + 1]), table, x1, words, at)
        x0, at = _encode(whole(symbols[i]), table, x0, words, at)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    states[4], states[5], states[6], states[7] = x4, x5, x6, x7
    return at


if not has_instructions():

    @helper
    def encode_four(
        symbols: Symbols, stride: int, count: int, table: Words, states: Ids, words: Symbols, room: int, at: Ids
    ) -> bool:
        """Encode the whole steps of four groups of `count` symbols, if it can be done at once.

        Symbols of a group are `stride` apart, and its words `room`; `at` has a place for each group, `states` eight.
        """
        return False

    @helper
    def decode_four(
        data: Bytes, at: Ids, stop: Ids, slots: Slots, states: Ids, symbols: Symbols, stride: int, count: int
    ) -> int:
        """Decode whole steps of four groups while 8 words are left of each; how many symbols of each.

        `at` and `stop` have a number for each group, `states` eight, and the symbols of a group are `stride` apart.
        """
        return 0  # Leaves all to `decode_steps`.

    decode_eight = decode_four

else:
    from cnrfmt.kernels._emit import each, load, place, shuffle, store

    _I8, _I16, _I32, _I64 = (ir.IntType(size) for size in (8, 16, 32, 64))
    _VECTOR, _HALVES, _WORDS = (ir.VectorType(kind, LANES) for kind in (_I32, _I16, _I64))

    def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
        function = ir.FunctionType(result, [arg.type for arg in args])
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)

    def _all(number: int) -> Any:
        return each(_I32, LANES, number)

    def _each(number: int) -> Any:
        return each(_I64, LANES, number)

    def _encode_step(builder: Any, symbol: Any, table: Any, x: Any, words: Any, at: Any) -> tuple[Any, Any]:
        """Emit a step of a group whose last lane comes first; the states and where the words go on, then."""
        entry = _gather_words(builder, table, symbol)
        less = builder.and_(entry, _each(0xFFF))
        begin = builder.and_(builder.lshr(entry, _each(12)), _each(0xFFF))
        shift = builder.and_(builder.lshr(entry, _each(24)), _each(0x3F))
        high = builder.icmp_unsigned(">=", x, builder.shl(builder.sub(_each(4096), less), _each(20)))
        emitted = _call(builder, "llvm.x86.avx512.mask.compress.v8i64", _WORDS, x, _each(0), high)
        store(builder, words, at, builder.trunc(emitted, _HALVES))
        n = builder.zext(builder.ctpop(builder.bitcast(high, _I8)), _I64)
        x = builder.select(high, builder.lshr(x, _each(16)), x)
        quotient = builder.lshr(builder.mul(x, builder.lshr(entry, _each(30))), shift)
        # The remainder is x - quotient * f; the quotient is below 2^20.
        more = builder.mul(builder.and_(quotient, _each(0xFFFF_FFFF)), less)
        return builder.add(builder.add(x, begin), more), builder.add(at, n)

    @intrinsic
    def encode_four(
        typing_context: Any,
        symbols: Any,
        stride: Any,
        count: Any,
        table: Any,
        states: Any,
        words: Any,
        room: Any,
        at: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            symbols, table, states, words, at = (
                place(context, builder, signature.args[k], args[k], _I64(0)) for k in (0, 3, 4, 5, 7)
            )
            table = builder.bitcast(table, _I8.as_pointer())
            turned = list(range(LANES))[::-1]
            lanes, places, rooms = [], [], []
            for group in range(GROUPS):
                x = load(builder, states, _I64(LANES * group), _WORDS)
                lanes.append(cgutils.alloca_once_value(builder, shuffle(builder, x, x, turned)))
                places.append(cgutils.alloca_once_value(builder, load(builder, at, _I64(group), _I64)))
                rooms.append(builder.gep(words, [builder.mul(args[6], _I64(group))]))
            steps = builder.udiv(args[2], _I64(LANES))
            with cgutils.for_range(builder, steps, intp=_I64) as loop:
                start = builder.mul(builder.sub(builder.sub(steps, loop.index), _I64(1)), _I64(LANES))
                for group in range(GROUPS):
                    i = builder.add(start, builder.mul(args[1], _I64(group)))
                    symbol = load(builder, symbols, i, _HALVES)
                    symbol = shuffle(builder, symbol, symbol, turned)
                    x, position = _encode_step(
                        builder, symbol, table, builder.load(lanes[group]), rooms[group], builder.load(places[group])
                    )
                    builder.store(x, lanes[group])
                    builder.store(position, places[group])
            for group in range(GROUPS):
                x = builder.load(lanes[group])
                store(builder, states, _I64(LANES * group), shuffle(builder, x, x, turned))
                store(builder, at, _I64(group), builder.load(places[group]))
            return ir.Constant(ir.IntType(1), 1)

        size = types.intp
        return types.boolean(symbols, size, size, table, states, words, size, at), generate

    def _gather_words(builder: Any, base: Any, index: Any) -> Any:
        """Words of 64 bits of a table."""
        index = builder.zext(index, _VECTOR)
        mask = each(ir.IntType(1), LANES, 1)
        name = "llvm.x86.avx512.mask.gather.dpq.512"
        return _call(builder, name, _WORDS, _each(0), base, index, mask, _I32(8))

    def _step(builder: Any, data: Any, at: Any, slots: Any, symbols: Any, i: Any, x: Any) -> tuple[Any, Any]:
        """Emit a step of a group; the states and where the words go on, then."""
        symbol = load(builder, symbols, i, _HALVES)
        class_ = builder.zext(builder.and_(symbol, each(_I16, LANES, 0xFF)), _VECTOR)
        slot = builder.or_(builder.shl(class_, _all(12)), builder.and_(x, _all(4095)))
        entry = _call(builder, "llvm.x86.avx2.gather.d.d.256", _VECTOR, _all(0), slots, slot, _all(-1), _I8(4))
        token = builder.trunc(builder.lshr(entry, _all(24)), _HALVES)
        store(builder, symbols, i, builder.or_(builder.and_(symbol, each(_I16, LANES, 0xFF00)), token))
        upper = builder.lshr(x, _all(12))
        place_in = builder.add(builder.and_(builder.lshr(entry, _all(12)), _all(0xFFF)), upper)
        x = builder.add(builder.mul(builder.and_(entry, _all(0xFFF)), upper), place_in)
        low = builder.icmp_unsigned("<", x, _all(65536))
        words = builder.zext(load(builder, data, at, _HALVES), _VECTOR)
        word = _call(builder, "llvm.x86.avx512.mask.expand.v8i32", _VECTOR, words, _all(0), low)
        x = builder.select(low, builder.or_(builder.shl(x, _all(16)), word), x)
        n = builder.zext(builder.ctpop(builder.bitcast(low, _I8)), _I64)
        return x, builder.add(at, builder.shl(n, _I64(1)))

    def _decode_together(groups: int, context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Emit the steps of so many groups."""
        data, at, stop, slots, states, symbols = (
            place(context, builder, kind, value, _I64(0))
            for kind, value in zip(signature.args[:6], args[:6], strict=True)
        )
        slots = builder.bitcast(slots, _I8.as_pointer())
        stride, count = args[6:]
        # Stack slots, which LLVM turns into registers.
        lanes, places, stops = [], [], []
        for group in range(groups):
            wide = load(builder, states, _I64(LANES * group), _WORDS)
            lanes.append(cgutils.alloca_once_value(builder, builder.trunc(wide, _VECTOR)))
            places.append(cgutils.alloca_once_value(builder, load(builder, at, _I64(group), _I64)))
            last = builder.sub(load(builder, stop, _I64(group), _I64), _I64(2 * LANES))
            stops.append(last)
        k = cgutils.alloca_once_value(builder, _I64(0))
        head, body, end = (builder.append_basic_block(name) for name in ("steps", "step", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        now = builder.load(k)
        then = builder.add(now, _I64(LANES))
        enough = builder.icmp_signed("<=", then, count)
        for position, last in zip(places, stops, strict=True):
            enough = builder.and_(enough, builder.icmp_signed("<=", builder.load(position), last))
        builder.cbranch(enough, body, end)
        builder.position_at_end(body)
        for group in range(groups):
            i = builder.add(now, builder.mul(stride, _I64(group)))
            x, position = _step(
                builder, data, builder.load(places[group]), slots, symbols, i, builder.load(lanes[group])
            )
            builder.store(x, lanes[group])
            builder.store(position, places[group])
        builder.store(then, k)
        builder.branch(head)
        builder.position_at_end(end)
        for group in range(groups):
            store(builder, states, _I64(LANES * group), builder.zext(builder.load(lanes[group]), _WORDS))
            store(builder, at, _I64(group), builder.load(places[group]))
        return builder.load(k)

    @intrinsic
    def decode_four(
        typing_context: Any,
        data: Any,
        at: Any,
        stop: Any,
        slots: Any,
        states: Any,
        symbols: Any,
        stride: Any,
        count: Any,
    ) -> Any:
        size = types.intp
        return size(data, at, stop, slots, states, symbols, size, size), partial(_decode_together, GROUPS)

    @intrinsic
    def decode_eight(
        typing_context: Any,
        data: Any,
        at: Any,
        stop: Any,
        slots: Any,
        states: Any,
        symbols: Any,
        stride: Any,
        count: Any,
    ) -> Any:
        size = types.intp
        return size(data, at, stop, slots, states, symbols, size, size), partial(_decode_together, MOST_GROUPS)
