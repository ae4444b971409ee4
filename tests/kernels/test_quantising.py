"""From values to codes on a grid, against exact fractions and against packing afterwards."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import integers, quantising
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]
DIMS = [1, 3, 8, 17] if INTERPRETED else [*range(1, 40), 63, 64, 65, 100, 128, 300]
LIMIT = 1 << 24
SPECIAL = [0.0, -0.0, 1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, np.nan, np.inf, -np.inf]


def reference(values: Rows, stored: Integers, floor: int, exponents: Bytes) -> tuple[Integers, list[bool]]:
    """Codes in fractions, ties to even, and which rows can't be held."""
    codes, bad = np.zeros(values.shape, np.int32), []
    for i, row in enumerate(values):
        wrong = not np.isfinite(row).all()
        if not wrong:
            step = Fraction(2) ** int(exponents[i])
            before = stored[i] if len(stored) else np.zeros(len(row), np.int32)
            found = []
            for v, m in zip(row, before, strict=True):
                difference = float(Fraction(float(v)) / Fraction(2) ** floor - int(m))
                found.append(round(Fraction(difference) / step))
            wrong = any(abs(int(m) + c * step) >= LIMIT for m, c in zip(before, found, strict=True))
            if not wrong:
                codes[i] = found
        bad.append(wrong)
    return codes, bad


def check(values: Rows, positions: npt.NDArray[np.int64] | None, stored: Integers, floor: int, given: Bytes) -> None:
    picked = values if positions is None else values[positions]
    count, width = picked.shape
    want, want_bad = reference(picked, stored, floor, given)
    exponents, widths, bad = given.copy(), np.full(count, 77, np.uint8), np.full(count, 7, np.uint8)
    codes = np.full((count, width), 7, np.int32)
    found = quantising.quantise(values, positions, stored, floor, exponents, codes, widths, bad)
    assert found == sum(want_bad)
    assert bad.tolist() == want_bad
    assert np.array_equal(codes, want)
    needed = np.empty(count, np.uint8)
    integers.code_widths(codes, needed)
    assert np.array_equal(widths, needed)
    assert exponents.tolist() == [e if w else 0 for e, w in zip(given.tolist(), needed.tolist(), strict=True)]
    # Packed at once: the same.
    again, other, out = given.copy(), np.empty(count, np.uint8), np.empty(count * (width * 26 + 7) // 8 + 8, np.uint8)
    used = quantising.quantise_packed(values, positions, stored, floor, again, other, bad, out)
    assert bad.tolist() == want_bad
    assert np.array_equal(again, exponents)
    assert np.array_equal(other, widths)
    back = np.empty_like(codes)
    assert integers.unpack_rows(out[:used], 0, widths, np.zeros(count, np.uint8), back) == used
    assert np.array_equal(back, want)


@pytest.mark.parametrize("kind", [np.int32, np.int16])
def test_differences_of_rows_from_anywhere(kind: type[np.signedinteger[Any]], given: Give) -> None:
    rng = np.random.default_rng(1)
    for dim in DIMS:
        values = rng.normal(size=(30, dim)).astype(np.float32)
        positions = rng.permutation(30)[:20]
        stored = np.rint(values[positions] * 2.0**12).astype(kind) + rng.integers(-30, 30, (20, dim)).astype(kind)
        exponents = rng.integers(0, 9, 20).astype(np.uint8)
        values[positions[3], dim // 2] = np.nan
        values[positions[19], dim - 1] = np.inf
        check(given(values), given(positions), given(stored), -12, exponents)


def test_absolute_rows(given: Give) -> None:
    rng = np.random.default_rng(2)
    for dim in DIMS[::2]:
        values = (rng.normal(size=(9, dim)) * 2.0 ** rng.integers(-5, 14, (9, 1))).astype(np.float32)
        nothing = np.empty((0, dim), np.int32)
        check(given(values), None, nothing, -12, rng.integers(0, 25, 9).astype(np.uint8))


@examples(
    arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 20)), elements=st.floats(-100, 100, width=32)),
    st.integers(-126, 103),
    st.integers(0, 24),
    st.integers(0, 2**32),
)
def test_any_floor_and_exponent(values: Rows, floor: int, exponent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stored = rng.integers(1 - LIMIT, LIMIT, values.shape).astype(np.int32)
    scaled = (values * rng.choice([1, 1e-3, 1e3]) * 2.0 ** (floor + rng.integers(0, 20))).astype(np.float32)
    exponents = np.full(len(values), exponent, np.uint8)
    check(scaled, None, stored, floor, exponents)
    check(scaled, None, stored[:0], floor, exponents)


@pytest.mark.parametrize("floor", [-126, -20, 0, 103])
def test_values_at_all_ends(floor: int) -> None:
    step = np.float32(2.0**floor)
    grid = [step * np.float32(k) for k in (LIMIT - 1, 1 - LIMIT, LIMIT, -LIMIT, 0.5, 1.5, -0.5, -2.5)]
    for value in [*SPECIAL, *grid]:
        for m in (0, 1, LIMIT - 1, 1 - LIMIT):
            values = np.full((2, 5), step, np.float32)
            values[1, 3] = value
            stored = np.full((2, 5), m, np.int32)
            for exponent in (0, 1, 7, 24):
                check(values, None, stored, floor, np.full(2, exponent, np.uint8))


def test_trained_rows(trained: Rows) -> None:
    # What is stored of them after one step, and what is to be sent after the next.
    exponents = np.full(len(trained), 3, np.uint8)
    floor, rng = -20, np.random.default_rng(3)
    codes, widths, bad = np.empty(trained.shape, np.int32), np.empty(len(trained), np.uint8), exponents.copy()
    assert not quantising.quantise(trained, None, codes[:0], floor, exponents.copy(), codes, widths, bad)
    stored = codes << 3
    later = trained + rng.normal(size=trained.shape).astype(np.float32) * np.float32(1e-4)
    assert not quantising.quantise(later, None, stored, floor, exponents, codes, widths, bad)
    found = np.empty_like(trained)
    integers.values(stored + (codes << exponents[:, None].astype(np.int32)), floor, found)
    # Half a step; and half a unit in the last place of a sum of values.
    assert np.abs(found - later).max() <= 4 * 2.0**floor
    assert np.median(widths) < 9
