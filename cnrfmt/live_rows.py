"""Live rows as they are taken while the trainer waits: packed codes, and what can't be packed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import Recipe, encoder
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.errors import measured, total
from cnrfmt.encodings.grid import CHECKPOINTS, GridPlan
from cnrfmt.encodings.integers import values as values_of
from cnrfmt.encodings.packed_rows import PackedRows
from cnrfmt.format.encoding import GridLayout, LogLayout
from cnrfmt.format.scheme import NO_ERRORS, Errors
from cnrfmt.inputs import as_source
from cnrfmt.source_rows import SourceRows
from cnrfmt.table_writes import ColumnWrite, EncodedRows, RowIds, TableWrite

_CHUNK = 1 << 18
"""Values that are taken at a time."""
_SAMPLED = 64
"""Rows of each chunk whose errors are measured."""
_GUESS = 4
"""Bits of a value that is taken, about, until it is known."""


class Stored(Protocol):
    """The integers that the version which a delta is put on has stored."""

    def integers(self, table: str, column: str, ids: Ids) -> tuple[Array, Flags]:
        """Of each row the integers, (n, w) of int32, and whether there are any, on the grid that the column has."""


def is_integer(recipe: Recipe) -> bool:
    """Whether rows are integers whose section's length isn't known before."""
    layout = recipe.layout
    return isinstance(layout, GridLayout) or (isinstance(layout, LogLayout) and layout.is_grouped)


def ids_at(rows: RowIds, numbers: Ids) -> Ids:
    """The ids or keys of the rows of these numbers among all that are listed."""
    return numbers + rows.first if rows.ids is None else rows.ids[numbers]


@dataclass(frozen=True)
class LiveColumn:
    """A column of a slice: how it is written, and where its rows are."""

    write: ColumnWrite
    source: SourceRows | None
    elements: tuple[int, int]

    @property
    def name(self) -> str:
        """The column's name."""
        return self.write.column.name

    @property
    def width(self) -> int:
        """How many elements of each row are written."""
        return self.elements[1] - self.elements[0]

    @property
    def rows(self) -> SourceRows:
        """Where the rows are; not to be asked once they are the trainer's again."""
        assert self.source is not None
        return self.source


@dataclass
class Taken:
    """What was taken of rows that are stored in the same way: as they are, or as differences."""

    numbers: list[Ids] = field(default_factory=list)
    grids: dict[str, PackedRows] = field(default_factory=dict)
    codes: dict[str, list[Array]] = field(default_factory=dict)
    others: dict[str, list[Bytes]] = field(default_factory=dict)
    bad: dict[str, list[Ids]] = field(default_factory=dict)
    exact: dict[str, list[Array]] = field(default_factory=dict)
    errors: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    count: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        kept = [self.numbers, *self.codes.values(), *self.others.values(), *self.exact.values()]
        return sum(rows.nbytes for rows in self.grids.values()) + sum(a.nbytes for arrays in kept for a in arrays)

    def clear(self) -> None:
        """Lets go of all rows."""
        self.count = 0
        self.numbers.clear()
        for kept in (self.grids, self.codes, self.others, self.bad, self.exact):
            kept.clear()

    def add(self, other: Taken) -> None:
        """Takes over what was taken of the rows behind."""
        for name, rows in other.grids.items():
            self.grids.setdefault(name, PackedRows(rows.width)).join(rows)
        for name, (count, found, worst) in other.errors.items():
            before = self.errors.get(name, (0, 0.0, 0.0))
            self.errors[name] = before[0] + count, before[1] + found, max(before[2], worst)
        for name, bad in other.bad.items():
            self.bad.setdefault(name, []).extend(at + self.count for at in bad)
        for own, others in ((self.codes, other.codes), (self.others, other.others), (self.exact, other.exact)):
            for name, arrays in others.items():
                own.setdefault(name, []).extend(arrays)
        self.numbers += other.numbers
        self.count += other.count

    def seal(self) -> None:
        """Ends the adding."""
        for rows in self.grids.values():
            rows.seal()

    def add_exceptions(self, column: str, bad: Bytes, rows: Callable[[Ids], Array]) -> None:
        """Keeps the rows of the chunk that is being taken which the encoding doesn't hold."""
        if bad.any():
            at = np.flatnonzero(bad)
            self.bad.setdefault(column, []).append(at + self.count)
            self.exact.setdefault(column, []).append(rows(at))

    def add_errors(self, column: str, errors: Array) -> None:
        """Counts errors of a sample of the rows."""
        count, before, worst = self.errors.get(column, (0, 0.0, 0.0))
        some, most = total(errors)
        self.errors[column] = count + len(errors), before + some, max(worst, most)

    def errors_of(self, column: str) -> Errors:
        """The errors of the rows that were looked at."""
        count, found, worst = self.errors.get(column, (0, 0.0, 0.0))
        return Errors(min(found / count, worst), worst) if count else NO_ERRORS


