"""The choice of scale and bias by alternating least squares.

Codes for a scale and a bias, then the scale and bias of the least squared error for these codes, and so
on: the error never grows, but where that ends depends on where it starts. So each start is the best
of many trials, each of them after one such step. They lie around an *anchor*, the best of some ranges
about the mean of the group: their scales are up to a fifth more or less than the anchor's, and their
ranges moved against its middle by up to 7/8 of a code. From a start it goes on for some steps; then
the parameters are rounded to their kinds, and the real error decides, as it does in the greedy search.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._blocks import (
    Units,
    are_sound,
    block_of,
    clear_bad,
    close_block,
    errors_of,
    inverse_of,
    open_block,
    rounded,
    rounded_scale,
    spanning,
)
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._lanes import (
    LANES,
    Lanes,
    add_exact,
    each,
    greatest,
    least,
    load,
    nearest_level,
    root,
    select,
)
from cnrfmt.kernels.search import greedy, steps_of

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]
Sums = tuple[Lanes, Lanes, Lanes]
"""Of codes, of their squares, and of their products with what they stand for."""
Fit = tuple[Lanes, Lanes, Lanes, Lanes]
"""Scale, bias, the mean code, and what is explained."""

_ZERO = np.float32(0)
_NONE = np.float32(-1)
_GOLDEN = 0.6180339887498949
# How far the scales of trials lie from the anchor's, and how many codes apart their biases may be.
_SPREAD, _APART = 0.2, 1.75
_POLISH = 3
_WIDTHS = 3


@helper
def _width(bits: int, k: int) -> float:
    """Half of the width of a range to try, in standard deviations."""
    return (0.65 + 0.35 * bits) * (1.0 + 0.25 * k)


@helper
def _trials(bits: int) -> int:
    """Trials for each start."""
    return 8 if bits == 2 else 12 if bits == 3 else 24


@helper
def _added(sums: Sums, x: Lanes, inverse: Lanes, bias: Lanes, top: Lanes) -> Sums:
    """Count in one more element."""
    levels, squares, products = sums
    x = x - bias
    level = nearest_level(x * inverse, top)
    # The square is exact, so it doesn't matter when the sum is rounded.
    return levels + level, add_exact(level, level, squares), products + level * x


@helper
def _solved(sums: Sums, count: int, scale: Lanes, bias: Lanes, mean: Lanes) -> Fit:
    levels, squares, products = sums
    size, zero = each(np.float32(count)), each(_ZERO)
    spread: Lanes = squares * size - levels * levels
    common: Lanes = (products - levels * (mean - bias)) * size
    sound = (spread > zero) & (common > zero)
    slope = common / spread
    level = levels * each(np.float32(1 / count))
    return (
        select(sound, slope, scale),
        select(sound, mean - slope * level, bias),
        level,
        select(sound, common * slope, each(_NONE)),
    )


@helper
def _refit(block: Values, count: int, scale: Lanes, bias: Lanes, mean: Lanes, top: Lanes) -> Fit:
    """The scale and bias of the least squares for the codes of these; the mean code, and what is explained.

    The squared error that is left is the variance of the group less what is explained, in some unit.
    Where there is but one code in use nothing is, and scale and bias stay.
    """
    inverse, zero = inverse_of(scale), each(_ZERO)
    # Two sums, since each addition waits for the one before.
    sums = other_sums = (zero, zero, zero)
    for j in range(0, count - 1, 2):
        sums = _added(sums, load(block, LANES * j), inverse, bias, top)
        other_sums = _added(other_sums, load(block, LANES * j + LANES), inverse, bias, top)
    if count & 1:
        sums = _added(sums, load(block, LANES * (count - 1)), inverse, bias, top)
    sums = (sums[0] + other_sums[0], sums[1] + other_sums[1], sums[2] + other_sums[2])
    return _solved(sums, count, scale, bias, mean)


@helper
def _trial(scale: Lanes, bias: Lanes, bits: int, k: int, trials: int) -> tuple[Lanes, Lanes, Lanes]:
    """Scale, inverse and bias of one trial around an anchor."""
    by = 1 - _SPREAD + 2 * _SPREAD * (k + 0.5) / trials
    half = 0.5 * ((1 << bits) - 1)
    off = half - by * (half - _APART * ((k + 1) * _GOLDEN % 1.0 - 0.5))
    return (
        scale * each(np.float32(by)),
        inverse_of(scale) * each(np.float32(1 / by)),
        bias + scale * each(np.float32(off)),
    )


@helper
def _best_trial(
    block: Values,
    count: int,
    scale: Lanes,
    bias: Lanes,
    explained: Lanes,
    mean: Lanes,
    top: Lanes,
    bits: int,
    first: int,
    starts: int,
) -> tuple[Lanes, Lanes]:
    """The best of the trials around an anchor that are numbered first, first + starts, and so on.

    The first start may be the anchor itself.
    """
    best_scale, best_bias, zero = scale, bias, each(_ZERO)
    best = explained if first == 0 else each(_NONE)
    trials = starts * _trials(bits)
    for k in range(first, trials, 2 * starts):
        one_scale, one_inverse, one_bias = _trial(scale, bias, bits, k, trials)
        two_scale, two_inverse, two_bias = _trial(scale, bias, bits, k + starts, trials)
        one_sums = two_sums = (zero, zero, zero)
        for j in range(count):
            x = load(block, LANES * j)
            one_sums = _added(one_sums, x, one_inverse, one_bias, top)
            two_sums = _added(two_sums, x, two_inverse, two_bias, top)
        one_scale, one_bias, _, one = _solved(one_sums, count, one_scale, one_bias, mean)
        two_scale, two_bias, _, two = _solved(two_sums, count, two_scale, two_bias, mean)
        second = two > one
        one = select(second, two, one)
        better = one > best
        best = select(better, one, best)
        best_scale = select(better, select(second, two_scale, one_scale), best_scale)
        best_bias = select(better, select(second, two_bias, one_bias), best_bias)
    return best_scale, best_bias


@helper
def _anchor(
    block: Values, count: int, low: Lanes, high: Lanes, mean: Lanes, top: Lanes, bits: int
) -> tuple[Lanes, Lanes, Lanes]:
    """Scale and bias of the best of some ranges, and what they explain."""
    total = each(_ZERO)
    for j in range(count):
        x = load(block, LANES * j) - mean
        total = total + x * x
    deviation = root(total / each(np.float32(count)))
    scale = (high - low) / top
    best_scale, best_bias, _, best = _refit(block, count, scale, low, mean, top)
    for k in range(_WIDTHS):
        width = deviation * each(np.float32(_width(bits, k)))
        start = greatest(low, mean - width)
        scale = (least(high, mean + width) - start) / top
        scale, bias, _, explained = _refit(block, count, scale, start, mean, top)
        better = explained > best
        best = select(better, explained, best)
        best_scale, best_bias = select(better, scale, best_scale), select(better, bias, best_bias)
    return best_scale, best_bias, best


@helper
def _mean(block: Values, count: int, low: Lanes) -> Lanes:
    total = each(_ZERO)
    for j in range(count):
        total = total + (load(block, LANES * j) - low)
    return low + total / each(np.float32(count))


@helper
def _polished(
    block: Values,
    count: int,
    scale: Lanes,
    bias: Lanes,
    mean: Lanes,
    top: Lanes,
    units: Units,
    scale_kind: int,
    bias_kind: int,
) -> tuple[Lanes, Lanes]:
    """Go on from a start, then round the scale, and fit the bias to what became of it."""
    level = each(_ZERO)
    for _ in range(_POLISH):
        scale, bias, level, _ = _refit(block, count, scale, bias, mean, top)
    scale = rounded_scale(scale, units, scale_kind)
    bias = rounded(mean - scale * level, units, bias_kind)
    _, _, level, _ = _refit(block, count, scale, bias, mean, top)
    return scale, rounded(mean - scale * level, units, bias_kind)


@jit
def choose_lsq(
    rows: Rows,
    group: int,
    bits: int,
    scale_kind: int,
    bias_kind: int,
    starts: int,
    num_bins: int,
    ratio: float,
    scales: Rows,
    biases: Rows,
    bad: Bytes,
) -> int:
    """Choose the scale and bias of each group of each row, as numbers of these kinds.

    With `num_bins` above 0 it is held against the greedy search, whose choice stands unless this one
    errs less; otherwise against the whole range. A row is bad where it is for that search, and its
    parameters are zero. Returns the number of bad rows.
    """
    dim = rows.shape[1]
    values = rows.reshape(rows.size)
    top = each(np.float32((1 << bits) - 1))
    steps = steps_of(num_bins, ratio)
    block = block_of(max(min(group, dim), 3))
    bad[:] = 0
    for row in range(0, len(rows), LANES):
        last = min(LANES, len(rows) - row) - 1
        for g in range((dim + group - 1) // group):
            count = min(group, dim - g * group)
            low, high, units, finite = open_block(values, row * dim + g * group, dim, last, count, block)
            scale, bias = spanning(low, high, top, units, scale_kind, bias_kind)
            sound = finite & are_sound(scale, bias, top, units)
            if num_bins:
                scale, bias, best = greedy(block, count, low, high, top, units, scale_kind, bias_kind, num_bins, steps)
            else:
                best = errors_of(block, count, scale, bias, top)
            mean = _mean(block, count, low)
            anchor_scale, anchor_bias, explained = _anchor(block, count, low, high, mean, top, bits)
            for k in range(starts):
                new_scale, new_bias = _best_trial(
                    block, count, anchor_scale, anchor_bias, explained, mean, top, bits, k, starts
                )
                new_scale, new_bias = _polished(
                    block, count, new_scale, new_bias, mean, top, units, scale_kind, bias_kind
                )
                total = errors_of(block, count, new_scale, new_bias, top)
                better = (total < best) & are_sound(new_scale, new_bias, top, units)
                best = select(better, total, best)
                scale, bias = select(better, new_scale, scale), select(better, new_bias, bias)
            close_block(block, scale, bias, sound, units, row, last, g, scales, biases, bad)
    return clear_bad(scales, biases, bad)
