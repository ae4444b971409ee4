"""The relative error of rows against the same sums in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import errors
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Rows = npt.NDArray[np.float32]
DIMS = [1, 7, 8, 9, 16, 21] if INTERPRETED else [*range(1, 70), 100, 127, 256, 300, 4096]


def row_errors(rows: Rows, decoded: Rows) -> npt.NDArray[np.float64]:
    found = np.full(len(rows), np.nan)
    errors.row_errors(rows, decoded, found)
    return found


def ordered_sum(terms: npt.NDArray[np.float64]) -> float:
    """Eight sums, one for each term modulo 8, then halves of them, then the terms that remain."""
    whole = len(terms) - len(terms) % 8
    lanes = [sum(terms[lane:whole:8].tolist()) for lane in range(8)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[k] + lanes[k + half] for k in range(half)]
    total = float(lanes[0])
    for term in terms[whole:].tolist():
        total += term
    return total


def reference(row: Rows, decoded: Rows) -> float:
    x = row.astype(np.float64)
    changed = decoded.astype(np.float64) - x
    change, norm = ordered_sum(changed * changed), ordered_sum(x * x)
    if change == 0:
        return 0.0
    return float(np.sqrt(change / norm)) if norm else np.inf


def test_every_dim(given: Give) -> None:
    rng = np.random.default_rng(0)
    for dim in DIMS:
        rows = (rng.normal(0, 1, (5, dim)) * 10.0 ** rng.integers(-40, 38, (5, 1))).astype(np.float32)
        decoded = (rows * (1 + rng.normal(0, 0.01, (5, dim)))).astype(np.float32)
        found = row_errors(given(rows), given(decoded))
        assert found.tolist() == [reference(*pair) for pair in zip(rows, decoded, strict=True)], dim


def test_about_what_numpy_says() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 1, (100, 37)).astype(np.float32)
    decoded = rows + rng.normal(0, 0.01, (100, 37)).astype(np.float32)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    want = np.linalg.norm(decoded.astype(np.float64) - rows, axis=1) / norms
    np.testing.assert_allclose(row_errors(rows, decoded), want, rtol=1e-12)


def test_zeros() -> None:
    for dim in (1, 8, 21):
        zero, one = np.zeros((1, dim), np.float32), np.ones((1, dim), np.float32)
        rows = np.concatenate([zero, -zero, zero, one, one])
        decoded = np.concatenate([zero, zero, one, one, zero])
        assert row_errors(rows, decoded).tolist() == [0, 0, np.inf, 0, 1]


def test_the_greatest_and_the_least() -> None:
    for number in (np.finfo(np.float32).max, 1e-45):
        rows = np.full((1, 24), number, np.float32)
        assert row_errors(rows, np.zeros_like(rows)).tolist() == [1]
        assert row_errors(rows, -rows).tolist() == [2]


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@examples(
    arrays(np.float32, (2, 7, 13), elements=finite),
    st.integers(0, 7),
)
def test_any_rows_cut_anywhere(both: npt.NDArray[np.float32], cut: int) -> None:
    rows, decoded = both
    found = row_errors(rows, decoded)
    assert not np.isnan(found).any()
    assert found.tolist() == [reference(*pair) for pair in zip(rows, decoded, strict=True)]
    parts = [row_errors(rows[i], decoded[i]) for i in (slice(0, cut), slice(cut, None))]
    assert np.array_equal(np.concatenate(parts), found)
