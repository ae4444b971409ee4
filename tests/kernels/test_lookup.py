"""Rows by a map of slots, against plain indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.kernels import lookup


@given(st.integers(0, 1 << 32), st.integers(0, 60), st.integers(1, 70))
def test_rows_by_their_slots(seed: int, count: int, width: int) -> None:
    random = np.random.default_rng(seed)
    store = random.integers(0, 256, (30, width), np.uint8)
    default = random.integers(0, 256, width, np.uint8)
    slots = random.integers(-1, 30, 50).astype(np.int32)
    positions = random.integers(-1, 50, count)
    found = np.full(count, 77, np.int64)
    lookup.slots_of(slots, positions, found)
    want = [-1 if p < 0 else int(slots[p]) for p in positions]
    assert found.tolist() == want
    out = np.zeros(count * width, np.uint8)
    lookup.rows_of(store.reshape(-1), found, width, default, out)
    assert out.reshape(count, width).tolist() == [(default if s < 0 else store[s]).tolist() for s in want]


@pytest.mark.parametrize("row_bytes", [64, 256, 1024])
def test_rows_wider_than_a_line(row_bytes: int) -> None:
    store = np.arange(100 * row_bytes, dtype=np.uint32).view(np.uint8)[: 100 * row_bytes]
    slots = np.arange(99, -1, -1)
    out = np.empty(100 * row_bytes, np.uint8)
    lookup.rows_of(store, slots, row_bytes, store[:row_bytes], out)
    assert (out.reshape(100, -1) == store.reshape(100, -1)[::-1]).all()


@given(st.integers(0, 1 << 32), st.integers(0, 100), st.integers(1, 40), st.booleans())
def test_rows_of_a_range(seed: int, count: int, width: int, is_mapped: bool) -> None:
    random = np.random.default_rng(seed)
    store = random.integers(0, 256, (30, width), np.uint8)
    slots = random.integers(-1 if seed % 2 else 0, 30, 50).astype(np.int32)
    held = len(slots) if is_mapped else 30
    low, high = (-9, held - 5) if seed % 3 else (-7, held - 7)
    ids = random.integers(low, high, count)
    out = np.zeros(count * width, np.uint8)
    lost = lookup.rows_of_range(store.reshape(-1), slots, is_mapped, ids, -7, held, width, out)
    want = []
    for place, position in enumerate((ids + 7).tolist()):
        slot = -1 if not 0 <= position < held else int(slots[position]) if is_mapped else position
        if slot < 0:
            assert lost == place
            break
        want.append(store[slot].tolist())
    else:
        assert lost == -1
        assert out.reshape(count, width).tolist() == want


def test_rows_of_a_range_beyond_what_is_done_at_once() -> None:
    store = np.arange(200, dtype=np.uint8).reshape(50, 4)
    slots, ids = (
        np.arange(49, -1, -1, dtype=np.int32),
        np.random.default_rng(3).integers(0, 50, 3 * lookup._AT_ONCE - 5),
    )
    out = np.zeros(4 * len(ids), np.uint8)
    assert lookup.rows_of_range(store.reshape(-1), slots, True, ids, 0, 50, 4, out) == -1
    assert (out.reshape(-1, 4) == store[49 - ids]).all()
    ids[-1] = 50
    assert lookup.rows_of_range(store.reshape(-1), slots, True, ids, 0, 50, 4, out) == len(ids) - 1


def test_rows_come_to_other_slots() -> None:
    store = np.arange(90, dtype=np.uint8).reshape(30, 3)
    slots, to = np.arange(5, 30), np.r_[np.arange(4), 4]
    want = store.copy()
    want[to] = store[slots[:5]]
    lookup.copy_rows(store.reshape(-1), slots[:5], to, 3)
    assert (store == want).all()
