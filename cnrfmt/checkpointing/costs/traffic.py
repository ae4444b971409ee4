"""How many rows an interval of training touches, and how many several together: what is assumed of lookups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cnrfmt.errors import UsageError

_Floats = npt.NDArray[np.float64]

EXPONENT = 1.05
"""Of Zipf's law, unless told otherwise."""
CLASSES = 8
"""Classes of rows whose rates of lookups differ."""
SPREAD = 3.0
"""By how much they differ from one to the next, where all that is known is a fraction of touched rows.

Chosen, among whole numbers, to agree with the one thing that the Check-N-Run paper says of how increments grow: where
an interval touches 26 %, the intermittent policy takes a baseline at the eighth. Then 34, 38, 42, 44, 46 and 48 % are
touched after two to seven intervals. Under one Zipf law for all rows, the union grows faster: 40, 50 and 58 % after two
to four, and a baseline comes at the fifth. Whoever knows their own lookups better says so.
"""
_EXACT, _BUCKETS = 1 << 10, 1000
"""Ranks that are counted one by one, and the buckets, each wider by the same factor, that the others are counted in."""


@dataclass(frozen=True)
class Traffic:
    """Lookups by rows that are popular, once and for all, by Zipf's law within each of a few classes.

    The classes hold as many rows each; from one to the next, the rate of lookups falls by the factor `spread`, as it
    does between the tables of a model. Each lookup is drawn by itself.

    Parameters
    ----------
    touched
        The fraction of rows that one interval touches; or else `lookups`.
    lookups
        Lookups in one interval.
    exponent
        Of Zipf's law: the row of rank r is looked up in proportion to r ** -exponent. 0: all rows alike.
    spread
        1: one class. Unless given, 3 with `touched` and 1 with `lookups`.

    Raises
    ------
    UsageError
        Neither of `touched` and `lookups`, or both, or values out of range.
    """

    touched: float | None = None
    lookups: float | None = None
    exponent: float = EXPONENT
    spread: float | None = None

    def __post_init__(self) -> None:
        if (self.touched is None) == (self.lookups is None):
            raise UsageError("traffic: either touched= or lookups= is given")
        bounds = {"touched": (0, 1), "lookups": (0, 1e30), "exponent": (0, 10), "spread": (1, 1000)}
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            # A NaN is in no range.
            if value is not None and not low <= value <= high:
                raise UsageError(f"traffic: {name} is a number from {low} to {high:g}, found {value!r}")

    @property
    def factor(self) -> float:
        """The spread that holds."""
        if self.spread is None:
            return 1.0 if self.touched is None else SPREAD
        return float(self.spread)

    def fraction(self, rows: int, intervals: float) -> float:
        """Which part of a table of so many rows so many intervals touch, as is to be expected."""
        if rows == 0 or intervals <= 0 or self.lookups == 0:
            return 0.0
        if self.touched is not None and self.touched in (0, 1):
            return float(self.touched)
        return _fraction(rows, self.lookups_in(rows) * intervals, float(self.exponent), self.factor)

    def lookups_in(self, rows: int) -> float:
        """Lookups of one interval in a table of so many rows: as given, or those that touch the fraction given."""
        if self.lookups is not None:
            return float(self.lookups)
        assert self.touched is not None
        return _lookups_for(rows, float(self.touched), float(self.exponent), self.factor)

    def words(self) -> str:
        """What is assumed, in words."""
        what = f"{self.touched:.4g} of the rows" if self.lookups is None else f"{self.lookups:,.0f} lookups"
        law = f"Zipf's law with exponent {self.exponent:g}" if self.exponent else "all rows looked up alike"
        if self.factor > 1:
            law += f" within each of {CLASSES} classes whose rates fall by a factor of {self.factor:g}"
        return f"{what} in an interval, {law}; which rows are popular doesn't change"


# Plans of several policies and bits ask for the same fractions again and again.
@lru_cache(maxsize=1 << 14)
def _fraction(rows: int, lookups: float, exponent: float, spread: float) -> float:
    return min(1.0, _distinct(*_popularity(rows, exponent, spread), lookups) / rows)


@lru_cache(maxsize=64)
def _popularity(rows: int, exponent: float, spread: float) -> tuple[_Floats, _Floats]:
    """How many rows are alike, and the logarithm of the chance that a lookup misses one of them."""
    counts, chances = [], []
    classes = 1 if spread == 1 else min(CLASSES, rows)
    for number in range(classes):
        size = rows * (number + 1) // classes - rows * number // classes
        edges = np.arange(1, min(size, _EXACT) + 2, dtype=np.float64)
        if size > _EXACT:
            edges = np.unique(np.concatenate([edges, np.rint(np.geomspace(_EXACT + 1, size + 1, _BUCKETS))]))
        count = np.diff(edges)
        weight = (edges[:-1] + (count - 1) / 2) ** -exponent
        counts.append(count)
        chances.append(weight / (count @ weight) * spread**-number)
    count, chance = np.concatenate(counts), np.concatenate(chances)
    with np.errstate(divide="ignore"):
        return count, np.log1p(-np.minimum(chance / (count @ chance), 1.0))


def _distinct(count: _Floats, log_miss: _Floats, lookups: float) -> float:
    """Rows that so many lookups meet at least once."""
    return float(count @ -np.expm1(lookups * log_miss))


@lru_cache(maxsize=1024)
def _lookups_for(rows: int, touched: float, exponent: float, spread: float) -> float:
    """The lookups that meet this part of the rows, found by halving the range of their logarithm."""
    count, log_miss = _popularity(rows, exponent, spread)
    low, high = -30.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if _distinct(count, log_miss, math.exp(middle)) < touched * rows:
            low = middle
        else:
            high = middle
    return math.exp(low)
