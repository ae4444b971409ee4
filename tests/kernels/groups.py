"""What the choice of scale and bias by search is held against, in plain numpy: a column at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.float32]
# Float32, float16, bfloat16, as kernels are told them.
KINDS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ZERO, ONE = np.float32(0), np.float32(1)


@dataclass
class Group:
    """A group of elements of each row, divided by a power of two, and how its codes are made."""

    x: Rows
    power: Rows
    bits: int
    scale_kind: int
    bias_kind: int

    @property
    def top(self) -> np.float32:
        return np.float32((1 << self.bits) - 1)

    @property
    def low(self) -> Rows:
        return self.x.min(axis=1)

    @property
    def high(self) -> Rows:
        return self.x.max(axis=1)

    def bias(self, bias: Rows) -> Rows:
        return (bias * self.power).astype(KINDS[self.bias_kind]).astype(np.float32) / self.power

    def scale(self, scale: Rows) -> Rows:
        real = (scale * self.power).astype(KINDS[self.scale_kind]).astype(np.float32)
        return np.where(real < np.float32(2.0**-126), ZERO, real) / self.power

    def spanning(self, low: Rows, high: Rows) -> tuple[Rows, Rows]:
        bias = self.bias(low)
        return self.scale(np.maximum(high - bias, ZERO) / self.top), bias

    def sound(self, scale: Rows, bias: Rows) -> Array:
        reach, start = self.top * (scale * self.power), bias * self.power
        return np.isfinite(reach) & np.isfinite(start) & np.isfinite(reach + start)

    def levels(self, x: Rows, bias: Rows, inverse: Rows) -> Rows:
        return np.rint(np.clip((x - bias) * inverse, ZERO, self.top))

    def errors(self, scale: Rows, bias: Rows) -> Rows:
        inverse, total = inverse_of(scale), np.zeros(len(self.x), np.float32)
        for x in self.x.T:
            change = (self.levels(x, bias, inverse) * scale + bias) - x
            total = total + change * change
        return np.where(np.isfinite(bias), total, np.float32(np.inf))


def inverse_of(scale: Rows) -> Rows:
    return np.where(scale > 0, ONE / scale, ZERO)


def greedy(group: Group, num_bins: int, ratio: float) -> tuple[Rows, Rows, Rows]:
    """Scale, bias and error of the best range that the greedy search goes through."""
    low, high = group.low, group.high
    step = (high - low) / np.float32(num_bins)
    first = *group.spanning(low, high), group.errors(*group.spanning(low, high))
    best = first
    taken = 0
    while taken < num_bins * ratio - 1e-9:
        up, down = group.spanning(low + step, high), group.spanning(low, high - step)
        up_error, down_error = group.errors(*up), group.errors(*down)
        choose_up = up_error < down_error
        tried = [np.where(choose_up, a, b) for a, b in zip((*up, up_error), (*down, down_error), strict=True)]
        best = tuple(np.where(tried[2] < best[2], a, b) for a, b in zip(tried, best, strict=True))
        low, high = np.where(choose_up, low + step, low), np.where(choose_up, high, high - step)
        taken += 1
    sound = group.sound(*best[:2])
    return tuple(np.where(sound, a, b) for a, b in zip(best, first, strict=True))


def choose(
    rows: Rows,
    size: int,
    bits: int,
    scale_kind: int,
    bias_kind: int,
    search: Callable[[Group], tuple[Rows, Rows, Rows]],
) -> tuple[Rows, Rows, Array]:
    """Parameters of each group of each row, and which rows are bad."""
    bad = ~np.isfinite(rows).all(axis=1)
    scales, biases = [], []
    with np.errstate(all="ignore"):
        for first in range(0, rows.shape[1], size):
            x = np.where(bad[:, np.newaxis], ZERO, rows[:, first : first + size])
            greatest = np.abs(x).max(axis=1).astype(np.float64)
            power = np.maximum(2.0 ** np.floor(np.log2(np.maximum(greatest, 2.0**-126))), 2.0**-126)
            power = power.astype(np.float32)
            group = Group(x / power[:, np.newaxis], power, bits, scale_kind, bias_kind)
            bad |= ~group.sound(*group.spanning(group.low, group.high))
            scale, bias, _ = search(group)
            scales.append(scale * power)
            biases.append(bias * power)
    return np.where(bad, ZERO, scales).T, np.where(bad, ZERO, biases).T, bad


def errors(rows: Rows, size: int, bits: int, scales: Rows, biases: Rows) -> npt.NDArray[np.float64]:
    """The euclidean norm of what decoding changes in each row; the decoding itself is in float32."""
    scale, bias = (np.repeat(p, size, axis=1)[:, : rows.shape[1]] for p in (scales, biases))
    with np.errstate(all="ignore"):
        inverse = np.where(scale > 0, ONE / scale, ZERO)
        codes = np.rint(np.clip((rows - bias) * inverse, ZERO, np.float32((1 << bits) - 1)))
        return np.linalg.norm((codes * scale + bias).astype(np.float64) - rows, axis=1)


def samples(dim: int, count: int) -> Rows:
    """Rows of every kind that has tripped a search: usual, skewed, constant, of few values, tiny, huge."""
    rng = np.random.default_rng(dim)
    usual = rng.normal(0, 0.05, (count, dim)).astype(np.float32)
    outlier = usual.copy()
    outlier[:, rng.integers(dim)] = 3
    with np.errstate(over="ignore"):
        return np.concatenate(
            [
                usual,
                outlier,
                rng.exponential(1, (count, dim)).astype(np.float32),
                np.repeat(rng.normal(0, 1, (3, 1)).astype(np.float32), dim, axis=1),
                np.zeros((1, dim), np.float32),
                np.full((1, dim), -0.0, np.float32),
                rng.integers(0, 2, (3, dim)).astype(np.float32),
                rng.integers(-2, 3, (3, dim)).astype(np.float32) / 8,
                usual[:3] + 1000,
                usual[:3] * np.float32(1e-36),
                usual[:3] * np.float32(1e-41),
                usual[:3] * np.float32(1e-6),
                usual[:3] * np.float32(1e6),
                usual[:3] * np.float32(1e30),
                usual[:3] * np.float32(2e39),
                np.where(rng.random((3, dim)) < 0.5, usual[:3] * np.float32(1e-30), usual[:3] * np.float32(1e30)),
            ]
        ).astype(np.float32)
