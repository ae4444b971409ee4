"""Bags of rows: summed, averaged or maximised while they are decoded, some at a time, in the processor's cache.

What that means, and in which order it is rounded, says `cnrfmt.kernels.pooling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cnrfmt import chunks, parallel
from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import UsageError
from cnrfmt.inputs import as_array, as_ids
from cnrfmt.memory import Budget
from cnrfmt.resolve import Strip

Mode = Literal["sum", "mean", "max"]
Pooled = npt.NDArray[np.float32]

_SCRATCH = 256 << 10
"""Bytes of decoded rows that one thread has at a time."""
_SHARE = 2 << 20
"""Bytes of decoded rows that are worth a thread."""
_MODES: tuple[Mode, ...] = ("sum", "mean", "max")
_NO_WEIGHTS = np.empty(0, np.float32)


class Bags(NamedTuple):
    """Bags of ids that were checked, as kernels take them; `weights` are none, or one for each id."""

    ids: Ids
    offsets: Ids
    weights: npt.NDArray[np.float32]
    mode: int


def as_bags(place: str, ids: Any, offsets: Any, weights: Any = None, mode: str = "sum") -> Bags:
    """A caller's bags, which `place` names in messages.

    Parameters
    ----------
    ids
        Integers, 1-D.
    offsets
        Where each bag begins among them, the first at 0; the last ends with the ids.
    weights
        Numbers that rows are multiplied by, one for each id, with mode ``"sum"`` alone.
    mode
        ``"sum"``, ``"mean"`` or ``"max"``.

    Raises
    ------
    UsageError
    """
    if mode not in _MODES:
        raise UsageError(f"{place}: mode is 'sum', 'mean' or 'max', found {mode!r}")
    listed, begins = as_ids(ids, f"{place}: ids"), as_ids(offsets, f"{place}: offsets")
    count = len(listed)
    if not len(begins):
        if count:
            raise UsageError(f"{place}: offsets must begin with 0, found none for {count} ids; one bag is offsets=[0]")
    elif begins[0] != 0:
        raise UsageError(f"{place}: offsets must begin with 0, found {begins[0]}")
    elif (begins[1:] < begins[:-1]).any():
        at = int(np.argmax(begins[1:] < begins[:-1])) + 1
        raise UsageError(f"{place}: offsets must ascend, found {begins[at]} at {at} behind {begins[at - 1]}")
    elif begins[-1] > count:
        raise UsageError(f"{place}: offsets must not exceed the number of ids, {count}, found {begins[-1]}")
    return Bags(listed, begins, _weights(place, weights, count, mode), _MODES.index(mode))


def _weights(place: str, weights: Any, count: int, mode: str) -> npt.NDArray[np.float32]:
    if weights is None:
        return _NO_WEIGHTS
    if mode != "sum":
        raise UsageError(f"{place}: weights go with mode 'sum' alone, found mode {mode!r}; leave them out")
    array = as_array(weights, what=f"{place}: weights")
    if array.shape != (count,):
        raise UsageError(f"{place}: weights must be one for each of {count} ids, found shape {array.shape}")
    if array.dtype.kind in "bc":
        raise UsageError(f"{place}: weights must be numbers that float32 can hold, found {array.dtype}")
    return array.astype(np.float32, copy=False)


def pool(
    strips: Sequence[Strip], bags: Bags, stored: np.dtype[Any], threads: int, budget: Budget, place: str
) -> Pooled:
    """Each bag's rows of all strips of a column, pooled to float32 of (bags, values per row).

    Bags are shared out among threads whole, so that the result doesn't depend on how many there are.

    Parameters
    ----------
    bags
        Their ids are row ids or keys; those that aren't there give the column's fill value.
    stored
        The column's own dtype.

    Raises
    ------
    DamagedError, TooLargeError
        As `Table.read` raises them.
    """
    from cnrfmt.kernels import pooling as kernel

    ids, offsets, weights, mode = bags
    width = strips[-1].end
    budget.take(4 * width * len(offsets), f"{place}: {len(offsets)} bags of {width} values")
    out = np.zeros((len(offsets), width), np.float32)
    # A row is decoded, put together of the strips, and converted, where that isn't the same.
    row_bytes = width * (stored.itemsize * (1 if len(strips) == 1 else 2) + (0 if stored == np.float32 else 4))
    step = max(1, _SCRATCH // row_bytes)
    ranges = _shares(offsets, len(ids), max(step, _SHARE // row_bytes) if threads > 1 else len(ids))
    chunks.prepare(strips, threads, budget, is_shared=len(ids) > step)

    def share(bounds: tuple[int, int]) -> None:
        first_bag, last_bag = bounds
        begins = offsets[first_bag:last_bag]
        end = int(offsets[last_bag]) if last_bag < len(offsets) else len(ids)
        sums, bag = out[first_bag:last_bag], 0
        start = int(begins[0])
        scratch = np.empty((min(step, end - start), width), stored)
        for first in range(start, end, step):
            some = ids[first : min(first + step, end)]
            rows = scratch[: len(some)]
            _decode(strips, some, rows)
            values = rows.astype(np.float32, copy=False)
            bag = kernel.pool_rows(values, first, bag, begins, end, weights, mode, sums)

    parallel.run(threads)(share, ranges)
    return out


def _shares(offsets: Ids, count: int, per_share: int) -> list[tuple[int, int]]:
    """Ranges of bags that have about so many ids each, or more if one bag has."""
    cuts = np.searchsorted(offsets, np.arange(0, count, max(1, per_share)))
    edges = np.unique(np.concatenate([cuts[cuts < len(offsets)], [0, len(offsets)]]))
    return list(pairwise(edges.tolist()))


def _decode(strips: Sequence[Strip], ids: Ids, rows: Array) -> None:
    if len(strips) == 1:
        strips[0].read_ids(ids, rows)
        return
    for strip in strips:
        piece = np.empty((len(ids), strip.end - strip.first), rows.dtype)
        strip.read_ids(ids, piece)
        rows[:, strip.first : strip.end] = piece
