"""Optimizer state of `dim` values per row: logarithmic codes of what is never negative, steps for what may be.

Rows lie anywhere in a table; nothing of them is copied.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels.logs import mixed, pattern_of

Rows = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

_INFINITE = 0x7F800000
_DOUBLE_FRACTION, _DOUBLE_BIAS, _DOUBLE_EXPONENTS = 52, 1023, 0x7FF
_MOST_EXPONENT = 24


@helper
def _code(x: np.float32, top: int, base: int, shift: int, salt: int) -> int:
    """The code of a number that is rounded by lot, or -1."""
    pattern = int(pattern_of(x))
    if pattern == 0 or pattern == -(1 << 31):
        return 0
    if pattern < 0 or pattern >= _INFINITE:
        return -1
    if pattern < base:
        return 1
    step = (pattern - base + (mixed(pattern ^ salt) & ((1 << shift) - 1))) >> shift
    return step + 1 if step <= top else -1


@jit
def log_codes(
    values: Rows, positions: Ids, bits: int, base: int, shift: int, salt: int, codes: Integers, bad: Bytes
) -> int:
    """codes[k] (n, width) = the codes of the row at positions[k], rounded up or down by a hash of each number.

    On average a number is what it was, so that slow growth isn't rounded away. `base` is a normal number's pattern; a
    positive number below it becomes that, since whoever divides by it must never find zero; -0 becomes zero. Another
    `salt` (32 bits) draws otherwise. A row with a number that is negative, not finite or too large is set to 1 in
    `bad`, and its codes to 0; the others are set to 0 in `bad`. Returns how many are bad.
    """
    top, width, count = (1 << bits) - 2, values.shape[1], 0
    for k in range(len(positions)):
        row, fits = positions[k], True
        for j in range(width):
            code = _code(values[row, j], top, base, shift, salt)
            fits &= code >= 0
            codes[k, j] = max(code, 0)
        if not fits:
            for j in range(width):
                codes[k, j] = 0
        bad[k] = np.uint8(0 if fits else 1)
        count += int(not fits)
    return count


@jit
def exponents_by_size(values: Rows, positions: Ids, share: float, floor: int, out: Bytes) -> None:
    """out[k] = round(log2(share x root mean square of the row at positions[k])) - floor, from 0 to 24.

    No logarithm is taken: the exponent of the square root of x, rounded to the nearest, is half that of 2 x, rounded
    down. What becomes of a row that isn't finite says nothing.
    """
    width = values.shape[1]
    for k in range(len(positions)):
        row, total = positions[k], np.float64(0)
        for j in range(width):
            total += np.float64(values[row, j]) * np.float64(values[row, j])
        doubled = np.float64(2 * share * share * total / width)
        exponent = (int(doubled.view(np.int64)) >> _DOUBLE_FRACTION & _DOUBLE_EXPONENTS) - _DOUBLE_BIAS >> 1
        out[k] = max(0, min(exponent - floor, _MOST_EXPONENT))
