"""Scale and bias that make encoding idempotent: what a row decodes to is encoded in the same bytes.

For that every value that a code stands for is exact, a whole multiple of a power of two, so that no
rounding in decoding changes the extremes of a row. And the parameters are a *fixed point*: the extremes
of what was decoded lead to the same ones again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._halves import BFLOAT16, FLOAT16
from cnrfmt.kernels._jit import helper

Values = npt.NDArray[np.float32]

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_INFINITY = np.float32(np.inf)
_GREATEST = float(np.finfo(np.float32).max)
# Parameters repeat after at most three, if at all: so it was in 10**9 trials with difficult extremes.
_TRIES = 4


@helper
def _last_place_of(kind: int) -> float:
    """What a scale is a multiple of, relative to the power of two below it.

    A float32 scale keeps 16 of its 24 bits, so that its product with a code is exact.
    """
    if kind == FLOAT16:
        return 2.0**-10
    return 2.0**-7 if kind == BFLOAT16 else 2.0**-15


@helper
def _least_normal_of(kind: int) -> float:
    return 2.0**-14 if kind == FLOAT16 else 2.0**-126


@helper
def least_of(kind: int) -> float:
    """The least scale: of half precision the least there is, else that whose inverse is sure to be finite."""
    return 2.0**-24 if kind == FLOAT16 else 2.0**-126


@helper
def _greatest_of(kind: int) -> float:
    return 65504.0 if kind == FLOAT16 else _GREATEST


@helper
def _power_below(x: float) -> float:
    """The greatest power of two that isn't above x >= 2**-1022; 0 of 0."""
    return float(np.int64(np.float64(x).view(np.int64) & 0x7FF0_0000_0000_0000).view(np.float64))


@helper
def _level(x: np.float32, low: np.float32, inverse: np.float32, top: np.float32) -> np.float32:
    level: np.float32 = np.rint(min(max((x - low) * inverse, _ZERO), top))
    return level


@helper
def _grid_of(low: np.float32, high: np.float32) -> float:
    """What all values are multiples of, for these extremes: 23 bits, with which the sums fit into 24."""
    return max(_power_below(max(abs(float(low)), abs(float(high)))) * 2.0**-22, 2.0**-149)


@helper
def _unit_of(scale: float, kind: int) -> float:
    """What scales of about this size are multiples of."""
    return max(_power_below(scale), _least_normal_of(kind)) * _last_place_of(kind)


@helper
def _fit(low: np.float32, high: np.float32, top: float, kind: int) -> tuple[float, float]:
    """Scale and bias for these extremes: the bias is rounded to the nearest, the scale up."""
    grid = _grid_of(low, high)
    # The sum makes a zero positive.
    bias = (float(low) if low == high else np.rint(float(low) / grid) * grid) + 0.0
    scale = abs(float(high) - bias) / top
    unit = max(_unit_of(scale, kind), grid)
    scale = np.ceil(scale / unit) * unit
    return max(scale, least_of(kind)) if scale > 0 else scale, bias


@helper
def _decoded(
    low: np.float32, high: np.float32, scale: float, bias: float, top: np.float32
) -> tuple[np.float32, np.float32]:
    """What a row's extremes decode to."""
    start, inverse = np.float32(bias), _ONE / np.float32(scale)
    inverse = inverse if inverse < _INFINITY else _ZERO
    return (
        np.float32(float(_level(low, start, inverse, top)) * scale + bias),
        np.float32(float(_level(high, start, inverse, top)) * scale + bias),
    )


@helper
def _is_held(scale: float, bias: float, top: float, kind: int) -> bool:
    """Whether the scale is within its kind, and all values and their differences are finite."""
    reach = scale * top
    return (scale <= _greatest_of(kind)) & (reach <= _GREATEST) & (abs(reach + bias) <= _GREATEST)


