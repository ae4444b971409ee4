"""Looking rows up in memory where a map says in which slot each of them is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import jit
from cnrfmt.kernels._machine import copy, pointer, prefetch

Slots = npt.NDArray[np.int32]
_AHEAD, _LINE = 16, 64
_AT_ONCE = 4096
"""Ids whose slots are found before their rows are copied."""


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


@jit
def copy_rows(store: Bytes, slots: Ids, to: Ids, row_bytes: int) -> None:
    """Copy the row in each slot to another one; none of these is among those."""
    source, wanted, places = pointer(store), pointer(slots), pointer(to)
    count = len(slots)
    for k in range(count):
        if k + _AHEAD < count:
            first = wanted[k + _AHEAD] * row_bytes
            for line in range(first, first + row_bytes, _LINE):
                prefetch(source, line)
        copy(source, places[k] * row_bytes, source, wanted[k] * row_bytes, row_bytes)


@jit
def rows_of_range(
    store: Bytes, slots: Slots, is_mapped: bool, ids: Ids, first: int, count: int, row_bytes: int, out: Bytes
) -> int:
    """Copy the rows of these ids, of which `count` are held from id `first` on, to `out`, one behind the other.

    Where `is_mapped`, slots[id - first] is the slot of a row, or -1; else it is id - first. Returns the place of the
    first id that isn't held, or -1 if all are; where one isn't, some rows before it may be missing.
    """
    source, target, wanted, places = pointer(store), pointer(out), pointer(ids), pointer(slots)
    many = len(ids)
    found = np.empty(min(many, _AT_ONCE), np.int64)
    for start in range(0, many, _AT_ONCE):
        some = min(_AT_ONCE, many - start)
        # All slots first: the machine then waits for many of them at a time, and never for one on the way to a row.
        for k in range(some):
            position = wanted[start + k] - first
            if position < 0 or position >= count:
                return start + k
            if is_mapped:
                if start + k + 2 * _AHEAD < many:
                    prefetch(places, min(max(0, wanted[start + k + 2 * _AHEAD] - first), count - 1))
                position = int(places[position])
                if position < 0:
                    return start + k
            found[k] = position
        for k in range(some):
            if k + _AHEAD < some:
                begin = found[k + _AHEAD] * row_bytes
                for line in range(begin, begin + row_bytes, _LINE):
                    prefetch(source, line)
            copy(target, (start + k) * row_bytes, source, found[k] * row_bytes, row_bytes)
    return -1
