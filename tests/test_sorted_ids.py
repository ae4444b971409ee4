"""Sets of ids against Python's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt import sorted_ids

_IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), max_size=30)


def _array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


@examples(st.lists(_IDS, min_size=1, max_size=4))
def test_union(some: list[list[int]]) -> None:
    found = sorted_ids.union(*map(_array, some))
    assert found.dtype == np.int64
    assert found.tolist() == sorted(set().union(*some))


@examples(_IDS, _IDS)
def test_intersection(a: list[int], b: list[int]) -> None:
    found = sorted_ids.intersection(_array(sorted(set(a))), _array(sorted(set(b))))
    assert found.dtype == np.int64
    assert found.tolist() == sorted(set(a) & set(b))


@pytest.mark.parametrize("function", [sorted_ids.union, sorted_ids.intersection])
def test_they_leave_what_they_are_given_alone(function: type) -> None:
    a, b = _array([1, 3]), _array([0, 3])
    function(a, b)
    assert (a.tolist(), b.tolist()) == ([1, 3], [0, 3])
