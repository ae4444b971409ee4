"""Exponents by activity, and what all integers of a row are multiples of, against plain arithmetic."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.kernels.exponents import by_activity, take_out

_LEAST, _MOST = -(2**31), 2**31 - 1


def rows_of(width: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    return st.lists(st.tuples(*[st.integers(-9, 9)] * width), max_size=20)


@given(st.integers(1, 9).flatmap(rows_of), st.data())
def test_against_plain_arithmetic(rows: list[tuple[int, ...]], data: st.DataObject) -> None:
    shifts = [data.draw(st.integers(0, 27)) for _ in rows]
    given_rows = [[x << shift for x in row] for row, shift in zip(rows, shifts, strict=True)]
    codes = np.array(given_rows, np.int32).reshape(len(rows), len(rows[0]) if rows else 1)
    exponents = np.full(len(rows), 99, np.uint8)
    take_out(codes, exponents)
    for row, code, exponent in zip(given_rows, codes.tolist(), exponents.tolist(), strict=True):
        divisor = math.gcd(*row)
        assert exponent == ((divisor & -divisor).bit_length() - 1 if divisor else 0)
        assert [x << exponent for x in code] == row


def test_the_widest_integers() -> None:
    codes = np.array([[_LEAST, _LEAST], [_LEAST, 0], [_MOST, _LEAST], [0, 0]], np.int32)
    exponents = np.empty(4, np.uint8)
    take_out(codes, exponents)
    assert exponents.tolist() == [31, 31, 0, 0]
    assert codes.tolist() == [[-1, -1], [-1, 0], [_MOST, _LEAST], [0, 0]]


@given(
    st.floats(2.0**-100, 2.0**100),
    st.floats(2.0**-60, 2.0**60),
    st.integers(-5, 5),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20),
)
def test_exponents_by_activity(size: float, reference: float, below: int, activity: list[float]) -> None:
    floor = math.floor(math.log2(size)) - 4 + below
    found = np.empty(len(activity), np.uint8)
    by_activity(np.array(activity), size, reference, 1 / 256, floor, found)
    for value, exponent in zip(activity, found.tolist(), strict=True):
        ratio = max(reference / value, 1 / 256) if value > reference else 1.0
        exact = math.log2(size * math.sqrt(ratio)) - floor
        assert abs(exact - exponent) <= 0.5 + 1e-9 or (exponent, exact < 0) == (0, True)
