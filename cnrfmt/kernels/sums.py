"""Adding up rows of integers that come from many parts, and finding which rows are still to be had."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import pointer

NONE = -1
"""Stands for the grid of a row that nothing was added to."""


@helper
def add_row(total: Any, grids: Any, place: int, rows: Any, start: int, width: int, number: int) -> bool:
    """Add rows[start : start + width] to a row of `total`, as `add_at` does; False if it is on another grid."""
    grid, first = grids[place], place * width
    if grid != number and grid != NONE:
        return False
    grids[place] = np.int32(number)
    if width == 1:
        total[place] = rows[start] + (total[place] if grid == number else np.int32(0))
    elif grid == number:
        for j in range(width):
            total[first + j] += rows[start + j]
    else:
        for j in range(width):
            total[first + j] = rows[start + j]
    return True


@jit
def add_at(
    total: npt.NDArray[np.int32], grids: npt.NDArray[np.int32], targets: Ids, rows: npt.NDArray[np.int32], number: int
) -> int:
    """total[targets[i]] = rows[i] where there was nothing, += rows[i], modulo 2^32, where the row is on grid `number`.

    No two targets are the same. grids[t] is the grid of row t: it becomes `number`. Returns the first i whose row is on
    another grid, where it stops; -1 if none is.
    """
    target, source, width = pointer(total), pointer(rows), rows.shape[1]
    for i in range(len(targets)):
        if not add_row(target, grids, targets[i], source, i * width, width, number):
            return i
    return -1


@jit
def unsettled(ids: Ids, first: int, settled: Bytes, positions: Ids, targets: Ids) -> int:
    """List those of the rows `ids`, ascending, with settled[id - first] == 0; returns how many there are.

    positions[n] and targets[n] say where the n-th of them stands in `ids` and in `settled`, which holds 0 and 1 only;
    both arrays need room for all ids.
    """
    count = 0
    for k in range(len(ids)):
        target = ids[k] - first
        # Always written, and kept only if counted: there is no branch to guess.
        positions[count] = k
        targets[count] = target
        count += 1 - int(settled[target])
    return count
