"""Claiming rows of one list in another, against plain sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import merges

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
IDS = st.sets(st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1)), max_size=20)


@examples(IDS, st.lists(IDS, max_size=5))
def test_claim_listed(rows: set[int], layers: list[set[int]]) -> None:
    wanted = np.array(sorted(rows), np.int64)
    claimed = np.zeros(len(wanted), np.uint8)
    taken: set[int] = set()
    for layer in layers:
        positions, targets = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        ids = sorted(layer)
        count = merges.claim_listed(np.array(ids, np.int64), wanted, claimed, positions, targets)
        want = [(ids.index(row), t) for t, row in enumerate(sorted(rows)) if row in layer - taken]
        assert list(zip(positions[:count].tolist(), targets[:count].tolist(), strict=True)) == want
        taken |= layer & rows
        assert {int(row) for row in wanted[claimed == 1]} == taken


def test_read_only_lists(given: Give) -> None:
    claimed, room = np.zeros(3, np.uint8), np.empty(3, np.int64)
    ids = given(np.array([2, 5, 9]))
    assert merges.claim_listed(ids, ids, claimed, room, room.copy()) == 3
