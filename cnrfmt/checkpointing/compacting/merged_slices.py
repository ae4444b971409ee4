"""Columns of integers cut by rows, so that none is held as a whole; those of the same rows are written together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cnrfmt.checkpointing.compacting.integer_columns import IntegerColumn
from cnrfmt.checkpointing.compacting.merged_rows import Count, are_equal
from cnrfmt.format.schema import WEIGHT
from cnrfmt.table_writes import RowIds, SliceSections

_VALUES = 4 << 20
"""Values of the widest column in a slice, which are held as int32 while they are added up ..."""
_MOST = 4096
"""... unless columns would come to more slices than this."""


@dataclass(frozen=True)
class MergedSlice:
    """The rows start .. stop - 1 of columns that have the same rows. `nbytes` says about how much work that is."""

    columns: tuple[IntegerColumn, ...]
    start: int
    stop: int
    nbytes: int
    count: Count

    @property
    def weights(self) -> int:
        """How many rows of weights it has, each once."""
        is_first = any(c.column.name == WEIGHT and c.strip.first == 0 for c in self.columns)
        return (self.stop - self.start) * is_first

    def sections(self) -> SliceSections:
        """Adds them up, and encodes them; raises `DamagedError`."""
        rows = self.columns[0].rows
        some = RowIds(self.stop - self.start, first=rows.first + self.start)
        if rows.ids is not None:
            some = RowIds(self.stop - self.start, rows.ids[self.start : self.stop])
        return SliceSections(some, tuple(column.encoded(self.start, self.stop) for column in self.columns))

    def written(self) -> None:
        """Counts them."""
        self.count(self.nbytes)


def slices(columns: Iterable[IntegerColumn], count: Count) -> tuple[MergedSlice, ...]:
    """All rows of some columns, those of equal rows together."""
    groups: list[list[IntegerColumn]] = []
    for column in columns:
        same = next((group for group in groups if are_equal(group[0].rows, column.rows)), None)
        if same is None:
            groups.append([column])
        else:
            same.append(column)
    return tuple(one for group in groups for one in _cut(tuple(group), count))


def _cut(columns: tuple[IntegerColumn, ...], count: Count) -> Iterable[MergedSlice]:
    rows, nbytes = columns[0].rows.count, sum(column.nbytes for column in columns)
    step = max(1, _VALUES // max(column.width for column in columns), -(-rows // _MOST))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield MergedSlice(columns, start, stop, nbytes * (stop - start) // rows, count)
