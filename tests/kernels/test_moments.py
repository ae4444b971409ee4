"""Optimizer state of many values per row, against twins in whole numbers and plain arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import moments
from cnrfmt.kernels._jit import INTERPRETED

Rows = npt.NDArray[np.float32]
BITS, SHIFT = 8, 20
BASE = 0x2B800000  # 2^-40
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-20, 2.0**-40, 2.0**-41, -1.0, 1.0, 3.4028235e38]
numbers = st.floats(0, 1, width=32) | st.sampled_from(np.array(SPECIAL, np.float32).tolist())
tables = st.tuples(st.integers(0, 8), st.integers(1, 5)).flatmap(lambda s: arrays(np.float32, s, elements=numbers))


def as_bits(value: Any) -> int:
    return int(np.float32(value).view(np.uint32))


def mixed(word: int) -> int:
    word ^= word >> 16
    word = word * 0x85EBCA6B & 0xFFFFFFFF
    word ^= word >> 13
    word = word * 0xC2B2AE35 & 0xFFFFFFFF
    return word ^ word >> 16


def reference_code(value: np.float32, salt: int) -> int | None:
    """The twin: None for a number without a code."""
    if value == 0:
        return 0
    if not 0 < value < np.inf:
        return None
    pattern = as_bits(value)
    if pattern < BASE:
        return 1
    code = 1 + (pattern - BASE + mixed(pattern ^ salt) % 2**SHIFT) // 2**SHIFT
    return code if code < 2**BITS else None


def log_codes(values: Rows, positions: npt.NDArray[np.int64], salt: int) -> tuple[npt.NDArray[Any], list[int]]:
    codes = np.full((len(positions), values.shape[1]), -7, np.int32)
    bad = np.full(len(positions), 7, np.uint8)
    count = moments.log_codes(values, positions, BITS, BASE, SHIFT, salt, codes, bad)
    assert count == bad.sum()
    return codes, bad.tolist()


@given(tables, st.data(), st.integers(0, 2**32 - 1))
def test_log_codes_against_the_twin(values: Rows, data: st.DataObject, salt: int) -> None:
    places = st.lists(st.integers(0, len(values) - 1), max_size=8) if len(values) else st.just([])
    positions = np.array(data.draw(places), np.int64)
    codes, bad = log_codes(values, positions, salt)
    for row, found, is_bad in zip(values[positions], codes.tolist(), bad, strict=True):
        expected = [reference_code(value, salt) for value in row]
        assert is_bad == (None in expected)
        assert found == ([0] * len(row) if is_bad else expected)


@pytest.mark.parametrize("value", [3e-5, 1.1e-3])
def test_numbers_are_kept_on_average(value: float) -> None:
    salts = 300 if INTERPRETED else 20_000
    values, found = np.full((1, 1), value, np.float32), []
    for salt in range(salts):
        codes, _ = log_codes(values, np.zeros(1, np.int64), mixed(salt))
        pattern = np.uint32(BASE + (int(codes[0, 0]) - 1 << SHIFT) if codes[0, 0] else 0)
        found.append(float(pattern.view(np.float32)))
    spread = np.std(found) / math.sqrt(salts)
    # Between two codes of an octave the value is linear in the pattern.
    assert abs(np.mean(found) - values[0, 0]) <= 5 * spread + 1e-12


@given(tables, st.floats(2.0**-6, 4), st.integers(-40, 0))
def test_exponents_by_size(values: Rows, share: float, floor: int) -> None:
    positions = np.arange(len(values))[::-1].copy()
    found = np.full(len(values), 99, np.uint8)
    moments.exponents_by_size(values, positions, share, floor, found)
    for row, exponent in zip(values[positions].astype(np.float64), found.tolist(), strict=True):
        assert 0 <= exponent <= 24
        if np.isfinite(row).all() and row.any():
            exact = math.log2(share) + math.log2(np.mean(row**2)) / 2 - floor
            assert abs(min(max(exact, 0), 24) - exponent) <= 0.5 + 1e-9


def test_exponents_of_zeros() -> None:
    found = np.full(2, 99, np.uint8)
    moments.exponents_by_size(np.zeros((2, 3), np.float32), np.arange(2), 0.5, -30, found)
    assert found.tolist() == [0, 0]
