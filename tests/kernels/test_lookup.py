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
