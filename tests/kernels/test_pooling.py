"""Bags of rows, against plain loops in the order of the places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import pooling as kernel
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Rows = npt.NDArray[np.float32]
F32 = np.float32
MODES = [kernel.SUM, kernel.MEAN, kernel.MAX]
# Fewer than a vector has lanes, as many, one more, several vectors and what remains, several blocks.
DIMS = [1, 3, 15, 16, 17, 32, 63, 64, 65, 83, 144, 256]
NO_WEIGHTS = np.empty(0, F32)


def plain(rows: Rows, offsets: list[int], weights: Rows, mode: int) -> Rows:
    """Bag by bag, row by row, element by element for all elements at once."""
    out = np.zeros((len(offsets), rows.shape[1]), F32)
    with np.errstate(all="ignore"):
        for bag, begin in enumerate(offsets):
            stop = [*offsets, len(rows)][bag + 1]
            for k in range(begin, stop):
                row = rows[k] * weights[k] if len(weights) else rows[k]
                if mode != kernel.MAX:
                    out[bag] = out[bag] + row
                elif k == begin:
                    out[bag] = row
                else:
                    out[bag] = np.where(np.isnan(out[bag]) | (row <= out[bag]), out[bag], row)
            if mode == kernel.MEAN and stop > begin:
                out[bag] = out[bag] / F32(stop - begin)
    return out


def in_pieces(rows: Rows, offsets: Any, weights: Rows, mode: int, piece: int) -> Rows:
    out = np.zeros((len(offsets), rows.shape[1]), F32)
    bag = 0
    for first in range(0, len(rows), piece):
        some = np.ascontiguousarray(rows[first : first + piece])
        bag = kernel.pool_rows(some, first, bag, offsets, len(rows), weights, mode, out)
    assert bag == len(offsets) or not len(rows)
    return out


def some_rows(count: int, dim: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, dim)) * 10.0 ** rng.integers(-6, 6, (count, 1))).astype(F32)


def same(found: Rows, want: Rows) -> bool:
    """To the bit, but for what a NaN holds beside being one."""
    return bool((np.isnan(found) == np.isnan(want)).all()) and np.array_equal(
        np.where(np.isnan(found), 0, found).view(np.uint32), np.where(np.isnan(want), 0, want).view(np.uint32)
    )


# Bags of nothing at the beginning, within and at the end; one of a single row, and a long one.
OFFSETS = np.array([0, 0, 1, 1, 4, 40, 55, 70, 70], np.int64)


@pytest.mark.parametrize("dim", DIMS)
def test_as_a_plain_loop(dim: int) -> None:
    rows, default = some_rows(40, dim), some_rows(1, dim, 1)[0]
    rng = np.random.default_rng(dim)
    slots = rng.integers(-1, 40, 70)
    chosen = np.where(slots[:, np.newaxis] < 0, default, rows[slots])
    for mode in MODES:
        for weights in (NO_WEIGHTS, rng.standard_normal(70).astype(F32))[: 1 if mode != kernel.SUM else 2]:
            want = plain(chosen, OFFSETS.tolist(), weights, mode)
            out = np.full(want.shape, 77, F32)
            kernel.pool_slots(rows, default, slots, OFFSETS, 70, weights, mode, out)
            assert same(out, want)
            for piece in (1, 7, 70):
                assert same(in_pieces(chosen, OFFSETS, weights, mode, piece), want)


def test_read_only_arrays_and_small_slots(given: Give) -> None:
    rows, slots = some_rows(40, 17), np.arange(70, dtype=np.int32) % 40
    out = np.empty((len(OFFSETS), 17), F32)
    weights = np.ones(70, F32)
    kernel.pool_slots(given(rows), given(rows[0]), given(slots), given(OFFSETS), 70, given(weights), kernel.SUM, out)
    assert same(out, plain(rows[slots], OFFSETS.tolist(), NO_WEIGHTS, kernel.SUM))


def test_slots_that_are_not_there() -> None:
    rows = some_rows(4, 16)
    for slot in (4, -2, 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match=f"no slot {slot}, which place 1 names"):
            kernel.pool_slots(
                rows, rows[0], np.array([0, slot, 9]), OFFSETS[:1], 3, NO_WEIGHTS, kernel.SUM, np.empty((1, 16), F32)
            )


class Stored(NamedTuple):
    """Rows as a file has them, between other bytes, and what they decode to; `pool` pools those at some places."""

    data: npt.NDArray[np.uint8]
    values: Rows
    row_bytes: int
    pool: Callable[..., int]


KINDS = [F32, np.float16, ml_dtypes.bfloat16]
BASE = 24


def floats(kind: int, dim: int) -> Stored:
    numbers = some_rows(40, dim).clip(-6e4, 6e4).astype(KINDS[kind])
    stored = numbers.view(np.uint8)

    def pool(data: Any, *given: Any) -> int:
        return kernel.pool_floats(data, BASE, stored.shape[1], kind, *given)

    return Stored(stored, numbers.astype(F32), stored.shape[1], pool)


def codes(bits: int, scale_kind: int, bias_kind: int, codes_at: int, dim: int) -> Stored:
    """Codes behind `codes_at` bytes of parameters, or in front of them."""
    rng = np.random.default_rng(bits)
    numbers = rng.integers(0, 1 << bits, (40, dim), np.uint8)
    each = np.unpackbits(numbers[:, :, np.newaxis], axis=2, count=bits, bitorder="little").reshape(40, -1)
    packed = np.packbits(each, axis=1, bitorder="little")
    scales = (rng.standard_normal((40, 1)) / 9).astype(KINDS[scale_kind])
    biases = rng.standard_normal((40, 1)).astype(KINDS[bias_kind if bias_kind >= 0 else 0])
    wide, other = numbers.astype(F32), scales.astype(F32)
    values = wide * other + biases.astype(F32) if bias_kind >= 0 else (2 * wide - F32((1 << bits) - 1)) * other
    parameters = [scales.view(np.uint8)] + ([biases.view(np.uint8)] if bias_kind >= 0 else [])
    stored = np.hstack([*parameters, packed] if codes_at else [packed, *parameters])
    scale_at = 0 if codes_at else packed.shape[1]
    places = (codes_at, scale_at, scale_at + scales.itemsize, scale_kind, bias_kind)

    def pool(data: Any, *given: Any) -> int:
        return kernel.pool_codes(data, BASE, stored.shape[1], bits, *places, *given)

    return Stored(stored, values.astype(F32), stored.shape[1], pool)


WAYS = {
    "float16": lambda dim: floats(1, dim),
    "bfloat16": lambda dim: floats(2, dim),
    "8 bits": lambda dim: codes(8, 0, 0, 0, dim),
    "4 bits": lambda dim: codes(4, 1, 1, 0, dim),
    "2 bits, head": lambda dim: codes(2, 1, 1, 4, dim),
    "5 bits, no bias": lambda dim: codes(5, 2, -1, 0, dim),
}


@pytest.mark.parametrize("way", WAYS)
def test_stored_rows_as_a_plain_loop(way: str) -> None:
    rng = np.random.default_rng(0)
    places = rng.integers(0, 40, 70)
    weights = rng.standard_normal(70).astype(F32)
    marks = np.empty(0, np.uint8)
    for dim in (3, 16, 20, 85) if INTERPRETED else (1, 3, 8, 15, 16, 20, 31, 50, 64, 70, 85, 128, 150):
        stored = WAYS[way](dim)
        # The last row ends where memory does.
        data = np.append(np.full(BASE, 255, np.uint8), stored.data)
        for mode, used in ((kernel.SUM, NO_WEIGHTS), (kernel.SUM, weights), (kernel.MEAN, NO_WEIGHTS), (2, NO_WEIGHTS)):
            want = plain(stored.values[places], OFFSETS.tolist(), used, mode)
            out = np.full(want.shape, 77, F32)
            assert stored.pool(data, marks, 0, places, 40, OFFSETS, 70, used, mode, out) == -1
            assert same(out, want)


def test_rows_that_may_not_be_read() -> None:
    stored = WAYS["8 bits"](20)
    data = np.append(np.full(BASE, 255, np.uint8), stored.data)
    out, one = np.empty((1, 20), F32), np.zeros(1, np.int64)
    marks = np.ones(len(data) // 32 + 1, np.uint8)
    for places, lost in (([0, 3], -1), ([0, 40], 1), ([-1, 0], 0), ([5, 0, -(2**63)], 2), ([0, 2**63 - 1], 1)):
        found = stored.pool(data, marks, 5, np.array(places), 40, one, len(places), NO_WEIGHTS, kernel.SUM, out)
        assert found == lost
    # Row k has the bytes from 24 + 28 * k on: row 2 those from 80 to 107, of pieces 2 and 3.
    for piece, lost in ((1, 1), (2, 0), (3, 0), (4, 3)):
        marks[:] = 1
        marks[piece] = 0
        found = stored.pool(data, marks, 5, np.array([2, 1, 2, 4]), 40, one, 4, NO_WEIGHTS, kernel.SUM, out)
        assert found == lost


@examples(
    st.lists(st.integers(0, 6), max_size=12),
    st.sampled_from([2, 16, 20]),
    st.sampled_from(MODES),
    st.booleans(),
    st.integers(1, 9),
    st.data(),
)
def test_any_bags(sizes: list[int], dim: int, mode: int, weighted: bool, piece: int, data: Any) -> None:
    count = sum(sizes)
    offsets = np.array([0, *np.cumsum(sizes)[:-1]], np.int64)[: len(sizes)]
    slots = np.array(data.draw(st.lists(st.integers(-1, 8), min_size=count, max_size=count)), np.int64)
    rows, default = some_rows(9, dim), np.full(dim, 0.5, F32)
    chosen = np.where(slots[:, np.newaxis] < 0, default, rows[slots]).reshape(count, dim).astype(F32)
    weights = some_rows(1, count, 3)[0] if weighted and mode == kernel.SUM and count else NO_WEIGHTS
    want = plain(chosen, offsets.tolist(), weights, mode)
    out = np.full(want.shape, 77, F32)
    kernel.pool_slots(rows, default, slots, offsets, count, weights, mode, out)
    assert same(out, want)
    assert same(in_pieces(chosen, offsets, weights, mode, piece), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [4, 16, 70])
def test_what_is_no_number(mode: int, dim: int) -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-45, 3.0], F32)
    rng = np.random.default_rng(dim)
    rows = values[rng.integers(0, len(values), (60, dim))]
    offsets = np.arange(0, 60, 3, dtype=np.int64)
    want = plain(rows, offsets.tolist(), NO_WEIGHTS, mode)
    out = np.empty_like(want)
    kernel.pool_slots(rows, rows[0].copy(), np.arange(60), offsets, 60, NO_WEIGHTS, mode, out)
    assert same(out, want)
    assert same(in_pieces(rows, offsets, NO_WEIGHTS, mode, 5), want)
    if mode == kernel.MAX:
        assert np.array_equal(np.isnan(want), np.isnan(rows.reshape(20, 3, dim)).any(axis=1))


@pytest.mark.parametrize("mode", MODES)
def test_some_of_the_bags(mode: int) -> None:
    rows, slots = some_rows(20, 24), np.random.default_rng(0).integers(0, 20, 50)
    offsets = np.array([0, 5, 5, 30, 44], np.int64)
    whole, part = np.empty((5, 24), F32), np.empty((2, 24), F32)
    kernel.pool_slots(rows, rows[0].copy(), slots, offsets, 50, NO_WEIGHTS, mode, whole)
    kernel.pool_slots(rows, rows[0].copy(), slots, offsets[2:4], 44, NO_WEIGHTS, mode, part)
    assert np.array_equal(part, whole[2:4])
    # And when their rows come in order, from the middle of the places on.
    part[:] = 0
    assert kernel.pool_rows(rows[slots[5:44]], 5, 0, offsets[2:4], 44, NO_WEIGHTS, mode, part) == 2
    assert np.array_equal(part, whole[2:4])


def test_products_are_rounded_before_they_are_added() -> None:
    # The exact product has more digits than float32, and its last ones decide; contracted, they would be seen.
    x = F32(1 + 2**-12)
    rows = np.full((2, 64), x, F32)
    weights = np.array([-1, x], F32)
    rows[0] = F32(x * x)
    out = np.empty((1, 64), F32)
    kernel.pool_slots(rows, rows[0].copy(), np.arange(2), np.array([0]), 2, weights, kernel.SUM, out)
    assert not out.any()


def test_nothing() -> None:
    none, default = np.empty(0, np.int64), np.zeros(8, F32)
    out = np.empty((0, 8), F32)
    kernel.pool_slots(np.empty((0, 8), F32), default, none, none, 0, NO_WEIGHTS, kernel.SUM, out)
    assert kernel.pool_rows(np.empty((0, 8), F32), 0, 0, none, 0, NO_WEIGHTS, kernel.SUM, out) == 0
    empty = np.full((3, 8), 7, F32)
    kernel.pool_slots(np.empty((0, 8), F32), default, none, np.zeros(3, np.int64), 0, NO_WEIGHTS, kernel.MAX, empty)
    assert not empty.any()


def test_real_rows(trained: Rows) -> None:
    rng = np.random.default_rng(2)
    slots = rng.integers(0, len(trained), 300 if INTERPRETED else 3000)
    offsets = np.sort(np.append(0, rng.integers(0, len(slots), 50))).astype(np.int64)
    weights = rng.random(len(slots)).astype(F32)
    for mode, used in ((kernel.SUM, weights), (kernel.SUM, NO_WEIGHTS), (kernel.MEAN, NO_WEIGHTS)):
        out = np.empty((len(offsets), 256), F32)
        kernel.pool_slots(trained, trained[0].copy(), slots, offsets, len(slots), used, mode, out)
        assert np.array_equal(out, plain(trained[slots], offsets.tolist(), used, mode))
