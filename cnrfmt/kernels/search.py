"""The adaptive asymmetric choice of scale and bias: the greedy search of Check-N-Run (NSDI 2022).

From the least and greatest element of a group on, each step takes one bin, the `num_bins`-th part of
their distance, off the lower or the upper end of the range: whichever leaves the lesser error, the
upper where they are equal. It goes on until `ratio` of the distance is taken away, in whole bins,
rounded up. The range with the least error of all gone through is the result; of several, the widest.

An error is the sum, in float32 and in the order of the elements, of the squares of what decoding
changes, with scale and bias rounded to their kinds: bias = the lower end, scale = (upper end - bias)
/ (2**bits - 1), and 0 for scales below 2**-126. The result is that of this very search, bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._blocks import (
    Units,
    are_sound,
    block_of,
    change_of,
    clear_bad,
    close_block,
    errors_of,
    inverse_of,
    open_block,
    spanning,
)
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._lanes import LANES, Lanes, each, load, select

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]

_ZERO = np.float32(0)


@helper
def steps_of(num_bins: int, ratio: float) -> int:
    """How many bins the search takes away; what a rounding error adds to their number isn't one."""
    return min(num_bins, int(np.ceil(num_bins * ratio - 1e-9)))


@helper
def greedy(
    block: Values,
    count: int,
    low: Lanes,
    high: Lanes,
    top: Lanes,
    units: Units,
    scale_kind: int,
    bias_kind: int,
    num_bins: int,
    steps: int,
) -> tuple[Lanes, Lanes, Lanes]:
    """Scale, bias and error of the best range."""
    first_scale, first_bias = spanning(low, high, top, units, scale_kind, bias_kind)
    first = errors_of(block, count, first_scale, first_bias, top)
    best_scale, best_bias, best = first_scale, first_bias, first
    step = (high - low) / each(np.float32(num_bins))
    scale, bias = spanning(low + step, high, top, units, scale_kind, bias_kind)
    other_scale, other_bias = spanning(low, high - step, top, units, scale_kind, bias_kind)
    inverse, other_inverse = inverse_of(scale), inverse_of(other_scale)
    for _ in range(steps):
        # What comes after either choice is worked out ahead, since it needn't wait for the errors.
        up_low, down_high = low + step, high - step
        up_scale, up_bias = spanning(up_low + step, high, top, units, scale_kind, bias_kind)
        both_scale, both_bias = spanning(up_low, down_high, top, units, scale_kind, bias_kind)
        down_scale, down_bias = spanning(low, down_high - step, top, units, scale_kind, bias_kind)
        up_inverse, both_inverse, down_inverse = inverse_of(up_scale), inverse_of(both_scale), inverse_of(down_scale)
        total = other_total = each(_ZERO)
        for j in range(count):
            x = load(block, LANES * j)
            change = change_of(x, scale, bias, inverse, top)
            other_change = change_of(x, other_scale, other_bias, other_inverse, top)
            total = total + change * change
            other_total = other_total + other_change * other_change
        up = total < other_total
        total = select(up, total, other_total)
        better = total < best
        best = select(better, total, best)
        best_scale = select(better, select(up, scale, other_scale), best_scale)
        best_bias = select(better, select(up, bias, other_bias), best_bias)
        low, high = select(up, up_low, low), select(up, high, down_high)
        scale, other_scale = select(up, up_scale, both_scale), select(up, both_scale, down_scale)
        bias, other_bias = select(up, up_bias, both_bias), select(up, both_bias, down_bias)
        inverse, other_inverse = select(up, up_inverse, both_inverse), select(up, both_inverse, down_inverse)
    # Near the greatest float32, the rounding of a scale can take a narrower range beyond it.
    sound = are_sound(best_scale, best_bias, top, units)
    return (
        select(sound, best_scale, first_scale),
        select(sound, best_bias, first_bias),
        select(sound, best, first),
    )


@jit
def choose_adaptive(
    rows: Rows,
    group: int,
    bits: int,
    scale_kind: int,
    bias_kind: int,
    num_bins: int,
    ratio: float,
    scales: Rows,
    biases: Rows,
    bad: Bytes,
) -> int:
    """Choose the scale and bias of each group of each row, as numbers of these kinds.

    A row is bad if an element isn't finite, or a number that a code stands for over the whole range of
    a group; its parameters are zero. Returns the number of bad rows.
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
            scale, bias, _ = greedy(block, count, low, high, top, units, scale_kind, bias_kind, num_bins, steps)
            close_block(block, scale, bias, sound, units, row, last, g, scales, biases, bad)
    return clear_bad(scales, biases, bad)
