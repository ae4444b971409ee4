"""What one of many ranks holds of the tables: rectangles of rows x elements, and how the ranks agree on the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt.encodings import Recipe
from cnrfmt.encodings.grid import Grid
from cnrfmt.encodings.grid_plan import GridSummary, summary_of
from cnrfmt.encodings.quantize import Choices, matching
from cnrfmt.errors import UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.plan import columns_of, described, plan_baseline, plan_delta
from cnrfmt.table_writes import ColumnWrite, RowIds, TableWrite
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData

Range = tuple[int, int]
"""The first of something, and the end behind the last."""


@dataclass(frozen=True, eq=False)
class Shard:
    """What this rank holds of a table that is spread over several.

    Parameters
    ----------
    values
        The values of the rectangle, rows x elements; or a `TableData` of them, with columns, fill and, for a keyed
        table, the keys that this rank has; or, in a delta, the `Rows` of them that are to be written, under the row
        ids of the whole table (with what is `Deleted`, as a tuple). A rank that has a whole table gives it without a
        `Shard`, and so does one that has all elements of its keys of a keyed table.
    columns
        Further columns of an array of values: one value per row, or the same elements as the values. Where the
        elements of a row are spread over ranks, just one of them gives the columns of one value per row.
    rows
        The rows of a dense table, from the first to the end behind the last; all if None.
    of_rows
        How many rows the whole table has; needed with `rows`.
    elements
        The elements of each row, likewise; all if None.
    of_dim
        How many the whole table has; needed with `elements`.
    """

    values: Any
    columns: Mapping[str, Any] | None = None
    rows: Range | None = None
    of_rows: int | None = None
    elements: Range | None = None
    of_dim: int | None = None


@dataclass(frozen=True)
class ShardPlan:
    """What one rank writes, and what the others have to know of it.

    `writes` are in the coordinates of the whole tables, under a schema that is this rank's view alone: `agreed` gives
    them under the one of all. `description` is for `agree`.
    """

    writes: tuple[TableWrite, ...]
    description: bytes

    def agreed(self, tables: tuple[TableSchema, ...]) -> tuple[TableWrite, ...]:
        """The writes under the schema that all ranks have agreed on."""
        known = {table.name: table for table in tables}
        return tuple(replace(write, schema=known[write.schema.name]) for write in self.writes)


def plan_shards(
    tables: Mapping[str, Any],
    quantize: Choices,
    base: tuple[TableSchema, ...] | None = None,
    known_recipe: Callable[[TableSchema, ColumnSchema], Recipe] | None = None,
) -> ShardPlan:
    """What a rank writes of the tables that it holds.

    Parameters
    ----------
    tables
        Names to arrays, `TableData` or `Shard`; in a delta also to `Rows`, `Deleted`, a tuple of both, or `Dropped`,
        as `append` takes them. A rank leaves out what it holds nothing of.
    quantize
        As for `save`: the same for all ranks. A pattern needn't match a table of this rank.
    base
        The schema that a delta goes on from; None for a baseline.
    known_recipe
        How columns were stored so far; for a delta.

    Raises
    ------
    UsageError
        What `save` and `append` refuse, and a shard that doesn't fit its numbers.
    """
    if not isinstance(tables, Mapping):
        raise UsageError(f"tables must be a dict of names to tables, found {type(tables).__name__}")
    places = {name: _Place.of(name, value) for name, value in tables.items() if isinstance(value, Shard)}
    local = {name: _within(name, value) if isinstance(value, Shard) else value for name, value in tables.items()}
    known = {table.name: table for table in base or ()}
    columns = {table.name: tuple(c.name for c in table.columns) for table in base or ()}
    columns |= {name: (*columns.get(name, ()), *columns_of(value)) for name, value in local.items()}
    if base is None:
        plan = plan_baseline(local, matching(quantize, columns))
    else:
        # Rows of some elements are planned as rows of a table that has no others.
        views = tuple(places[t.name].view(t, local[t.name]) if t.name in places else t for t in base)
        assert known_recipe is not None
        recipe_of = known_recipe

        def recipe(table: TableSchema, column: ColumnSchema) -> Recipe:
            return recipe_of(known.get(table.name, table), column)

        plan = plan_delta(local, views, matching(quantize, columns), recipe)
    writes = tuple(places[w.schema.name].put(w) if w.schema.name in places else w for w in plan.writes)
    dropped = [name for name, value in local.items() if isinstance(value, Dropped)]
    return ShardPlan(writes, _describe(writes, known, dropped))


def summaries(tables: Mapping[str, Any], grids: Mapping[str, Grid]) -> dict[str, GridSummary]:
    """What the grids of some of these tables follow from, as far as it is here; raises `UsageError`.

    The tables are those of a baseline, or ones that are new.
    """
    found = {}
    for name, grid in grids.items():
        value = tables[name]
        schema, sources = described(name, _within(name, value) if isinstance(value, Shard) else value)
        found[name] = summary_of(grid, schema, sources)
    return found


def _within(name: str, shard: Shard) -> Any:
    """The table, or the rows, that a shard is of."""
    if isinstance(shard.values, TableData) or _has_ids(shard.values):
        if shard.columns is not None:
            kind = type(shard.values).__name__
            raise UsageError(f"table {name!r}: give columns to the {kind} in the Shard, or to the Shard, not to both")
        return shard.values
    if isinstance(shard.values, Shard | Dropped):
        raise UsageError(
            f"table {name!r}: a Shard holds an array, a TableData or Rows, found {type(shard.values).__name__}"
        )
    return TableData(shard.values, columns=shard.columns or {})


def _has_ids(value: Any) -> bool:
    """Whether these are rows, or changes of rows, that carry the ids of the whole table."""
    if isinstance(value, TableData):
        return value.keys is not None
    changes = value if isinstance(value, tuple | list) else (value,)
    return len(changes) > 0 and all(isinstance(change, Rows | Deleted) for change in changes)


@dataclass(frozen=True)
class _Place:
    """Where a shard lies in its table; None for all there is in that direction."""

    rows: Range | None
    of_rows: int | None
    elements: Range | None
    of_dim: int | None

    @staticmethod
    def of(name: str, shard: Shard) -> _Place:
        rows = _range(name, "rows", shard.rows, shard.of_rows, limits.MAX_ROWS, least=0)
        elements = _range(name, "elements", shard.elements, shard.of_dim, limits.MAX_DIM, least=1)
        if rows is not None and _has_ids(shard.values):
            raise UsageError(f"table {name!r}: the rows of this shard have ids of their own; leave out rows, of_rows")
        return _Place(rows, shard.of_rows, elements, shard.of_dim)

    def view(self, table: TableSchema, value: Any) -> TableSchema:
        """A table of the base as one that has no other elements."""
        if self.elements is None or isinstance(value, TableData):
            return table
        if self.of_dim != table.dim:
            raise UsageError(f"table {table.name!r}: of_dim is {self.of_dim}, and the table's dim is {table.dim}")
        return replace(table, dim=self.elements[1] - self.elements[0])

    def put(self, write: TableWrite) -> TableWrite:
        """What was planned for the shard alone, in the coordinates of the whole table."""
        name, schema, rows = write.schema.name, write.schema, write.rows
        if self.elements is not None:
            self._check("elements", name, self.elements, schema.dim)
            assert self.of_dim is not None
            schema = replace(schema, dim=self.of_dim)
        if self.rows is not None:
            assert schema.rows is not None
            self._check("rows", name, self.rows, schema.rows)
            schema = replace(schema, rows=self.of_rows)
            rows = RowIds(rows.count, first=self.rows[0]) if rows is not None else None
        columns = tuple(self._put_column(column) for column in write.columns)
        return replace(write, schema=schema, rows=rows, columns=columns)

    def _put_column(self, write: ColumnWrite) -> ColumnWrite:
        return write if write.column.per_row else replace(write, elements=self.elements)

    def _check(self, what: str, name: str, said: Range, found: int) -> None:
        if said[1] - said[0] != found:
            raise UsageError(
                f"table {name!r}: {what}={said} are {said[1] - said[0]} {what}, and the values have {found}"
            )


def _range(name: str, what: str, said: Any, of: Any, most: int, *, least: int) -> Range | None:
    whole = "of_rows" if what == "rows" else "of_dim"
    if (said is None) != (of is None):
        raise UsageError(f"table {name!r}: {what} and {whole} go together: give both or neither")
    if said is None:
        return None
    numbers = (*said, of) if isinstance(said, tuple | list) and len(said) == 2 else (None,)
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) for n in numbers):
        raise UsageError(f"table {name!r}: {what} are two integers, and {whole} is one; found {said!r} and {of!r}")
    first, end = int(said[0]), int(said[1])
    if not 0 <= first <= end - least <= int(of) - least or int(of) > most:
        raise UsageError(f"table {name!r}: {what} {first} to {end} don't lie within {whole}={of} (at most {most})")
    return first, end


# Descriptions


def _describe(writes: Sequence[TableWrite], base: Mapping[str, TableSchema], dropped: list[str]) -> bytes:
    """What the other ranks have to know: schemas, and the bounds of what is written of each column."""
    tables = []
    for write in writes:
        before = base.get(write.schema.name)
        tables.append(
            {
                "schema": write.schema.to_json(),
                "goes_on": before is not None and before.table_id == write.schema.table_id,
                "parts": [[c.column.name, *_bounds(write, c)] for c in write.columns],
                "deletes": write.deleted is not None,
            }
        )
    return strict_json.dump({"tables": tables, "dropped": dropped})


def _bounds(write: TableWrite, column: ColumnWrite) -> list[Any]:
    """First row, last row and count of what is written of a column; first element, and the end."""
    rows = column.rows or write.rows
    assert rows is not None
    first, last = rows.first, rows.first + rows.count - 1
    if rows.ids is not None:
        first, last = int(rows.ids[0]), int(rows.ids[-1])
    # Keys are as wide as int64, which JSON's integers aren't.
    return [str(first), str(last), rows.count, *column.range_of(write.schema.dim)]
