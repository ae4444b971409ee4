"""The index of keys: what it says, and what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.errors import TooLargeError, UsageError
from cnrfmt.kernels import key_index as kernel
from cnrfmt.serving import key_index
from cnrfmt.serving.key_index import KeyIndex, slots_for

any_key = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(any_key, unique=True, max_size=100), st.lists(any_key, max_size=30))
def test_as_a_dict(keys: list[int], others: list[int]) -> None:
    index = KeyIndex.build(np.array(keys, np.int64))
    numbers = {key: k for k, key in enumerate(keys)}
    wanted = np.array([*others, *reversed(keys)], np.int64)
    out = index.find(wanted)
    assert out.dtype == np.int64
    assert out.tolist() == [numbers.get(int(key), -1) for key in wanted]
    assert len(index) == len(keys)


def test_wide_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.arange(50, dtype=np.int64) * -7
    narrow = KeyIndex.build(keys)
    assert narrow.nbytes == kernel.NARROW * 128
    monkeypatch.setattr(key_index, "_NARROW_KEYS", 50)
    wide = KeyIndex.build(keys)
    assert wide.nbytes == kernel.WIDE * 128
    wanted = np.arange(-400, 10)
    assert np.array_equal(wide.find(wanted), narrow.find(wanted))
    assert repr(wide) == "<cnrfmt.serving.KeyIndex: 50 keys, 2048 bytes>"


def test_half_of_the_slots_are_free() -> None:
    assert [slots_for(n) for n in (0, 1, 2, 3, 4, 5, 64, 65)] == [2, 2, 4, 8, 8, 16, 128, 256]
    for count in range(200):
        assert 2 * count <= slots_for(count) <= max(2, 4 * count)


def test_into_memory_of_the_caller() -> None:
    index = KeyIndex.build(np.array([5, -1, 3]))
    out = np.full(4, 77, np.int64)
    assert index.find(np.array([3, 4, 5, -1]), out) is out
    assert out.tolist() == [2, -1, 0, 1]
    # Keys may be overwritten by their positions, wherever they lie in the array.
    both = np.array([3, 4, 5, -1, 3], np.int64)
    index.find(both[1:], both[:-1])
    assert both.tolist() == [-1, 0, 1, 2, 3]
    index.find([5, 3], out[:2])
    assert out[:2].tolist() == [0, 2]


@pytest.mark.parametrize(
    "out",
    [
        np.empty(2, np.int64),
        np.empty(3, np.int32),
        np.empty((3, 1), np.int64),
        np.empty(6, np.int64)[::2],
        np.broadcast_to(np.int64(0), 3),
        [0, 0, 0],
    ],
)
def test_no_other_memory(out: Any) -> None:
    index = KeyIndex.build(np.array([5, -1, 3]))
    with pytest.raises(UsageError, match=r"out must be a writable, contiguous int64 array of shape \(3,\), found a "):
        index.find(np.array([1, 2, 3]), out)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="key 7 at position 3 was there before"):
        KeyIndex.build(np.array([7, 8, 9, 7]))
    with pytest.raises(UsageError, match="keys must be integers"):
        KeyIndex.build(np.array([1.5]))
    with pytest.raises(UsageError, match="wanted must be 1-D"):
        KeyIndex.build(np.array([1])).find(np.array([[1]]))

    def full(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(key_index.np, "zeros", full)
    with pytest.raises(TooLargeError, match="an index of 3 keys: 96 bytes don't fit into memory"):
        KeyIndex.build(np.array([1, 2, 3]))


def test_hashes_differ_between_indexes() -> None:
    keys = np.arange(100)
    first, second = (KeyIndex.build(keys)._slots for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(KeyIndex.build(keys, seed=5)._slots, KeyIndex.build(keys, seed=5)._slots)


def test_by_many_threads() -> None:
    keys = np.random.default_rng(0).permutation(3000)
    index = KeyIndex.build(keys)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: index.find(keys), range(8)):
            assert np.array_equal(found, np.arange(3000))
