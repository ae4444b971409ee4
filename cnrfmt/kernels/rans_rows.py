"""Rows from anywhere under the payload `rans`, added up as their groups are decoded, while these are in the cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.kernels._jit import jit
from cnrfmt.kernels._machine import pointer
from cnrfmt.kernels._rans_models import Slots, Symbols
from cnrfmt.kernels._rans_steps import MOST_GROUPS
from cnrfmt.kernels.rans import SOUND, Codes, decode_groups
from cnrfmt.kernels.sums import add_row


@jit
def add_rows(
    data: Bytes,
    starts: Ids,
    stops: Ids,
    numbers: Ids,
    group: int,
    count: int,
    kinds: Symbols,
    kind_slots: Slots,
    kind_symbols: Symbols,
    slots: Slots,
    most_bits: int,
    places: Ids,
    states: Ids,
    row_kinds: Symbols,
    symbols: Symbols,
    block: Codes,
    exponents: Bytes,
    positions: Ids,
    targets: Ids,
    element: int,
    total: Codes,
    grids: npt.NDArray[np.int32],
    number: int,
) -> tuple[int, int]:
    """Add rows of a part of `count` rows to rows of `total`, from an element on, as `sums.add_at` does.

    Parameters
    ----------
    data, starts, stops, numbers, group
        data[starts[i] : stops[i]] is group numbers[i] of the part, of `group` rows; the numbers ascend, and each group
        has one of the rows.
    kinds, kind_slots, kind_symbols, slots, most_bits, places, states, row_kinds, symbols
        See `decode_groups`, where `places` are called positions.
    block, exponents
        To work with: eight groups of codes, or as many as there are, and a place for each of their rows.
    positions, targets
        The row at positions[k] of the part, ascending, is added to total[targets[k]].
    total, grids, number
        See `sums.add_at`.

    Returns
    -------
    What is wrong with a group that isn't sound, and where it stands in `numbers`. Or `SOUND`, and the k of the first
    row that is on another grid, -1 if none is.
    """
    target, source, width, full = pointer(total), pointer(block), total.shape[1], block.shape[1]
    wanted, into, grid_of, k = pointer(positions), pointer(targets), pointer(grids), 0
    for first in range(0, len(numbers), MOST_GROUPS):
        some = min(MOST_GROUPS, len(numbers) - first)
        rows = some * group - max(0, (numbers[first + some - 1] + 1) * group - count)
        wrong, at = decode_groups(
            data, starts[first : first + some], stops[first : first + some], group, kinds, kind_slots, kind_symbols,
            slots, most_bits, places, states, row_kinds, symbols, block[:rows], exponents[:rows],
        )  # fmt: skip
        if wrong:
            return wrong, first + at
        for g in range(some):
            begin = numbers[first + g] * group
            back, stop = begin - g * group, begin + group
            while k < len(positions) and wanted[k] < stop:
                if not add_row(target, grid_of, into[k], source, (wanted[k] - back) * full + element, width, number):
                    return SOUND, k
                k += 1
    return SOUND, -1
