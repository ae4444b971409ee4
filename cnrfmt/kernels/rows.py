"""Moving rows, and finding which rows are where."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import copy, prefetch_row

_SEARCHES = 16
_DENSE = 32
"""Up to so many ids for each one that is sought are quicker gone through than searched."""


@jit
def gather_rows(data: Bytes, offsets: Ids, row_bytes: int, out: Bytes, targets: Ids) -> None:
    """out[targets[k]] = the `row_bytes` bytes at offsets[k]."""
    flat = out.reshape(out.size)
    for k in range(len(offsets)):
        prefetch_row(data, offsets, k, row_bytes)
        copy(flat, targets[k] * row_bytes, data, offsets[k], row_bytes)


@jit
def claim(ids: Ids, first: int, claimed: Bytes, positions: Ids, targets: Ids) -> int:
    """Take those of the rows `ids` that nobody took yet: mark id i in claimed[i - first].

    positions[n] and targets[n] say where the n-th row taken stands in `ids` and in `claimed`, which
    holds 0 and 1 only. Returns how many were taken; both arrays need room for all ids.
    """
    count = 0
    for k in range(len(ids)):
        target = ids[k] - first
        # Always written, and kept only if counted: there is no branch to guess.
        positions[count] = k
        targets[count] = target
        count += 1 - int(claimed[target])
        claimed[target] = 1
    return count


@jit
def unclaimed(claimed: Bytes, targets: Ids) -> int:
    """List the rows that nobody took in `targets`, which needs room for all; returns how many."""
    count = 0
    for target in range(len(claimed)):
        targets[count] = target
        count += 1 - int(claimed[target])
    return count


@helper
def _find_ascending(sorted_ids: Any, first: int, stop: int, wanted: Any, out: Any) -> None:
    """As `find`, of wanted ids that ascend and positions from `first` on, before `stop`: both are gone through once."""
    k = first
    for i in range(len(wanted)):
        while k < stop and sorted_ids[k] < wanted[i]:
            k += 1
        out[i] = k if k < stop and sorted_ids[k] == wanted[i] else -1


@jit
def find(sorted_ids: Ids, wanted: Ids, out: Ids) -> None:
    """out[k] = the position of wanted[k] in `sorted_ids`, which are distinct, or -1."""
    size, count = len(sorted_ids), len(wanted)
    if size == 0 or count == 0:
        out[:] = -1
        return
    is_ascending = True
    for k in range(1, count):
        is_ascending &= wanted[k - 1] <= wanted[k]
    if is_ascending:
        first = np.searchsorted(sorted_ids, wanted[0])
        stop = np.searchsorted(sorted_ids, wanted[count - 1], side="right")
        if stop - first <= _DENSE * count:
            _find_ascending(sorted_ids, first, stop, wanted, out)
            return
    # Several searches go on at once, step by step, so that they wait for memory together. Where each
    # has got to is kept in `out`: the last position with an id of at most the one sought lies in the
    # `length` positions from there on.
    for first in range(0, len(wanted), _SEARCHES):
        stop = min(first + _SEARCHES, len(wanted))
        out[first:stop] = 0
        length = size
        while length > 1:
            half = length >> 1
            for k in range(first, stop):
                middle = sorted_ids[out[k] + half]
                out[k] += half * int(middle <= wanted[k])
            length -= half
        for k in range(first, stop):
            if sorted_ids[out[k]] != wanted[k]:
                out[k] = -1
