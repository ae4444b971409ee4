"""What columns on a grid typically take: their codes are entropy-coded, so that only data can tell exactly.

The figures are those of a recommender like DLRM with row-wise Adagrad, 27 % of whose rows change per interval. Rows
that move otherwise take up to a third more or less.
"""

from __future__ import annotations

import math
from itertools import pairwise

from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import GridLayout, IntegerLayout

BITS = ((0.5, 3.6), (1.25, 2.4), (3.0, 1.65), (6.75, 1.05), (10.0, 0.8))
"""By what the steps of a row in its n-th checkpoint are an n-th of, in learning rates: bits of a value.

That is of rows that were trained, in a delta or in a baseline.
"""
ROW_BITS = 4.2
"""Of a row: its step, and how large its codes are."""
LOG_BITS = 8
"""Of a logarithmic code of 12 bits in a delta; more codes have as many more. In a baseline they take all their bits."""
_LOG = 12
FIRST_BITS = 3.1
"""Of a value of a first moment of gradients, be it in a delta or in a baseline."""
SECOND_BITS, SECOND_BASELINE_BITS = 2.7, 6.0
"""Of a value of a second one, whose logarithmic codes have 8 bits: of its difference in a delta, and in a baseline."""


def value_bits(c: float) -> float:
    """Bits of a value in steps of `c` learning rates over the number of checkpoints that its row was in."""
    least, most = BITS[0], BITS[-1]
    if c <= least[0]:
        # Steps that are half as long take a bit more.
        return least[1] + math.log2(least[0] / c)
    for (a, more), (b, less) in pairwise(BITS):
        if c <= b:
            return more + (less - more) * math.log2(c / a) / math.log2(b / a)
    return most[1]


def section_bytes(layout: IntegerLayout, c: float, count: int, width: int, *, is_delta: bool) -> int:
    """Bytes of `count` rows of a column; `c` tells of a grid. Raises `UsageError` for codes that aren't like that."""
    if layout.payload != "rans":
        raise UsageError(f"plan: what codes take is known of payload='rans', not of {layout.payload!r}")
    if isinstance(layout, GridLayout):
        bits = value_bits(c) * width + ROW_BITS
    elif width > 1:
        bits = width * (SECOND_BITS if is_delta else SECOND_BASELINE_BITS) + ROW_BITS
    else:
        bits = layout.bits - (_LOG - LOG_BITS if is_delta else 0)
    return math.ceil(count * bits / 8)


def first_moment_bytes(count: int, width: int) -> int:
    """Bytes of `count` rows of a first moment."""
    return math.ceil(count * (FIRST_BITS * width + ROW_BITS) / 8)


def words(c: float) -> str:
    """What is assumed, in words."""
    return (
        f"typical of trainers with Adagrad, and a third more or less for others: {value_bits(c):.3g} bits per value in "
        f"steps of {c:.3g} learning rates over the checkpoints that a row was in, all rows of a baseline taken for "
        f"trained; {ROW_BITS:g} bits more per row; {LOG_BITS} bits of a {_LOG}-bit logarithmic code, {_LOG} in a "
        f"baseline; {FIRST_BITS:g} bits of a value of a first moment, {SECOND_BITS:g} of a second one, "
        f"{SECOND_BASELINE_BITS:g} in a baseline"
    )
