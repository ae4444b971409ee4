"""Adding up rows of integers that come from many parts, and finding which rows are still to be had."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import jit
from cnrfmt.kernels._machine import pointer

NONE = -1
"""Stands for the grid of a row that nothing was added to."""


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
        place = targets[i]
        grid, first, start = grids[place], place * width, i * width
        if grid == NONE:
            grids[place] = np.int32(number)
            for j in range(width):
                target[first + j] = source[start + j]
        elif grid == number:
            for j in range(width):
                target[first + j] += source[start + j]
        else:
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
