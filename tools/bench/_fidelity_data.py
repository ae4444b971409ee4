"""What the small DLRM is trained on: lookups by Zipf's law, labels drawn by a hidden model, whose own loss is known.

The hidden model gives each row of each table a vector of `_RANK` elements and a number of its own. The logit of a
sample is a sum of numbers and of products of vectors that are means over what the sample looks up, as the trained
model could express it. Labels are drawn with the probability that it says, so nothing can be better than its log-loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.demo.training import draw
from cnrfmt.kernels._jit import helper, jit
from tools.bench._fidelity_kernels import BATCH, Stream

FEATURES = 4
_RANK = 4
_EXPONENT = 1.05
_FLATTENED = 3e-4
"""Zipf's law with its head flattened (Mandelbrot's): the rate of rank r is (r + 3e-4 rows) ** -1.05."""
_IN_USE = 0.66
"""The share of the rows that lookups can meet; the others are spare."""
_UNIT = 1 / 2.0**53


class Shape(NamedTuple):
    """How much there is.

    Rows of each table, and how many of them a sample looks up; samples in an interval; intervals before the baseline
    and behind it; samples that are held out; the share of the rows that go out of use in an interval, while as many
    come into use.
    """

    rows: tuple[int, ...]
    bags: tuple[int, ...]
    samples: int
    warm_up: int = 4
    intervals: int = 12
    held_out: int = 1 << 16
    drift: float = 0.0


FULL = Shape((800_000, 400_000, 250_000, 200_000, 120_000, 60_000, 25_000, 5_000), (6, 4, 3, 3, 2, 2, 1, 1), 105_600)
"""1,860,000 rows, of which 27 % are touched in an interval, and 64 % in all."""
DRIFTING = Shape(tuple(n // 4 for n in FULL.rows), FULL.bags, 19_200, drift=0.02)
"""With half of the rows in use at a time."""
SMALL = Shape(tuple(n // 8 for n in FULL.rows), FULL.bags, 13_120)
QUICK = Shape((400, 200, 50), (3, 2, 1), 160, warm_up=2, intervals=2, held_out=64)


class Data(NamedTuple):
    """Samples in order, the held-out ones last; the first row of each table; what the hidden model's own loss is."""

    stream: Stream
    starts: Array
    best: float


def make(shape: Shape, seed: int) -> Data:
    """Draws all samples of a run."""
    trained = shape.samples * (shape.warm_up + shape.intervals)
    count = trained + shape.held_out
    assert shape.samples % BATCH == 0
    starts = np.concatenate([[0], np.cumsum(shape.rows)]).astype(np.int64)
    bags = np.concatenate([[0], np.cumsum(shape.bags)]).astype(np.int64)
    random = np.random.default_rng(seed)
    rows = np.empty((count, int(bags[-1])), np.int32)
    features = random.standard_normal((count, FEATURES), np.float32)
    labels = np.empty(count, np.uint8)
    plain = random.normal(0, 0.3, FEATURES).astype(np.float32)
    state = random.integers(1, 1 << 63, 1, dtype=np.uint64)
    losses = np.empty(count, np.float64)
    _draw(rows, starts, bags, trained, shape.samples, shape.drift, features, plain, labels, losses, state)
    return Data(Stream(rows, bags, features, labels), starts, float(losses[trained:].mean()))


@helper
def _hash(x: Any) -> Any:
    """A number of 64 bits that follows from another (the finaliser of splitmix64)."""
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def _draw(
    rows: Array,
    starts: Array,
    bags: Array,
    trained: int,
    interval: int,
    drift: float,
    features: Array,
    plain: Array,
    labels: Array,
    losses: Array,
    random: Array,
) -> None:
    tables = len(starts) - 1
    power = 1 - _EXPONENT
    means = np.zeros((tables, _RANK), np.float32)
    for s in range(len(rows)):
        logit = -1.6
        # What is held out is of the traffic at the end.
        moved = drift * np.float64(min(s, trained - 1) // interval)
        for t in range(tables):
            means[t] = 0
            size = starts[t + 1] - starts[t]
            used = np.int64(size * _IN_USE)
            low = size * _FLATTENED + 1
            low_power, high_power = low**power, (low + used) ** power
            bag = bags[t + 1] - bags[t]
            for b in range(bags[t], bags[t + 1]):
                while True:
                    uniform = np.float64(draw(random) >> np.uint64(11)) * _UNIT
                    # The inverse of the integral of x^-s.
                    rank = np.int64((low_power + (high_power - low_power) * uniform) ** (1 / power) - low)
                    # A multiplication by a prime: a row's popularity has nothing to do with its place.
                    rank = max(np.int64(0), min(rank, used - 1))
                    row = starts[t] + rank * 2_654_435_761 % size
                    word = _hash(np.uint64(row))
                    phase = np.float64(_hash(word) >> np.uint64(11)) * _UNIT + moved
                    if drift == 0 or phase - np.floor(phase) < 0.5:
                        break
                rows[s, b] = row
                for k in range(_RANK):
                    part = np.float32((word >> np.uint64(12 * k)) & np.uint64(0xFFF)) / np.float32(2048) - np.float32(1)
                    means[t, k] += part / np.float32(np.sqrt(bag))
                logit += 0.7 * (np.float64(word >> np.uint64(48)) / 32768 - 1) / np.sqrt(bag)
        for i in range(tables):
            for j in range(i):
                for k in range(_RANK):
                    logit += 0.25 * means[i, k] * means[j, k]
        for f in range(len(plain)):
            logit += plain[f] * features[s, f]
        chance = 1 / (1 + np.exp(-logit))
        losses[s] = -(chance * np.log(chance) + (1 - chance) * np.log1p(-chance))
        labels[s] = np.float64(draw(random) >> np.uint64(11)) * _UNIT < chance
