"""A table as stored values keep it in memory, and how it moves on from one version to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.kept_columns import (
    DecodedColumn,
    Elements,
    GridKey,
    IntegerColumn,
    KeptColumn,
    Room,
    Rows,
    grids_of,
)
from cnrfmt.encodings.grid_plan import GridPlan, grid_plan_of
from cnrfmt.errors import DamagedError
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import Part, TableEntry
from cnrfmt.resolve import Steps
from cnrfmt.table import Table
from cnrfmt.view import View

_PIECE = 1 << 14
"""Rows whose places are looked up at a time."""


@dataclass(frozen=True, eq=False)
class Held:
    """What one of many ranks holds of a table, and wants to have kept: rows of a dense one, or keys, and elements.

    Keys are sorted and distinct. None stands for all that there are.
    """

    rows: tuple[int, int] | None = None
    keys: Ids | None = None
    elements: Elements | None = None


@dataclass
class KeptTable:
    """Columns by name; rows from the id `first` on, or in the order of their keys."""

    schema: TableSchema
    plan: GridPlan | None
    first: int
    count: int
    keys: Ids | None
    columns: dict[str, KeptColumn]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(c.nbytes for c in self.columns.values()) + (0 if self.keys is None else self.keys.nbytes)

    def find(self, ids: Ids) -> Ids:
        """The positions of rows; -1 of those that aren't kept."""
        if self.keys is not None:
            return find(self.keys, ids)
        positions = ids - self.first if self.first else ids
        if len(ids) and positions.min() >= 0 and positions.max() < self.count:
            return positions
        return np.where((positions >= 0) & (positions < self.count), positions, -1)


class Move:
    """A table that moves on to an open version, from what was kept of an older one.

    Nothing is done before `made`. What was kept and is of no use any more is let go of at once.
    """

    def __init__(
        self,
        view: View,
        table: Table,
        held: Held,
        before: KeptTable | None,
        since: Manifest | None,
        integers_only: bool = False,
    ) -> None:
        self.table, self._view, self._held, self._since = table, view, held, since
        self._plan = plan_of(view, table.schema, held)
        self._grids = grids_of(self._plan)
        self._columns = [c for c in table.schema.columns if c.name in self._grids or not integers_only]
        self._before = None if before is None or since is None else self._useful(before)

    @property
    def nbytes(self) -> int:
        """The memory that is held already."""
        return 0 if self._before is None else self._before.nbytes

    def _useful(self, before: KeptTable) -> KeptTable | None:
        """What was kept, if it still is that table: without columns that went or are others now."""
        was, now = before.schema, self.table.schema
        if (was.table_id, was.dim, was.keyed) != (now.table_id, now.dim, now.keyed):
            return None
        if not now.keyed and before.first != self._range.start:
            return None
        columns = {
            name: kept
            for name, kept in before.columns.items()
            if (column := now.column(name)) == kept.schema
            and column is not None
            and kept.grid == self._grids.get(name)
            and kept.elements == elements_of(column, now, self._held)
        }
        return replace(before, columns=columns) if columns else None

    @property
    def _range(self) -> range:
        """The rows that are wanted of a dense table."""
        first, end = self._held.rows or (0, len(self.table))
        return range(min(first, len(self.table)), min(end, len(self.table)))

    def made(self, room: Room) -> KeptTable:
        """The table as the open version has it; arrays of the older one are changed, or let go of."""
        table, before, keys, ids = self.table, self._before, None, self._range
        if table.keyed:
            keys = self._keys(room)
            found = KeptTable(table.schema, self._plan, 0, len(keys), keys, {})
        else:
            found = KeptTable(table.schema, self._plan, ids.start, len(ids), None, {})
        for column in self._columns:
            old = None if before is None else before.columns.pop(column.name, None)
            if old is not None and not self._catches_up(old) and self._changed is None:
                room.give(old.nbytes)
                old = None
            if old is None or before is None:
                elements = elements_of(column, table.schema, self._held)
                new = _empty(found, column, elements, self._grids, room)
                new.fill(table, ids if keys is None else keys, range(found.count), room)
            else:
                new = self._moved(old, before, found, room)
            found.columns[column.name] = new
        if before is not None and before.keys is not None and before.keys is not keys:
            room.give(before.keys.nbytes)
        return found

    def _moved(self, old: KeptColumn, before: KeptTable, now: KeptTable, room: Room) -> KeptColumn:
        """A column that goes on; its old array is changed, or let go of."""
        new = old
        if (now.count, now.keys is None or now.keys is before.keys) != (before.count, True):
            new = old.moved(now.count, _taken(now, before), room)
            room.give(old.nbytes)
        if self._catches_up(new):
            assert isinstance(new, IntegerColumn)
            assert self._newer is not None
            rows = sorted_ids.union(_began_anew(now, self._newer), new.catch_up(self._newer, now.find, room))
        else:
            changed = self._changed
            assert changed is not None
            rows = changed[now.find(changed) >= 0]
        new_rows = _new_rows(now, before)
        rows = sorted_ids.union(rows, new_rows) if len(new_rows) else rows
        new.fill(self.table, rows, now.find(rows), room)
        return new

    def _catches_up(self, column: KeptColumn) -> bool:
        """Whether what newer steps add is added here, rather than read together with all that it is added to."""
        return isinstance(column, IntegerColumn) and self._newer is not None

    @cached_property
    def _changed(self) -> Ids | None:
        """The rows that changed since; None where all have to be read."""
        if self._since is None:
            return None
        try:
            changes = self._view.changed_since(self.table, self._since, self._view.budget())
        except DamagedError:
            # Of the version before, maybe; the open one is read whole, and says so itself if it is its own.
            return None
        return changes.rows if changes.exact else None

    @cached_property
    def _newer(self) -> Steps | None:
        """What the steps behind the older version say of the table; None where it isn't on the way to the open one."""
        steps, since = self._view.manifest.steps(), self._since
        if since is None or all(step[0].to_state != since.state for step in steps):
            return None
        return self._view.steps_of(self.table.schema.table_id, after=since.state)

    def _keys(self, room: Room) -> Ids:
        """The keys that are kept from now on: those of before themselves, if they are the same ones."""
        keys, wanted = self.table.keys, self._held.keys
        assert keys is not None
        if wanted is not None:
            keys = wanted[find(keys, wanted) >= 0]
        before = None if self._before is None else self._before.keys
        if before is not None and np.array_equal(before, keys):
            return before
        room.take(keys.nbytes, f"table {self.table.name!r}, keys")
        return keys.copy()


