"""Optimizer state of `dim` values per row: which columns are moments of gradients, and in what codes they are stored.

Second moments are never negative, and what counts of them is their size: 8-bit logarithmic codes, an eighth of an
octave apart, rounded by lot, so that slow growth adds up. First moments fade within some steps of the optimizer: each
row of them is stored as it is, in steps of half of its root mean square. Both are known by their names; of another
column nobody knows how precise it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.grid import GROUP_VALUES
from cnrfmt.format.encoding import MAX_FLOOR, MIN_FLOOR, LogLayout

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
SHARE = 0.5
"""Steps of a first moment, of the root mean square of its row."""

Kind = Literal["first", "second"]
Span = tuple[int, int, bool]
"""The bit patterns of the least and the greatest normal magnitude, 0 where there is none; whether any is negative."""

_BITS, _FINE, _COARSE = 8, 20, 21
_OCTAVE = 1 << 23
_GROWTH = 8
"""Octaves that the codes have above the values that there are when they are chosen."""
_LEAST_NORMAL, _INFINITE = 0x00800000, 0x7F800000
_EMPTY_BASE = 0x26800000
"""Where nothing is known of a second moment, quarters of octaves from 2^-50 on."""
_MORE, _PRECISION = 3, 24
"""Octaves that first moments may grow by, and the bits of the integers that they are stored as."""
_SAMPLE = 1 << 16


def kind_of(name: str, columns: Iterable[str], *, negative: bool) -> Kind | None:
    """What a column of `dim` values is among these columns, if it has negative values or not; None for no moment."""
    if name in FIRST_MOMENTS and (negative or name not in SECOND_MOMENTS or "momentum2" in columns):
        return "first"
    return "second" if name in SECOND_MOMENTS and not negative else None


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


def span_of(source: Source) -> Span:
    """Of a sample of the rows, where there are very many."""
    from cnrfmt.kernels import moments as kernel

    count = source.shape[0]
    rows = source.take(np.unique(np.linspace(0, max(0, count - 1), min(count, _SAMPLE)).astype(np.int64)))
    least, greatest, negative = kernel.span(np.ascontiguousarray(rows), np.arange(len(rows)))
    return int(least), int(greatest), bool(negative)


def joined(spans: Sequence[Span]) -> Span:
    """Of what several writers have."""
    known = [(least, greatest) for least, greatest, _ in spans if greatest]
    negative = any(one for _, _, one in spans)
    return min((a for a, _ in known), default=0), max((b for _, b in known), default=0), negative


def floor_for(span: Span) -> int:
    """The exponent of the unit that a first moment is stored in."""
    greatest = float(np.uint32(span[1]).view(np.float32))
    most = math.frexp(greatest)[1] + _MORE if greatest else 0
    return min(max(most - _PRECISION, MIN_FLOOR), MAX_FLOOR)


def codes_for(span: Span) -> LogLayout:
    """The codes of a second moment."""
    least, greatest, _ = span
    base, shift, codes = _EMPTY_BASE, _COARSE, (1 << _BITS) - 2
    if greatest:
        top = min(greatest + _GROWTH * _OCTAVE, _INFINITE - 1)
        shift = _FINE if codes << _FINE >= top - least else _COARSE
        # What is far below the greatest is as good as zero. Codes stand where octaves begin, too: between two of them
        # numbers are as linear as their patterns are, so that rounding by lot keeps them on the average.
        base = max(_LEAST_NORMAL, top - (codes << shift)) >> shift << shift
    return LogLayout(_BITS, base, shift, "absolute", "rans", GROUP_VALUES)
