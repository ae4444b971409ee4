"""Gathering, claiming and finding rows, against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import rows

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
ANY_ID = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("row_bytes", [1, 3, 8, 12, 36, 64, 72, 136, 264, 1024, 5000])
def test_gather(row_bytes: int, given: Give) -> None:
    rng = np.random.default_rng(row_bytes)
    data = rng.integers(0, 256, 40 * row_bytes + 7, dtype=np.uint8)
    offsets = rng.integers(0, len(data) - row_bytes + 1, 50)
    targets = rng.permutation(60)[:50]
    out = np.zeros((60, row_bytes), np.uint8)
    rows.gather_rows(given(data), given(offsets), row_bytes, out, given(targets))
    want = np.zeros_like(out)
    for offset, target in zip(offsets, targets, strict=True):
        want[target] = data[offset : offset + row_bytes]
    assert np.array_equal(out, want)


def test_gather_nothing() -> None:
    none = np.empty(0, np.int64)
    rows.gather_rows(np.empty(0, np.uint8), none, 8, np.empty((0, 8), np.uint8), none)


@examples(st.lists(st.sets(st.integers(0, 39)), max_size=5), st.sampled_from([-(2**63), -20, 0, 10**15]))
def test_claim(layers: list[set[int]], first: int) -> None:
    claimed = np.zeros(40, np.uint8)
    taken: set[int] = set()
    for layer in layers:
        ids = np.array(sorted(layer), np.int64) + np.int64(first)
        positions, targets = np.empty(40, np.int64), np.empty(40, np.int64)
        count = rows.claim(ids, first, claimed, positions, targets)
        want = [(k, t) for k, t in enumerate(sorted(layer)) if t not in taken]
        assert list(zip(positions[:count], targets[:count], strict=True)) == want
        taken |= layer
        assert set(np.flatnonzero(claimed)) == taken
        count = rows.unclaimed(claimed, targets)
        assert targets[:count].tolist() == [t for t in range(40) if t not in taken]


def test_claim_of_a_read_only_index(given: Give) -> None:
    ids = given(np.array([3, 5, 9]))
    claimed = np.zeros(10, np.uint8)
    claimed[5] = 1
    positions, targets = np.empty(3, np.int64), np.empty(10, np.int64)
    assert rows.claim(ids, 0, claimed, positions, targets) == 2
    assert (positions[:2].tolist(), targets[:2].tolist()) == ([0, 2], [3, 9])
    assert rows.unclaimed(given(claimed), targets) == 7


@examples(st.sets(ANY_ID, max_size=60), st.lists(ANY_ID, max_size=40), st.randoms())
def test_find(ids: set[int], others: list[int], random: Any) -> None:
    ordered = sorted(ids)
    wanted = [*others, *random.sample(ordered, len(ordered) // 2)]
    random.shuffle(wanted)
    out = np.full(len(wanted), 77, np.int64)
    rows.find(np.array(ordered, np.int64), np.array(wanted, np.int64), out)
    assert out.tolist() == [ordered.index(id_) if id_ in ids else -1 for id_ in wanted]


@examples(st.sets(st.integers(0, 500), max_size=200), st.lists(st.integers(-3, 503), max_size=40))
def test_find_what_ascends(ids: set[int], wanted: list[int]) -> None:
    ordered, ascending = sorted(ids), sorted(wanted)
    out = np.full(len(ascending), 77, np.int64)
    rows.find(np.array(ordered, np.int64), np.array(ascending, np.int64), out)
    assert out.tolist() == [ordered.index(id_) if id_ in ids else -1 for id_ in ascending]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 127, 128, 129, 1000])
def test_find_at_and_between_all(size: int, given: Give) -> None:
    ids = np.arange(size) * 2 - 100
    wanted = np.arange(-103, 2 * size - 97)
    out = np.empty(len(wanted), np.int64)
    rows.find(given(ids), given(wanted), out)
    want = np.where((wanted >= -100) & (wanted < 2 * size - 100) & (wanted % 2 == 0), (wanted + 100) // 2, -1)
    assert np.array_equal(out, want)
