"""Marked keys: a hash table of int64 keys, each of which is to be written or to be deleted.

It has a power of two of slots. A key stands in the first free slot from the one on that its hash names (open
addressing, linear probing; Knuth, The Art of Computer Programming, volume 3, section 6.4). Any int64 is a key, so
a byte beside each slot says whether it is `FREE`, and if not, what its key's `state` is. No key is ever taken out. At
least one slot is always free, which ends each search.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import signed, unsigned

FREE, WRITTEN, DELETED = 0, 1, 2

_ONE = np.uint64(1)


@helper
def _slot(key: int, keys: Ids, states: Bytes, seed: np.uint64) -> int:
    """The slot of a key, or the free one where it belongs. The hash ends as that of MurmurHash3 (Appleby) does."""
    mask = np.uint64(len(keys)) - _ONE
    word = unsigned(key) ^ seed
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51_AFD7_ED55_8CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CE_B9FE_1A85_EC53)
    word ^= word >> np.uint64(33)
    at = word & mask
    while states[at] != FREE and keys[at] != key:
        at = (at + _ONE) & mask
    return signed(at)


@jit
def put(
    ids: npt.NDArray[np.signedinteger],
    first: int,
    state: int,
    most: int,
    keys: Ids,
    states: Bytes,
    counts: Ids,
    seed: np.uint64,
) -> int:
    """Give the keys from ids[first] on a state, whatever theirs was.

    counts[s] is the number of keys in state s. Returns how many of `ids` are done: all of them, or those before the
    first that would be one key more than `most`, which is less than there are slots.
    """
    for k in range(first, len(ids)):
        key = int(ids[k])
        at = _slot(key, keys, states, seed)
        before = int(states[at])
        if before != state:
            if before != FREE:
                counts[before] -= 1
            elif counts[WRITTEN] + counts[DELETED] >= most:
                return k
            else:
                keys[at] = key
            states[at] = state
            counts[state] += 1
    return len(ids)


@jit
def merge(
    from_keys: Ids, from_states: Bytes, replace: bool, keys: Ids, states: Bytes, counts: Ids, seed: np.uint64
) -> None:
    """Put the keys of one table, with their states, into another, which has room for all of them.

    Where both have a key, the state of the first holds with `replace`, else the second's.
    """
    for slot in range(len(from_keys)):
        state = int(from_states[slot])
        if state != FREE:
            at = _slot(from_keys[slot], keys, states, seed)
            before = int(states[at])
            if before == FREE:
                keys[at] = from_keys[slot]
            elif replace:
                counts[before] -= 1
            else:
                continue
            states[at] = state
            counts[state] += 1


@jit
def extract(keys: Ids, states: Bytes, state: int, newer: Ids, newer_states: Bytes, seed: np.uint64, out: Ids) -> int:
    """List the keys of one table that are in a state and that a newer table doesn't have, in no order.

    Returns how many. `out` needs room for as many as there are in the state.
    """
    found = 0
    for slot in range(len(keys)):
        if states[slot] == state and newer_states[_slot(keys[slot], newer, newer_states, seed)] == FREE:
            out[found] = keys[slot]
            found += 1
    return found
