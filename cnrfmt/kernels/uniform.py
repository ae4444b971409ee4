"""Scale and bias of each group of elements, from its least and greatest alone.

Parameters come out as float32 that are numbers of their kind. Where the bias is half precision, and
from `choose_symmetric_biased`, they are as the usual operators choose them; elsewhere such that encoding
is idempotent (`_fixed_points`). A row is bad that holds a NaN or an infinity, or of which some code, or
the difference of two, would stand for one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._fixed_points import fit_all, fit_all_symmetric, least_of, stable, stable_symmetric
from cnrfmt.kernels._halves import FLOAT16, round_to
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import pointer
from cnrfmt.kernels._vectors import extremes

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int32]

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_INFINITY, _NAN = np.float32(np.inf), np.float32(np.nan)
_INFINITE_KEY = 0x7F800000
# Extremes of so many groups are found, then their parameters, which are worked out as vectors.
_BLOCK = 64


@helper
def _fit_as_operators(
    lows: Values,
    highs: Values,
    count: int,
    top: np.float32,
    scale_kind: int,
    bias_kind: int,
    scales: Values,
    biases: Values,
    sound: Bytes,
) -> None:
    """Parameters as FBGEMM's operators choose them, but for the sign of a bias that is zero."""
    for k in range(count):
        bias = round_to(lows[k], bias_kind) + _ZERO
        scale = round_to((highs[k] - bias) / top, scale_kind)
        finite = abs(scale) < _INFINITY
        usable = abs(_ONE / scale) < _INFINITY
        sound[k] = finite & (abs(bias) < _INFINITY)
        scales[k], biases[k] = scale if usable else _ONE, bias


@helper
def _float_of_key(key: np.int32) -> np.float32:
    return np.int32(key if key >= 0 else key ^ 0x7FFFFFFF).view(np.float32)


@helper
def _find_extremes(
    values: Values, start: int, rows: int, dim: int, group: int, keys: Keys, lows: Values, highs: Values
) -> None:
    """The extremes of the groups of some rows, both NaN where not all elements are finite."""
    groups = (dim + group - 1) // group
    all_keys = pointer(keys)
    at = start * dim
    short = dim - (groups - 1) * group
    if short == group:
        for k in range(rows * groups):
            all_keys[2 * k], all_keys[2 * k + 1] = extremes(values, at + k * group, group)
    else:
        for i in range(rows):
            for k in range(groups):
                to = 2 * (i * groups + k)
                count = group if k < groups - 1 else short
                all_keys[to], all_keys[to + 1] = extremes(values, at + i * dim + k * group, count)
    for k in range(rows * groups):
        low, high = keys[k, 0], keys[k, 1]
        nothing = _ZERO if (high < _INFINITE_KEY) & (low > ~_INFINITE_KEY) else _NAN
        lows[k], highs[k] = _float_of_key(low) + nothing, _float_of_key(high) + nothing


@jit
def choose_asymmetric(
    rows: Rows,
    group: int,
    bits: int,
    scale_kind: int,
    bias_kind: int,
    scales: Rows,
    biases: Rows,
    bad: Bytes,
) -> int:
    """Parameters with which a group's codes span it from its least to its greatest element.

    Returns the number of bad rows.
    """
    dim, groups = rows.shape[1], scales.shape[1]
    all_scales, all_biases = scales.reshape(scales.size), biases.reshape(biases.size)
    top = np.float32((1 << bits) - 1)
    step = max(1, _BLOCK // groups)
    size = step * groups
    keys, done = np.empty((size, 2), np.int32), np.empty(size, np.uint8)
    lows, highs = np.empty(size, np.float32), np.empty(size, np.float32)
    # What is worked out as vectors stands in arrays of its own, which can't overlap with others.
    some_scales, some_biases = np.empty(size, np.float32), np.empty(size, np.float32)
    count = 0
    for start in range(0, len(rows), step):
        block = min(step, len(rows) - start)
        size = block * groups
        _find_extremes(pointer(rows), start, block, dim, group, keys, lows, highs)
        if bias_kind == FLOAT16:
            _fit_as_operators(lows, highs, size, top, scale_kind, bias_kind, some_scales, some_biases, done)
        else:
            fit_all(lows, highs, size, top, scale_kind, some_scales, some_biases, done)
        bad[start : start + block] = 0
        for at in range(size):
            if not done[at]:
                scale, bias = np.nan, np.nan
                if bias_kind != FLOAT16:
                    scale, bias = stable(lows[at], highs[at], top, scale_kind)
                if np.isnan(scale):
                    bad[start + at // groups], scale, bias = 1, 0.0, 0.0
                some_scales[at], some_biases[at] = np.float32(scale), np.float32(bias)
        all_scales[start * groups : start * groups + size] = some_scales[:size]
        all_biases[start * groups : start * groups + size] = some_biases[:size]
        count += bad[start : start + block].sum()
    return count


@jit
def choose_symmetric(rows: Rows, group: int, bits: int, scale_kind: int, scales: Rows, bad: Bytes) -> int:
    """Scales with which a group's codes span its greatest magnitude, in both directions, without a bias.

    Returns the number of bad rows.
    """
    dim, groups = rows.shape[1], scales.shape[1]
    all_scales = scales.reshape(scales.size)
    top = np.float32((1 << bits) - 1)
    step = max(1, _BLOCK // groups)
    size = step * groups
    keys, done = np.empty((size, 2), np.int32), np.empty(size, np.uint8)
    lows, highs, some_scales = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    count = 0
    for start in range(0, len(rows), step):
        block = min(step, len(rows) - start)
        _find_extremes(pointer(rows), start, block, dim, group, keys, lows, highs)
        size = block * groups
        fit_all_symmetric(lows, highs, size, top, scale_kind, some_scales, done)
        bad[start : start + block] = 0
        for at in range(size):
            if not done[at]:
                scale = stable_symmetric(lows[at], highs[at], top, scale_kind)
                if np.isnan(scale):
                    bad[start + at // groups], scale = 1, 0.0
                some_scales[at] = np.float32(scale)
        all_scales[start * groups : start * groups + size] = some_scales[:size]
        count += bad[start : start + block].sum()
    return count


@jit
def choose_symmetric_biased(
    rows: Rows,
    group: int,
    bits: int,
    scale_kind: int,
    bias_kind: int,
    scales: Rows,
    biases: Rows,
    bad: Bytes,
) -> int:
    """Scale = 2 max|x| / top and bias = -max|x|, each rounded to its kind.

    Where a scale would be less than the least that is usable, it is that. Returns the number of bad rows.
    """
    dim, groups = rows.shape[1], scales.shape[1]
    values = pointer(rows)
    top = np.float32((1 << bits) - 1)
    lows, highs = np.empty(groups, np.float32), np.empty(groups, np.float32)
    keys = np.empty((groups, 2), np.int32)
    count = 0
    for i in range(len(rows)):
        _find_extremes(values, i, 1, dim, group, keys, lows, highs)
        failed = 0
        for k in range(groups):
            reach = max(abs(lows[k]), abs(highs[k]))
            scale, bias = round_to(reach / top * _TWO, scale_kind), round_to(_ZERO - reach, bias_kind)
            if reach > _ZERO:
                scale = max(scale, np.float32(least_of(scale_kind)))
            if not (abs(scale * top) < _INFINITY and abs(bias) < _INFINITY):
                failed, scale, bias = 1, _ZERO, _ZERO
            scales[i, k], biases[i, k] = scale, bias
        bad[i] = failed
        count += failed
    return count