@helper
def stable(low: np.float32, high: np.float32, top: np.float32, kind: int) -> tuple[float, float]:
    """Scale and bias that are a fixed point; NaN where some code would stand for an infinity.

    Parameters for the extremes, then for what these decode to, and so on until they repeat. Should they
    not, the scale is rounded down: then the extremes have the least and the greatest code, and what
    these decode to leads to the same scale.
    """
    greatest = float(top)
    scale, bias = _fit(low, high, greatest, kind)
    for _ in range(_TRIES):
        if not _is_held(scale, bias, greatest, kind):
            return np.nan, np.nan
        scale_again, bias_again = _fit(*_decoded(low, high, scale, bias, top), greatest, kind)
        if scale_again == scale and bias_again == bias:
            return scale, bias
        scale, bias = scale_again, bias_again
    # Twice as coarse, since what the extremes decode to may reach the next power of two.
    grid = 2 * _grid_of(low, high)
    bias = np.rint(float(low) / grid) * grid + 0.0
    scale = abs(float(high) - bias) / greatest
    unit = max(_unit_of(scale, kind), grid)
    return np.floor(scale / unit) * unit, bias


@helper
def fit_all(
    lows: Values,
    highs: Values,
    count: int,
    top: np.float32,
    kind: int,
    scales: Values,
    biases: Values,
    steady: Bytes,
) -> None:
    """Parameters for `count` extremes; `steady` says which are a fixed point at once, as nearly all are.

    There are no branches, so that it becomes vectors.
    """
    greatest = float(top)
    for k in range(count):
        low, high = lows[k], highs[k]
        scale, bias = _fit(low, high, greatest, kind)
        low, high = _decoded(low, high, scale, bias, top)
        scale_again, bias_again = _fit(low, high, greatest, kind)
        steady[k] = (scale_again == scale) & (bias_again == bias) & _is_held(scale, bias, greatest, kind)
        scales[k], biases[k] = np.float32(scale), np.float32(bias)


@helper
def _fit_symmetric(reach: float, top: float, kind: int) -> float:
    """The scale for this greatest magnitude, rounded up; 0 where even the least scale is greater than it."""
    scale = reach / top
    unit = _unit_of(scale, kind)
    scale = max(np.ceil(scale / unit) * unit, least_of(kind))
    return 0.0 if reach < least_of(kind) else scale


@helper
def _magnitude(low: np.float32, high: np.float32) -> float:
    return float(max(abs(low), abs(high)))


@helper
def _decoded_symmetric(
    low: np.float32, high: np.float32, scale: float, top: np.float32
) -> tuple[np.float32, np.float32]:
    """What a row's extremes decode to. Of two that are opposite one may be rounded up, the other down."""
    start, inverse = np.float32(-scale * float(top)), _ONE / np.float32(scale)
    inverse = inverse * _HALF if inverse < _INFINITY else _ZERO
    return (
        np.float32((2 * float(_level(low, start, inverse, top)) - float(top)) * scale),
        np.float32((2 * float(_level(high, start, inverse, top)) - float(top)) * scale),
    )


@helper
def _is_held_symmetric(scale: float, top: float, kind: int) -> bool:
    return _is_held(scale, scale * top, top, kind)


@helper
def stable_symmetric(low: np.float32, high: np.float32, top: np.float32, kind: int) -> float:
    """A scale that is a fixed point, in the way of `stable`; 0 is one always."""
    greatest = float(top)
    scale = _fit_symmetric(_magnitude(low, high), greatest, kind)
    for _ in range(_TRIES):
        if not _is_held_symmetric(scale, greatest, kind):
            return np.nan
        again = _fit_symmetric(_magnitude(*_decoded_symmetric(low, high, scale, top)), greatest, kind)
        if again == scale:
            return scale
        scale = again
    return 0.0


@helper
def fit_all_symmetric(
    lows: Values, highs: Values, count: int, top: np.float32, kind: int, scales: Values, steady: Bytes
) -> None:
    """As `fit_all`."""
    greatest = float(top)
    for k in range(count):
        low, high = lows[k], highs[k]
        scale = _fit_symmetric(_magnitude(low, high), greatest, kind)
        again = _fit_symmetric(_magnitude(*_decoded_symmetric(low, high, scale, top)), greatest, kind)
        steady[k] = (again == scale) & _is_held_symmetric(scale, greatest, kind)
        scales[k] = np.float32(scale)
