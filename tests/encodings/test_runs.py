"""Runs that aren't written out say the same as those that are."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.encodings import row_ids
from cnrfmt.errors import DamagedError

LOW, HIGH = -(1 << 63), (1 << 63) - 1


def section(runs: list[tuple[int, int]]) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack("<qQ", *run) for run in runs), np.uint8)


@given(
    st.lists(st.tuples(st.integers(2, 50), st.integers(1, 40)), min_size=1, max_size=20),
    st.sampled_from([LOW, -500, 0, HIGH - 3000]),
    st.lists(st.integers(-10, 2000), max_size=50),
)
def test_they_hold_what_is_written_out(gaps: list[tuple[int, int]], start: int, asked: list[int]) -> None:
    runs, at = [], start
    for gap, length in gaps:
        runs.append((at, length))
        at += length + gap - 1
    count, last = sum(length for _, length in runs), sum(runs[-1]) - 1
    data = section(runs)
    ids = row_ids.decode("runs", data, count, start, last, "here", max_ids=count)
    found = row_ids.decode_as_runs(data, count, start, last, "here")
    wanted = np.array([min(max(start + k, LOW), HIGH) for k in asked] + [LOW, HIGH, start, last], np.int64)
    assert found.holds(wanted).tolist() == np.isin(wanted, ids).tolist()
    assert found.holds(ids).all()
    assert len(found.holds(wanted[:0])) == 0


@pytest.mark.parametrize(
    ("runs", "count", "rule"),
    [
        ([(0, 1 << 62), (1 << 62, 1)], (1 << 62) + 1, "index-code"),
        ([(0, 1 << 62), (5, 1)], (1 << 62) + 1, "index-order"),
        ([(5, 1 << 63)], 1 << 63, "index-order"),
        ([(0, 1 << 62), ((1 << 62) + 2, 1 << 62)], 1 << 63, "index-order"),
        ([(0, 0)], 1, "index-code"),
        ([(0, 1 << 62)], 1 << 61, "index-bounds"),
        ([(1, 1 << 62)], 1 << 62, "index-bounds"),
        ([], 1, "index-code"),
    ],
)
def test_their_rules_are_checked_without_writing_them_out(runs: list[tuple[int, int]], count: int, rule: str) -> None:
    with pytest.raises(DamagedError) as caught:
        row_ids.decode_as_runs(section(runs), count, 0, (1 << 62) - 1, "here")
    assert caught.value.rule == rule


def test_two_to_the_62_ids_take_16_bytes() -> None:
    found = row_ids.decode_as_runs(section([(-5, 1 << 62)]), 1 << 62, -5, (1 << 62) - 6, "here")
    assert found.holds(np.array([-6, -5, 0, (1 << 62) - 6, (1 << 62) - 5])).tolist() == [False, True, True, True, False]
