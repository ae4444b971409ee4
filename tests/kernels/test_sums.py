"""Adding up rows of integers against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.kernels import sums


@given(seed=st.integers(0, 1 << 32), rows=st.integers(1, 40), width=st.integers(1, 9))
def test_add_at(seed: int, rows: int, width: int) -> None:
    random = np.random.default_rng(seed)
    total = random.integers(-(1 << 31), 1 << 31, (rows, width)).astype(np.int32)
    grids = random.integers(-1, 2, rows).astype(np.int32)
    number = int(random.integers(0, 2))
    if random.integers(2):
        # Else most rows end it.
        grids[grids != -1] = number
    targets = random.permutation(rows)[: random.integers(0, rows + 1)].astype(np.int64)
    added = random.integers(-(1 << 31), 1 << 31, (len(targets), width)).astype(np.int32)
    want, kinds, found = total.astype(np.int64), grids.copy(), -1
    for i, target in enumerate(targets.tolist()):
        if kinds[target] not in (-1, number):
            found = i
            break
        want[target] = added[i] + (0 if kinds[target] == -1 else want[target])
        kinds[target] = number
    assert sums.add_at(total, grids, targets, added, number) == found
    assert np.array_equal(total, (want & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
    assert np.array_equal(grids, kinds)


@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60))
def test_unsettled(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    first = int(random.integers(-1000, 1000))
    ids = np.sort(random.choice(80, count, replace=False)).astype(np.int64) + first
    settled = random.integers(0, 2, 80).astype(np.uint8)
    positions, targets = np.empty(count, np.int64), np.empty(count, np.int64)
    found = sums.unsettled(ids, first, settled, positions, targets)
    want = [(k, int(i) - first) for k, i in enumerate(ids) if not settled[int(i) - first]]
    assert list(zip(positions[:found].tolist(), targets[:found].tolist(), strict=True)) == want
