"""Sums, means and maxima of rows, bag by bag, in float32.

A bag is a run of places in a list: bag i has those from offsets[i] to offsets[i + 1] - 1, the last those up to
`end` - 1. Rows are added to zero in the order of their places, each sum rounded by itself, a weighted row's product
before it: never contracted into one step, so that every machine and every way here gives the same bits. A mean is the
sum, divided once. A maximum is NaN where one of its rows is; of zeros the first stays. A bag of nothing is zero.

Rows are added some columns at a time, whose sums stay in registers from the first row of a bag to the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._lanes import LANES, Lanes, each, load, store
from cnrfmt.kernels._machine import pointer, prefetch

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float32]
"""One for each place, or none at all."""

SUM, MEAN, MAX = 0, 1, 2

_FOUR = 4 * LANES
# Rows are asked for so long before they are added.
_AHEAD = 16
_LINE = 64 // 4


@helper
def _ask_for(values: Values, slots: Any, k: int, end: int, dim: int) -> None:
    """Ask for the row of a later place."""
    if k + _AHEAD < end and slots[k + _AHEAD] >= 0:
        first = slots[k + _AHEAD] * dim
        for line in range(first, first + dim, _LINE):
            prefetch(values, line)
        # Rows needn't begin where a line of the cache does.
        prefetch(values, first + dim - 1)


@helper
def _lanes(values: Values, default: Values, slot: int, dim: int, column: int) -> Lanes:
    return load(values, slot * dim + column) if slot >= 0 else load(default, column)


@helper
def _element(values: Values, default: Values, slot: int, dim: int, column: int) -> Any:
    return values[slot * dim + column] if slot >= 0 else default[column]


@helper
def _slot(slots: Any, first: int, k: int) -> int:
    """The row of place k: as listed, or in order from place `first` on."""
    if slots is None:
        return k - first
    return int(slots[k])


@helper
def _add(
    values: Values,
    default: Values,
    slots: Any,
    first: int,
    begin: int,
    stop: int,
    end: int,
    weights: Weights,
    is_weighted: bool,
    dim: int,
    out: Values,
    to: int,
) -> None:
    """Add the rows of the places begin .. stop - 1 to the `dim` sums from out[to] on."""
    column = 0
    while column + _FOUR <= dim:
        at = to + column
        a, b, c, d = load(out, at), load(out, at + LANES), load(out, at + 2 * LANES), load(out, at + 3 * LANES)
        for k in range(begin, stop):
            if slots is not None and column == 0:
                _ask_for(values, slots, k, end, dim)
            slot = _slot(slots, first, k)
            w = _lanes(values, default, slot, dim, column)
            x = _lanes(values, default, slot, dim, column + LANES)
            y = _lanes(values, default, slot, dim, column + 2 * LANES)
            z = _lanes(values, default, slot, dim, column + 3 * LANES)
            if is_weighted:
                weight = each(weights[k])
                w, x, y, z = weight * w, weight * x, weight * y, weight * z
            a, b, c, d = a + w, b + x, c + y, d + z
        store(out, at, a)
        store(out, at + LANES, b)
        store(out, at + 2 * LANES, c)
        store(out, at + 3 * LANES, d)
        column += _FOUR
    while column + LANES <= dim:
        a = load(out, to + column)
        for k in range(begin, stop):
            if slots is not None and column == 0:
                _ask_for(values, slots, k, end, dim)
            w = _lanes(values, default, _slot(slots, first, k), dim, column)
            if is_weighted:
                w = each(weights[k]) * w
            a = a + w
        store(out, to + column, a)
        column += LANES
    if column == dim:
        return
    for k in range(begin, stop):
        if slots is not None and column == 0:
            _ask_for(values, slots, k, end, dim)
        slot = _slot(slots, first, k)
        for j in range(column, dim):
            value = _element(values, default, slot, dim, j)
            out[to + j] += weights[k] * value if is_weighted else value


@helper
def _raise_to(
    values: Values,
    default: Values,
    slots: Any,
    first: int,
    begin: int,
    stop: int,
    end: int,
    starts: int,
    dim: int,
    out: Values,
    to: int,
) -> None:
    """Raise the `dim` maxima from out[to] on to the rows of the places begin .. stop - 1; place `starts` sets them."""
    for k in range(begin, stop):
        if slots is not None:
            _ask_for(values, slots, k, end, dim)
        slot = _slot(slots, first, k)
        if k == starts:
            for j in range(dim):
                out[to + j] = _element(values, default, slot, dim, j)
        else:
            for j in range(dim):
                value, most = _element(values, default, slot, dim, j), out[to + j]
                # A NaN compares with nothing: it comes in, and what is there stays if it is one.
                out[to + j] = value if not (value <= most) and most == most else most


@helper
def _divide(count: int, dim: int, out: Values, to: int) -> None:
    for j in range(to, to + dim):
        out[j] /= np.float32(count)


@jit
def pool_slots(
    rows: Rows,
    default: Values,
    slots: npt.NDArray[np.signedinteger],
    offsets: Ids,
    end: int,
    weights: Weights,
    mode: int,
    out: Rows,
) -> None:
    """out[i] = bag i of the rows rows[slots[k]], `default` standing for those of slot -1."""
    dim, is_weighted = out.shape[1], len(weights) > 0
    values, other, listed = pointer(rows), pointer(default), pointer(slots)
    factors, sums = pointer(weights), pointer(out)
    for bag in range(len(offsets)):
        begin = offsets[bag]
        stop = offsets[bag + 1] if bag + 1 < len(offsets) else end
        to = bag * dim
        for j in range(to, to + dim):
            sums[j] = np.float32(0)
        if mode == MAX:
            _raise_to(values, other, listed, 0, begin, stop, end, begin, dim, sums, to)
        else:
            _add(values, other, listed, 0, begin, stop, end, factors, is_weighted, dim, sums, to)
            if mode == MEAN and stop > begin:
                _divide(stop - begin, dim, sums, to)


@jit
def pool_rows(
    rows: Rows, first: int, bag: int, offsets: Ids, end: int, weights: Weights, mode: int, out: Rows
) -> int:
    """out[i] = bag i of rows that come some at a time: these are those of the places first, first + 1, ...

    Before the first call `out` is zero, `bag` is 0 and `first` is offsets[0]; returns what `bag` is at the next
    call, whose rows follow on these.
    """
    dim, is_weighted = out.shape[1], len(weights) > 0
    values, factors, sums = pointer(rows), pointer(weights), pointer(out)
    last = first + len(rows)
    while bag < len(offsets):
        starts = offsets[bag]
        ends = offsets[bag + 1] if bag + 1 < len(offsets) else end
        begin, stop, to = max(starts, first), min(ends, last), bag * dim
        if mode == MAX:
            _raise_to(values, values, None, first, begin, stop, end, starts, dim, sums, to)
        else:
            _add(values, values, None, first, begin, stop, end, factors, is_weighted, dim, sums, to)
        if ends > last:
            break
        if mode == MEAN and ends > starts:
            _divide(ends - starts, dim, sums, to)
        bag += 1
    return bag
