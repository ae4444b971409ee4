"""From live tables and the rows that were marked to what a delta is made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.ranks.shards import Shard
from cnrfmt.checkpointing.snapshot import Picked
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.inputs import as_ids, as_source
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData


@dataclass(frozen=True)
class Touched:
    """Of one table: the ids or keys that are to be written, and the keys that are gone; sorted, distinct."""

    ids: Ids
    deleted: Ids


NOTHING = Touched(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Live:
    """A table as the trainer has it now, or the part of it that this rank has: then `place` tells where that lies.

    `data` is None where the table is dropped. `shared`: other ranks may have other keys of it.
    """

    name: str
    data: TableData | None
    place: Shard | None = None
    shared: bool = False

    @property
    def there(self) -> TableData:
        """The data of a table that isn't dropped."""
        assert self.data is not None
        return self.data

    @property
    def rows(self) -> int:
        """How many rows there are here."""
        return int(as_source(self.there.values, what=f"table {self.name!r}").shape[0])

    @property
    def first(self) -> int:
        """The id of the first of them, of a dense table."""
        return 0 if self.place is None or self.place.rows is None else int(self.place.rows[0])

    @property
    def of_rows(self) -> int:
        """How many rows the whole table has, if it is dense."""
        return self.rows if self.place is None or self.place.of_rows is None else int(self.place.of_rows)

    @property
    def is_alone(self) -> bool:
        """Whether no other rank can have any of it."""
        place = self.place
        return not self.keyed and (place is None or (place.rows is None and place.elements is None))

    @property
    def keyed(self) -> bool:
        """Whether rows are found by key."""
        return self.there.keys is not None

    @cached_property
    def sorted_keys(self) -> tuple[Ids, Ids | None]:
        """The keys of a keyed table, ascending, and where each stands; None if they stand so."""
        what = f"table {self.name!r}: keys"
        keys = as_ids(self.there.keys, what)
        if (keys[1:] > keys[:-1]).all():
            return keys, None
        order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
        keys = keys[order]
        if (keys[1:] == keys[:-1]).any():
            again = keys[1:][keys[1:] == keys[:-1]][0]
            raise UsageError(f"{what} must be distinct: {again} occurs more than once")
        return keys, order

    def goes_on(self, before: TableSchema) -> bool:
        """Whether rows of this table can be put over the stored ones."""
        shape = as_source(self.there.values, what=f"table {self.name!r}").shape
        if len(shape) != 2 or before.keyed != self.keyed:
            return False
        return before.dim == (shape[1] if self.place is None or self.place.of_dim is None else self.place.of_dim)

    def put(self, value: Any) -> Any:
        """Rows of it as `append` takes them, or with several ranks as `plan_shards` does."""
        if self.place is None:
            return value
        return Shard(value, elements=self.place.elements, of_dim=self.place.of_dim)


    @property
    def where(self) -> Where:
        """Where it lies in its table: its first row, and its elements."""
        return self.first, None if self.place is None else self.place.elements


Where = tuple[int, tuple[int, int] | None]
"""The first row of a shard, and its elements; None for all."""
Tables = Mapping[str, Live]


def where(target: Any) -> Where:
    """Where something lies that is restored into."""
    if not isinstance(target, Shard):
        return 0, None
    return 0 if target.rows is None else int(target.rows[0]), target.elements


def live(tables: Mapping[str, Any], *, shards: bool) -> dict[str, Live]:
    """The tables of a checkpoint, each as a whole, or its shard; raises `UsageError` for what is no table."""
    if not isinstance(tables, Mapping):
        raise UsageError(f"tables must be a dict of names to tables, found {type(tables).__name__}")
    return {name: _live(name, value, shards) for name, value in tables.items()}


def _live(name: str, value: Any, shards: bool) -> Live:
    if isinstance(value, Dropped):
        return Live(name, None, shared=shards)
    if isinstance(value, Shard):
        if not shards:
            raise UsageError(f"table {name!r}: a Shard is for several ranks; give the whole table, or a coordinator")
        found = _live(name, value.values, False)
        if found.data is None or (value.columns is not None and isinstance(value.values, TableData)):
            raise UsageError(f"table {name!r}: a Shard holds an array, or a TableData that has its columns itself")
        data = found.data if value.columns is None else replace(found.data, columns=value.columns)
        return Live(name, data, value, shared=True)
    if isinstance(value, Rows | Deleted | tuple):
        raise UsageError(
            f"table {name!r}: a checkpoint takes whole tables and picks the rows that were marked, "
            f"found {type(value).__name__}; give an array or a TableData"
        )
    data = value if isinstance(value, TableData) else TableData(value)
    if CHECKPOINTS in data.columns:
        # As `load` gives it; the run counts itself.
        fill = data.fill
        if isinstance(fill, Mapping):
            fill = {name: one for name, one in fill.items() if name != CHECKPOINTS}
        columns = {name: one for name, one in data.columns.items() if name != CHECKPOINTS}
        data = replace(data, columns=columns, fill=fill)
    return Live(name, data, shared=shards)


def check_same_tables(names: set[str], schema: tuple[TableSchema, ...]) -> None:
    """That a checkpoint has every table of the one before it; raises `UsageError`.

    A table that is forgotten would stay as it was some checkpoints ago, beside others that are of this moment.
    """
    missing = [t.name for t in schema if t.name not in names]
    if missing:
        raise UsageError(
            f"table {missing[0]!r} was in the checkpoint before this one and isn't in this one"
            f"{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}; give it, or cnrfmt.Dropped() for it"
        )


