"""Sixteen groups of elements at a time, one in each lane, and how far scale and bias make them err.

A group is divided by the power of two that its greatest magnitude lies above, so that squares of
errors neither overflow nor vanish; that changes no digit, but of elements that are 2**126 times smaller
than others. Scales and biases are divided alike, and are numbers of their kind all the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._halves import BFLOAT16, FLOAT16
from cnrfmt.kernels._jit import helper
from cnrfmt.kernels._lanes import (
    LANES,
    Lanes,
    Mask,
    each,
    greatest,
    least,
    load,
    magnitude,
    nearest_level,
    power_below,
    select,
    store,
    to_bfloat,
    to_half,
    transpose,
)

Values = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]
Units = tuple[Lanes, Lanes]
"""What groups were divided by, and the inverses."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_INFINITE = np.float32(np.inf)
# The least scale: that whose inverse is sure to be finite.
_LEAST = np.float32(2.0**-126)


@helper
def block_of(count: int) -> Values:
    """Room for `count` elements of each lane, in whole cache lines."""
    room = np.empty(LANES * (count + 1), np.float32)
    skip = -(room.ctypes.data // 4) % LANES
    return room[skip : skip + LANES * count]


@helper
def _fill(values: Values, first: int, stride: int, last: int, count: int, block: Values) -> None:
    whole = count - count % LANES
    for j in range(0, whole, LANES):
        transpose(values, first + j, stride, last, block, LANES * j)
    if whole and whole < count:
        transpose(values, first + count - LANES, stride, last, block, LANES * (count - LANES))
    elif whole < count:
        for j in range(count):
            for lane in range(LANES):
                block[LANES * j + lane] = values[first + min(lane, last) * stride + j]


@helper
def open_block(
    values: Values, first: int, stride: int, last: int, count: int, block: Values
) -> tuple[Lanes, Lanes, Units, Mask]:
    """Bring in groups that start at first, first + stride, ...; past the last, that one again.

    Element j of all groups comes to lie from block[16 * j] on, divided. Returns the least and greatest
    elements, what they were divided by, and where all of a group are finite.
    """
    _fill(values, first, stride, last, count, block)
    low = high = load(block, 0)
    infinite = each(_INFINITE)
    finite = magnitude(low) < infinite
    for j in range(1, count):
        x = load(block, LANES * j)
        low, high = least(x, low), greatest(x, high)
        finite = finite & (magnitude(x) < infinite)
    power = greatest(power_below(greatest(magnitude(low), magnitude(high))), each(_LEAST))
    inverse = each(_ONE) / power
    for j in range(count):
        store(block, LANES * j, load(block, LANES * j) * inverse)
    return low * inverse, high * inverse, (power, inverse), finite


@helper
def close_block(
    block: Values,
    scale: Lanes,
    bias: Lanes,
    sound: Mask,
    units: Units,
    row: int,
    last: int,
    group: int,
    scales: Rows,
    biases: Rows,
    bad: Bytes,
) -> None:
    """Put the parameters of a group of rows row, row + 1, ..., row + last; the block has done its work."""
    store(block, 0, scale * units[0])
    # The sum makes zeros positive.
    store(block, LANES, bias * units[0] + each(_ZERO))
    store(block, 2 * LANES, select(sound, each(_ZERO), each(_ONE)))
    for lane in range(last + 1):
        scales[row + lane, group] = block[lane]
        biases[row + lane, group] = block[LANES + lane]
        if block[2 * LANES + lane]:
            bad[row + lane] = 1


@helper
def clear_bad(scales: Rows, biases: Rows, bad: Bytes) -> int:
    """Set the parameters of bad rows to zero; returns how many there are."""
    count = 0
    for i in range(len(bad)):
        if bad[i]:
            scales[i], biases[i] = _ZERO, _ZERO
            count += 1
    return count


@helper
def rounded(x: Lanes, units: Units, kind: int) -> Lanes:
    """The nearest number of a kind of parameter."""
    real = x * units[0]
    if kind == FLOAT16:
        real = to_half(real)
    elif kind == BFLOAT16:
        real = to_bfloat(real)
    return real * units[1]


@helper
def rounded_scale(x: Lanes, units: Units, kind: int) -> Lanes:
    """The nearest scale of a kind; 0 where its inverse might be infinite."""
    scale = rounded(x, units, kind)
    return select(scale * units[0] < each(_LEAST), each(_ZERO), scale)


@helper
def spanning(low: Lanes, high: Lanes, top: Lanes, units: Units, scale_kind: int, bias_kind: int) -> tuple[Lanes, Lanes]:
    """Scale and bias with which the codes go from low to high."""
    bias = rounded(low, units, bias_kind)
    return rounded_scale(greatest(high - bias, each(_ZERO)) / top, units, scale_kind), bias


@helper
def are_sound(scale: Lanes, bias: Lanes, top: Lanes, units: Units) -> Mask:
    """Where all codes stand for finite numbers."""
    infinite = each(_INFINITE)
    reach, start = top * (scale * units[0]), bias * units[0]
    return (magnitude(start) < infinite) & (reach < infinite) & (magnitude(reach + start) < infinite)


@helper
def inverse_of(scale: Lanes) -> Lanes:
    """What differences to the bias are multiplied by: 0 for 0."""
    return select(scale > each(_ZERO), each(_ONE) / scale, each(_ZERO))


@helper
def change_of(x: Lanes, scale: Lanes, bias: Lanes, inverse: Lanes, top: Lanes) -> Lanes:
    """What decoding adds to elements."""
    return (nearest_level((x - bias) * inverse, top) * scale + bias) - x


@helper
def errors_of(block: Values, count: int, scale: Lanes, bias: Lanes, top: Lanes) -> Lanes:
    """Sums of squares of what decoding changes, added up in the order of the elements."""
    inverse, total = inverse_of(scale), each(_ZERO)
    for j in range(count):
        change = change_of(load(block, LANES * j), scale, bias, inverse, top)
        total = total + change * change
    return total
