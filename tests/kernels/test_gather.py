"""Picking rows, and encoding them where they lie, against picking them first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import errors as error_kernel
from cnrfmt.kernels import gather, rowwise
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Rows = npt.NDArray[np.float32]
DIMS = [1, 3, 8, 17] if INTERPRETED else [*range(1, 40), 63, 64, 65, 100, 128, 129, 300]


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 8, 12, 36, 64, 100, 256, 1024, 5000])
def test_rows_of_any_size(row_bytes: int, given: Give) -> None:
    rng = np.random.default_rng(row_bytes)
    data = rng.integers(0, 256, (60, row_bytes), dtype=np.uint8)
    for positions in (np.sort(rng.choice(60, 45, replace=False)), rng.integers(0, 60, 45), np.array([59, 0])):
        for start in (0, 1, len(positions) - 1):
            out = np.zeros((len(positions) - start, row_bytes), np.uint8)
            gather.gather(given(data.reshape(-1)), given(positions), start, row_bytes, out)
            assert np.array_equal(out, data[positions[start:]])


def test_no_more_than_is_asked_for(given: Give) -> None:
    for row_bytes in (4, 8, 20):
        data = np.arange(50 * row_bytes, dtype=np.uint8)
        room = np.full(9 * row_bytes, 0xAA, np.uint8)
        gather.gather(given(data), given(np.arange(40, 0, -1)), 3, row_bytes, room[row_bytes : 6 * row_bytes])
        assert np.array_equal(room[row_bytes:-row_bytes].reshape(-1, row_bytes)[:5], data.reshape(50, -1)[37:32:-1])
        assert (room[:row_bytes] == 0xAA).all()
        assert (room[6 * row_bytes :] == 0xAA).all()


def test_nothing() -> None:
    none = np.empty(0, np.int64)
    for row_bytes in (4, 8, 20):
        gather.gather(np.empty(0, np.uint8), none, 0, row_bytes, np.empty((0, row_bytes), np.uint8))


@examples(st.lists(st.integers(0, 19), max_size=70), st.integers(1, 40))
def test_any_positions(positions: list[int], row_bytes: int) -> None:
    data = np.random.default_rng(row_bytes).integers(0, 256, (20, row_bytes), dtype=np.uint8)
    at = np.array(positions, np.int64)
    out = np.empty((len(at), row_bytes), np.uint8)
    gather.gather(data.reshape(-1), at, 0, row_bytes, out)
    assert np.array_equal(out, data[at])


# Encoding


def measured(rows: Rows, positions: Any, bits: int) -> tuple[Any, Any, Any, int]:
    count = len(rows) if positions is None else len(positions)
    size = -(-rows.shape[1] * bits // 8) + (8 if bits == 8 else 4)
    out, bad = np.full((count, size), 0xAA, np.uint8), np.full(count, 7, np.uint8)
    errors = np.full(count, -1.0)
    if bits == 8:
        found = rowwise.encode_measured_8(rows, positions, out, bad, errors)
    else:
        found = rowwise.encode_measured_nbit(rows, positions, bits, out, bad, errors)
    return out, bad, errors, found


def step_by_step(rows: Rows, bits: int) -> tuple[Any, Any, Any, int]:
    """Encoded by one kernel, decoded by another, and measured by a third."""
    size = -(-rows.shape[1] * bits // 8) + (8 if bits == 8 else 4)
    out, bad = np.empty((len(rows), size), np.uint8), np.empty(len(rows), np.uint8)
    errors, decoded = np.empty(len(rows)), np.empty_like(rows)
    if bits == 8:
        found = rowwise.encode_rows_8(rows, out, bad)
        rowwise.decode_range_8(out.reshape(-1), 0, decoded)
    else:
        found = rowwise.encode_rows_nbit(rows, bits, out, bad)
        rowwise.decode_range_nbit(out.reshape(-1), 0, bits, decoded)
    error_kernel.row_errors(rows, decoded, errors)
    # Nothing is said of rows that aren't held.
    errors[bad == 1] = -1
    return out, bad, errors, found


def peculiar(dim: int) -> Rows:
    rng = np.random.default_rng(dim)
    rows = (rng.normal(0, 1, (90, dim)) * 10.0 ** rng.integers(-12, 6, (90, 1))).astype(np.float32)
    rows[3], rows[4], rows[5] = 0, -0.0, np.where(rng.random(dim) < 0.5, 0.0, -0.0)
    rows[6], rows[7, -1], rows[8, 0], rows[9, dim // 2] = 0.3, np.nan, np.inf, -np.inf
    rows[40], rows[41], rows[42] = 1e38 * np.sign(rows[40]), 1e-42, 7e4
    return rows


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_encoding_where_rows_lie(bits: int, trained: Rows, given: Give) -> None:
    for dim in DIMS:
        rng = np.random.default_rng(dim)
        table = np.concatenate([trained[:70, : min(dim, 256)].repeat(2, axis=1)[:, :dim], peculiar(dim)])
        whole = measured(given(table), None, bits)
        for found, want in zip(whole, step_by_step(table, bits), strict=True):
            assert np.array_equal(found, want), dim
        for positions in (
            np.sort(rng.choice(len(table), 75, replace=False)),
            rng.integers(0, len(table), 40),
            np.arange(10, 43),
            np.array([len(table) - 1]),
            np.empty(0, np.int64),
        ):
            found = measured(given(table), given(positions), bits)
            for one, want in zip(found, step_by_step(np.ascontiguousarray(table[positions]), bits), strict=True):
                assert np.array_equal(one, want), dim
