"""Comparing a table of two versions: which rows both have, which of them may differ, and how far they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cnrfmt import dtypes, parallel, sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.comparing.errors import Errors, Spread, changed_rows, comparable, row_errors
from cnrfmt.comparing.report import ColumnComparison, SchemaDifference, TableComparison
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.format.schema import ColumnSchema
from cnrfmt.patterns import Patterns
from cnrfmt.table import Table

_CHUNK = 4 << 20
"""Bytes of rows that a thread reads of either side at a time."""

Selection = slice | Ids
"""Rows by position, or by id."""
Report = Callable[[int], None]
"""Called with bytes of rows that are done."""


@dataclass(frozen=True)
class _Shared:
    """The rows that both tables have: `ids` of those that may differ, or None where all may at equal positions."""

    count: int
    ids: Ids | None
    keys: Ids | None

    @property
    def looked_at(self) -> int:
        """How many are to be read."""
        return self.count if self.ids is None else len(self.ids)

    def chunks(self, step: int) -> Iterator[tuple[Selection, Ids]]:
        """Some rows at a time: how they are asked for, and their ids."""
        for start in range(0, self.looked_at, step):
            stop = min(start + step, self.looked_at)
            if self.ids is not None:
                yield self.ids[start:stop], self.ids[start:stop]
            elif self.keys is not None:
                yield slice(start, stop), self.keys[start:stop]
            else:
                yield slice(start, stop), np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True)
class TablePair:
    """A table of two versions.

    `touched` are the rows that the segments between the two wrote; None where nobody can tell.
    """

    a: Table
    b: Table
    touched: Ids | None
    columns: Patterns

    @property
    def names(self) -> list[str]:
        """The columns that can be compared."""
        if self.a.keyed != self.b.keyed:
            return []
        return [c.name for c in self.a.schema.columns if self._is_wanted(c.name) and self._fits(c)]

    def _is_wanted(self, name: str) -> bool:
        # What a manager counts for itself is no difference of the model, unless somebody asks for it.
        return name in self.columns and (name != CHECKPOINTS or self.columns.are_given)

    def _fits(self, column: ColumnSchema) -> bool:
        other = self.b.schema.column(column.name)
        if other is None or column.width(self.a.schema.dim) != other.width(self.b.schema.dim):
            return False
        return comparable(dtypes.dtype_of(column.dtype), dtypes.dtype_of(other.dtype))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all columns that can be compared."""
        return sum(self._row_bytes(name) for name in self.names)

    def _row_bytes(self, name: str) -> int:
        found = [(t.schema.column(name), t.schema.dim) for t in (self.a, self.b)]
        return max(c.width(dim) * dtypes.dtype_of(c.dtype).itemsize for c, dim in found if c is not None)

    def compare(self, most_worst: int, threads: int, report: Report) -> TableComparison:
        """Reads the rows that may differ."""
        shared, only_a, only_b = self._rows()
        compared = [self._column(name, shared, most_worst, threads, report) for name in self.names]
        return TableComparison(
            self.a.name,
            self.b.keyed,
            len(self.a),
            len(self.b),
            len(only_a),
            len(only_b),
            tuple(int(row) for row in only_a[:most_worst]),
            tuple(int(row) for row in only_b[:most_worst]),
            tuple(self._schema()),
            tuple(compared),
            shared.looked_at if compared else 0,
        )

    def _rows(self) -> tuple[_Shared, range | Ids, range | Ids]:
        """The rows that both have, and those that only one of them has."""
        a, b = self.a.keys, self.b.keys
        if a is None and b is None:
            both = min(len(self.a), len(self.b))
            touched = None if self.touched is None else self.touched[self.touched < both]
            return _Shared(both, touched, None), range(both, len(self.a)), range(both, len(self.b))
        if a is None or b is None:
            # Numbers of rows and keys have nothing to do with each other.
            return _Shared(0, None, None), _all_rows(self.a), _all_rows(self.b)
        if np.array_equal(a, b):
            return _Shared(len(a), self.touched, a), a[:0], b[:0]
        keys = sorted_ids.intersection(a, b)
        ids = keys if self.touched is None else sorted_ids.intersection(keys, self.touched)
        only_a, only_b = np.setdiff1d(a, keys, assume_unique=True), np.setdiff1d(b, keys, assume_unique=True)
        return _Shared(len(keys), ids, None), only_a, only_b

    def _column(self, name: str, shared: _Shared, most_worst: int, threads: int, report: Report) -> ColumnComparison:
        row_bytes = self._row_bytes(name)

        def work(chunk: tuple[Selection, Ids]) -> tuple[int, Ids, Errors]:
            selection, ids = chunk
            by = "position" if isinstance(selection, slice) else "id"
            first, second = (t.read(selection, column=name, by=by).reshape(len(ids), -1) for t in (self.a, self.b))
            changed = np.flatnonzero(changed_rows(first, second))
            if len(changed) < len(ids):
                first, second = first[changed], second[changed]
            return len(ids), ids[changed], row_errors(first, second)

        spread = Spread(most_worst)
        chunks = shared.chunks(max(1, _CHUNK // row_bytes))
        for count, ids, errors in parallel.ordered(threads, work, chunks, ahead=threads):
            spread.add(ids, errors)
            report(count * row_bytes)
        report((shared.count - shared.looked_at) * row_bytes)
        return spread.column(name, shared.count)

    def _schema(self) -> Iterator[SchemaDifference]:
        a, b = self.a.schema, self.b.schema
        if a.keyed != b.keyed:
            yield SchemaDifference("kind", None, *("keyed" if t.keyed else "dense" for t in (a, b)))
        if a.dim != b.dim:
            yield SchemaDifference("dim", None, a.dim, b.dim)
        for column in a.columns:
            if self._is_wanted(column.name) and (other := b.column(column.name)) is not None:
                yield from _column_schema(column, other, a.dim, b.dim)
        for name in dict.fromkeys(c.name for t in (a, b) for c in t.columns):
            here, there = a.column(name), b.column(name)
            if self._is_wanted(name) and (here is None or there is None):
                found = (None if column is None else column.dtype for column in (here, there))
                yield SchemaDifference("column", name, *found)


def _all_rows(table: Table) -> range | Ids:
    return range(len(table)) if table.keys is None else table.keys


def _column_schema(a: ColumnSchema, b: ColumnSchema, dim_a: int, dim_b: int) -> Iterator[SchemaDifference]:
    if a.dtype != b.dtype:
        yield SchemaDifference("dtype", a.name, a.dtype, b.dtype)
    if a.per_row != b.per_row:
        yield SchemaDifference("values per row", a.name, a.width(dim_a), b.width(dim_b))
    if a.dtype == b.dtype and a.fill != b.fill:
        yield SchemaDifference("fill", a.name, a.fill.hex(), b.fill.hex())
