"""Bitmaps of marked rows against plain sets and numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import marks
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels.marks import PAGE_ROWS, PAGE_WORDS

Array = npt.NDArray[Any]
Give = Callable[[Array], Array]
Bitmap = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]

PAGES = 3
ROWS = PAGES * PAGE_ROWS - 5
EDGES = [0, 1, 63, 64, PAGE_ROWS - 1, PAGE_ROWS, 2 * PAGE_ROWS - 64, ROWS - 1]
SOME_ROWS = st.sets(st.one_of(st.sampled_from(EDGES), st.integers(0, ROWS - 1)), max_size=20)


def bitmap(rows: set[int] | Array) -> Bitmap:
    """The reference: bits by numpy's packing."""
    bits = np.zeros(PAGES * PAGE_ROWS, np.bool_)
    bits[list(rows)] = True
    words = np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64)
    return words, bits.reshape(PAGES, PAGE_ROWS).any(axis=1).astype(np.uint8)


def same(a: Bitmap, b: Bitmap) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_mark_sets_the_bits_that_numpy_packs(dtype: Any, given: Give) -> None:
    rng = np.random.default_rng(1)
    ids = np.concatenate([EDGES, rng.integers(0, ROWS, 500), EDGES]).astype(dtype)
    words, pages = bitmap(set())
    assert marks.mark(given(ids[:300]), ROWS, words, pages) == -1
    assert same((words, pages), bitmap(ids[:300]))
    assert marks.mark(given(ids), ROWS, words, pages) == -1
    assert same((words, pages), bitmap(ids))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, ROWS, np.iinfo(np.int32).max, np.iinfo(np.int32).min])
@pytest.mark.parametrize("at", [0, 7, 20])
def test_an_id_outside_marks_nothing(dtype: Any, bad: int, at: int) -> None:
    ids = np.arange(21).astype(dtype)
    ids[at:] = bad
    words, pages = bitmap({3})
    assert marks.mark(ids, ROWS, words, pages) == at
    assert same((words, pages), bitmap({3}))


def test_extremes_of_int64_are_outside() -> None:
    words, pages = bitmap(set())
    for bad in (np.iinfo(np.int64).min, np.iinfo(np.int64).max):
        assert marks.mark(np.array([1, bad]), ROWS, words, pages) == 1
    assert same((words, pages), bitmap(set()))


def test_no_ids_and_no_rows() -> None:
    words, pages = bitmap(set())
    assert marks.mark(np.empty(0, np.int64), ROWS, words, pages) == -1
    assert marks.mark(np.empty(0, np.int64), 0, words, pages) == -1
    assert marks.mark(np.zeros(1, np.int64), 0, words, pages) == 0
    assert marks.count(words, pages, words, pages) == 0


@examples(SOME_ROWS, SOME_ROWS)
def test_two_sets_are_listed_as_one(a: set[int], b: set[int]) -> None:
    one, other = bitmap(a), bitmap(b)
    assert marks.count(*one, *other) == len(a | b)
    out = np.full(len(a | b) + 2, -1, np.int64)
    assert marks.extract(*one, *other, out) == len(a | b)
    assert out.tolist() == [*sorted(a | b), -1, -1]
    assert same(one, bitmap(a))
    assert same(other, bitmap(b))


@examples(SOME_ROWS, SOME_ROWS)
def test_merge_is_the_union(a: set[int], b: set[int]) -> None:
    one, other = bitmap(a), bitmap(b)
    marks.merge(*one, *other)
    assert same(other, bitmap(a | b))
    assert same(one, bitmap(a))


@examples(SOME_ROWS, st.one_of(st.sampled_from([0, 64, PAGE_ROWS, PAGES * PAGE_ROWS]), st.integers(0, ROWS)))
def test_clear_from(rows: set[int], first: int) -> None:
    words, pages = bitmap(rows)
    marks.clear_from(first, words, pages)
    assert np.array_equal(words, bitmap({row for row in rows if row < first})[0])


def test_pages_that_nothing_is_said_of_are_not_read() -> None:
    # Were they read, these rows would be counted, listed, merged and cleared.
    words, pages = bitmap(set(range(PAGE_ROWS, PAGE_ROWS + 5)) | {1})
    pages[1] = 0
    assert marks.count(words, pages, words, pages) == 1
    out = np.empty(9, np.int64)
    assert marks.extract(words, pages, words, pages, out) == 1
    into = bitmap({2})
    marks.merge(words, pages, *into)
    assert same(into, bitmap({1, 2}))
    marks.clear_from(0, words, pages)
    assert words[PAGE_WORDS] == 31


def test_extract_stops_where_there_is_no_room() -> None:
    found = np.full(5, -1, np.int64)
    full = bitmap({0, 1, 2, 3, 64, 65, 66})
    assert marks.extract(*full, *full, found) == 4
    assert found.tolist() == [0, 1, 2, 3, -1]


def test_a_full_page() -> None:
    rows = np.arange(PAGE_ROWS, 2 * PAGE_ROWS, 7 if INTERPRETED else 1)
    words, pages = bitmap(set())
    assert marks.mark(rows, ROWS, words, pages) == -1
    assert marks.count(words, pages, words, pages) == len(rows)
    out = np.empty(len(rows), np.int64)
    assert marks.extract(words, pages, words, pages, out) == len(rows)
    assert np.array_equal(out, rows)
