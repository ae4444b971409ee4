"""Sums, means and maxima of rows, bag by bag, in float32.

A bag is a run of places in a list: bag i has those from offsets[i] to offsets[i + 1] - 1, the last those up to
`end` - 1. Rows are added to zero in the order of their places, each sum rounded by itself, a weighted row's product
before it: never contracted into one step, so that every machine and every way here gives the same bits. A mean is the
sum, divided once. A maximum is NaN where one of its rows is; of zeros the first stays. A bag of nothing is zero.

`pool_slots`, `pool_floats` and `pool_codes` decode rows and add them in one loop, where they lie; `pool_rows` takes
rows that come some at a time, whatever they were decoded from.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.kernels import _bags
from cnrfmt.kernels._bags import MAX, MEAN, SUM
from cnrfmt.kernels._halves import BFLOAT16, FLOAT16, FLOAT32
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._lanes import LANES, each, load, store
from cnrfmt.kernels._machine import pointer

__all__ = ["KINDS", "MAX", "MEAN", "SUM", "pool_codes", "pool_floats", "pool_rows", "pool_slots"]

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float32]
"""One for each place, or none at all."""

KINDS = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}
"""The data types of rows that are pooled where they lie, as the kernels name them."""

_FOUR = 4 * LANES
_NO_BYTES = np.empty(0, np.uint8)


@helper
def _add(
    values: Values,
    first: int,
    begin: int,
    stop: int,
    weights: Weights,
    is_weighted: bool,
    dim: int,
    out: Values,
    to: int,
) -> None:
    """Add the rows of places begin .. stop - 1 to the `dim` sums from out[to] on; the first row is place `first`."""
    column = 0
    while column + _FOUR <= dim:
        at = to + column
        a, b, c, d = load(out, at), load(out, at + LANES), load(out, at + 2 * LANES), load(out, at + 3 * LANES)
        for k in range(begin, stop):
            row = (k - first) * dim + column
            w, x = load(values, row), load(values, row + LANES)
            y, z = load(values, row + 2 * LANES), load(values, row + 3 * LANES)
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
            w = load(values, (k - first) * dim + column)
            if is_weighted:
                w = each(weights[k]) * w
            a = a + w
        store(out, to + column, a)
        column += LANES
    if column == dim:
        return
    for k in range(begin, stop):
        for j in range(column, dim):
            value = values[(k - first) * dim + j]
            out[to + j] += weights[k] * value if is_weighted else value


@helper
def _raise_to(
    values: Values, first: int, begin: int, stop: int, starts: int, dim: int, out: Values, to: int
) -> None:
    """Raise the `dim` maxima from out[to] on to the rows of the places begin .. stop - 1; place `starts` sets them."""
    for k in range(begin, stop):
        row = (k - first) * dim
        for j in range(dim):
            value, most = values[row + j], out[to + j]
            # A NaN compares with nothing: it comes in, and what is there stays if it is one.
            is_above = not (value <= most) and most == most
            out[to + j] = value if k == starts or is_above else most


@helper
def _divide(count: int, dim: int, out: Values, to: int) -> None:
    for j in range(to, to + dim):
        out[j] /= np.float32(count)


def pool_slots(
    rows: Array,
    default: Array,
    slots: npt.NDArray[np.signedinteger],
    offsets: Ids,
    end: int,
    weights: Weights,
    mode: int,
    out: Rows,
) -> None:
    """out[i] = bag i of the rows rows[slots[k]], `default` standing for those of slot -1.

    Both are of one data type of `KINDS`. Raises `IndexError` for any other slot that isn't there.
    """
    row_bytes = rows.shape[1] * rows.itemsize
    data, other = rows.reshape(-1).view(np.uint8), default.view(np.uint8)
    kernel = _bags.of_floats(KINDS[rows.dtype.name])
    lost = kernel(
        data, 0, row_bytes, 0, 0, 0, other, _NO_BYTES, 0, slots, len(rows), offsets, end, weights, mode, out
    )  # fmt: skip
    if lost >= 0:
        raise IndexError(f"there is no slot {slots[lost]}, which place {lost} names")


def pool_floats(
    data: Bytes,
    base: int,
    row_bytes: int,
    kind: int,
    marks: Bytes,
    shift: int,
    places: npt.NDArray[np.signedinteger],
    count: int,
    offsets: Ids,
    end: int,
    weights: Weights,
    mode: int,
    out: Rows,
) -> int:
    """out[i] = bag i of the rows at these places, numbers of a kind: row p begins at byte base + p * row_bytes.

    Pieces of 1 << shift bytes have a mark each in `marks`, and a row is read only where its pieces, two at the most,
    are marked; without marks, all are read. Returns the first place in the list whose row isn't one of `count`, or
    else isn't marked, or -1; where there is one, nothing of `out` counts.
    """
    kernel = _bags.of_floats(kind)
    lost: int = kernel(
        data, base, row_bytes, 0, 0, 0, _NO_BYTES, marks, shift, places, count, offsets, end, weights, mode, out
    )  # fmt: skip
    return lost


def pool_codes(
    data: Bytes,
    base: int,
    row_bytes: int,
    bits: int,
    codes_at: int,
    scale_at: int,
    bias_at: int,
    scale_kind: int,
    bias_kind: int,
    marks: Bytes,
    shift: int,
    places: npt.NDArray[np.signedinteger],
    count: int,
    offsets: Ids,
    end: int,
    weights: Weights,
    mode: int,
    out: Rows,
) -> int:
    """As `pool_floats`, of rows of codes, with a scale and a bias at these bytes of a row; `bias_kind` is -1 without.

    There is a kernel for each number of bits and kinds of parameters, compiled when it is first called.
    """
    kernel = _bags.of_codes(bits, scale_kind, bias_kind)
    lost: int = kernel(
        data, base, row_bytes, codes_at, scale_at, bias_at, _NO_BYTES, marks, shift, places, count, offsets, end,
        weights, mode, out,
    )  # fmt: skip
    return lost


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
            _raise_to(values, first, begin, stop, starts, dim, sums, to)
        else:
            _add(values, first, begin, stop, factors, is_weighted, dim, sums, to)
        if ends > last:
            break
        if mode == MEAN and ends > starts:
            _divide(ends - starts, dim, sums, to)
        bag += 1
    return bag
