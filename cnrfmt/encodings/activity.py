"""How active the rows of a table are, counted so that what many writers count adds up to what one would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnrfmt.arrays import Array

_SHIFT = 16
"""Bits of a float32 that bfloat16 doesn't have."""
_GREATEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ActivityCounts:
    """How many rows have which activity, which is told as exactly as bfloat16 does, rounded down.

    Attributes
    ----------
    least, rows_at_least
        The least activity, a float32, and how many rows have it: in a whole table those that never were touched.
    above, rows_above
        What the others have, the upper 16 bits of their float32s, ascending, and how many rows each.
    """

    least: float
    rows_at_least: float
    above: tuple[int, ...]
    rows_above: tuple[float, ...]

    def to_json(self) -> list[Any]:
        """What `parse` takes."""
        return [self.least, self.rows_at_least, list(self.above), list(self.rows_above)]

    @staticmethod
    def parse(said: Any) -> ActivityCounts:
        """The counts of another rank."""
        least, rows, above, rows_above = said
        return ActivityCounts(float(least), float(rows), tuple(above), tuple(map(float, rows_above)))


def count_activity(some: Array, rows: int) -> ActivityCounts | None:
    """The activity of so many rows, of which some were picked.

    `some` is (count,), or (count, dim) of which means are taken; what is negative or no number is left out. None if
    nothing is left.
    """
    active = np.asarray(some, np.float64)
    active = active.mean(axis=1) if active.ndim == 2 else active
    each = rows / max(1, len(active))
    active = np.minimum(active[np.isfinite(active) & (active >= 0)], _GREATEST).astype(np.float32)
    if not active.size:
        return None
    least = active.min()
    counts = np.bincount(_bucket(active[active > least]))
    above, at_least = np.flatnonzero(counts), int(np.count_nonzero(active == least))
    return ActivityCounts(float(least), at_least * each, tuple(above.tolist()), tuple((counts[above] * each).tolist()))


def median_activity(counts: Sequence[ActivityCounts]) -> float | None:
    """The median activity of the rows that were touched: those above the least, which rows have that never were.

    Where all rows are alike it is theirs. None where nobody has counted any, or where it is 0.
    """
    if not counts:
        return None
    least = min(one.least for one in counts)
    rows: dict[int, float] = {}
    for one in counts:
        if one.least > least:
            bucket = int(_bucket(np.array([one.least], np.float32))[0])
            rows[bucket] = rows.get(bucket, 0.0) + one.rows_at_least
        for bucket, count in zip(one.above, one.rows_above, strict=True):
            rows[bucket] = rows.get(bucket, 0.0) + count
    if not rows:
        return least or None
    buckets = np.array(sorted(rows), np.uint32)
    sums = np.cumsum([rows[bucket] for bucket in buckets.tolist()])
    # Of an even number of rows it lies between two of them.
    middle = [int(np.searchsorted(sums, sums[-1] / 2, side)) for side in ("left", "right")]
    values = (buckets[middle] << _SHIFT).astype(np.uint32).view(np.float32).astype(np.float64)
    return max(least, float(values.mean())) or None


def _bucket(active: Array) -> Array:
    bits: Array = active.view(np.uint32) >> _SHIFT
    return bits
