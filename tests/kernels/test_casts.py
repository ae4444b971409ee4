"""Casts to half precision and bfloat16, against numpy's and ml_dtypes' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import casts
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Rows = npt.NDArray[np.float32]
Table = npt.NDArray[np.uint8]
KINDS = [1, 2]
DIMS = [1, 2, 7, 16, 33] if INTERPRETED else [*range(1, 70), 100, 255, 256, 1000]
ENDS = [0.0, -0.0, np.nan, -np.inf, 65504.0, 65519.996, -65520.0, 3.3895314e38, 3.3961776e38, -3.3961775e38, 1e-45]


def of_kind(rows: Rows, kind: int) -> npt.NDArray[Any]:
    with np.errstate(all="ignore"):
        return rows.astype(np.float16 if kind == 1 else ml_dtypes.bfloat16)


def encode(rows: Rows, kind: int) -> tuple[Table, npt.NDArray[np.uint8]]:
    out = np.full((len(rows), 2 * rows.shape[1]), 0xAA, np.uint8)
    bad = np.full(len(rows), 7, np.uint8)
    assert casts.encode_rows(rows, kind, out, bad) == bad.sum()
    return out, bad


def check(rows: Rows, kind: int) -> None:
    table, bad = encode(rows, kind)
    want = of_kind(rows, kind)
    want_bad = ~np.isfinite(want.astype(np.float32)).all(axis=1)
    want[want_bad] = 0
    assert np.array_equal(bad == 1, want_bad)
    assert np.array_equal(table, want.view(np.uint8))
    out = np.full(rows.shape, np.nan, np.float32)
    casts.decode_range(table.reshape(-1), 0, kind, out)
    assert np.array_equal(out.view(np.uint32), want.astype(np.float32).view(np.uint32))
    # What was rounded once stays.
    assert np.array_equal(encode(out, kind)[0], table)


@pytest.mark.parametrize("kind", KINDS)
def test_every_dim(kind: int) -> None:
    rng = np.random.default_rng(kind)
    for dim in DIMS:
        bits = rng.integers(0, 2**32, (6, dim), dtype=np.uint32).view(np.float32)
        usual = rng.normal(0, 1, (6, dim)).astype(np.float32)
        usual[1, rng.integers(dim)] = np.nan
        check(np.concatenate([bits, usual, rng.choice(np.array(ENDS, np.float32), (20, dim))]), kind)


@examples(
    arrays(
        np.float32,
        st.tuples(st.integers(0, 10), st.integers(1, 40)),
        elements=st.floats(width=32) | st.sampled_from(np.array(ENDS, np.float32).tolist()),
    ),
    st.sampled_from(KINDS),
)
def test_any_rows(rows: Rows, kind: int) -> None:
    check(rows, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38])
@pytest.mark.parametrize("dim", [1, 4, 7, 16, 33])
def test_one_that_is_beyond_anywhere(kind: int, value: float, dim: int) -> None:
    for at in range(dim):
        rows = np.linspace(-1, 1, 3 * dim, dtype=np.float32).reshape(3, dim)
        rows[1, at] = value
        assert encode(rows, kind)[1].tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_the_kind(kind: int) -> None:
    patterns = np.arange(0, 65536, 41 if INTERPRETED else 1, dtype=np.uint16)
    out = np.empty((len(patterns), 1), np.float32)
    casts.decode_range(patterns.view(np.uint8), 0, kind, out)
    want = patterns.view(np.float16 if kind == 1 else ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(out[:, 0], want, equal_nan=True)
    assert np.array_equal(np.signbit(out[:, 0]), np.signbit(want))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 3, 6, 16, 50, 256])
def test_rows_from_anywhere(kind: int, dim: int, trained: Rows, given: Give) -> None:
    rows = np.ascontiguousarray(trained[:60, :dim])
    table, bad = encode(given(rows), kind)
    assert not bad.any()
    values = of_kind(rows, kind).astype(np.float32)
    for shift in (0, 1, 3):  # A mapped section starts anywhere in what a caller hands in.
        data = np.concatenate([np.full(shift, 0xEE, np.uint8), table.reshape(-1)])
        out = np.empty((60, dim), np.float32)
        casts.decode_range(given(data), shift, kind, out)
        assert np.array_equal(out, values)
        rng = np.random.default_rng(shift)
        picked, targets = rng.integers(0, 60, 45), rng.permutation(70)[:45]
        out = np.full((70, dim), 5, np.float32)
        casts.decode_rows(given(data), given(picked * 2 * dim + shift), kind, out, given(targets))
        want = np.full((70, dim), 5, np.float32)
        want[targets] = values[picked]
        assert np.array_equal(out, want)
