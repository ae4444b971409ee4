"""From live rows to the sections of integer parts: taken while the trainer waits, entropy-coded behind it.

A slice is a range of the rows that a table's write lists, in all columns, of a bounded number of values. Rows whose
codes are all zero are as they are stored already: they aren't written, and are told to whoever marks rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.integer_sections import encode_section
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout
from cnrfmt.stored_integers import Stored
from cnrfmt.table_writes import EncodedColumn, RowIds, SliceSections, TableWrite
from cnrfmt.taken_rows import Taken
from cnrfmt.trainer_rows import LiveColumn, TrainerRows, is_integer, live_columns

_VALUES = 8 << 20
"""Values of the widest column in a slice ..."""
_MOST_SLICES = 256
"""... unless a table came to more slices than this."""
_PIECES = 8
"""A slice is taken in so many pieces, by as many threads as there are."""


def is_sliced(write: TableWrite) -> bool:
    """Whether a write has a column that is stored as integers, in a section whose length isn't known before."""
    return write.rows is not None and any(is_integer(column.recipe) for column in write.columns)


def sliced(
    write: TableWrite,
    stored: Stored | None = None,
    *,
    counts: Stored | None = None,
    salt: int = 0,
    sends_all: bool = False,
) -> tuple[TableWrite, tuple[LiveSlice, ...]]:
    """The write with slices in the place of its rows; and the slices, in their order.

    `stored` makes differences of the rows that it knows; None writes all as they are. `counts` knows how many
    checkpoints rows were in, where these are counted; None where they weren't in any. Where numbers are rounded up or
    down by lot, another `salt` (32 bits) draws another lot. `sends_all` writes rows whose codes are all zero, too.
    """
    rows = write.rows
    assert rows is not None
    widest = max(end - first for first, end in (column.range_of(write.schema.dim) for column in write.columns))
    step = max(1, _VALUES // widest, -(-rows.count // _MOST_SLICES))
    starts = range(0, rows.count, step)
    columns = live_columns(write)
    found = tuple(
        LiveSlice(write, columns, start, min(start + step, rows.count), stored, counts, salt, sends_all)
        for start in starts
    )
    views = tuple(view for one in found for view in one.views)
    return replace(write, rows=None, columns=(), slices=views), found


class LiveSlice:
    """Some rows of a table in all their columns: pieces to be taken, and what a segment writes of them.

    Attributes
    ----------
    pieces
        The rows, each piece to be taken or copied before the arrays change; else it is taken when it is written.
    views
        What is written: the rows that are differences, and those that nothing is known of that they could differ from.
    unsent
        The ids of rows that aren't written, once the first of the views is.
    """

    def __init__(
        self,
        write: TableWrite,
        columns: Sequence[LiveColumn],
        start: int,
        stop: int,
        stored: Stored | None,
        counts: Stored | None,
        salt: int,
        sends_all: bool,
    ) -> None:
        rows = write.rows
        assert rows is not None
        self._rows, self._start, self._stop, self._sends_all = rows, start, stop, sends_all
        step = -(-(stop - start) // _PIECES)
        self.pieces = tuple(
            TrainerRows(write, columns, a, min(a + step, stop), stored, counts, salt) for a in range(start, stop, step)
        )
        self.unsent: Ids = np.empty(0, np.int64)
        self.views = (
            _View(self, lambda piece: piece.residual, is_residual=True),
            _View(self, lambda piece: piece.absolute, is_residual=False),
        )

    def encode(self, taken: Taken, *, is_residual: bool) -> SliceSections:
        """The sections of the rows that were taken so."""
        nothing = SliceSections(RowIds(0), ())
        if not taken.count:
            return nothing
        numbers = np.concatenate([np.arange(n.start, n.stop) if isinstance(n, range) else n for n in taken.numbers])
        kept = np.arange(taken.count)
        if is_residual and taken.grids and not self._sends_all:
            is_kept = np.zeros(taken.count, np.bool_)
            for column in self.pieces[0].columns:
                if column.name in taken.grids and not column.is_afresh:
                    is_kept |= taken.grids[column.name].widths != 0
            for bad in (bad for found in taken.bad.values() for bad in found):
                is_kept[bad] = True
            kept = np.flatnonzero(is_kept)
            self.unsent = self._ids_at(numbers[~is_kept])
        if not kept.size:
            return nothing
        ids = self._as_range(len(kept)) or RowIds(len(kept), self._ids_at(numbers[kept]))
        columns = self.pieces[0].columns
        return SliceSections(ids, tuple(_encoded(taken, column, kept, is_residual=is_residual) for column in columns))

    def _ids_at(self, numbers: Ids) -> Ids:
        """The ids or keys of the rows of these numbers among all that are listed."""
        return numbers + self._rows.first if self._rows.ids is None else self._rows.ids[numbers]

    def _as_range(self, count: int) -> RowIds | None:
        """All rows of the slice as a range, if they are one and so many are meant."""
        whole = self._rows.ids is None and count == self._stop - self._start
        return RowIds(count, first=self._rows.first + self._start) if whole else None


def _encoded(taken: Taken, column: LiveColumn, kept: Ids, *, is_residual: bool) -> EncodedColumn:
    recipe, name = column.write.recipe, column.name
    layout, is_residual = recipe.layout, is_residual and not column.is_afresh
    if isinstance(layout, GridLayout) and name in taken.grids:
        rows = taken.grids[name] if len(kept) == taken.count else taken.grids[name].only(kept)
        layout, data = encode_section(_as(layout, is_residual), rows, len(kept), column.width)
    elif isinstance(layout, GridLayout | LogLayout) and name in taken.codes:
        codes = np.concatenate(taken.codes[name])[kept]
        layout, data = encode_section(_as(layout, is_residual), _Codes(codes), len(kept), column.width)
    else:
        data = np.concatenate(taken.others[name])[kept].reshape(-1)
    bad, exact = np.empty(0, np.int64), np.empty((0, column.width), dtypes.dtype_of(layout.dtype))
    if name in taken.bad:
        bad = np.searchsorted(kept, np.concatenate(taken.bad[name]))
        exact = np.concatenate(taken.exact[name])
    errors = taken.errors_of(name)
    return EncodedColumn(column.write.column, column.elements, Recipe(layout, recipe.scheme), errors, data, bad, exact)


def _as(layout: IntegerLayout, is_residual: bool) -> IntegerLayout:
    return replace(layout, kind="residual" if is_residual else "absolute")


@dataclass(frozen=True)
class _Codes:
    """Codes of rows, as section encoders ask for them."""

    values: Array

    def codes(self, first: int, stop: int, out: Array, exponents: Bytes) -> None:
        """The codes of rows first .. stop - 1."""
        out[...] = self.values[first:stop]
        exponents[:] = 0


class _View:
    """The rows of a slice that are stored in one way, as a segment writes them."""

    def __init__(self, one: LiveSlice, taken_of: Callable[[TrainerRows], Taken], *, is_residual: bool) -> None:
        self._slice, self._taken_of, self._is_residual = one, taken_of, is_residual

    def sections(self) -> SliceSections:
        """Encodes the rows, which are taken now if they weren't before."""
        every = Taken()
        for piece in self._slice.pieces:
            piece.take()
            every.add(self._taken_of(piece))
        every.seal()
        return self._slice.encode(every, is_residual=self._is_residual)

    def written(self) -> None:
        """Lets go of what was taken."""
        for piece in self._slice.pieces:
            self._taken_of(piece).clear()
