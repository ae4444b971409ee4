"""Looking rows up in memory where a map says in which slot each of them is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import copy, pointer, prefetch

Slots = npt.NDArray[np.int32]
_AHEAD, _LINE = 16, 64


@jit
def slots_of(slots: Slots, positions: Ids, out: Ids) -> None:
    """out[k] = slots[positions[k]], or -1 where the position is -1."""
    source, wanted = pointer(slots), pointer(positions)
    count = len(positions)
    for k in range(count):
        if k + _AHEAD < count:
            prefetch(source, max(0, wanted[k + _AHEAD]))
        out[k] = source[wanted[k]] if wanted[k] >= 0 else -1


@jit
def rows_of(store: Bytes, slots: Ids, row_bytes: int, default: Bytes, out: Bytes) -> None:
    """Copy the row in each slot, or `default` where the slot is -1, to `out`, one behind the other.

    Slot s of `store` begins at byte s * row_bytes.
    """
    source, target, wanted, other = pointer(store), pointer(out), pointer(slots), pointer(default)
    count = len(slots)
    for k in range(count):
        if k + _AHEAD < count:
            first = max(0, wanted[k + _AHEAD]) * row_bytes
            for line in range(first, first + row_bytes, _LINE):
                prefetch(source, line)
        if wanted[k] >= 0:
            copy(target, k * row_bytes, source, wanted[k] * row_bytes, row_bytes)
        else:
            copy(target, k * row_bytes, other, 0, row_bytes)


@helper
def _slot(slots: Any, is_mapped: bool, position: int) -> int:
    return int(slots[position]) if is_mapped else position


@jit
def rows_of_range(
    store: Bytes, slots: Slots, is_mapped: bool, ids: Ids, first: int, count: int, row_bytes: int, out: Bytes
) -> int:
    """Copy the rows of these ids, of which `count` are held from id `first` on, to `out`, one behind the other.

    Where `is_mapped`, slots[id - first] is the slot of a row, or -1; else it is id - first. Returns the place of the
    first id that isn't held, where it stops; -1 if all are.
    """
    source, target, wanted, places = pointer(store), pointer(out), pointer(ids), pointer(slots)
    many = len(ids)
    for k in range(many):
        if is_mapped and k + 2 * _AHEAD < many:
            later = wanted[k + 2 * _AHEAD] - first
            if 0 <= later < count:
                prefetch(places, later)
        if k + _AHEAD < many:
            later = wanted[k + _AHEAD] - first
            if 0 <= later < count:
                begin = max(0, _slot(places, is_mapped, later)) * row_bytes
                for line in range(begin, begin + row_bytes, _LINE):
                    prefetch(source, line)
        position = wanted[k] - first
        if position < 0 or position >= count:
            return k
        slot = _slot(places, is_mapped, position)
        if slot < 0:
            return k
        copy(target, k * row_bytes, source, slot * row_bytes, row_bytes)
    return -1
