"""Looking rows up in memory where a map says in which slot each of them is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import jit
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
