"""From values to codes on a grid, against exact fractions."""

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

from cnrfmt.kernels import errors, integers, quantising
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]
Ids = npt.NDArray[np.int64]
Stored = npt.NDArray[Any]
Rows = npt.NDArray[np.float32]
DIMS = [1, 3, 8, 17] if INTERPRETED else [*range(1, 40), 63, 64, 65, 100, 128, 300]
LIMIT = 1 << 24
SPECIAL = [0.0, -0.0, 1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, np.nan, np.inf, -np.inf]


def reference(values: Rows, stored: Stored, floor: int, exponents: Bytes) -> tuple[Integers, list[bool]]:
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


def quantised(
    values: Rows, positions: Ids, stored: Stored, before: Ids, floor: int, given: Bytes
) -> tuple[Integers, Bytes, Bytes, Bytes]:
    """Codes, and widths, exponents and flags as the kernel writes them; `given` stays as it is."""
    count, width = len(positions), values.shape[1]
    exponents, widths, bad = given.copy(), np.full(count, 77, np.uint8), np.full(count, 7, np.uint8)
    out = np.empty(count * (width * 26 + 7) // 8 + 8, np.uint8)
    used = quantising.quantise_packed(values, positions, stored, before, floor, exponents, widths, bad, out)
    codes = np.empty((count, width), np.int32)
    assert integers.unpack_rows(out[:used], 0, widths, np.zeros(count, np.uint8), codes) == used
    return codes, widths, exponents, bad


def check(values: Rows, positions: Ids, stored: Stored, before: Ids, floor: int, given: Bytes) -> None:
    """`stored` has no rows, or some at the positions `before`."""
    codes, widths, exponents, bad = quantised(values, positions, stored, before, floor, given)
    want, want_bad = reference(values[positions], stored[before] if len(stored) else stored, floor, given)
    assert bad.tolist() == want_bad
    assert np.array_equal(codes, want)
    needed = np.empty(len(positions), np.uint8)
    integers.code_widths(want, needed)
    assert np.array_equal(widths, needed)
    assert exponents.tolist() == [e if w else 0 for e, w in zip(given.tolist(), needed.tolist(), strict=True)]


@pytest.mark.parametrize("kind", [np.int32, np.int16])
def test_differences_of_rows_from_anywhere(kind: type[np.signedinteger[Any]], given: Give) -> None:
    rng = np.random.default_rng(1)
    for dim in DIMS:
        values = rng.normal(size=(30, dim)).astype(np.float32)
        positions = rng.permutation(30)[:20]
        before, stored = rng.permutation(50)[:20], rng.integers(-99, 99, (50, dim)).astype(kind)
        stored[before] += np.rint(values[positions] * 2.0**12).astype(kind)
        exponents = rng.integers(0, 9, 20).astype(np.uint8)
        values[positions[3], dim // 2] = np.nan
        values[positions[19], dim - 1] = np.inf
        check(given(values), given(positions), given(stored), given(before), -12, exponents)


def test_absolute_rows(given: Give) -> None:
    rng = np.random.default_rng(2)
    for dim in DIMS[::2]:
        values = (rng.normal(size=(9, dim)) * 2.0 ** rng.integers(-5, 14, (9, 1))).astype(np.float32)
        nothing = np.empty((0, dim), np.int32)
        every = given(np.arange(9))
        check(given(values), every, nothing, every, -12, rng.integers(0, 25, 9).astype(np.uint8))


@examples(
    arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 20)), elements=st.floats(-100, 100, width=32)),
    st.integers(-126, 103),
    st.integers(0, 24),
    st.integers(0, 2**32),
)
def test_any_floor_and_exponent(values: Rows, floor: int, exponent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stored = rng.integers(1 - LIMIT, LIMIT, values.shape).astype(np.int32)
    with np.errstate(over="ignore"):
        scaled = (values * rng.choice([1, 1e-3, 1e3]) * 2.0 ** (floor + rng.integers(0, 20))).astype(np.float32)
    exponents, every = np.full(len(values), exponent, np.uint8), np.arange(len(values))
    check(scaled, every, stored, every, floor, exponents)
    check(scaled, every, stored[:0], every, floor, exponents)


@examples(st.integers(0, 2**32), st.integers(0, 24), st.sampled_from([np.int16, np.int32]))
def test_differences_at_the_middle_between_two_codes_and_just_beside(seed: int, exponent: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(np.int16)
    stored = rng.integers(info.min, info.max, (4, 17)).astype(kind)
    middles = stored + (rng.integers(-5, 5, stored.shape) + 0.5) * 2.0**exponent
    values = middles.astype(np.float32)
    beside = np.nextafter(values, rng.choice([-np.inf, np.inf], values.shape).astype(np.float32), dtype=np.float32)
    values = np.where(rng.random(values.shape) < 0.5, values, beside)
    # Values near zero lie nearer to a middle than any float32 of a difference does.
    near = rng.random(values.shape) < 0.2
    values = np.where(near, (2.0 ** rng.integers(-60, 0, values.shape)).astype(np.float32), values)
    floor, every = int(rng.integers(-20, 20)), np.arange(4)
    check(np.ldexp(values, floor), every, stored, every, floor, np.full(4, exponent, np.uint8))


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
                check(values, np.arange(2), stored, np.arange(2), floor, np.full(2, exponent, np.uint8))


@pytest.mark.parametrize("kind", [np.int32, np.int16])
def test_errors_of_some_rows(kind: type[np.signedinteger[Any]]) -> None:
    rng, floor = np.random.default_rng(4), -12
    for dim in DIMS:
        values = rng.normal(size=(60, dim)).astype(np.float32)
        positions, before = rng.permutation(60)[:40], rng.permutation(50)[:40]
        stored = rng.integers(-4096, 4096, (50, dim)).astype(kind)
        exponents = rng.integers(0, 9, 40).astype(np.uint8)
        some = np.sort(rng.permutation(40)[:25])
        picked = values[positions[some]]
        step = np.ldexp(np.float32(1), exponents[some].astype(np.int32) + floor)[:, None]
        for kept in (stored, stored[:0]):
            base = np.ldexp(kept[before[some]].astype(np.float32), floor) if len(kept) else np.zeros_like(picked)
            decoded = base + np.rint((picked - base) / step) * step
            found, want = np.empty(25), np.empty(25)
            quantising.sampled_errors(values, positions, kept, before, floor, exponents, some, found)
            errors.row_errors(picked, decoded, want)
            assert found.tolist() == want.tolist()
            assert found.any()


def test_trained_rows(trained: Rows) -> None:
    # What is stored of them after one step, and what is to be sent after the next.
    given, every = np.full(len(trained), 3, np.uint8), np.arange(len(trained))
    floor, rng = -20, np.random.default_rng(3)
    codes, _, _, bad = quantised(trained, every, np.empty((0, trained.shape[1]), np.int32), every, floor, given)
    assert not bad.any()
    stored = codes << 3
    later = trained + rng.normal(size=trained.shape).astype(np.float32) * np.float32(1e-4)
    codes, widths, exponents, bad = quantised(later, every, stored, every, floor, given)
    assert not bad.any()
    found = np.empty_like(trained)
    integers.values(stored + (codes << exponents[:, None].astype(np.int32)), floor, found)
    # Half a step; and half a unit in the last place of a sum of values.
    assert np.abs(found - later).max() <= 4 * 2.0**floor
    assert np.median(widths) < 9
