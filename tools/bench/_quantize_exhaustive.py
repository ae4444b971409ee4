"""An exhaustive search for the scale and bias of a row: what faster searches are held against.

Both ends of the range are tried on a fine grid, from somewhat outside of the row's extremes to deep inside. For each
lower end, the best upper one is refined by alternating least squares, and then rounded to half precision in all of the
ways that are near.
"""

from __future__ import annotations

import numba
import numpy as np

from cnrfmt.kernels._halves import float_of, half_of
from tools.bench._quantize_setting import Values

_OUTSIDE, _DEPTH = 0.15, 1.0
"""The ends of the grid, as fractions of the range: how far outside it starts, and how long it is."""
_STEPS = 30
_NEAR = 2


def best_parameters(rows: Values, bits: int, grid: int) -> tuple[Values, Values]:
    """Scale and bias of each row, (rows, 1) both, of half precision; `grid` steps for either end."""
    scales, biases = (np.zeros((len(rows), 1), np.float32) for _ in range(2))
    _search_rows(rows, np.float32((1 << bits) - 1), grid, scales, biases)
    return scales, biases


# Sums in any order: a search may err in the last digit, and it is quick like that.
@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"})  # type: ignore[untyped-decorator]
def _error(row: Values, scale: np.float32, bias: np.float32, top: np.float32) -> np.float32:
    """The sum of squares of what decoding changes."""
    inverse, total = np.float32(1) / scale, np.float32(0)
    for x in row:
        level = min(max(np.rint((x - bias) * inverse), np.float32(0)), top)
        change = level * scale + bias - x
        total += change * change
    return total


@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "nsz"})  # type: ignore[untyped-decorator]
def _fitted(row: Values, scale: np.float32, bias: np.float32, top: np.float32) -> tuple[np.float32, np.float32]:
    """The scale and bias that err least under the codes that these lead to; a scale of 0 where all are the same."""
    inverse = np.float32(1) / scale
    c, cc, x, cx = 0.0, 0.0, 0.0, 0.0
    for value in row:
        level = min(max(np.rint((value - bias) * inverse), np.float32(0)), top)
        c += level
        cc += level * level
        x += value
        cx += level * value
    spread = cc - c * c / len(row)
    if spread <= 0:
        return np.float32(0), bias
    found = (cx - c * x / len(row)) / spread
    return np.float32(found), np.float32((x - found * c) / len(row))


@numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _rounded(
    row: Values, scale: np.float32, bias: np.float32, top: np.float32
) -> tuple[np.float32, np.float32, np.float32]:
    """The pair of half-precision numbers near these that errs least, and its error."""
    best, best_scale, best_bias = np.float32(np.inf), np.float32(0), np.float32(0)
    half_scale, half_bias = int(half_of(scale)), int(half_of(bias))
    for i in range(max(1, half_scale - _NEAR), half_scale + _NEAR + 1):
        for j in range(half_bias - _NEAR, half_bias + _NEAR + 1):
            some_scale, some_bias = float_of(np.uint16(i)), float_of(np.uint16(j & 0xFFFF))
            if np.isfinite(some_bias) and np.isfinite(some_scale):
                found = _error(row, some_scale, some_bias, top)
                if found < best:
                    best, best_scale, best_bias = found, some_scale, some_bias
    return best_scale, best_bias, best


@numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _refined(
    row: Values, scale: np.float32, bias: np.float32, top: np.float32
) -> tuple[np.float32, np.float32, np.float32]:
    """Alternating least squares from here, until it errs no less."""
    least = _error(row, scale, bias, top)
    for _ in range(_STEPS):
        next_scale, next_bias = _fitted(row, scale, bias, top)
        if not next_scale > 0:
            break
        found = _error(row, next_scale, next_bias, top)
        if not found < least:
            break
        scale, bias, least = next_scale, next_bias, found
    return _rounded(row, scale, bias, top)


@numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _search_rows(rows: Values, top: np.float32, grid: int, scales: Values, biases: Values) -> None:
    for r in range(len(rows)):
        row = rows[r]
        low, reach = row.min(), row.max() - row.min()
        biases[r, 0] = low
        best = np.float32(np.inf)
        for i in range(grid + 1 if reach > 0 else 0):
            bias = np.float32(low + reach * (i / grid * _DEPTH - _OUTSIDE))
            least, chosen = np.float32(np.inf), np.float32(0)
            for j in range(grid + 1):
                scale = np.float32((low + reach * (1 + _OUTSIDE - j / grid * _DEPTH) - bias) / top)
                if scale > 0:
                    found = _error(row, scale, bias, top)
                    if found < least:
                        least, chosen = found, scale
            if chosen > 0:
                scale, some_bias, found = _refined(row, chosen, bias, top)
                if found < best:
                    best, scales[r, 0], biases[r, 0] = found, scale, some_bias