def plan_of(view: View, schema: TableSchema, held: Held) -> GridPlan | None:
    """How an open version has what is held of a table on a grid, or where none of that is, what others hold."""
    entries = [entry for step in view.steps_of(schema.table_id) for _, entry in step]
    parts = [(part, _is_held(entry, part, schema, held)) for entry in entries for part in entry.parts]
    return grid_plan_of(part for part, is_held in parts if is_held) or grid_plan_of(part for part, _ in parts)


def _is_held(entry: TableEntry, part: Part, schema: TableSchema, held: Held) -> bool:
    """Whether any of what a part says may be of what is held."""
    rows, elements = entry.row_sets[part.rows], held.elements
    if held.rows is not None and not (rows.first < held.rows[1] and held.rows[0] <= rows.last):
        return False
    column = schema.column(part.column)
    if elements is None or column is None or column.per_row:
        return True
    return part.elements[0] < elements[1] and elements[0] < part.elements[1]


def elements_of(column: ColumnSchema, schema: TableSchema, held: Held) -> Elements:
    """The elements of a column that are held."""
    return (0, column.width(schema.dim)) if held.elements is None or column.per_row else held.elements


def find(keys: Ids, wanted: Ids) -> Ids:
    """The place of each wanted key among sorted ones; -1 where it isn't there."""
    from cnrfmt.kernels import rows as kernel

    positions = np.empty(len(wanted), np.int64)
    kernel.find(keys, wanted, positions)
    return positions


def _empty(
    table: KeptTable, column: ColumnSchema, elements: Elements, grids: dict[str, GridKey], room: Room
) -> KeptColumn:
    place = f"table {table.schema.name!r}, column {column.name!r}"
    if column.name in grids:
        return IntegerColumn(column, elements, grids[column.name], table.count, place, room)
    return DecodedColumn(column, elements, table.count, place, room)


def _new_rows(now: KeptTable, before: KeptTable) -> Ids:
    """The rows that weren't kept before."""
    if now.keys is None:
        return np.arange(now.first + before.count, now.first + now.count, dtype=np.int64)
    return now.keys[:0] if now.keys is before.keys else now.keys[before.find(now.keys) < 0]


def _began_anew(now: KeptTable, newer: Steps) -> Ids:
    """The rows that some of these steps deleted or cut off, and that are there all the same."""
    found = [np.empty(0, np.int64)]
    for segment, entry in (says for step in newer for says in step):
        if entry.deleted is not None:
            ids = segment.indexes.ids(entry.row_sets[entry.deleted])
            found.append(ids[now.find(ids) >= 0])
        if entry.rows is not None:
            found.append(np.arange(max(entry.rows, now.first), now.first + now.count, dtype=np.int64))
    return sorted_ids.union(*found)


def _taken(now: KeptTable, before: KeptTable) -> Iterator[tuple[slice, Rows]]:
    """Where rows that are kept now were before, some at a time; -1 of those that weren't."""
    if now.keys is None:
        both = min(now.count, before.count)
        yield slice(0, both), range(both)
        return
    for start in range(0, now.count, _PIECE):
        piece = slice(start, min(start + _PIECE, now.count))
        yield piece, before.find(now.keys[piece])
