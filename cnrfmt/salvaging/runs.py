"""Runs of whole numbers: arrays of (first, last) pairs, both inclusive, ascending, not touching.

Both ends belong to a run, so that the greatest int64 can be in one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Ids

Runs = npt.NDArray[np.int64]
"""An array of shape (n, 2)."""

NONE: Runs = np.empty((0, 2), np.int64)
EVERY: Runs = np.array([[-(1 << 63), (1 << 63) - 1]], np.int64)


def run(first: int, last: int) -> Runs:
    """A single run; none where it would be empty."""
    return np.array([[first, last]], np.int64) if first <= last else NONE


def runs_of(values: Ids) -> Runs:
    """Ascending, distinct values as runs."""
    if not values.size:
        return NONE
    ends = np.flatnonzero(values[1:] - values[:-1] != 1)
    return np.stack([values[np.r_[0, ends + 1]], values[np.r_[ends, len(values) - 1]]], axis=1)


def merged(parts: list[Runs]) -> Runs:
    """Runs from anywhere, put together."""
    some = [part for part in parts if len(part)]
    if not some:
        return NONE
    every = np.concatenate(some)
    if len(every) == 1:
        return every
    every = every[np.argsort(every[:, 0], kind="stable")]
    reach = np.maximum.accumulate(every[:, 1])
    apart = (every[1:, 0] > reach[:-1]) & (every[1:, 0] - 1 != reach[:-1])
    starts = np.flatnonzero(np.r_[True, apart])
    return np.stack([every[starts, 0], reach[np.r_[starts[1:] - 1, len(every) - 1]]], axis=1)


def common(a: Runs, b: Runs) -> Runs:
    """The numbers that are in both."""
    if not len(a) or not len(b):
        return NONE
    if len(b) == 1 and b[0, 0] <= a[0, 0] and a[-1, 1] <= b[0, 1]:
        return a
    low = np.searchsorted(b[:, 1], a[:, 0])
    high = np.searchsorted(b[:, 0], a[:, 1], "right")
    times = np.maximum(high - low, 0)
    mine = np.repeat(np.arange(len(a)), times)
    # Counts up from `low` within each of a's runs.
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(times) - times, times) + np.repeat(low, times)
    firsts = np.maximum(a[mine, 0], b[theirs, 0])
    return np.stack([firsts, np.minimum(a[mine, 1], b[theirs, 1])], axis=1)


def minus(a: Runs, b: Runs) -> Runs:
    """The numbers of `a` that aren't in `b`."""
    if not len(a) or not len(b):
        return a
    # Around the ends of int64 the sums wrap; those runs are left out.
    firsts = np.r_[EVERY[0, 0], b[:, 1] + 1][np.r_[True, b[:, 1] != EVERY[0, 1]]]
    lasts = np.r_[b[:, 0] - 1, EVERY[0, 1]][np.r_[b[:, 0] != EVERY[0, 0], True]]
    if b[0, 0] == EVERY[0, 0]:
        firsts = firsts[1:]
    if b[-1, 1] == EVERY[0, 1]:
        lasts = lasts[:-1]
    return common(a, np.stack([firsts, lasts], axis=1))


def inside(values: Ids, runs: Runs) -> npt.NDArray[np.bool_]:
    """Which of the values lie in a run."""
    if not len(runs):
        return np.zeros(len(values), np.bool_)
    at = np.searchsorted(runs[:, 0], values, "right") - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (values <= runs[at, 1])
    return found


def count(runs: Runs) -> int:
    """How many numbers the runs hold."""
    lengths = runs[:, 1].view(np.uint64) - runs[:, 0].view(np.uint64)
    return int(lengths.sum()) + len(runs)
