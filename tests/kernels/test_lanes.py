"""Sixteen numbers at a time, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from cnrfmt.kernels import _lanes
from cnrfmt.kernels._jit import INTERPRETED, jit
from cnrfmt.kernels._lanes import LANES, load, store

Values = npt.NDArray[np.float32]
STEP = 37 if INTERPRETED else 1


@jit
def halves(values: Values, out: Values) -> None:
    for k in range(0, len(values), LANES):
        store(out, k, _lanes.to_half(load(values, k)))


@jit
def bfloats(values: Values, out: Values) -> None:
    for k in range(0, len(values), LANES):
        store(out, k, _lanes.to_bfloat(load(values, k)))


@jit
def powers(values: Values, out: Values) -> None:
    for k in range(0, len(values), LANES):
        store(out, k, _lanes.power_below(load(values, k)))


@jit
def levels(values: Values, top: np.float32, out: Values) -> None:
    for k in range(0, len(values), LANES):
        store(out, k, _lanes.nearest_level(load(values, k), _lanes.each(top)))


@jit
def arithmetic(a: Values, b: Values, out: Values) -> None:
    x, y = load(a, 0), load(b, 0)
    store(out, 0, x + y)
    store(out, 16, x - y)
    store(out, 32, x * y)
    store(out, 48, x / y)
    store(out, 64, _lanes.least(x, y))
    store(out, 80, _lanes.greatest(x, y))
    store(out, 96, _lanes.magnitude(x))
    store(out, 112, _lanes.root(x))
    store(out, 128, _lanes.select((x < y) & (_lanes.each(np.float32(0)) > x), x, y))
    store(out, 144, _lanes.add_exact(x, _lanes.each(np.float32(2)), y))


@jit
def transpose(values: Values, first: int, stride: int, last: int, out: Values, at: int) -> None:
    _lanes.transpose(values, first, stride, last, out, at)


def near(sixteen: npt.NDArray[Any]) -> Values:
    """Every number of a 16-bit type, the middles between them, and the floats beside: all that rounding turns on."""
    finite = sixteen.astype(np.float32)
    finite = np.unique(finite[np.isfinite(finite)])
    middles = finite[:-1] + (finite[1:] - finite[:-1]) / 2
    places = np.concatenate([finite, middles])
    sides = [np.nextafter(places, np.float32(side)) for side in (-np.inf, np.inf)]
    ends = np.array([np.inf, -np.inf, 0.0, -0.0, 1e-45], np.float32)
    values = np.concatenate([places, *sides, ends])
    return np.resize(values, -(-len(values) // LANES) * LANES)


def same(found: Values, want: Values) -> bool:
    return np.array_equal(found.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("convert", [halves] if INTERPRETED else [halves, "by bits"])
def test_halves(convert: Any) -> None:
    if convert == "by bits":

        @jit
        def convert(values: Values, out: Values) -> None:
            for k in range(0, len(values), LANES):
                store(out, k, _lanes.to_half_by_bits(load(values, k)))

    values = near(np.arange(0, 65536, STEP, dtype=np.uint16).view(np.float16))
    out = np.empty_like(values)
    convert(values, out)
    with np.errstate(over="ignore"):
        assert same(out, values.astype(np.float16).astype(np.float32))


def test_bfloats() -> None:
    values = near(np.arange(0, 65536, STEP, dtype=np.uint16).view(ml_dtypes.bfloat16))
    out = np.empty_like(values)
    bfloats(values, out)
    assert same(out, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_powers() -> None:
    exponents = np.arange(-126, 128)
    whole = np.ldexp(np.float32(1), exponents).astype(np.float32)
    values = np.concatenate([whole, np.nextafter(whole, np.float32(0)), [0, 1e-40]]).astype(np.float32)
    values = np.resize(values, 512)
    out = np.empty_like(values)
    powers(values, out)
    with np.errstate(divide="ignore"):
        want = np.exp2(np.floor(np.log2(values.astype(np.float64))))
    assert same(out, np.where(want < 2.0**-126, 0, want).astype(np.float32))


@pytest.mark.parametrize("bits", range(2, 9))
def test_levels(bits: int) -> None:
    top = np.float32((1 << bits) - 1)
    halves_and_beside = np.arange(-4, 2 * top + 4, dtype=np.float32) / 2
    sides = [np.nextafter(halves_and_beside, np.float32(side)) for side in (-np.inf, np.inf)]
    huge = [2.0**21, 2.0**22, 2.0**23, 2.0**24, 1e9, 3e38, np.inf]
    values = np.concatenate([halves_and_beside, *sides, huge, np.negative(huge), [0.0, -0.0, 1e-45]])
    values = np.resize(values.astype(np.float32), -(-len(values) // LANES) * LANES)
    out = np.empty_like(values)
    levels(values, top, out)
    assert np.array_equal(out, np.clip(np.rint(values), 0, top))


def test_arithmetic() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200 // STEP + 1):
        a, b = (rng.integers(0, 2**32, LANES, dtype=np.uint32).view(np.float32).copy() for _ in range(2))
        a[np.isnan(a)], b[np.isnan(b) | (b == 0)] = 1, -2
        a[0], b[0], a[1], b[1] = np.nan, 1, 1, np.nan
        out = np.empty(160, np.float32)
        arithmetic(a, b, out)
        with np.errstate(all="ignore"):
            want = [
                a + b,
                a - b,
                a * b,
                a / b,
                np.where(a < b, a, b),
                np.where(a > b, a, b),
                np.abs(a),
                np.sqrt(a),
                np.where((a < b) & (a < 0), a, b),
                a * np.float32(2) + b,
            ]
        assert np.array_equal(out, np.concatenate(want), equal_nan=True)


@pytest.mark.parametrize("last", [0, 1, 6, 15])
def test_transpose(last: int, given: Callable[[Values], Values]) -> None:
    stride, first, at = 23, 5, 16
    values = np.arange(first + last * stride + LANES, dtype=np.float32)
    out = np.full(LANES * LANES + 2 * at, -1, np.float32)
    transpose(given(values), first, stride, last, out, at)
    rows = [values[first + min(k, last) * stride :][:LANES] for k in range(LANES)]
    assert np.array_equal(out[at:-at].reshape(LANES, LANES), np.transpose(rows))
    assert (out[:at] == -1).all()
    assert (out[-at:] == -1).all()
