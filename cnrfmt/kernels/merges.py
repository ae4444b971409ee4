"""Finding the rows of one ascending list of ids in another."""

from __future__ import annotations

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import jit


@jit
def claim_listed(ids: Ids, wanted: Ids, claimed: Bytes, positions: Ids, targets: Ids) -> int:
    """Take those of the rows `wanted` that are among `ids` and that nobody took yet; both are strictly ascending.

    claimed[t] says whether somebody took wanted[t], and is set to 1 here. positions[n] and targets[n] say where the
    n-th row taken stands in `ids` and in `wanted`; both arrays need room for as many rows as `wanted` has. Returns
    how many were taken. Both lists are gone through once, side by side.
    """
    count, k = 0, 0
    for target in range(len(wanted)):
        while k < len(ids) and ids[k] < wanted[target]:
            k += 1
        if k == len(ids):
            break
        if ids[k] == wanted[target] and claimed[target] == 0:
            claimed[target] = 1
            positions[count] = k
            targets[count] = target
            count += 1
    return count
