"""A column of a table as stored values keep it in memory: as it is decoded, or as the integers that it is stored as.

Weights on a grid mostly fit in int16, and codes of optimizer state in uint16: half of what decoded rows take, and what
differences are taken from without going through floating-point numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from cnrfmt import dtypes, sorted_ids
from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.encodings.grid_plan import GridPlan, is_counted
from cnrfmt.encodings.integers import bounds
from cnrfmt.errors import TooLargeError
from cnrfmt.format.schema import WEIGHT, ColumnSchema
from cnrfmt.layer import Layer
from cnrfmt.resolve import Steps
from cnrfmt.stored_integers import StoredIntegers
from cnrfmt.table import Table

_CHUNK = 64 << 20
"""Bytes of decoded rows on their way to their places, so many that several threads have some to decode."""
_ALL = 1 << 63
"""A limit that cuts off no rows."""

Flags = npt.NDArray[np.bool_]
Elements = tuple[int, int]
"""The first element of a range, and the end behind the last."""
Rows = range | Ids
"""Ids or positions, in a row or one by one."""
GridKey = tuple[str, int] | tuple[str, int, int, int]
"""What the parts of a row that add up have in common, as layouts of integers say it."""


class Room:
    """The memory that stored values may take; every `take` comes before the memory is taken."""

    def __init__(self, limit: int, held: int = 0) -> None:
        self._limit, self.held = limit, held

    def take(self, nbytes: int, what: str) -> None:
        """Counts bytes for something; raises `TooLargeError` where all that is held would exceed the limit."""
        if self.held + nbytes > self._limit:
            raise TooLargeError(f"stored values, {what}", self.held + nbytes, self._limit, "stored_bytes")
        self.held += nbytes

    def give(self, nbytes: int) -> None:
        """Bytes that aren't held any more."""
        self.held -= nbytes


