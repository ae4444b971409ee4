"""From what a caller hands over to what a segment writes: checked, matched with the schema, nothing written yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt import dtypes, sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.quantize import Choices, check_patterns, speaks_of
from cnrfmt.encodings.recipes import goes_on, recipes_for
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format import limits
from cnrfmt.format.digests import new_id
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.format.strict_json import check_name
from cnrfmt.inputs import Source2D, as_ids, as_source
from cnrfmt.table_writes import ColumnWrite, RowIds, TableWrite
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData

RecipesOf = Callable[[TableSchema, Mapping[str, Source2D]], Mapping[str, Recipe]]
"""How columns of a table are to be stored, whose rows come from these sources."""


@dataclass(frozen=True)
class Plan:
    """The schema after a commit, and what its segment writes of each table."""

    tables: tuple[TableSchema, ...]
    writes: tuple[TableWrite, ...]


def recipe_chooser(
    quantize: Choices, known: Callable[[TableSchema, ColumnSchema], Recipe] | None = None
) -> RecipesOf:
    """The recipes that `quantize` asks for; for columns that it leaves open, the known ones."""

    def choose(table: TableSchema, sources: Mapping[str, Source2D]) -> Mapping[str, Recipe]:
        if known is None:
            return recipes_for(table, sources, quantize)
        left = [c for c in table.columns if c.name in sources and not speaks_of(quantize, table.name, c)]
        spoken = {name: source for name, source in sources.items() if all(name != column.name for column in left)}
        found = recipes_for(table, spoken, quantize) if spoken else {}
        return found | {column.name: goes_on(known(table, column), sources[column.name]) for column in left}

    return choose


def plan_baseline(tables: Mapping[str, Any], quantize: Choices) -> Plan:
    """A version that holds these tables and no others."""
    items = _items(tables)
    check_patterns(quantize, {name: columns_of(value) for name, value in items})
    recipes_of = recipe_chooser(quantize)
    planned = [_new_table(name, value, recipes_of) for name, value in items]
    return Plan(tuple(p.schema for p in planned), tuple(planned))


def plan_delta(
    tables: Mapping[str, Any],
    schema: tuple[TableSchema, ...],
    quantize: Choices,
    known_recipe: Callable[[TableSchema, ColumnSchema], Recipe],
) -> Plan:
    """A version that differs from one with this schema by what `tables` says."""
    live = {t.name: t for t in schema}
    items = _items(tables)
    columns = {t.name: tuple(c.name for c in t.columns) for t in schema}
    columns |= {name: (*columns.get(name, ()), *columns_of(value)) for name, value in items}
    check_patterns(quantize, columns)
    recipes_of = recipe_chooser(quantize, known_recipe)
    writes: list[TableWrite] = []
    for name, value in items:
        known = live.get(name)
        if isinstance(value, Dropped):
            if live.pop(name, None) is None:
                raise MissingKeyError(f"table {name!r} can't be dropped: there is no such table")
            continue
        changes = value if isinstance(value, tuple | list) and _are_changes(value) else (value,)
        if isinstance(changes[0], Rows | Deleted):
            write = _delta_table(name, known, changes, recipes_of)
        else:
            write = _new_table(name, value, recipes_of)
        live[name] = write.schema
        if known != write.schema or write.rows is not None or write.deleted is not None:
            writes.append(write)
    return Plan(tuple(live.values()), tuple(writes))


def columns_of(value: Any) -> tuple[str, ...]:
    """The names of the columns of what a caller hands over for a table."""
    parts = value if isinstance(value, tuple | list) and _are_changes(value) else (value,)
    named = [part.columns or {} for part in parts if isinstance(part, TableData | Rows)]
    return (WEIGHT, *(name for columns in named for name in columns))


def _are_changes(values: Any) -> bool:
    return len(values) > 0 and all(isinstance(v, Rows | Deleted) for v in values)


def _items(tables: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(tables, Mapping):
        raise UsageError(f"tables must be a dict of names to tables, found {type(tables).__name__}")
    if len(tables) > limits.MAX_TABLES:
        raise UsageError(f"at most {limits.MAX_TABLES} tables, found {len(tables)}")
    return [(check_name(name, "table name"), value) for name, value in tables.items()]


def described(name: str, value: Any) -> tuple[TableSchema, dict[str, Source2D]]:
    """The schema of a whole table that is new, and where the rows of its columns are; raises `UsageError`."""
    if isinstance(value, Rows | Deleted | Dropped):
        raise UsageError(
            f"table {name!r}: {type(value).__name__} changes a table that is there; "
            "give an array or a TableData for a whole table"
        )
    data = value if isinstance(value, TableData) else TableData(value)
    weight = _matrix(data.values, f"table {name!r}")
    rows, dim = weight.shape
    if not 1 <= dim <= limits.MAX_DIM or rows > limits.MAX_ROWS:
        raise UsageError(
            f"table {name!r}: rows go to {limits.MAX_ROWS} and dim from 1 to {limits.MAX_DIM}, "
            f"found {weight.shape}"
        )
    sources = _column_sources(name, data.columns, rows)
    fills = _fills(name, data.fill, (WEIGHT, *sources))
    columns = [_column_schema(name, WEIGHT, weight, dim, fills[WEIGHT])]
    columns += [_column_schema(name, c, s, dim, fills[c]) for c, s in sources.items()]
    schema = TableSchema(
        new_id(), name, rows if data.keys is None else None, dim, _bounded(name, columns)
    )
    return schema, {WEIGHT: weight, **sources}


def _new_table(name: str, value: Any, recipes_of: RecipesOf) -> TableWrite:
    schema, sources = described(name, value)
    rows = sources[WEIGHT].shape[0]
    row_ids = RowIds(rows)
    if isinstance(value, TableData) and value.keys is not None:
        keys = as_ids(value.keys, f"table {name!r}: keys")
        _check_count(f"table {name!r}: keys", len(keys), rows)
        row_ids = _sorted_ids(keys, f"table {name!r}: keys")
    return TableWrite(
        schema,
        row_ids if rows else None,
        _writes(schema, sources, recipes_of) if rows else (),
    )


def _delta_table(
    name: str, schema: TableSchema | None, changes: Any, recipes_of: RecipesOf
) -> TableWrite:
    if schema is None:
        raise MissingKeyError(
            f"table {name!r}: there is no such table to change; an array or a TableData adds one"
        )
    kinds = [type(c) for c in changes]
    if len(kinds) != len(set(kinds)):
        raise UsageError(f"table {name!r}: at most one Rows and one Deleted per version")
    rows = next((c for c in changes if isinstance(c, Rows)), None)
    deleted = next((c for c in changes if isinstance(c, Deleted)), None)
    write = TableWrite(schema) if rows is None else _delta_rows(schema, rows, recipes_of)
    if deleted is None:
        return write
    if not schema.keyed:
        raise UsageError(
            f"table {name!r} is dense: its rows can't be deleted one by one; "
            "Rows(..., rows=n) shrinks it, Dropped() drops it"
        )
    what = f"table {name!r}: deleted keys"
    keys = as_ids(deleted.keys, what)
    if len(keys) > limits.MAX_TOMBSTONES:
        raise UsageError(f"{what}: at most {limits.MAX_TOMBSTONES} per version, found {len(keys)}")
    gone = _sorted_ids(keys, what).ids if len(keys) else None
    if gone is not None and write.rows is not None and write.rows.ids is not None:
        both = sorted_ids.intersection(gone, write.rows.ids)
        if both.size:
            raise UsageError(
                f"table {name!r}: key {both[0]} is both written and deleted; leave one out"
            )
    return replace(write, deleted=gone)


def _delta_rows(schema: TableSchema, rows: Rows, recipes_of: RecipesOf) -> TableWrite:
    name = schema.name
    what = f"table {name!r}: row ids"
    ids = as_ids(rows.ids, what)
    sources = {} if rows.values is None else {WEIGHT: _matrix(rows.values, f"table {name!r}")}
    sources |= _column_sources(name, rows.columns or {}, None)
    if not sources and len(ids):
        raise UsageError(f"table {name!r}: Rows needs values or columns for its {len(ids)} ids")
    if rows.rows is not None:
        if schema.keyed:
            raise UsageError(f"table {name!r} is keyed: it has no number of rows to set")
        count = rows.rows
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise UsageError(f"table {name!r}: rows must be an integer, found {count!r}")
        if not 0 <= count <= limits.MAX_ROWS:
            raise UsageError(f"table {name!r}: rows go to {limits.MAX_ROWS}, found {count}")
        schema = replace(schema, rows=int(count))
    columns = list(schema.columns)
    for column_name, source in sources.items():
        _check_count(f"table {name!r}, column {column_name!r}", source.shape[0], len(ids))
        known = schema.column(column_name)
        found = _column_schema(name, column_name, source, schema.dim, 0)
        if known is None:
            columns.append(found)
        elif (known.dtype, known.per_row) != (found.dtype, found.per_row):
            raise UsageError(
                f"table {name!r}, column {column_name!r} holds {_shown(known, schema.dim)}, "
                f"found {_shown(found, schema.dim)}; convert it first"
            )
    schema = replace(schema, columns=_bounded(name, columns))
    if not len(ids):
        return TableWrite(schema)
    row_ids = _sorted_ids(ids, what)
    assert row_ids.ids is not None
    if schema.rows is not None:
        low, high = int(row_ids.ids[0]), int(row_ids.ids[-1])
        if low < 0 or high >= schema.rows:
            raise UsageError(
                f"{what} must be 0 to {schema.rows - 1}, found {low if low < 0 else high}; "
                "Rows(..., rows=n) lets the table grow"
            )
    return TableWrite(schema, row_ids, _writes(schema, sources, recipes_of))


def _shown(column: ColumnSchema, dim: int) -> str:
    return f"{column.dtype}, " + ("one value per row" if column.per_row else f"{dim} per row")


def _writes(
    schema: TableSchema, sources: Mapping[str, Source2D], recipes_of: RecipesOf
) -> tuple[ColumnWrite, ...]:
    recipes = recipes_of(schema, sources)
    return tuple(
        ColumnWrite(c, sources[c.name], recipes[c.name]) for c in schema.columns if c.name in sources
    )


def _matrix(value: Any, what: str) -> Source2D:
    source = as_source(value, what=what)
    if len(source.shape) != 2:
        raise UsageError(
            f"{what}: a table is a matrix of rows x dim, found shape {source.shape}; reshape it"
        )
    return source


def _column_sources(
    name: str, columns: Mapping[str, Any], rows: int | None
) -> dict[str, Source2D]:
    found = {}
    for column, value in columns.items():
        what = f"table {name!r}, column {column!r}"
        check_name(column, what)
        if column == WEIGHT:
            raise UsageError(f"{what}: {WEIGHT!r} is the name of the values themselves")
        found[column] = as_source(value, what=what)
        if len(found[column].shape) not in (1, 2):
            raise UsageError(f"{what}: one value or dim values per row, not {found[column].shape}")
        if rows is not None:
            _check_count(what, found[column].shape[0], rows)
    return found


def _column_schema(
    table: str, column: str, source: Source2D, dim: int, fill: Any
) -> ColumnSchema:
    what = f"table {table!r}, column {column!r}"
    if len(source.shape) == 2 and source.shape[1] != dim:
        raise UsageError(
            f"{what}: {source.shape[1]} elements per row where the table's dim is {dim}"
        )
    dtype = dtypes.name_of(source.dtype, column=True, what=what)
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(fill).astype(dtypes.dtype_of(dtype), casting="unsafe")
        given, kept = float(fill), float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{what}: fill {fill!r} is no {dtype}: {error}") from None
    whole = np.dtype(value.dtype).kind in "iu"
    if (whole and given != kept) or (math.isfinite(given) and not math.isfinite(kept)):
        raise UsageError(f"{what}: fill {fill!r} is no {dtype}; it would become {kept:g}")
    return ColumnSchema(column, dtype, len(source.shape) == 1, value.tobytes())


def _fills(name: str, fill: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(fill, Mapping):
        return dict.fromkeys(columns, fill)
    if unknown := set(fill) - set(columns):
        raise UsageError(f"table {name!r}: fill names no column: {min(unknown)!r}")
    return {column: fill.get(column, 0) for column in columns}


def _bounded(name: str, columns: list[ColumnSchema]) -> tuple[ColumnSchema, ...]:
    if len(columns) > limits.MAX_COLUMNS:
        raise UsageError(f"table {name!r}: at most {limits.MAX_COLUMNS} columns")
    return tuple(columns)


def _check_count(what: str, found: int, want: int) -> None:
    if found != want:
        raise UsageError(f"{what}: {found} where there are {want} rows")


def _sorted_ids(ids: Ids, what: str) -> RowIds:
    """The ids in ascending order, and where each stood; raises `UsageError` on a repeated one."""
    order = None
    if not (ids[1:] > ids[:-1]).all():
        order = np.argsort(ids, kind="stable").astype(np.int64, copy=False)
        ids = ids[order]
        repeated = ids[1:][ids[1:] == ids[:-1]]
        if repeated.size:
            raise UsageError(
                f"{what} must be distinct: {repeated[0]} occurs more than once "
                f"({repeated.size} repeats in all); keep the newest row of each"
            )
    return RowIds(len(ids), ids, order)
