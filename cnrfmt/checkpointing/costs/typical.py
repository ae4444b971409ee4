"""What columns on a grid typically take: their codes are entropy-coded, so that only data can tell exactly.

The figures are those of a recommender like DLRM with row-wise Adagrad, 27 % of whose rows change per interval. Rows
that move otherwise take up to a third more or less.
"""

from __future__ import annotations

import math
from itertools import pairwise

from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import GridLayout, IntegerLayout

BITS = ((0.5, 2.9), (1.0, 2.1), (2.0, 1.5), (3.0, 1.27), (4.0, 1.1), (8.0, 0.77))
"""By the steps in learning rates: bits of a value in a delta."""
ROW_BITS = 5.4
"""Of a row: its step, and how active it is."""
BASELINE = 1.1
"""By how much more a value takes in a baseline, of rows that were trained."""
LOG_BITS = 8
"""Of a logarithmic code of 12 bits in a delta; more codes have as many more. In a baseline they take all their bits."""
_LOG = 12


def value_bits(c: float) -> float:
    """Bits of a value in a delta, in steps of `c` learning rates."""
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
        bits = value_bits(c) * (1 if is_delta else BASELINE) * width + ROW_BITS
    else:
        bits = layout.bits - (_LOG - LOG_BITS if is_delta else 0)
    return math.ceil(count * bits / 8)


def words(c: float) -> str:
    """What is assumed, in words."""
    bits = value_bits(c)
    return (
        f"typical of trainers with Adagrad, and a third more or less for others: {bits:.3g} bits per value in steps of "
        f"{c:.3g} learning rates, {BASELINE * bits:.3g} in a baseline, all of whose rows are taken for trained; "
        f"{ROW_BITS:g} bits more per row; {LOG_BITS} bits of a {_LOG}-bit logarithmic code, {_LOG} in a baseline"
    )