class LiveRows:
    """Some consecutive rows of those that a table's write lists, in all their columns; `take` reads them, once.

    Safe to use from many threads.

    Attributes
    ----------
    residual, absolute
        What was taken of rows that are differences from what is stored, and of those that nothing is known of that they
        could differ from.
    """

    def __init__(
        self, write: TableWrite, start: int, stop: int, stored: Stored | None, counts: Stored | None, salt: int
    ) -> None:
        rows = write.rows
        assert rows is not None
        self._table, self._rows, self._salt = write.schema.name, rows, salt
        self._stored, self._counts = stored, counts
        self._start, self._stop = start, stop
        self.columns = []
        for column in write.columns:
            assert not isinstance(column.source, EncodedRows)
            found = SourceRows.of(column.source, rows.order)
            self.columns.append(LiveColumn(column, found, column.range_of(write.schema.dim)))
        self.residual, self.absolute = Taken(), Taken()
        self._is_taken, self._lock = False, threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes; a guess until it is taken."""
        if self._is_taken:
            return self.residual.nbytes + self.absolute.nbytes
        return (self._stop - self._start) * (8 + sum(-(-column.width * _GUESS // 8) for column in self.columns))

    @property
    def copied_bytes(self) -> int:
        """Bytes of memory that a copy of its rows takes."""
        sizes = (column.width * column.write.source.dtype.itemsize for column in self.columns)
        return (self._stop - self._start) * sum(sizes)

    def copy(self) -> None:
        """Copies the rows, so that they may change before they are taken."""
        for number, column in enumerate(self.columns):
            out = np.empty((self._stop - self._start, column.width), column.write.source.dtype)
            for a, b in self._chunks(column.width):
                column.rows.copy(a, b, out[a - self._start : b - self._start])
            at_start = SourceRows(as_source(out, what="a copy"), None, first=self._start)
            self.columns[number] = replace(column, source=at_start)

    def take(self) -> None:
        """Encodes the rows, unless that was done."""
        with self._lock:
            if self._is_taken:
                return
            for a, b in self._chunks(max(column.width for column in self.columns)):
                self._take_chunk(a, b)
            # The arrays are the trainer's again.
            self.columns = [replace(column, source=None) for column in self.columns]
            self._is_taken = True

    def _chunks(self, width: int) -> list[tuple[int, int]]:
        step = max(1, _CHUNK // width)
        return [(a, min(a + step, self._stop)) for a in range(self._start, self._stop, step)]

    def _take_chunk(self, a: int, b: int) -> None:
        found = {column.name: column.rows.found(a, b) for column in self.columns}
        ids = ids_at(self._rows, np.arange(a, b))
        known, bases = self._bases(ids)
        if self._is_counted:
            found[CHECKPOINTS] = self._checkpoints(ids), np.arange(b - a)
        for taken, some in ((self.residual, np.flatnonzero(known)), (self.absolute, np.flatnonzero(~known))):
            if not some.size:
                continue
            of_them = {name: base[some] if len(some) < b - a else base for name, base in bases.items()}
            for column in self.columns:
                values, positions = found[column.name]
                base = of_them.get(column.name) if taken is self.residual else None
                self._take_column(taken, column, values, positions[some], base, found, some)
            taken.numbers.append(some + a)
            taken.count += len(some)

    def _bases(self, ids: Ids) -> tuple[Flags, dict[str, Array]]:
        """Which rows are differences from what is stored, and what that is, by column."""
        bases: dict[str, Array] = {}
        if self._stored is None:
            return np.zeros(len(ids), np.bool_), bases
        known = np.ones(len(ids), np.bool_)
        for column in self.columns:
            if is_integer(column.write.recipe):
                stored = self._counts if column.name == CHECKPOINTS else self._stored
                if stored is None:
                    return np.zeros(len(ids), np.bool_), bases
                bases[column.name], there = stored.integers(self._table, column.name, ids)
                known &= there
        return known, bases

    @property
    def _is_counted(self) -> bool:
        """Whether rows are stored in steps that follow from the number of checkpoints that they were in."""
        schemes = (column.write.recipe.scheme for column in self.columns)
        return any(x is not None and x.step is not None and x.step.column == CHECKPOINTS for x in schemes)

    def _checkpoints(self, ids: Ids) -> Array:
        """How many checkpoints each row was in, this one among them; a baseline, where all rows are, counts as none."""
        found = np.ones(len(ids), np.float32)
        if self._counts is not None:
            before, there = self._counts.integers(self._table, CHECKPOINTS, ids)
            more = 0 if self._stored is None else 1
            found[there] = np.maximum(before[there, 0] + more, 1)
        return found.reshape(-1, 1)

    def _take_column(
        self,
        taken: Taken,
        column: LiveColumn,
        values: Array,
        positions: Ids,
        base: Array | None,
        found: dict[str, tuple[Array, Ids]],
        some: Ids,
    ) -> None:
        layout, count = column.write.recipe.layout, len(positions)
        bad = np.empty(count, np.uint8)
        if isinstance(layout, GridLayout):
            exponents = self._exponents(column, layout, found, some)
            rows = taken.grids.setdefault(column.name, PackedRows(column.width))
            self._pack(taken, column, rows, values, positions, base, layout, exponents, bad)
        elif isinstance(layout, LogLayout) and layout.is_grouped:
            from cnrfmt.kernels import logs as kernel

            codes = np.empty(count, np.int32)
            numbers = values[positions].reshape(-1)
            kernel.dithered(numbers, layout.bits, layout.base, layout.shift, self._salt, codes, bad)
            sampled = np.flatnonzero(bad == 0)[:: max(1, count // _SAMPLED)]
            decoded = np.empty((len(sampled), 1), np.float32)
            values_of(layout, codes[sampled].reshape(-1, 1), decoded)
            taken.add_errors(column.name, measured(numbers[sampled].reshape(-1, 1), decoded))
            if base is not None:
                codes -= base.reshape(-1)
                codes[bad != 0] = 0
            taken.codes.setdefault(column.name, []).append(codes)
        else:
            encoded = encoder(column.write.recipe).encode(np.ascontiguousarray(values[positions]))
            taken.others.setdefault(column.name, []).append(np.array(encoded.data).reshape(count, -1))
            bad[:] = 0
            bad[encoded.bad] = 1
        taken.add_exceptions(column.name, bad, lambda at: values[positions[at]])

    @staticmethod
    def _exponents(
        column: LiveColumn, layout: GridLayout, found: dict[str, tuple[Array, Ids]], some: Ids
    ) -> Bytes:
        """The exponent of each row; 0 where no rule of steps is known, as of whole numbers."""
        scheme = column.write.recipe.scheme
        if scheme is None or scheme.step is None:
            return np.zeros(len(some), np.uint8)
        activity, by = None, scheme.step.column
        if by is not None and by in found:
            every, at = found[by]
            activity = every[at[some]]
        return GridPlan(layout.floor, scheme.step, "rans", ()).exponents(activity, len(some))

    @staticmethod
    def _pack(
        taken: Taken,
        column: LiveColumn,
        rows: PackedRows,
        values: Array,
        positions: Ids,
        base: Array | None,
        layout: GridLayout,
        exponents: Bytes,
        bad: Bytes,
    ) -> None:
        from cnrfmt.kernels import quantising as kernel

        count, width = len(positions), column.width
        widths = np.empty(count, np.uint8)
        stored = np.empty((0, width), np.int32) if base is None else base
        room = np.empty(count * (-(-width * 26 // 8)) + 64, np.uint8)
        # Where all codes of a row are zero, its exponent becomes zero, too.
        wanted = exponents.copy()
        used = kernel.quantise_packed(values, positions, stored, layout.floor, exponents, widths, bad, room)
        data = room[:used].copy()
        rows.append(exponents, widths, data)
        some = np.arange(0, count, max(1, count // _SAMPLED))
        some = some[bad[some] == 0]
        sampled = np.ascontiguousarray(values[positions[some]])
        step = np.ldexp(np.float32(1), wanted[some].astype(np.int32) + layout.floor)[:, None]
        before = np.float32(0) if base is None else np.ldexp(base[some].astype(np.float32), layout.floor)
        decoded = (before + np.rint((sampled - before) / step) * step).astype(np.float32)
        taken.add_errors(column.name, measured(sampled, decoded))
