"""Optimizer state of `dim` values per row: which columns are moments of gradients, and in what codes they are stored.

Second moments are never negative, and an optimizer divides by their root: 8-bit logarithmic codes, two to an octave,
rounded by lot, so that slow growth adds up; but nothing that isn't zero becomes zero. First moments fade within some
steps of the optimizer: each row of them is stored as it is, in steps of half of its root mean square. Both are known by
their names; of another column nobody knows how precise it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, Protocol

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.grid import GROUP_VALUES
from cnrfmt.format.encoding import MAX_FLOOR, MIN_FLOOR, GridLayout, LogLayout

FIRST_MOMENTS = ("exp_avg", "first_moment", "momentum", "momentum_buffer", "momentum1")
"""Columns of moving means of gradients, as trainers name them."""
SECOND_MOMENTS = (
    "accumulator",
    "adagrad",
    "state_sum",
    "sum",
    "momentum1",
    "momentum2",
    "exp_avg_sq",
    "second_moment",
)
"""Columns of sums or means of squares of gradients. FBGEMM's `momentum1` is one, but beside `momentum2` a first one."""
SECOND = LogLayout(8, 0x0D800000, 22, "absolute", "rans", GROUP_VALUES)
"""The codes of second moments: 1, 1.5, 2, 3, 4, 6 and so on, from 2^-100 to 2^27."""
SHARE = 0.5
"""Steps of a first moment, of the root mean square of its row."""

Kind = Literal["first", "second"]

_PRECISION, _ABOVE = 24, 10
"""Bits of the integers that a first moment is stored as, and of these how many are for more than the median row has."""
_OCTAVES = 4
"""Units of first moments are so many octaves apart, so that chains of them mostly have one."""
_SAMPLE = 1 << 12


class Source(Protocol):
    """Rows of a column of float32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and elements."""

    def take(self, ids: Ids) -> Array:
        """The rows at some positions."""


def may_be(name: str) -> bool:
    """Whether a column of this name may be a moment."""
    return name in FIRST_MOMENTS or name in SECOND_MOMENTS


def kind_of(name: str, columns: Iterable[str], *, negative: bool) -> Kind | None:
    """What a column of `dim` values is among these columns, if it has negative values or not; None for no moment."""
    if name in FIRST_MOMENTS and (negative or name not in SECOND_MOMENTS or "momentum2" in columns):
        return "first"
    return "second" if name in SECOND_MOMENTS and not negative else None


def has_negative(source: Source) -> bool:
    """Whether any value is, of a sample of the rows."""
    return bool((_some(source) < 0).any())


def layout_of_first(source: Source, group: int) -> GridLayout:
    """How rows of a first moment are stored that come from here; its unit follows from how large most are."""
    rows = _some(source).astype(np.float64)
    size = np.sqrt((rows[np.isfinite(rows).all(axis=1)] ** 2).mean(axis=1))
    size = size[size > 0]
    usual = math.log2(np.median(size)) if size.size else 0.0
    floor = _OCTAVES * math.ceil((usual + _ABOVE - _PRECISION) / _OCTAVES)
    return GridLayout("absolute", min(max(floor, MIN_FLOOR), MAX_FLOOR), "rans", None, group)


def _some(source: Source) -> Array:
    count = source.shape[0]
    return source.take(np.unique(np.linspace(0, max(0, count - 1), min(count, _SAMPLE)).astype(np.int64)))
