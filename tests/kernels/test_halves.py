"""Half precision against numpy's, with the processor's instructions and without; bfloat16 against ml_dtypes'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
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


@jit
def round_all(floats: npt.NDArray[np.float32], kind: int, out: npt.NDArray[np.float32]) -> None:
    for k in range(len(floats)):
        out[k] = _halves.round_to(floats[k], kind)


@jit
def narrow_to_bfloats(floats: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None:
    for k in range(len(floats)):
        out[k] = _halves.bfloat_of(floats[k])


@jit
def widen_bfloats(bfloats: npt.NDArray[np.uint16], out: npt.NDArray[np.float32]) -> None:
    for k in range(len(bfloats)):
        out[k] = _halves.float_of_bfloat(bfloats[k])


def numbers_near_bfloats() -> npt.NDArray[np.float32]:
    """Every bfloat16, the middle to the next one, and the floats next to these, of both signs."""
    bfloats = np.arange(0, 0x7F80, STEP, dtype=np.uint32) << 16
    bits = np.concatenate([bfloats + change for change in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    floats = np.append(bits.astype(np.uint32).view(np.float32), np.float32(np.inf))
    return np.concatenate([floats, -floats])


def test_bfloats() -> None:
    floats = numbers_near_bfloats()
    out = np.empty(len(floats), np.uint16)
    narrow_to_bfloats(floats, out)
    with np.errstate(over="ignore"):
        want = floats.astype(ml_dtypes.bfloat16)
    assert np.array_equal(out, want.view(np.uint16))
    back = np.empty(len(floats), np.float32)
    widen_bfloats(out, back)
    assert np.array_equal(back.view(np.uint32), want.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize(("kind", "dtype"), [(0, np.float32), (1, np.float16), (2, ml_dtypes.bfloat16)])
def test_rounding_to_a_kind(kind: int, dtype: Any) -> None:
    floats = numbers_near_bfloats()
    out = np.empty(len(floats), np.float32)
    round_all(floats, kind, out)
    with np.errstate(over="ignore"):
        want = floats.astype(dtype).astype(np.float32)
    assert np.array_equal(out.view(np.uint32), want.view(np.uint32))
