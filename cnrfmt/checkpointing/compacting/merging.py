"""What one segment writes in the place of several: planned from row sets and layouts alone, before any row is read.

Each row of a column belongs to the newest part of the run that has it, as section 8 of the specification says. The
rows that are left of all parts with one layout become one part. Integers of one grid are added up instead: those that
end with an absolute part become an absolute one, the others a residual one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from cnrfmt import dtypes, sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.compacting.integer_columns import IntegerColumn
from cnrfmt.checkpointing.compacting.merged_rows import Count, are_equal
from cnrfmt.checkpointing.compacting.merged_slices import slices
from cnrfmt.checkpointing.compacting.strip_plan import Ended, Span, StripPlan
from cnrfmt.errors import UsageError
from cnrfmt.format import limits
from cnrfmt.format.schema import TableSchema
from cnrfmt.memory import Budget
from cnrfmt.resolve import Steps, strips
from cnrfmt.step_rows import written
from cnrfmt.table_writes import ColumnWrite, RowIds, TableWrite

_NONE = np.empty(0, np.int64)
_EVERY = 1 << 63
"""Behind all rows and keys."""


@dataclass(frozen=True)
class Older:
    """What the segments before the run say of a table, which a merged delta has to override."""

    exists: bool = False
    rows: int = 0
    columns: frozenset[str] = frozenset()

    @staticmethod
    def of(steps: Steps) -> Older:
        """What these steps say."""
        entries = [entry for step in steps for _, entry in step]
        rows = (entries[-1].rows or 0) if entries else 0
        return Older(bool(entries), rows, frozenset(p.column for e in entries for p in e.parts))


def merged_table(schema: TableSchema, steps: Steps, older: Older, *, baseline: bool, count: Count) -> TableWrite:
    """What a segment writes of a table that says the same as all of these steps, oldest first, at least one.

    `baseline` says that nothing comes before the segment: then the parts of a dense table cover all rows. `count` is
    called with the bytes that were made whenever rows are written. Raises `DamagedError` for a damaged row index, and
    `UsageError` where more keys were deleted than a segment may name.
    """
    if not schema.keyed:
        rows = [entry.rows or 0 for step in steps for _, entry in step]
        schema = replace(schema, rows=rows[-1])
        # Rows that were cut off and are back, and that no part of the run has, mustn't show what they were before.
        ended = Span(0, rows[-1]) if baseline else Span(min(rows), min(older.rows, rows[-1]))
        based = 0 if baseline else min(older.rows, *rows)
        return _table(schema, _columns(schema, steps, older, ended, based, baseline, count), count)
    deleted, back = _deleted(steps)
    if len(deleted) > limits.MAX_TOMBSTONES and older.exists:
        raise UsageError(
            f"table {schema.name!r}: the segments delete {len(deleted)} keys together, and one may name "
            f"{limits.MAX_TOMBSTONES}; merge fewer of them, or all into a baseline"
        )
    based = 0 if baseline else _EVERY
    write = _table(schema, _columns(schema, steps, older, back, based, baseline, count), count)
    return replace(write, deleted=deleted if older.exists else None)


def _table(schema: TableSchema, columns: Iterable[ColumnWrite | IntegerColumn], count: Count) -> TableWrite:
    every = list(columns)
    integers = slices((x for x in every if isinstance(x, IntegerColumn)), count)
    return TableWrite(schema, columns=_shared(x for x in every if isinstance(x, ColumnWrite)), slices=integers)


def _deleted(steps: Steps) -> tuple[Ids, Ids]:
    """The keys that the steps leave deleted, and those that were deleted and are back."""
    gone, back = _NONE, _NONE
    for step in steps:
        new = [s.indexes.ids(e.row_sets[e.deleted]) for s, e in step if e.deleted is not None]
        if new:
            gone, back = sorted_ids.union(gone, *new), np.setdiff1d(back, np.concatenate(new))
        if len(gone):
            for segment, entry in step:
                for row_set in written(entry):
                    here = segment.indexes.holds(row_set, gone)
                    back, gone = sorted_ids.union(back, gone[here]), gone[~here]
    return gone, back


def _columns(
    schema: TableSchema, steps: Steps, older: Older, ended: Ended, based: int, baseline: bool, count: Count
) -> Iterator[ColumnWrite | IntegerColumn]:
    for column in schema.columns:
        fill = np.frombuffer(column.fill, dtypes.dtype_of(column.dtype)).reshape(())
        found = strips(schema, column, steps, fill, Budget(None))
        has_rows = any(x.part is not None and x.row_set.first < x.limit for strip in found for x in strip.layers)
        # What nobody reads any more needn't be overridden; and a baseline has all rows of a column or none.
        needed = (has_rows and not schema.keyed) if baseline else column.name in older.columns
        for strip in found:
            base = based if column.name in older.columns else 0
            plan = StripPlan(schema, column, strip, ended if needed else _NONE, base, count)
            yield from plan.writes(whole=baseline and not schema.keyed)


def _shared(writes: Iterable[ColumnWrite]) -> tuple[ColumnWrite, ...]:
    """The same, with one object for equal rows, so that one row index serves them all."""
    known: list[RowIds] = []
    found = []
    for write in writes:
        rows = write.rows
        assert rows is not None
        same = next((other for other in known if are_equal(rows, other)), None)
        if same is None:
            known.append(rows)
        found.append(replace(write, rows=same or rows))
    return tuple(found)
