"""What columns on a grid typically take: their codes are entropy-coded, so that only data can tell exactly.

The figures are those of a recommender like DLRM, 27 % of whose rows change per interval, over twelve deltas: with
row-wise Adagrad, or with Adam. Rows that move otherwise take up to a third more or less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from cnrfmt.encodings.grid_plan import coarseness_of
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import GridLayout, IntegerLayout
from cnrfmt.format.scheme import Step

BITS = ((0.5, 3.6), (1.25, 2.4), (3.0, 1.65), (6.75, 1.05), (10.0, 0.8))
"""By what the steps of a row in its n-th checkpoint are an n-th of, in learning rates: bits of a value.

That is of rows that were trained, in a delta or in a baseline.
"""
ADAM_BITS = ((0.625, 6.35), (1.25, 5.35), (3.0, 4.05), (6.75, 3.2))
"""The same with Adam, which moves a row by about a learning rate however often it was stepped, while its steps on the
grid get shorter: the first deltas take up to a third less, later ones more."""
ADAM = ("exp_avg", "exp_avg_sq", "first_moment", "second_moment", "momentum2")
"""Columns by which an optimizer is known that moves rows like Adam."""
INITIAL, ADAM_INITIAL = 0.5, 50.0
"""The root mean square of the weights that rows begin with, in learning rates, unless somebody says it.

Rows begin with much the same weights under each optimizer, and Adam's learning rates are a few hundredths of Adagrad's.
"""
_NORMAL_BITS = 2.05
"""Entropy of a normal number in steps as long as its standard deviation, and about that of an even one."""
ROW_BITS = 4.2
"""Of a row: its step, and how large its codes are."""
LOG_BITS = 8
"""Of a logarithmic code of 12 bits in a delta; more codes have as many more. In a baseline they take all their bits."""
LOG = 12
FIRST_BITS = 3.1
"""Of a value of a first moment of gradients, be it in a delta or in a baseline."""
SECOND_BITS, SECOND_BASELINE_BITS = 2.7, 6.0
"""Of a value of a second one, whose logarithmic codes have 8 bits: of its difference in a delta, and in a baseline."""


def is_adam(columns: Iterable[str]) -> bool:
    """Whether a table with these columns is stepped by an optimizer that moves rows like Adam."""
    return any(name in ADAM for name in columns)


@dataclass(frozen=True)
class Weights:
    """What the bits of a value of weights on a grid follow from.

    Attributes
    ----------
    coarseness, longest
        By what the steps of a row in its n-th checkpoint are an n-th of, and the longest that there are, in learning
        rates.
    adam
        Whether the optimizer moves rows like Adam.
    initial
        The root mean square of the weights that rows begin with, in learning rates.
    """

    coarseness: float
    longest: float
    adam: bool
    initial: float

    @staticmethod
    def of(step: Step, columns: Iterable[str], initial: float | None) -> Weights:
        """Of a table with these columns, in steps for a learning rate of 1; None: as weights typically begin."""
        adam = is_adam(columns)
        usual = ADAM_INITIAL if adam else INITIAL
        return Weights(coarseness_of(step), step.size, adam, usual if initial is None else initial)

    @property
    def delta_bits(self) -> float:
        """Bits of a value in a delta."""
        return value_bits(self.coarseness, adam=self.adam)

    @property
    def baseline_bits(self) -> float:
        """Bits of a value in a baseline: those of trained rows, or those of what rows began with, if they are more."""
        steps = self.initial / self.longest
        return max(self.delta_bits, math.log2(steps) + _NORMAL_BITS if steps > 0 else 0.0)


def value_bits(c: float, *, adam: bool = False) -> float:
    """Bits of a value in steps of `c` learning rates over the number of checkpoints that its row was in."""
    known = ADAM_BITS if adam else BITS
    least, most = known[0], known[-1]
    if c <= least[0]:
        # Steps that are half as long take a bit more.
        return least[1] + math.log2(least[0] / c)
    for (a, more), (b, less) in pairwise(known):
        if c <= b:
            return more + (less - more) * math.log2(c / a) / math.log2(b / a)
    return most[1]


def section_bytes(layout: IntegerLayout, weights: Weights | None, count: int, width: int, *, is_delta: bool) -> int:
    """Bytes of `count` rows of a column; `weights` tell of a grid. Raises `UsageError` for other codes."""
    if layout.payload != "rans":
        raise UsageError(f"plan: what codes take is known of payload='rans', not of {layout.payload!r}")
    if isinstance(layout, GridLayout):
        assert weights is not None
        bits = (weights.delta_bits if is_delta else weights.baseline_bits) * width + ROW_BITS
    elif width > 1:
        bits = width * (SECOND_BITS if is_delta else SECOND_BASELINE_BITS) + ROW_BITS
    else:
        bits = layout.bits - (LOG - LOG_BITS if is_delta else 0)
    return math.ceil(count * bits / 8)


def first_moment_bytes(count: int, width: int) -> int:
    """Bytes of `count` rows of a first moment."""
    return math.ceil(count * (FIRST_BITS * width + ROW_BITS) / 8)
