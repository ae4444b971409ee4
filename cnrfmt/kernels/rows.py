"""Moving rows, and finding which rows are where."""

from __future__ import annotations

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import jit
from cnrfmt.kernels._machine import copy, prefetch_row

_SEARCHES = 16


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


@jit
def find(sorted_ids: Ids, wanted: Ids, out: Ids) -> None:
    """out[k] = the position of wanted[k] in `sorted_ids`, or -1."""
    size = len(sorted_ids)
    if size == 0:
        out[:] = -1
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
