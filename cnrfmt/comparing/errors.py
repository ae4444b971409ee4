"""How far rows are apart, and the distribution of that over very many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Ids
from cnrfmt.comparing.report import ColumnComparison, RowError

_SHIFT = 46
"""A bin of the histogram holds the numbers that share all bits but these: 64 bins for each power of two."""
_BINS = 1 << 63 - _SHIFT

Errors = npt.NDArray[np.float64]


def comparable(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether rows of these data types can be compared: equal ones, and floating-point numbers of any width."""
    return a == b or not (a.kind in "iu" or b.kind in "iu")


def changed_rows(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """In which rows any bit differs; where the data types do, any value, NaNs being equal."""
    if a.dtype == b.dtype:
        bits = f"u{a.dtype.itemsize}"
        return np.asarray((a.view(bits) != b.view(bits)).any(axis=1))
    a, b = _widened(a, b)
    return np.asarray(((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=1))


def row_errors(a: Array, b: Array) -> Errors:
    """The norm of b[i] - a[i] over that of a[i]: 0 where they are equal, infinite where no finite number says it."""
    found = np.empty(len(a), np.float64)
    with np.errstate(all="ignore"):
        if a.dtype.kind in "iu":
            found[:] = _errors(a.astype(np.float64), _distance(a, b))
        else:
            a, b = _widened(a, b)
            if a.dtype == np.float32:
                from cnrfmt.kernels import errors as kernel

                kernel.row_errors(a, b, found)
            else:
                found[:] = _errors(a, b - a)
    found[~np.isfinite(found)] = np.inf
    return found


def _widened(a: Array, b: Array) -> tuple[Array, Array]:
    """The same numbers as float32 if that holds them, else as float64."""
    wide = np.float64 if max(a.dtype.itemsize, b.dtype.itemsize) > 4 else np.float32
    return np.asarray(a, wide, order="C"), np.asarray(b, wide, order="C")


def _distance(a: Array, b: Array) -> Array:
    """The distance between integers, of which the one less the other may not fit into their type."""
    bits = f"u{a.dtype.itemsize}"
    forth, back = b.view(bits) - a.view(bits), a.view(bits) - b.view(bits)
    return np.asarray(np.where(b > a, forth, back), np.float64)


def _errors(a: Array, change: Array) -> Errors:
    # Squares of very large or very small numbers don't fit, so each row is measured in its largest number.
    sizes = [np.abs(x).max(axis=1, keepdims=True) for x in (change, a)]
    norms = [np.sqrt(((x / size) ** 2).sum(axis=1)) for x, size in zip((change, a), sizes, strict=True)]
    found = (sizes[0] / sizes[1])[:, 0] * (norms[0] / norms[1])
    return np.where(change.any(axis=1), found, 0.0)


class Spread:
    """The errors of the changed rows of a column, in bounded memory, however they are cut into chunks.

    A histogram gives the quantiles: its bins are 1/64 of their numbers wide, and their middles stand for them.
    """

    def __init__(self, most_worst: int) -> None:
        self._most = most_worst
        self._changed = self._infinite = 0
        self._mean = self._largest = 0.0
        self._counts = np.zeros(_BINS, np.int64)
        self._worst = np.empty(0, np.float64), np.empty(0, np.int64)

    def add(self, ids: Ids, errors: Errors) -> None:
        """Counts changed rows, whose ids are ascending and above all before."""
        if not len(ids):
            return
        finite = errors[np.isfinite(errors)]
        self._changed += len(errors)
        self._infinite += len(errors) - len(finite)
        if len(finite):
            # A sum might not fit into a number where the mean does.
            count = self._changed - self._infinite
            self._mean += (float((finite / len(finite)).sum()) - self._mean) * (len(finite) / count)
            self._largest = max(self._largest, float(finite.max()))
            self._counts += np.bincount(finite.view(np.int64) >> _SHIFT, minlength=_BINS)
        if self._most:
            worst = _worst_of(errors, ids, self._most)
            both = zip(self._worst, worst, strict=True)
            merged, rows = (np.concatenate(pair) for pair in both)
            self._worst = _worst_of(merged, rows, self._most)

    def column(self, name: str, rows: int) -> ColumnComparison:
        """All of it, for a column of so many rows."""
        count = self._changed - self._infinite
        worst = zip(self._worst[1].tolist(), self._worst[0].tolist(), strict=True)
        return ColumnComparison(
            name,
            rows,
            self._changed,
            self._infinite,
            self._mean if count else None,
            self._quantile(0.5, count),
            self._quantile(0.99, count),
            self._largest if count else None,
            tuple(RowError(row, error) for row, error in worst),
        )

    def _quantile(self, share: float, count: int) -> float | None:
        """The least number that this share of the errors doesn't exceed, about."""
        if not count:
            return None
        place = int(np.searchsorted(np.cumsum(self._counts), share * count))
        if not place:
            return 0.0
        middle = np.int64((place << _SHIFT) + (1 << _SHIFT - 1)).view(np.float64)
        return min(float(middle), self._largest)


def _worst_of(errors: Errors, ids: Ids, most: int) -> tuple[Errors, Ids]:
    """The rows with the greatest errors, those first; of equal ones those that stand first."""
    if len(errors) > most:
        least = np.partition(errors, -most)[-most]
        above = np.flatnonzero(errors > least)
        level = np.flatnonzero(errors == least)[: most - len(above)]
        kept = np.concatenate([above, level])
        errors, ids = errors[kept], ids[kept]
    order = np.lexsort((ids, -errors))
    return errors[order], ids[order]
