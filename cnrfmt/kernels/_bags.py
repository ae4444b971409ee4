"""Bags of rows that are decoded and added in the same loop: a kernel for each way in which elements are stored.

What a bag is, and how it is rounded, says `cnrfmt.kernels.pooling`. Elements are added 64 at a time, then 16 at a
time, in registers from the first row of a bag to the last; what remains of a row is taken together with elements that
are done already, and done again. Where its codes don't begin with a byte, it is copied to where sixteen can be read.

Codes of 2 and 4 bits are looked up in a table of the values that they have in their row, where the machine does it in
one step: each value is a product and a sum, rounded one after the other, as everywhere else.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._halves import FLOAT32, NO_PARAMETER
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._lanes import LANES, Lanes, each, select, store
from cnrfmt.kernels._machine import copy, pointer, prefetch
from cnrfmt.kernels._parameters import load_parameter
from cnrfmt.kernels._stored_lanes import (
    all_codes,
    code_finder,
    code_reader,
    float_reader,
    is_above,
    moved,
    ordered,
    row_or,
)

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]

SUM, MEAN, MAX = 0, 1, 2

_FOUR = 4 * LANES
# Rows are asked for so long before they are added.
_AHEAD = 16
_LINE = 64
_ZERO = np.float32(0)
_LEAST = np.float32(-np.inf)


@helper
def _first_lost(ids: Ids, begin: int, end: int, count: int, has_default: bool) -> int:
    """The first of the places begin .. end - 1 whose id isn't that of a row, nor -1 for the default row; else -1."""
    # As words, what is negative is greater than all.
    more = np.int64(1 if has_default else 0)
    limit, greatest = np.uint64(count + more), np.uint64(0)
    for k in range(begin, end):
        greatest = max(greatest, np.uint64(ids[k] + more))
    if end > begin and greatest >= limit:
        for k in range(begin, end):
            if np.uint64(ids[k] + more) >= limit:
                return k
    return -1


@helper
def _first_unmarked(
    ids: Ids, begin: int, end: int, base: int, row_bytes: int, marks: Bytes, shift: int
) -> int:
    """The first place whose row lies in a piece that isn't marked, or -1; no row touches more than two pieces."""
    for k in range(begin, end):
        at = base + ids[k] * row_bytes
        if not marks[at >> shift] & marks[(at + row_bytes - 1) >> shift]:
            return k
    return -1


@helper
def _ask_for(data: Bytes, at: int, row_bytes: int) -> None:
    """Ask for a row; what is beyond the first lines of a long one, the processor foresees by itself."""
    prefetch(data, at)
    if row_bytes >= 2 * _LINE:
        prefetch(data, at + _LINE)
    if row_bytes >= 3 * _LINE:
        prefetch(data, at + 2 * _LINE)
        prefetch(data, at + 3 * _LINE)
    if row_bytes > 4 * _LINE:
        for line in range(4, 8):
            prefetch(data, at + line * _LINE)
    if row_bytes % _LINE:
        # Then rows don't begin where a line of the cache does.
        prefetch(data, at + row_bytes - 1)


@helper
def _taken_in(total: Lanes, value: Lanes, weight: np.float32, is_weighted: bool, is_greatest: bool) -> Lanes:
    if is_greatest:
        return select(is_above(value, total), value, total)
    if is_weighted:
        return total + each(weight) * value
    return total + value