def counted(tables: Tables, names: Collection[str], schema: tuple[TableSchema, ...] | None) -> Tables:
    """The same, these tables and those that had it with the column that counts the checkpoints which a row was in.

    What the column has is of no account: whoever takes the rows knows the counts. Of the ranks that share the elements
    of rows, the one that has the first of them has it.
    """
    had = {t.name for t in schema or () if t.column(CHECKPOINTS) is not None}
    found = dict(tables)
    for name, table in tables.items():
        elements = None if table.place is None else table.place.elements
        if table.data is not None and name in had.union(names) and (elements is None or elements[0] == 0):
            ones = np.broadcast_to(np.float32(1), table.rows)
            found[name] = replace(table, data=replace(table.data, columns={**table.data.columns, CHECKPOINTS: ones}))
    return found


def whole(tables: Tables) -> dict[str, Any]:
    """What a baseline is made of."""
    there = {name: table for name, table in tables.items() if table.data is not None}
    return {n: t.data if t.place is None else replace(t.place, values=t.data, columns=None) for n, t in there.items()}


def delta(tables: Tables, schema: tuple[TableSchema, ...], touched: Mapping[str, Touched]) -> dict[str, Any]:
    """What `append` would be given: of each table the rows that were touched, as they are now.

    Tables that the schema doesn't have, or has as another kind or with another dim, come whole. Rows that a dense
    table has grown by are written whether they are marked or not.
    """
    known = {t.name: t for t in schema}
    found: dict[str, Any] = {}
    for name, table in tables.items():
        before = known.get(name)
        if table.data is None:
            if before is not None:
                found[name] = Dropped()
        elif before is None or not table.goes_on(before):
            found |= whole({name: table})
        elif (lost := _lost_column(table, before)) is not None:
            raise UsageError(
                f"table {name!r}: column {lost!r} was in the checkpoint before this one and isn't in this one; "
                "give it, or save(kind='baseline') without it"
            )
        elif before.keyed:
            found[name] = table.put(_keyed(table, touched.get(name, NOTHING)))
        else:
            found[name] = table.put(_dense(before, table, touched.get(name, NOTHING).ids))
    return found


def has_other_tables(tables: Tables, schema: tuple[TableSchema, ...]) -> bool:
    """Whether tables come or go, or are other ones now."""
    known = {t.name: t for t in schema}
    for name, table in tables.items():
        before = known.get(name)
        if (table.data is None) != (before is None):
            return True
        if before is not None and table.data is not None and not table.goes_on(before):
            return True
    return False


def has_new_columns(tables: Tables, schema: tuple[TableSchema, ...]) -> bool:
    """Whether a table that goes on has a column which it hadn't: in a delta, most of its rows would read as zeros."""
    known = {t.name: {c.name for c in t.columns} for t in schema}
    there = [(name, table.data) for name, table in tables.items() if table.data is not None and name in known]
    return any(column not in known[name] for name, data in there for column in data.columns)


def _lost_column(table: Live, before: TableSchema) -> str | None:
    """A column that isn't given any more. Of the ranks that share a table, not all have all columns."""
    if table.place is not None:
        return None
    return next((c.name for c in before.columns[1:] if c.name not in table.there.columns), None)


def raw(table: TableSchema, column: ColumnSchema) -> Recipe:
    """How columns are stored that nobody has a say on."""
    return Recipe(RawLayout(column.dtype))


def unquantisable(tables: Tables) -> list[str]:
    """The names of tables whose weights aren't float32."""
    there = [(name, table.data.values) for name, table in tables.items() if table.data is not None]
    return [name for name, values in there if as_source(values, what=f"table {name!r}").dtype != np.float32]


def count_rows(tables: Tables) -> int:
    """Rows of all tables, as far as they are here."""
    return sum(table.rows for table in tables.values() if table.data is not None)


def _dense(before: TableSchema, table: Live, ids: Ids) -> Rows:
    """`ids` count from the first row that is here."""
    assert before.rows is not None
    here, rows, first = table.rows, table.of_rows, table.first
    ids = ids[: int(np.searchsorted(ids, here))]
    # Where the rows begin that the table has grown by, as far as they are here.
    new = min(max(before.rows - first, 0), here)
    if new < here and rows > before.rows:
        old = ids[: int(np.searchsorted(ids, new))]
        ids = np.concatenate([old, np.arange(new, here, dtype=np.int64)])
    return _rows(table, here, ids + first if first else ids, ids, None if rows == before.rows else rows)


def _keyed(table: Live, touched: Touched) -> Any:
    from cnrfmt.kernels import rows as kernel

    keys, order = table.sorted_keys
    places = np.empty(len(touched.ids), np.int64)
    kernel.find(keys, touched.ids, places)
    there = places >= 0
    # What was marked and isn't there any more was evicted, or went to another rank.
    gone = touched.deleted if table.shared else sorted_ids.union(touched.deleted, touched.ids[~there])
    lost = np.empty(len(gone), np.int64)
    kernel.find(keys, gone, lost)
    gone = gone[lost < 0]
    ids, places = touched.ids[there], places[there]
    places = places if order is None else order[places]
    rows = _rows(table, len(keys), ids, places, None)
    return (rows, Deleted(gone)) if len(gone) else rows


def _rows(table: Live, count: int, ids: Ids, places: Ids, rows: int | None) -> Rows:
    """The rows at these places of a table that has `count` of them here."""
    data = table.there
    for column, values in {WEIGHT: data.values, **data.columns}.items():
        found = as_source(values, what=f"table {table.name!r}, column {column!r}").shape[0]
        if found != count:
            raise UsageError(f"table {table.name!r}, column {column!r}: {found} rows where the table has {count}")
    if not len(ids):
        return Rows(ids, rows=rows)
    columns = {column: Picked(values, places) for column, values in data.columns.items()}
    return Rows(ids, Picked(data.values, places), columns=columns, rows=rows)
