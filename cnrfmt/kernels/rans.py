"""Groups of rows under the payload `rans`: integers in as many bits as they surprise (specification, section 6.7).

Range asymmetric numeral systems (Duda, 2013), eight states interleaved (Giesen, Interleaved entropy coders, 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import load_u16, load_u32, store
from cnrfmt.kernels._rans_codes import SMALL_CODE, fold, put_extra, unfold, weigh
from cnrfmt.kernels._rans_models import (
    LEVELS,
    SCALE,
    TOKENS,
    Counts,
    Slots,
    Symbols,
    fill_kinds,
    fill_slots,
    fill_symbols,
    join_levels,
    level_of,
    normalise,
    whole,
)
from cnrfmt.kernels._rans_steps import (
    GROUPS,
    LANES,
    MOST_GROUPS,
    decode_eight,
    decode_four,
    decode_last,
    decode_steps,
    encode_four,
    encode_last,
    encode_steps,
)

Codes = npt.NDArray[np.int32]

LEAST_STATE = 1 << 16
STATE_BYTES = 4 * LANES
MOST_BITS = 25
"""|c| is below 2^25."""
_BYTE_KINDS = 256
"""So many row kinds have a place in the slots."""

SOUND, STATE, WORDS, EXTRA, RANGE, PADDING = range(6)
"""What is wrong with a group."""


@jit
def measure(codes: Codes, exponents: Bytes, tokens: Counts, kinds: Counts, symbols: Symbols) -> bool:
    """Count tokens by the level of their row, and rows by their level and exponent.

    Parameters
    ----------
    codes, exponents
        Integers (rows, width), and one for each row.
    tokens
        Counts (4, 128 for each level), to be added up: the same count in a row waits for the one before to be stored.
    kinds
        Counts (levels, exponents).
    symbols
        To work with: one place for each code of a row.

    Returns
    -------
    False if a code is out of bounds, |c| < 2^25, or an exponent.
    """
    rows, width = codes.shape
    flat = codes.reshape(codes.size)
    for row in range(rows):
        total, seen = weigh(flat, row * width, width)
        if seen >> MOST_BITS or exponents[row] >= kinds.shape[1]:
            return False
        level = level_of(total, width)
        kinds[level, exponents[row]] += 1
        fold(flat, row * width, width, level, symbols, 0)
        whole = width & ~3
        for k in range(0, whole, 4):
            tokens[0, symbols[k]] += 1
            tokens[1, symbols[k + 1]] += 1
            tokens[2, symbols[k + 2]] += 1
            tokens[3, symbols[k + 3]] += 1
        for k in range(whole, width):
            tokens[0, symbols[k]] += 1
    return True


@jit
def encode_groups(
    codes: Codes,
    exponents: Bytes,
    group: int,
    class_of: Bytes,
    kind_of: npt.NDArray[np.int16],
    kind_table: Words,
    token_table: Words,
    counts: Ids,
    states: Ids,
    symbols: Symbols,
    words: Symbols,
    out: Bytes,
    lengths: Ids,
) -> int:
    """Encode rows in groups of `group`, one after the other; the bytes that they take all together.

    Parameters
    ----------
    codes, exponents
        Integers (rows, width), |c| < 2^25, and one for each row.
    class_of, kind_of
        The class of each level, and the row kind of an exponent and a class.
    kind_table, token_table
        See `fill_symbols`; of row kinds, and of tokens, 128 for each class.
    counts, states, symbols, words
        To work with: 8 numbers and 32, a place for each symbol of four groups, and as many and eight more of each.
    out
        At least 40 bytes for each group, 2 for each row, and 5 for each code.
    lengths
        Gets the bytes of each group.
    """
    rows, width = codes.shape
    flat = codes.reshape(codes.size)
    stride = group * (width + 1)
    room = stride + LANES
    places, seen = counts[:GROUPS], counts[GROUPS:]
    at = 0
    for number in range(0, len(lengths), GROUPS):
        some = min(GROUPS, len(lengths) - number)
        states[:] = LEAST_STATE
        for g in range(some):
            first = (number + g) * group
            count = min(rows - first, group)
            seen[g] = 0
            # Symbols of values come first, so that where they are is the same in all groups.
            for row in range(count):
                place = (first + row) * width
                total, sizes = weigh(flat, place, width)
                class_ = whole(class_of[level_of(total, width)])
                symbols[g * stride + group * width + row] = kind_of[exponents[first + row], class_]
                fold(flat, place, width, class_, symbols, g * stride + row * width)
                seen[g] |= sizes
            own = states[LANES * g : LANES * g + LANES]
            places[g] = encode_last(symbols, g * stride, count * width, token_table, own, words, g * room) - g * room
        four = (number + GROUPS) * group <= rows
        if four:
            four = encode_four(symbols, stride, group * width, token_table, states, words, room, places)
        for g in range(some):
            first, begin = (number + g) * group, at
            count = min(rows - first, group)
            own, n = states[LANES * g : LANES * g + LANES], g * room + places[g]
            if not four:
                n = encode_steps(symbols, g * stride, count * width, token_table, own, words, n)
            if len(kind_table) > 1:
                n = encode_last(symbols, g * stride + group * width, count, kind_table, own, words, n)
                n = encode_steps(symbols, g * stride + group * width, count, kind_table, own, words, n)
            for lane in range(LANES):
                store(out, at + 4 * lane, np.uint32(own[lane]))
            at += STATE_BYTES
            for k in range(n - g * room):
                store(out, at + 2 * k, words[n - 1 - k])
            at += 2 * (n - g * room)
            if seen[g] >= SMALL_CODE:
                at = put_extra(flat, first * width, count * width, out, at)
            lengths[number + g] = at - begin
    return at


@helper
def _decode_kinds(
    data: Bytes, at: int, stop: int, slots: Slots, symbols: Symbols, states: Ids, kinds: Symbols, first: int, count: int
) -> int:
    """Decode more row kinds than a byte tells apart; where the words go on, or -1 if they end too early."""
    for k in range(count):
        lane = k & (LANES - 1)
        x = states[lane]
        slot = x & (SCALE - 1)
        entry = whole(slots[slot])
        x = ((entry & 0xFFF) + 1) * (x >> 12) + (entry >> 12 & 0xFFF)
        if x < LEAST_STATE:
            if at + 2 > stop:
                return -1
            x = x << 16 | whole(load_u16(data, at))
            at += 2
        states[lane] = x
        kinds[first + k] = symbols[slot]
    return at


@helper
def _room(data: Bytes, stop: int) -> int:
    """Where eight words that are loaded may end, of a group that ends at `stop`.

    As long as words of the group are taken, more may be loaded, so that its last symbols, too, are decoded in steps.
    Whether too many were taken shows in the end.
    """
    return min(stop + 2 * LANES, len(data))


@helper
def _start(
    data: Bytes,
    at: int,
    stop: int,
    kinds: Symbols,
    kind_slots: Slots,
    kind_symbols: Symbols,
    states: Ids,
    row_kinds: Symbols,
    symbols: Symbols,
    first: int,
    width: int,
    exponents: Bytes,
) -> tuple[int, int]:
    """Decode the kinds of a group's rows, and put them before their codes; what is wrong, and where the words go on."""
    count = len(exponents)
    if at + STATE_BYTES > stop:
        return WORDS, at
    for lane in range(LANES):
        states[lane] = whole(load_u32(data, at + 4 * lane))
        if states[lane] < LEAST_STATE:
            return STATE, at
    at += STATE_BYTES
    if len(kinds) == 1:
        exponents[:] = kinds[0] >> 8
        symbols[first : first + count * width] = kinds[0]
        return SOUND, at
    row_kinds[:count] = 0
    if len(kinds) > _BYTE_KINDS:
        at = _decode_kinds(data, at, stop, kind_slots, kind_symbols, states, row_kinds, 0, count)
    else:
        done, at = decode_steps(data, at, _room(data, stop), kind_slots, states, row_kinds, 0, count, 0, count)
        at = decode_last(data, at, stop, kind_slots, states, row_kinds, 0, done, count)
    if at < 0 or at > stop:
        return WORDS, at
    for row in range(count):
        kind = kinds[row_kinds[row]]
        exponents[row] = kind >> 8
        if width == 1:
            symbols[first + row] = kind
        else:
            symbols[first + row * width : first + row * width + width] = kind
    return SOUND, at


