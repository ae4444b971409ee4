"""Half precision against numpy's, both ways and both with the processor's instructions and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cnrfmt.kernels import _halves
from cnrfmt.kernels._jit import INTERPRETED, jit

STEP = 37 if INTERPRETED else 1


@jit
def narrow_by_bits(floats: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None:
    for k in range(len(floats)):
        out[k] = _halves.half_by_bits(floats[k])


@jit
def narrow(floats: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None:
    for k in range(len(floats)):
        out[k] = _halves.half_of(floats[k])


@jit
def widen_by_bits(halves: npt.NDArray[np.uint16], out: npt.NDArray[np.float32]) -> None:
    for k in range(len(halves)):
        out[k] = _halves.float_by_bits(halves[k])


@jit
def widen(halves: npt.NDArray[np.uint16], out: npt.NDArray[np.float32]) -> None:
    for k in range(len(halves)):
        out[k] = _halves.float_of(halves[k])


@pytest.mark.parametrize("convert", [widen, widen_by_bits])
def test_every_half_widens(convert: Callable[..., Any]) -> None:
    halves = np.arange(0, 65536, STEP, dtype=np.uint16)
    out = np.empty(len(halves), np.float32)
    convert(halves, out)
    want = halves.view(np.float16).astype(np.float32)
    assert np.array_equal(out, want, equal_nan=True)
    assert np.array_equal(np.signbit(out), np.signbit(want))


@pytest.mark.parametrize("convert", [narrow, narrow_by_bits])
def test_floats_narrow(convert: Callable[..., Any]) -> None:
    # Every half, the middle to the next one, and the floats next to these: all that rounding turns on.
    halves = np.arange(0, 0x7C01, STEP, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves[~np.isfinite(halves)] = 65536
    middles = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate([halves, middles])
    near = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(9e9))])
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000 // STEP, dtype=np.uint32)
    ends = np.array([np.inf, -np.inf, np.nan], np.float32)
    floats = np.concatenate([near, -near, bits.view(np.float32), ends])
    out = np.empty(len(floats), np.uint16)
    convert(floats, out)
    with np.errstate(all="ignore"):
        want = floats.astype(np.float16)
    assert np.array_equal(np.isnan(out.view(np.float16)), np.isnan(want))
    number = ~np.isnan(want)
    assert np.array_equal(out[number], want.view(np.uint16)[number])
