"""The tables of an open checkpoint as `save` takes tables, read slice by slice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.schema import WEIGHT
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData

Report = Callable[[int], None]
"""Called with bytes of rows that were read, from many threads at once."""


class StoredColumn:
    """A column of an open checkpoint, its rows by position; safe to read from many threads."""

    read_by_slices = True

    def __init__(self, table: Table, column: str, *, is_quantised: bool, report: Report | None) -> None:
        schema = table.schema.column(column)
        assert schema is not None
        self._table, self._column, self._report = table, column, report
        self.dtype = dtypes.dtype_of(schema.dtype)
        self.shape: tuple[int, ...] = table.shape[:1] if schema.per_row else table.shape
        self.is_quantised = is_quantised
        """Whether any of its rows aren't as they were given."""

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> Array:
        found = self._table.read(rows, column=self._column, by="position")
        if self._report is not None:
            self._report(found.nbytes)
        return found


def table_data(ck: Checkpoint, name: str, report: Report | None = None) -> TableData:
    """A table as `save` takes it; its rows are read when they are asked for."""
    table = ck[name]
    parts = [
        part
        for segment in ck.view.segments.values()
        if (entry := segment.toc.by_table.get(table.schema.table_id)) is not None
        for part in entry.parts
    ]
    quantised = {part.column for part in parts if not isinstance(part.layout, RawLayout)}
    columns = {c: StoredColumn(table, c, is_quantised=c in quantised, report=report) for c in table.columns}
    weight = columns.pop(WEIGHT)
    fill = {c: np.asarray(table.fill(c)) for c in table.columns}
    return TableData(weight, columns=columns, keys=table.keys, fill=fill)
