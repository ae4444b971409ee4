"""Codes for strictly ascending int64 ids: packed differences, runs, bitmaps.

Words are uint64 arrays over the bytes of a section. Decoders take nothing on trust but the lengths
of the arrays: whatever the words say, they stay within bounds and name the first place that breaks a
rule of the format.
"""

from __future__ import annotations

import numpy as np

from cnrfmt.arrays import Ids, Words
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import bit_length, ones, signed, trailing_zeros, unsigned

GROUP = 128
"""Ids that share a bit width in `packed`."""
BLOCK_WORDS = 8
"""Words of a `bitmap` that share a rank."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_GREATEST = np.uint64(0x7FFF_FFFF_FFFF_FFFF)


@helper
def _gap(ids: Ids, k: int) -> np.uint64:
    """How many ids lie between ids[k - 1] and ids[k]."""
    return np.uint64(ids[k]) - np.uint64(ids[k - 1]) - _ONE


@helper
def _width(ids: Ids, first: int, stop: int) -> int:
    every = _ZERO
    for k in range(first + 1, stop):
        every |= _gap(ids, k)
    return bit_length(every)


@jit
def measure(ids: Ids) -> tuple[int, int]:
    """The number of maximal runs, and of the payload's words under `packed`.

    An offset in the skip table has 32 bits: `packed` holds payloads of up to 2**32 words.
    """
    runs = words = 0
    for first in range(0, len(ids), GROUP):
        stop = min(first + GROUP, len(ids))
        every = _ZERO
        for k in range(first + 1, stop):
            gap = _gap(ids, k)
            every |= gap
            runs += gap != _ZERO
        runs += first == 0 or _gap(ids, first) != _ZERO
        words += ((stop - first) * bit_length(every) + 63) >> 6
    return runs, words


@jit
def encode_packed(ids: Ids, skip: Words, payload: Words) -> None:
    """Write `packed`: two words per group into `skip`, and the payload as `measure` counts it."""
    offset = 0
    for group in range(len(skip) // 2):
        first = group * GROUP
        stop = min(first + GROUP, len(ids))
        width = _width(ids, first, stop)
        skip[2 * group] = np.uint64(ids[first])
        skip[2 * group + 1] = np.uint64(offset) | np.uint64(width) << 32
        word, used = _ZERO, width  # Slot 0 is zero.
        if used == 64:
            payload[offset] = word
            offset, used = offset + 1, 0
        if width == 0:
            continue
        for k in range(first + 1, stop):
            gap = _gap(ids, k)
            word |= gap << used
            used += width
            if used >= 64:
                payload[offset] = word
                offset += 1
                used -= 64
                # What didn't fit; shifts by 64 are undefined.
                word = gap >> (width - used) if used else _ZERO
        if used:
            payload[offset] = word
            offset += 1


@jit
def decode_packed(skip: Words, payload: Words, count: int, out: Ids) -> int:
    """Read `packed` into `out`, checking it against the format.

    `skip` has two words for each group of the `count` ids. Returns -1, or the number of the first bad
    group, which is the number of groups if words are left over after the last.
    """
    offset = 0
    groups = (count + GROUP - 1) // GROUP
    for group in range(groups):
        first = group * GROUP
        size = min(GROUP, count - first)
        entry = skip[2 * group + 1]
        width = signed(entry >> 32)
        used = size * width
        words = (used + 63) >> 6
        # A width of more than 64, or one of the zero bytes above it, is too large as well.
        if width > 64 or signed(entry & np.uint64(0xFFFF_FFFF)) != offset:
            return group
        if words > len(payload) - offset:
            return group
        start = signed(skip[2 * group])
        if first > 0 and start <= out[first - 1]:
            return group
        out[first] = start
        if width == 0:
            if np.uint64(size) - _ONE > _GREATEST - unsigned(start):
                return group
            for k in range(1, size):
                out[first + k] = start + k
            continue
        mask = _ALL >> (64 - width)
        every = _ZERO
        room = _GREATEST - unsigned(start)  # How many ids could follow.
        overflow = payload[offset] & mask != _ZERO  # Slot 0 is zero.
        for k in range(1, size):
            at = k * width
            word, shift = offset + (at >> 6), at & 63
            gap = payload[word] >> shift
            if shift + width > 64:
                gap |= payload[word + 1] << (64 - shift)
            gap &= mask
            every |= gap
            overflow |= gap >= room
            room -= gap + _ONE
            out[first + k] = signed(_GREATEST - room)
        if overflow or bit_length(every) != width:
            return group
        if used & 63 and payload[offset + words - 1] >> (used & 63) != _ZERO:
            return group
        offset += words
    return groups if offset != len(payload) else -1


@jit
def encode_runs(ids: Ids, entries: Words) -> None:
    """Write `runs`: two words for each of the maximal runs that `measure` counts."""
    run = 0
    start = 0
    for k in range(1, len(ids) + 1):
        if k == len(ids) or _gap(ids, k) != _ZERO:
            entries[2 * run] = np.uint64(ids[start])
            entries[2 * run + 1] = np.uint64(k - start)
            run += 1
            start = k


@jit
def decode_runs(entries: Words, out: Ids) -> int:
    """Read `runs` into `out`, checking it against the format.

    Returns -1, or the number of the first bad run, which is the number of runs if they list fewer ids
    than `out` holds.
    """
    count = 0
    for run in range(len(entries) // 2):
        first, length = signed(entries[2 * run]), entries[2 * run + 1]
        if length == _ZERO or length > np.uint64(len(out) - count):
            return run
        if length - _ONE > _GREATEST - unsigned(first):
            return run
        # A run that touches the one before it would be part of it.
        if count > 0 and (first <= out[count - 1] or first - 1 == out[count - 1]):
            return run
        for k in range(signed(length)):
            out[count + k] = first + k
        count += signed(length)
    return -1 if count == len(out) else len(entries) // 2


@jit
def encode_bitmap(ids: Ids, words: Words, ranks: Words) -> None:
    """Write `bitmap`: `words` from the first id on, and one rank for each 8 of them."""
    words[:] = _ZERO
    for k in range(len(ids)):
        bit = np.uint64(ids[k]) - np.uint64(ids[0])
        words[signed(bit >> 6)] |= _ONE << (bit & np.uint64(63))
    rank = 0
    for block in range(len(ranks)):
        ranks[block] = np.uint64(rank)
        for word in range(block * BLOCK_WORDS, (block + 1) * BLOCK_WORDS):
            rank += ones(words[word])


@jit
def decode_bitmap(words: Words, ranks: Words, least: int, greatest: int, out: Ids) -> int:
    """Read `bitmap` of the ids from `least` to `greatest` into `out`, checking it.

    `words` has 8 words for each of `ranks`, just enough for greatest - least + 1 bits. Returns -1, or
    the number of the first bad block of 8 words, which is the last one if it doesn't end with
    `greatest` or if there are fewer ids than `out` holds.
    """
    count = 0
    for block in range(len(ranks)):
        if ranks[block] != np.uint64(count):
            return block
        start = block * BLOCK_WORDS
        found = 0
        for word in range(start, start + BLOCK_WORDS):
            found += ones(words[word])
        if found > len(out) - count or (block == 0 and not words[0] & _ONE):
            return block
        for word in range(start, start + BLOCK_WORDS):
            left = words[word]
            base = unsigned(least) + np.uint64(64 * word)
            while left != _ZERO:
                out[count] = signed(base + np.uint64(trailing_zeros(left)))
                count += 1
                left &= left - _ONE
    # A bit behind the greatest id makes another one the last.
    sound = count == len(out) and count > 0 and out[count - 1] == greatest
    return -1 if sound else len(ranks) - 1


@jit
def check_ids(ids: Ids, lo: int, hi: int) -> int:
    """The first position whose id isn't above the one before it or isn't in lo ... hi; or -1."""
    for k in range(len(ids)):
        if ids[k] < lo or ids[k] > hi or (k > 0 and ids[k] <= ids[k - 1]):
            return k
    return -1