def _make(read: Any, bits: int, kinds: tuple[int, int] | None, name: str) -> Any:
    """The kernel for elements of so many bits; codes have a scale of a kind, and mostly a bias, in their row."""
    has_codes = kinds is not None
    scale_kind, bias_kind = kinds or (NO_PARAMETER, NO_PARAMETER)
    biased = bias_kind != NO_PARAMETER
    top = (1 << bits) - 1 if has_codes else 0
    find: Any = code_finder(bits) if has_codes else None
    every: Any = all_codes(bits)
    order = ordered(bits) if find is not None else None

    @helper
    def valued(codes: Lanes, scale: np.float32, bias: np.float32) -> Lanes:
        """The values of codes."""
        if biased:
            return codes * each(scale) + each(bias)
        return (codes + codes - each(np.float32(top))) * each(scale)

    @helper
    def table_of(scale: np.float32, bias: np.float32) -> Lanes:
        """The values of all codes of a row, where they are looked up."""
        return valued(every(), scale, bias) if find is not None else each(scale)

    @helper
    def lanes_of(data: Bytes, at: int, column: int, scale: np.float32, bias: np.float32, table: Lanes) -> Lanes:
        """Elements of the row whose elements begin at data[at]."""
        at += column * bits >> 3
        if find is not None:
            lanes: Lanes = find(data, at, table)
        elif has_codes:
            lanes = valued(read(data, at), scale, bias)
        else:
            lanes = read(data, at)
        return lanes

    @helper
    def put(sums: Values, at: int, lanes: Lanes, many: np.float32, is_mean: bool) -> None:
        if order is not None:
            lanes = order(lanes)
        store(sums, at, lanes / each(many) if is_mean else lanes)

    @helper
    def row_of(source: Bytes, other: Bytes, place: int, row_bytes: int) -> tuple[Bytes, int]:
        """Where the elements of a row begin; codes have no default row."""
        if has_codes:
            return source, place * row_bytes
        return row_or(source, other, place, row_bytes), 0

    @helper
    def parameters_of(scales: Bytes, biases: Bytes, at: int) -> tuple[np.float32, np.float32]:
        if not has_codes:
            return _ZERO, _ZERO
        scale = load_parameter(scales, at, scale_kind)
        if biased:
            return scale, load_parameter(biases, at, bias_kind)
        return scale, _ZERO

    @helper
    def add_wide(
        rows: Bytes,
        other: Bytes,
        scales: Bytes,
        biases: Bytes,
        row_bytes: int,
        places: Ids,
        weights: Values,
        begin: int,
        stop: int,
        end: int,
        is_weighted: bool,
        is_mean: bool,
        dim: int,
        sums: Values,
        to: int,
    ) -> int:
        """Put sums of the rows of places begin .. stop - 1 from sums[to] on, 64 elements each; says how many."""
        column, weight, many = 0, _ZERO, np.float32(stop - begin)
        while column + _FOUR <= dim:
            a, b, c, d = each(_ZERO), each(_ZERO), each(_ZERO), each(_ZERO)
            for k in range(begin, stop):
                if k + _AHEAD < end and column == 0:
                    _ask_for(rows, places[k + _AHEAD] * row_bytes, row_bytes)
                row, at = row_of(rows, other, places[k], row_bytes)
                scale, bias = parameters_of(scales, biases, at)
                table = table_of(scale, bias)
                if is_weighted:
                    weight = weights[k]
                w = lanes_of(row, at, column, scale, bias, table)
                x = lanes_of(row, at, column + LANES, scale, bias, table)
                y = lanes_of(row, at, column + 2 * LANES, scale, bias, table)
                z = lanes_of(row, at, column + 3 * LANES, scale, bias, table)
                a = _taken_in(a, w, weight, is_weighted, False)
                b = _taken_in(b, x, weight, is_weighted, False)
                c = _taken_in(c, y, weight, is_weighted, False)
                d = _taken_in(d, z, weight, is_weighted, False)
            put(sums, to + column, a, many, is_mean)
            put(sums, to + column + LANES, b, many, is_mean)
            put(sums, to + column + 2 * LANES, c, many, is_mean)
            put(sums, to + column + 3 * LANES, d, many, is_mean)
            column += _FOUR
        return column

    @helper
    def add_rest(
        rows: Bytes,
        other: Bytes,
        scales: Bytes,
        biases: Bytes,
        row_bytes: int,
        places: Ids,
        weights: Values,
        begin: int,
        stop: int,
        end: int,
        is_weighted: bool,
        mode: int,
        dim: int,
        sums: Values,
        to: int,
        column: int,
        spare: Bytes,
        last: Values,
    ) -> None:
        """Put sums, means or maxima from element `column` on, sixteen at a time."""
        is_greatest, is_closed = mode == MAX, dim >= LANES and (dim * bits) & 7 == 0
        start, weight, many = _LEAST if is_greatest else _ZERO, _ZERO, np.float32(stop - begin)
        while column < dim:
            is_first, left = column == 0, dim - column
            if left < LANES and is_closed:
                column, left = dim - LANES, LANES
            first_byte = column * bits >> 3
            a = each(start)
            for k in range(begin, stop):
                if k + _AHEAD < end and is_first:
                    _ask_for(rows, places[k + _AHEAD] * row_bytes, row_bytes)
                row, at = row_of(rows, other, places[k], row_bytes)
                scale, bias = parameters_of(scales, biases, at)
                at += first_byte
                if left < LANES:
                    # Sixteen would be more than the row has: what it has is copied to where they can be read.
                    copy(spare, 0, row, at, (left * bits + 7) >> 3)
                    row, at = spare, 0
                if is_weighted:
                    weight = weights[k]
                w = lanes_of(row, at, 0, scale, bias, table_of(scale, bias))
                a = _taken_in(a, w, weight, is_weighted, is_greatest)
            if left < LANES:
                put(last, 0, a, many, mode == MEAN)
                for j in range(left):
                    sums[to + column + j] = last[j]
            else:
                put(sums, to + column, a, many, mode == MEAN)
            column += LANES

    def pool(
        data: Bytes,
        base: int,
        row_bytes: int,
        codes_at: int,
        scale_at: int,
        bias_at: int,
        default: Bytes,
        marks: Bytes,
        shift: int,
        ids: npt.NDArray[np.signedinteger],
        count: int,
        offsets: Ids,
        end: int,
        weights: Values,
        mode: int,
        out: Rows,
    ) -> int:
        dim, bags, is_weighted, is_mean = out.shape[1], len(offsets), len(weights) > 0, mode == MEAN
        source, other, places = pointer(data), pointer(default), pointer(ids)
        begins, factors, sums = pointer(offsets), pointer(weights), pointer(out)
        if bags == 0:
            return -1
        lost = _first_lost(ids, begins[0], end, count, len(default) > 0)
        if lost < 0 and len(marks):
            lost = _first_unmarked(places, begins[0], end, base, row_bytes, pointer(marks), shift)
        if lost >= 0:
            return int(lost)
        room, sixteen = np.zeros(4 * LANES, np.uint8), np.empty(LANES, np.float32)
        spare, last = pointer(room), pointer(sixteen)
        rows = moved(source, base + codes_at)
        scales, biases = moved(source, base + scale_at), moved(source, base + bias_at)
        for bag in range(bags):
            begin = begins[bag]
            stop = begins[bag + 1] if bag + 1 < bags else end
            to = bag * dim
            if begin == stop:
                for j in range(to, to + dim):
                    sums[j] = _ZERO
                continue
            column = 0
            if mode != MAX and is_weighted:
                column = add_wide(
                    rows, other, scales, biases, row_bytes, places, factors, begin, stop, end, True, False, dim, sums,
                    to,
                )  # fmt: skip
            elif mode != MAX:
                column = add_wide(
                    rows, other, scales, biases, row_bytes, places, factors, begin, stop, end, False, is_mean, dim,
                    sums, to,
                )  # fmt: skip
            add_rest(
                rows, other, scales, biases, row_bytes, places, factors, begin, stop, end, is_weighted, mode, dim, sums,
                to, column, spare, last,
            )  # fmt: skip
        return -1

    pool.__qualname__ = name
    return jit(pool)


@functools.cache
def of_floats(kind: int) -> Any:
    """The kernel for rows of numbers of a kind."""
    return _make(float_reader(kind), 32 if kind == FLOAT32 else 16, None, f"pool_floats_{kind}")


@functools.cache
def of_codes(bits: int, scale_kind: int, bias_kind: int) -> Any:
    """The kernel for rows of codes of so many bits, with a scale for the row, and a bias or none."""
    name = f"pool_codes_{bits}_{scale_kind}_{bias_kind}".replace("-1", "none")
    return _make(code_reader(bits), bits, (scale_kind, bias_kind), name)
