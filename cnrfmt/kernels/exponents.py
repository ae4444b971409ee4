"""Exponents of rows of integers: chosen by how active a row is, or what all integers of a row are multiples of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._jit import jit

_DOUBLE_FRACTION, _DOUBLE_BIAS, _DOUBLE_EXPONENTS = 52, 1023, 0x7FF


@jit
def by_activity(
    activity: npt.NDArray[np.float64], size: float, reference: float, least: float, floor: int, out: Bytes
) -> None:
    """out[i] = round(log2(size x sqrt(reference / activity[i]))) - floor, from 0 to 24.

    The ratio is clipped to least .. 1; it is 1 for an activity that is negative or not a number, too. No logarithm is
    taken: the exponent of the square root of x, rounded to the nearest, is half that of 2 x, rounded down.
    """
    for i in range(len(out)):
        ratio = 1.0
        if activity[i] > reference:
            ratio = max(reference / activity[i], least)
        doubled = np.float64(2 * size * size * ratio)
        exponent = (int(doubled.view(np.int64)) >> _DOUBLE_FRACTION & _DOUBLE_EXPONENTS) - _DOUBLE_BIAS >> 1
        out[i] = max(0, min(exponent - floor, 24))


@jit
def take_out(rows: npt.NDArray[np.int32], exponents: Bytes) -> None:
    """Shift each row (n, width) by the greatest e with which all its integers are multiples of 2^e: exponents[i] = e.

    Of a row of zeros it is 0.
    """
    for i in range(len(rows)):
        bits = np.int32(0)
        for j in range(rows.shape[1]):
            bits |= rows[i, j]
        exponent = 0
        # The sign bit is set at the latest, where a row is all -2^31.
        while bits != 0 and (bits >> exponent) & 1 == 0:
            exponent += 1
        exponents[i] = exponent
        if exponent:
            for j in range(rows.shape[1]):
                rows[i, j] >>= exponent