@helper
def _finish(
    data: Bytes,
    at: int,
    stop: int,
    states: Ids,
    symbols: Symbols,
    first: int,
    most_bits: int,
    out: Codes,
) -> int:
    """Make codes of a group's tokens, given where its extra bits are; what is wrong."""
    for lane in range(LANES):
        if states[lane] != LEAST_STATE:
            return STATE
    n_bits, beyond = unfold(data, at, stop, symbols, first, len(out), most_bits, out, 0)
    if (n_bits + 7) >> 3 != stop - at:
        return EXTRA
    if beyond:
        return RANGE
    if n_bits & 7 and data[stop - 1] >> (n_bits & 7):
        return PADDING
    return SOUND


@jit
def decode_groups(
    data: Bytes,
    starts: Ids,
    stops: Ids,
    group: int,
    kinds: Symbols,
    kind_slots: Slots,
    kind_symbols: Symbols,
    slots: Slots,
    most_bits: int,
    positions: Ids,
    states: Ids,
    row_kinds: Symbols,
    symbols: Symbols,
    out: Codes,
    exponents: Bytes,
) -> tuple[int, int]:
    """Decode groups to c << e: what is wrong with the first that isn't sound, `SOUND` if all are, and its number.

    Parameters
    ----------
    data, starts, stops
        Group i is data[starts[i] : stops[i]].
    group
        Rows of a group; the last may have fewer.
    kinds
        Of each row kind, its class in the low byte, and its exponent.
    kind_slots, kind_symbols, slots
        See `fill_slots` and `fill_kinds`; slots are 4096 for each class.
    most_bits
        |c| must be below 2^(most_bits - e).
    positions, states, row_kinds, symbols
        To work with: 16 numbers and 64, a place for each row of a group, and for each code of eight, or as many as
        there are.
    out, exponents
        Get integers (rows, width), and one for each row.
    """
    rows, width = out.shape
    flat = out.reshape(out.size)
    groups, stride, first = len(starts), group * width, 0
    at, room = positions[:MOST_GROUPS], positions[MOST_GROUPS:]
    while first < groups:
        # Of the groups that are left, the last may not be whole.
        left = rows // group - first
        some = MOST_GROUPS if left >= MOST_GROUPS else min(GROUPS, groups - first)
        for g in range(some):
            begin = (first + g) * group
            room[g] = _room(data, stops[first + g])
            wrong, at[g] = _start(
                data, starts[first + g], stops[first + g], kinds, kind_slots, kind_symbols,
                states[LANES * g : LANES * g + LANES], row_kinds, symbols, g * stride, width,
                exponents[begin : min(begin + group, rows)],
            )  # fmt: skip
            if wrong:
                return wrong, first + g
        done = 0
        if left >= MOST_GROUPS:
            done = decode_eight(data, at, room, slots, states, symbols, stride, stride)
        elif left >= GROUPS:
            done = decode_four(data, at, room, slots, states, symbols, stride, stride)
        for g in range(some):
            begin, end = (first + g) * group, min((first + g + 1) * group, rows)
            count = (end - begin) * width
            own, stop = states[LANES * g : LANES * g + LANES], stops[first + g]
            k, where = decode_steps(data, at[g], room[g], slots, own, symbols, g * stride, width, done, count)
            where = decode_last(data, where, stop, slots, own, symbols, g * stride, k, count)
            if where < 0 or where > stop:
                return WORDS, first + g
            wrong = _finish(
                data, where, stop, own, symbols, g * stride, most_bits,
                flat[begin * width : end * width],
            )  # fmt: skip
            if wrong:
                return wrong, first + g
        first += some
    return SOUND, 0


__all__ = [
    "LEVELS",
    "TOKENS",
    "decode_groups",
    "encode_groups",
    "fill_kinds",
    "fill_slots",
    "fill_symbols",
    "join_levels",
    "measure",
    "normalise",
]
