"""A table of a server as its current generation has it, and what becomes of it with the next version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.errors import UsageError
from cnrfmt.format.schema import WEIGHT, TableSchema
from cnrfmt.memory import Budget
from cnrfmt.serving.generations import Lease
from cnrfmt.serving.held_rows import Choice
from cnrfmt.serving.hydrated_table import HydratedTable
from cnrfmt.serving.hydrating import Hydration, hydrate
from cnrfmt.serving.lazy_memory import fill_soon, lazy_empty
from cnrfmt.serving.live_rows import LiveRows
from cnrfmt.serving.positions import ListedPositions, Positions
from cnrfmt.serving.slots import MOST_SLOTS, Move, Slots
from cnrfmt.table import Changes, Table
from cnrfmt.view import View

_GAPS, _FEW = 2, 1 << 16
"""Where there are more than so many times the rows' places, for that many rows at least, they are moved together."""
_AT_ONCE = 16 << 20
"""Bytes of rows that are decoded at a time on their way to their slots."""


@dataclass(frozen=True, eq=False)
class Served:
    """A table as the current generation has it."""

    schema: TableSchema
    choice: Choice
    positions: Positions
    rows: int
    slots: Slots
    base: HydratedTable | None
    """The rows that it began with, while they aren't all there."""

    def rows_for(self, lease: Lease) -> LiveRows:
        """Its rows for those who look at this generation, and so hold the lease."""
        schema, slots = self.schema, self.slots
        column = schema.column(WEIGHT)
        assert column is not None
        fill = np.frombuffer(column.fill, dtypes.dtype_of(column.dtype))
        default = np.full(schema.dim, fill[0], slots.store.dtype)
        store, choice = slots.store, self.choice
        return LiveRows(schema, self.positions, self.rows, slots.map, store, default, self.base, lease, choice)

    def without_gaps(self, generation: int) -> Served:
        """The same, with rows moved together where most of the places are nobody's, as where keys come and go.

        `generation` is the current one, whose rows these are.
        """
        positions, slots = self.positions, self.slots
        if self.base is not None or slots.map is None or not isinstance(positions, ListedPositions):
            return self
        if positions.count <= _GAPS * max(self.rows, _FEW):
            return self
        living = np.flatnonzero(slots.map[: positions.count] >= 0).astype(np.int64, copy=False)
        store = lazy_empty((Slots.capacity(len(living)), *slots.store.shape[1:]), slots.store.dtype)
        fill_soon(store[: len(living)])
        step = max(1, _AT_ONCE // max(1, slots.store[:1].nbytes))
        for start in range(0, len(living), step):
            some = living[start : start + step]
            store[start : start + len(some)] = slots.store[slots.map[some]]
        kept = ListedPositions(positions.ids[living])
        return replace(self, positions=kept, slots=Slots(store, len(living), generation))


@dataclass(frozen=True, eq=False)
class Next:
    """A table as the next generation is to have it, and what its slots do then; None where they begin."""

    served: Served
    step: Move | None = None

    def give_up(self) -> None:
        """Gives back what was taken for a generation that doesn't come."""
        if self.step is not None:
            self.served.slots.give_back(self.step.slots)


def begin(
    tables: Mapping[str, Table],
    choices: Mapping[str, Choice],
    dtype: np.dtype[Any] | None,
    generation: int,
    view: View,
    budget: Budget,
) -> tuple[Hydration, dict[str, Served]]:
    """Begins to decode tables into slots of their own, floating-point ones as `dtype` if one is given.

    `generation` is the one that they are first seen with.

    Raises `UsageError` and `TooLargeError`.
    """
    stores, into = {}, {}
    for name, table in tables.items():
        count, kind = len(choices[name].of(table)), table.dtype
        if dtype is not None and kind.kind not in "iu":
            kind = dtype
        if Slots.capacity(count) >= MOST_SLOTS:
            raise UsageError(f"table {name!r}: {count} rows are more than one server holds; see shard=")
        budget.take(count * table.schema.dim * kind.itemsize, f"table {name!r}")
        stores[name] = lazy_empty((Slots.capacity(count), table.schema.dim), kind)
        into[name] = stores[name][:count]
    hydration = hydrate(
        view.container.path,
        view.manifest.version,
        tables,
        choices=choices,
        columns=False,
        elements={},
        into=into,
        order={},
        threads=view.threads,
        budget=budget,
    )
    return hydration, {
        name: Served(
            table.schema,
            choices[name],
            hydration[name].index,
            len(hydration[name]),
            Slots(stores[name], len(hydration[name]), generation),
            hydration[name],
        )
        for name, table in tables.items()
    }


def goes_on(before: TableSchema, now: TableSchema) -> bool:
    """Whether a table of a version is the one of another version, in rows of the same shape."""
    return before.table_id == now.table_id and (before.keyed, before.dim) == (now.keyed, now.dim)


def moved(served: Served, table: Table, changes: Changes, check_memory: Callable[[int, str], None]) -> Next:
    """Decodes the rows that changed into slots that nobody looks at.

    `check_memory` is asked before so many bytes are taken for something. Raises as `Table.read` does; then the slots
    are free again.
    """
    choice, slots, positions = served.choice, served.slots, served.positions
    ids = changes.rows[choice.among(changes.rows)]
    places = positions.of(ids)
    if len(added := ids[places < 0]):
        positions = positions.extended(added)
        places = positions.of(ids)
    gone = positions.of(changes.deleted)
    gone = gone[gone >= 0]
    row_bytes = slots.store[:1].nbytes
    lacking = slots.lacking(places)
    check_memory(lacking * row_bytes + 4 * positions.count, f"table {table.name!r}, {len(ids)} changed rows")
    if slots.room < lacking:
        if served.base is not None:
            served.base.complete()
        slots.grow(lacking)
    taken = slots.take(places)
    try:
        at_once = max(1, _AT_ONCE // max(1, row_bytes))
        for start in range(0, len(ids), at_once):
            some = slice(start, start + at_once)
            slots.store[taken[some]] = table.read(ids[some], dtype=slots.store.dtype)
        step = slots.prepared(positions.count, places, taken, gone)
    except BaseException:
        slots.give_back(taken)
        raise
    now = replace(served, schema=table.schema, positions=positions, rows=served.rows + step.rows)
    return Next(now, step)


def settled(tables: Iterable[Served]) -> list[Next]:
    """The same rows in slots that are quicker to look up; nothing where there are none."""
    found: list[Next] = []
    try:
        for served in tables:
            found.append(Next(served, served.slots.settled()))
    except MemoryError:
        for one in found:
            one.give_up()
        return []
    return found if any(one.step is not None and len(one.step.changed) for one in found) else []
