"""Columns that are encoded anew while a chain is compacted: for a container to serve from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cnrfmt.checkpoint import Checkpoint
from cnrfmt.checkpointing.compacting.merged_rows import Count
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.encodings.quantize import Choices, check_patterns, choice_for, said_of, speaks_of
from cnrfmt.encodings.recipes import recipe_for
from cnrfmt.errors import UsageError
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.inputs import as_source
from cnrfmt.stored_column import StoredColumn
from cnrfmt.table import Table
from cnrfmt.table_writes import ColumnWrite, RowIds, TableWrite


class Reencoding:
    """The columns of an open checkpoint that are encoded as `encoding` says, which is as `quantize` is for `save`.

    Of columns other than `weight` those alone are meant that it names. Raises `UsageError` for a pattern that matches
    nothing.
    """

    def __init__(self, ck: Checkpoint, encoding: Choices) -> None:
        with said_of("encoding"):
            check_patterns(encoding, {name: table.columns for name, table in ck.items()})
        choices = encoding.values() if isinstance(encoding, Mapping) else [encoding]
        if any(isinstance(choice, Grid | GridPlan) for choice in choices):
            raise UsageError("encoding: what is made to serve from isn't put on a grid; give a Quantize, or None")
        self._ck, self._encoding = ck, encoding

    def without(self, schema: TableSchema) -> TableSchema:
        """A schema with the columns that are taken over as they are stored."""
        return replace(schema, columns=tuple(c for c in schema.columns if not self._means(schema, c)))

    def added(self, write: TableWrite, schema: TableSchema, count: Count) -> TableWrite:
        """What is written of the other columns, and of those that are encoded anew; raises `UsageError`."""
        table = self._ck[schema.name]
        rows = RowIds(len(table), table.keys)
        columns = [self._column(table, rows, c, count) for c in schema.columns if self._means(schema, c)]
        return replace(write, schema=schema, columns=(*columns, *write.columns))

    def _means(self, schema: TableSchema, column: ColumnSchema) -> bool:
        with said_of("encoding"):
            if column.name == WEIGHT:
                return speaks_of(self._encoding, schema.name, column)
            return choice_for(self._encoding, schema.name, column.name)[1]

    def _column(self, table: Table, rows: RowIds, column: ColumnSchema, count: Count) -> ColumnWrite:
        stored = StoredColumn(table, column.name, is_quantised=True, report=count)
        source = as_source(stored, what=f"table {table.schema.name!r}, column {column.name!r}")
        with said_of("encoding"):
            recipe = recipe_for(table.schema.name, column, source, self._encoding)
        return ColumnWrite(column, source, recipe, rows)