class KeptColumn(ABC):
    """The rows of a column, or some of their elements, at positions from 0 on.

    Attributes
    ----------
    schema
        The column.
    elements
        Those of its elements that are kept.
    grid
        What integers are on; None where decoded rows are kept.
    """

    grid: GridKey | None = None

    def __init__(self, schema: ColumnSchema, elements: Elements, place: str) -> None:
        self.schema, self.elements, self._place = schema, elements, place

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def moved(self, count: int, taken: Iterator[tuple[slice, Rows]], room: Room) -> KeptColumn:
        """`count` rows, of which these ranges of positions come from these positions of this column, -1 for none.

        Nothing is known of the others before they are filled. This column's memory is still counted.
        """

    @abstractmethod
    def fill(self, table: Table, ids: Rows, positions: Rows, room: Room) -> None:
        """Reads rows of an open version, in the order of their ids, to where they belong."""

    @abstractmethod
    def read(self, positions: Ids) -> Array:
        """Rows as a reader decodes them, in memory of the caller's own."""

    def integers(self, positions: Ids) -> StoredIntegers:
        """The integers of rows, and of which rows there are any; there are none of a row at -1."""
        return StoredIntegers.nothing(len(positions), self.width)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.elements[1] - self.elements[0]

    def _shape(self, count: int) -> tuple[int, ...]:
        """The shape of so many rows, as a reader gives them."""
        return (count,) if self.schema.per_row else (count, self.width)

    def _decoded(self, table: Table, ids: Rows) -> Array:
        """The kept elements of rows of an open version."""
        whole = slice(ids.start, ids.stop) if isinstance(ids, range) else ids
        rows = table.read(whole, column=self.schema.name)
        return rows if self.schema.per_row else rows[:, slice(*self.elements)]

    def _pieces(self, count: int, itemsize: int) -> Iterator[slice]:
        """Ranges of rows that take some ten MiB at a time."""
        step = max(1, _CHUNK // (itemsize * self.width))
        return (slice(start, min(start + step, count)) for start in range(0, count, step))


class DecodedColumn(KeptColumn):
    """Rows as they are decoded."""

    def __init__(self, schema: ColumnSchema, elements: Elements, count: int, place: str, room: Room) -> None:
        super().__init__(schema, elements, place)
        dtype = dtypes.dtype_of(schema.dtype)
        room.take(count * self.width * dtype.itemsize, place)
        self._values: Array = np.empty(self._shape(count), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._values.nbytes

    def __len__(self) -> int:
        return len(self._values)

    def moved(self, count: int, taken: Iterator[tuple[slice, Rows]], room: Room) -> KeptColumn:
        """As `KeptColumn.moved`."""
        found = DecodedColumn(self.schema, self.elements, count, self._place, room)
        for piece, positions in taken:
            _take(found._values[piece], self._values, positions)
        return found

    def fill(self, table: Table, ids: Rows, positions: Rows, room: Room) -> None:
        """As `KeptColumn.fill`."""
        for piece in self._pieces(len(ids), self._values.itemsize):
            self._values[_index(positions[piece])] = self._decoded(table, ids[piece])

    def read(self, positions: Ids) -> Array:
        """As `KeptColumn.read`."""
        rows: Array = self._values[positions]
        return rows


class IntegerColumn(KeptColumn):
    """Rows as the integers that they are stored as, in as few bytes as hold them all; the few others as they decode."""

    def __init__(
        self, schema: ColumnSchema, elements: Elements, grid: GridKey, count: int, place: str, room: Room
    ) -> None:
        super().__init__(schema, elements, place)
        self.grid = grid
        # Codes of state are never negative.
        self._values = self._allocate(np.dtype(np.int16 if len(grid) == 2 else np.uint16), count, room)
        self._others: Ids = np.empty(0, np.int64)
        self._exact: Array = np.empty(self._shape(0), np.float32)

    def _allocate(self, dtype: npt.DTypeLike, count: int, room: Room) -> Array:
        room.take(count * self.width * np.dtype(dtype).itemsize, self._place)
        return np.zeros((count, self.width), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._values.nbytes + self._others.nbytes + self._exact.nbytes

    def __len__(self) -> int:
        return len(self._values)

    def moved(self, count: int, taken: Iterator[tuple[slice, Rows]], room: Room) -> KeptColumn:
        """As `KeptColumn.moved`."""
        assert self.grid is not None
        found = IntegerColumn(self.schema, self.elements, self.grid, 0, self._place, room)
        found._values = found._allocate(self._values.dtype, count, room)
        others, exact = [found._others], [found._exact]
        for piece, positions in taken:
            _take(found._values[piece], self._values, positions)
            if len(self._others):
                at, is_other = self._find(_array(positions))
                others.append(np.flatnonzero(is_other) + piece.start)
                exact.append(self._exact[at[is_other]])
        found._put_others(np.concatenate(others), np.concatenate(exact), room)
        return found

    def fill(self, table: Table, ids: Rows, positions: Rows, room: Room) -> None:
        """As `KeptColumn.fill`."""
        assert self.grid is not None
        others, exact = [self._others[:0]], [self._exact[:0]]
        for piece in self._pieces(len(ids), 4):
            some = ids[piece]
            integers, known = table.read_integers(some, self.schema.name, self.grid, self.elements)
            if not known.all():
                # Whatever stands there of rows that have no integers, it is nothing.
                integers = np.where(known[:, None], integers, 0)
                others.append(_array(positions[piece])[~known])
                exact.append(self._decoded(table, _array(some)[~known]))
            self._make_fit(integers, room)
            self._values[_index(positions[piece])] = integers
        # Those that were others may have integers now, or be others anew.
        if len(self._others):
            kept = ~np.isin(self._others, _array(positions), assume_unique=True)
            others.append(self._others[kept])
            exact.append(self._exact[kept])
        self._put_others(np.concatenate(others), np.concatenate(exact), room)

    def catch_up(self, steps: Steps, find: Callable[[Ids], Ids], room: Room) -> Ids:
        """Takes over what newer steps of the table say, from the oldest on; gives the ids of rows to be filled.

        Those have no integers now, or had none. `find` gives the position of each row, -1 of one that isn't kept.
        """
        left: list[Ids] = [np.empty(0, np.int64)]
        for segment, entry in (says for step in steps for says in step):
            for part in entry.parts:
                a, b = max(part.elements[0], self.elements[0]), min(part.elements[1], self.elements[1])
                if part.column == self.schema.name and a < b:
                    left += self._take_over(Layer(segment, entry.row_sets[part.rows], part, _ALL), (a, b), find, room)
        return sorted_ids.union(*left)

    def _take_over(
        self, layer: Layer, elements: Elements, find: Callable[[Ids], Ids], room: Room
    ) -> Iterator[Ids]:
        part = layer.integers
        # A step that writes all rows of a dense table has no row index.
        ids = np.arange(layer.row_set.first, layer.row_set.last + 1) if layer.is_range else layer.ids
        positions = find(ids)
        mine = np.flatnonzero(positions >= 0).astype(np.int64, copy=False)
        if part is None or part.grid != self.grid:
            yield ids[mine]
            return
        if not len(mine):
            return
        is_other = self._find(positions[mine])[1]
        if is_other.any():
            yield ids[mine[is_other]]
        columns = slice(elements[0] - self.elements[0], elements[1] - self.elements[0])
        least, greatest = bounds(part.layout)
        for some, integers in part.rows_at(mine, mine, elements):
            to = positions[some]
            sums = integers + self._values[to, columns] if part.is_residual else integers
            if sums.min() < least or sums.max() > greatest:
                # Whoever reads these rows says which one it is.
                yield ids[some]
            else:
                self._make_fit(sums, room)
                self._values[to, columns] = sums

    def _make_fit(self, integers: Array, room: Room) -> None:
        """Goes over to wider integers where these need them."""
        legal = np.iinfo(self._values.dtype)
        if integers.size and not (legal.min <= integers.min() and integers.max() <= legal.max):
            before = self._values
            self._values = self._allocate(np.int32, len(before), room)
            self._values[...] = before
            room.give(before.nbytes)

    def _put_others(self, positions: Ids, exact: Array, room: Room) -> None:
        order = np.argsort(positions)
        room.take(positions.nbytes + exact.nbytes, self._place)
        room.give(self._others.nbytes + self._exact.nbytes)
        self._others, self._exact = positions[order], exact[order]

    def _find(self, positions: Ids) -> tuple[Ids, Flags]:
        """Where rows are among those that have no integers, and which of them are there."""
        if not len(self._others):
            return positions, np.zeros(len(positions), np.bool_)
        at = np.minimum(np.searchsorted(self._others, positions), len(self._others) - 1)
        return at, self._others[at] == positions

    def read(self, positions: Ids) -> Array:
        """As `KeptColumn.read`."""
        assert self.grid is not None
        rows = decoded(self.grid, self._values[positions]).reshape(self._shape(len(positions)))
        at, is_other = self._find(positions)
        rows[is_other] = self._exact[at[is_other]]
        return rows

    def integers(self, positions: Ids) -> StoredIntegers:
        """As `KeptColumn.integers`."""
        if len(self._others):
            positions = np.where(self._find(positions)[1], -1, positions)
        return StoredIntegers(self._values, positions)


def _take(out: Array, values: Array, positions: Rows) -> None:
    """Copies rows from these positions, but for those of -1."""
    if isinstance(positions, range):
        out[...] = values[_index(positions)]
    else:
        there = positions >= 0
        out[there] = values[positions[there]]


def _index(rows: Rows) -> slice | Ids:
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows


def _array(rows: Rows) -> Ids:
    return np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, range) else rows


def grids_of(plan: GridPlan | None) -> dict[str, GridKey]:
    """The grids of the columns of a table that is on one."""
    if plan is None:
        return {}
    counts: dict[str, GridKey] = {CHECKPOINTS: ("grid", 0)} if is_counted(plan) else {}
    return {WEIGHT: ("grid", plan.floor), **counts, **{name: layout.grid for name, layout in plan.logs}}


def decoded(grid: GridKey, integers: Array) -> Array:
    """The values that integers stand for, as any reader decodes them: exact, each of them is a float32."""
    if len(grid) == 2:
        values: Array = integers.astype(np.float32) * np.float32(2.0 ** grid[1])
        return values
    _, _, base, shift = grid
    patterns = np.where(integers > 0, base + (integers.astype(np.int64) - 1 << shift), 0)
    return patterns.astype(np.uint32).view(np.float32)
