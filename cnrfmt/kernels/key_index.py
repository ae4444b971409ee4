"""A hash table of distinct int64 keys that is built once: each key's number, found at the price of one cache line.

It has a power of two of slots. A key stands in the first free slot from the one on that its hash names (open
addressing, linear probing; Knuth, The Art of Computer Programming, volume 3, section 6.4). A slot holds the key
and behind it, in 4 or in 8 bytes, its number plus one: zero there, and nothing else, tells that the slot is free, since
any int64 is a key. At least one slot is always free, which ends each search.

Key and number are side by side, since a search that waits for memory should wait once. A slot of 12 bytes lies across
two lines of the cache in one case of eight, but half as many more fit into the cache than of 16 bytes.
"""

from __future__ import annotations

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import load_u32, load_u64, pointer, prefetch, signed, store, unsigned

NARROW, WIDE = 12, 16
"""Bytes of a slot: for numbers below 2**32 - 1, and for any."""

_KEY = 8
_FREE = 0
# So many searches wait for memory together.
_SEARCHES = 32


@helper
def _hash(key: int, seed: np.uint64) -> int:
    """Any bits of the result may be used: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    word = unsigned(key) ^ seed
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return signed(word ^ (word >> np.uint64(31)))


@helper
def _number(slots: Bytes, at: int, slot_bytes: int) -> int:
    """The number plus one in a slot; `_FREE` if there is none."""
    place = at * slot_bytes + _KEY
    if slot_bytes == NARROW:
        return signed(np.uint64(load_u32(slots, place)))
    return signed(load_u64(slots, place))


@helper
def _ask_for(slots: Bytes, at: int, slot_bytes: int) -> None:
    first = at * slot_bytes
    prefetch(slots, first)
    prefetch(slots, first + slot_bytes - 1)


@jit
def build(keys: Ids, slots: Bytes, slot_bytes: int, seed: np.uint64) -> int:
    """Put keys[k] with number k into slots that are all zero: a power of two of them, more than there are keys.

    Returns -1, or the first k whose key was there already; those before it are in.
    """
    last = slots.size // slot_bytes - 1
    count = len(keys)
    for k in range(count):
        if k + _SEARCHES < count:
            _ask_for(slots, _hash(keys[k + _SEARCHES], seed) & last, slot_bytes)
        key = keys[k]
        at = _hash(key, seed) & last
        while _number(slots, at, slot_bytes) != _FREE:
            if signed(load_u64(slots, at * slot_bytes)) == key:
                return k
            at = (at + 1) & last
        store(slots, at * slot_bytes, unsigned(key))
        if slot_bytes == NARROW:
            store(slots, at * slot_bytes + _KEY, np.uint32(k + 1))
        else:
            store(slots, at * slot_bytes + _KEY, unsigned(k + 1))
    return -1


@jit
def find(slots: Bytes, slot_bytes: int, seed: np.uint64, wanted: Ids, out: Ids) -> None:
    """out[k] = the number of the key wanted[k], or -1."""
    table = pointer(slots)
    last = slots.size // slot_bytes - 1
    for first in range(0, len(wanted), _SEARCHES):
        stop = min(first + _SEARCHES, len(wanted))
        # Where each search begins is kept in `out`.
        for k in range(first, stop):
            out[k] = _hash(wanted[k], seed) & last
            _ask_for(table, out[k], slot_bytes)
        for k in range(first, stop):
            at = out[k]
            number = _number(table, at, slot_bytes)
            while number != _FREE and signed(load_u64(table, at * slot_bytes)) != wanted[k]:
                at = (at + 1) & last
                number = _number(table, at, slot_bytes)
            out[k] = number - 1
