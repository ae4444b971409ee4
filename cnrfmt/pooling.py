"""Bags of rows: summed, averaged or maximised while they are decoded.

Rows of a part that is mapped, and whose rows are numbers or codes, are pooled where they lie; those of others are
decoded some at a time, in the processor's cache.

What that means, and in which order it is rounded, says `cnrfmt.kernels.pooling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cnrfmt import chunks, parallel, sorted_ids
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.rowwise import geometry
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import CastLayout, RawLayout, RowwiseLayout
from cnrfmt.inputs import as_array, as_ids
from cnrfmt.layer import Layer
from cnrfmt.memory import Budget
from cnrfmt.resolve import Strip

Mode = Literal["sum", "mean", "max"]
Pooled = npt.NDArray[np.float32]

_SCRATCH = 256 << 10
"""Bytes of decoded rows that one thread has at a time."""
_SHARE = 2 << 20
"""Bytes of decoded rows that are worth a thread."""
_SHARE_IN_PLACE = 8 << 20
"""The same, of rows that are pooled where they lie."""
_VERIFIED_AT_A_TIME = 4096
_MODES: tuple[Mode, ...] = ("sum", "mean", "max")
_NO_WEIGHTS = np.empty(0, np.float32)
_FLOATS = ("float32", "float16", "bfloat16")
_NO_MARKS = np.empty(0, np.uint8)


class Bags(NamedTuple):
    """Bags of ids that were checked, as kernels take them; `weights` are none, or one for each id."""

    ids: Ids
    offsets: Ids
    weights: npt.NDArray[np.float32]
    mode: int


def as_bags(place: str, ids: Any, offsets: Any, weights: Any = None, mode: str = "sum") -> Bags:
    """A caller's bags, which `place` names in messages.

    Parameters
    ----------
    ids
        Integers, 1-D.
    offsets
        Where each bag begins among them, the first at 0; the last ends with the ids.
    weights
        Numbers that rows are multiplied by, one for each id, with mode ``"sum"`` alone.
    mode
        ``"sum"``, ``"mean"`` or ``"max"``.

    Raises
    ------
    UsageError
    """
    if mode not in _MODES:
        raise UsageError(f"{place}: mode is 'sum', 'mean' or 'max', found {mode!r}")
    # Copies, which stay as they were checked, whatever the caller's other threads do.
    listed = (ids if _are_ids(ids) else as_ids(ids, f"{place}: ids")).copy()
    begins = (offsets if _are_ids(offsets) else as_ids(offsets, f"{place}: offsets")).copy()
    count = len(listed)
    if not len(begins):
        if count:
            raise UsageError(f"{place}: offsets must begin with 0, found none for {count} ids; one bag is offsets=[0]")
    elif begins[0] != 0:
        raise UsageError(f"{place}: offsets must begin with 0, found {begins[0]}")
    elif (begins[1:] < begins[:-1]).any():
        at = int(np.argmax(begins[1:] < begins[:-1])) + 1
        raise UsageError(f"{place}: offsets must ascend, found {begins[at]} at {at} behind {begins[at - 1]}")
    elif begins[-1] > count:
        raise UsageError(f"{place}: offsets must not exceed the number of ids, {count}, found {begins[-1]}")
    return Bags(listed, begins, _weights(place, weights, count, mode), _MODES.index(mode))


def is_pooled(stored: np.dtype[Any]) -> bool:
    """Whether float32, in which bags come, holds the values: one that was rounded is a wrong value nobody notices."""
    return stored.kind not in "iu" or stored.itemsize <= 2


def check_pooled(place: str, stored: np.dtype[Any]) -> None:
    """That rows of a data type may be pooled; raises `UsageError`."""
    if not is_pooled(stored):
        raise UsageError(
            f"{place} is {stored}, whose values float32, in which bags come, can't all hold; read its rows, and "
            "add them up where they are exact"
        )


def _are_ids(value: Any) -> bool:
    """Whether `as_ids` would give the same: what comes thousands of times a second is recognised at once."""
    return type(value) is np.ndarray and value.dtype == np.int64 and value.ndim == 1 and value.flags.c_contiguous


def _weights(place: str, weights: Any, count: int, mode: str) -> npt.NDArray[np.float32]:
    if weights is None:
        return _NO_WEIGHTS
    if mode != "sum":
        raise UsageError(f"{place}: weights go with mode 'sum' alone, found mode {mode!r}; leave them out")
    array = as_array(weights, what=f"{place}: weights")
    if array.shape != (count,):
        raise UsageError(f"{place}: weights must be one for each of {count} ids, found shape {array.shape}")
    if array.dtype.kind in "bc":
        raise UsageError(f"{place}: weights must be numbers that float32 can hold, found {array.dtype}")
    with np.errstate(over="ignore"):
        found = array.astype(np.float32, copy=False)
    if (lost := np.isinf(found) & np.isfinite(array.astype(np.float64, copy=False))).any():
        raise UsageError(f"{place}: weights must be numbers that float32 can hold, found {array[int(np.argmax(lost))]}")
    return found


def pool(
    strips: Sequence[Strip],
    bags: Bags,
    check: Callable[[], None],
    stored: np.dtype[Any],
    threads: int,
    budget: Budget,
    place: str,
) -> Pooled:
    """Each bag's rows of all strips of a column, pooled to float32 of (bags, values per row).

    Bags are shared out among threads whole, so that the result doesn't depend on how many there are.

    Parameters
    ----------
    bags
        Their ids are row ids or keys; those that aren't there give the column's fill value.
    check
        Raises where one may not be asked for; called unless all are found without it.
    stored
        The column's own dtype.

    Raises
    ------
    DamagedError, TooLargeError
        As `Table.read` raises them.
    """
    from cnrfmt.kernels import pooling as kernel

    ids, offsets, weights, mode = bags
    width = strips[-1].end
    budget.take(4 * width * len(offsets), f"{place}: {len(offsets)} bags of {width} values")
    in_place = _rows_in_place(strips)
    if in_place is not None:
        out = np.empty((len(offsets), width), np.float32)
        if in_place.pool(bags, threads, out):
            return out
    check()
    out = np.zeros((len(offsets), width), np.float32)
    # A row is decoded, put together of the strips, and converted, where that isn't the same.
    row_bytes = width * (stored.itemsize * (1 if len(strips) == 1 else 2) + (0 if stored == np.float32 else 4))
    step = max(1, _SCRATCH // row_bytes)
    ranges = _shares(offsets, len(ids), max(step, _SHARE // row_bytes) if threads > 1 else len(ids))
    chunks.prepare(strips, threads, budget, is_shared=len(ids) > step)

    def share(bounds: tuple[int, int]) -> None:
        first_bag, last_bag = bounds
        begins = offsets[first_bag:last_bag]
        end = int(offsets[last_bag]) if last_bag < len(offsets) else len(ids)
        sums, bag = out[first_bag:last_bag], 0
        start = int(begins[0])
        scratch = np.empty((min(step, end - start), width), stored)
        for first in range(start, end, step):
            some = ids[first : min(first + step, end)]
            rows = scratch[: len(some)]
            _decode(strips, some, rows)
            values = rows.astype(np.float32, copy=False)
            bag = kernel.pool_rows(values, first, bag, begins, end, weights, mode, sums)

    parallel.run(threads)(share, ranges)
    return out


class _RowsInPlace(NamedTuple):
    """The rows of a part in a map, `many` of them: row p begins at byte `base` + p * `row_bytes`."""

    layer: Layer
    data: Bytes
    base: int
    row_bytes: int
    layout: RawLayout | CastLayout | RowwiseLayout
    many: int

    def pool(self, bags: Bags, threads: int, out: Pooled) -> bool:
        """Fills `out`. False where an id isn't one of the part, and `out` doesn't count.

        Raises
        ------
        DamagedError
            A piece isn't what was written.
        """
        placed = bags._replace(ids=self._positions(bags.ids))
        width, is_whole = out.shape[1], []
        ranges = [(0, len(bags.offsets))]
        if threads > 1:
            ranges = _shares(bags.offsets, len(bags.ids), max(1, _SHARE_IN_PLACE // (4 * width)))

        def share(bounds: tuple[int, int]) -> None:
            first, last = bounds
            end = int(bags.offsets[last]) if last < len(bags.offsets) else len(bags.ids)
            some, into = placed._replace(offsets=bags.offsets[first:last]), out[first:last]
            lost = self._pool(some, end, into)
            if lost >= 0 and 0 <= placed.ids[lost] < self.many:
                self._verify(placed.ids[lost:end])
                lost = self._pool(some, end, into)
            is_whole.append(lost < 0)

        parallel.run(threads)(share, ranges)
        return all(is_whole)

    def _positions(self, ids: Ids) -> Ids:
        """Where rows are in the part; what isn't one of its positions where they aren't there."""
        from cnrfmt.kernels import rows as kernel

        layer = self.layer
        if layer.is_range:
            return ids - layer.row_set.first if layer.row_set.first else ids
        positions = np.empty(len(ids), np.int64)
        kernel.find(layer.ids, ids, positions)
        return positions

    def _pool(self, bags: Bags, end: int, out: Pooled) -> int:
        from cnrfmt.kernels import pooling as kernel

        ids, offsets, weights, mode = bags
        layout, segment = self.layout, self.layer.segment
        marks, shift = segment.marks, segment.trailer.piece_size.bit_length() - 1
        given = (_NO_MARKS if marks is None else marks, shift, ids, self.many, offsets, end, weights, mode, out)
        if not isinstance(layout, RowwiseLayout):
            kind = kernel.KINDS[layout.stored if isinstance(layout, CastLayout) else layout.dtype]
            return kernel.pool_floats(self.data, self.base, self.row_bytes, kind, *given)
        bits, _, codes_at, scale_at, bias_at, scale_kind, bias_kind, row_bytes = geometry(layout, out.shape[1])
        return kernel.pool_codes(
            self.data, self.base, row_bytes, bits, codes_at, scale_at, bias_at, scale_kind, bias_kind, *given
        )

    def _verify(self, positions: Ids) -> None:
        # Ascending, so that each piece is counted once: fewer are verified in the map, more are read.
        offsets = self.base + sorted_ids.union(positions[(positions >= 0) & (positions < self.many)]) * self.row_bytes
        for start in range(0, len(offsets), _VERIFIED_AT_A_TIME):
            self.layer.segment.fetch_rows(offsets[start : start + _VERIFIED_AT_A_TIME], self.row_bytes)


def _rows_in_place(strips: Sequence[Strip]) -> _RowsInPlace | None:
    """The newest part of a column, if its rows can be pooled where they lie."""
    if len(strips) > 1 or not strips[0].layers:
        return None
    layer = strips[0].layers[0]
    part, data = layer.part, layer.segment.data
    if part is None or data is None:
        return None
    layout = part.layout
    if isinstance(layout, RowwiseLayout):
        if layout.groups(part.width) > 1:
            return None
    elif not isinstance(layout, CastLayout) and not (isinstance(layout, RawLayout) and layout.dtype in _FLOATS):
        return None
    if part.row_bytes > layer.segment.trailer.piece_size:
        return None
    base = layer.segment.toc.sections[part.section][0]
    # Of a table that was cut below where the part begins, none is left.
    many = max(0, layer.stop - layer.row_set.first) if layer.is_range else len(layer.ids)
    return _RowsInPlace(layer, data, base, part.row_bytes, layout, many)


def _shares(offsets: Ids, count: int, per_share: int) -> list[tuple[int, int]]:
    """Ranges of bags that have about so many ids each, or more if one bag has."""
    cuts = np.searchsorted(offsets, np.arange(0, count, max(1, per_share)))
    edges = np.unique(np.concatenate([cuts[cuts < len(offsets)], [0, len(offsets)]]))
    return list(pairwise(edges.tolist()))


def _decode(strips: Sequence[Strip], ids: Ids, rows: Array) -> None:
    if len(strips) == 1:
        strips[0].read_ids(ids, rows)
        return
    for strip in strips:
        piece = np.empty((len(ids), strip.end - strip.first), rows.dtype)
        strip.read_ids(ids, piece)
        rows[:, strip.first : strip.end] = piece
