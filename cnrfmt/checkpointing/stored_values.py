"""Each row as the newest version stores it: what a reader of that version would decode, at hand for the trainer.

A delta that stores differences needs the values that they are differences from. They are kept in host memory, or read
back from the container; either way within a bound that the caller states, and equal to what a reader gets, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from cnrfmt import reader
from cnrfmt.arrays import Array, Ids
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.checkpointing.kept_columns import KeptColumn, Room, grids_of
from cnrfmt.checkpointing.kept_tables import Held, KeptTable, Move, elements_of, plan_of
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.errors import MissingKeyError, TooLargeError, UsageError
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import WEIGHT
from cnrfmt.inputs import as_ids
from cnrfmt.memory import check_limit, guarded
from cnrfmt.reader import PathLike
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import Fs
from cnrfmt.stored_integers import StoredIntegers
from cnrfmt.table import Table
from cnrfmt.view import View


class StoredValues(Protocol):
    """The stored value of any row.

    Attributes
    ----------
    nbytes
        The memory that is held now, or may come to be held until the next `update`.
    state
        The state of the version that is known; None where none is.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    @property
    def state(self) -> bytes | None:
        """A state id."""

    def update(
        self, ck: Checkpoint, held: Mapping[str, Held] | None = None, *, baseline: Manifest | None = None
    ) -> None:
        """Moves on to the version that is open: after a commit, or after a restore.

        `held` is what is wanted of each table; whole tables, and all of them, if None. Of keys that aren't stored
        nothing is known. `baseline` is the version that the open one is put on, where that is to be known instead.

        Raises `TooLargeError` before more memory is taken than the bound allows. After any error, nothing is known
        until an update succeeds.
        """

    def plan(self, table: str) -> GridPlan | None:
        """How the version has a table on a grid; None where it hasn't."""

    def integers(self, table: str, columns: Sequence[str], ids: Ids) -> dict[str, StoredIntegers]:
        """Of each of these columns the integers that rows are stored as on the grid of `plan`.

        There are none of rows that are stored otherwise, or not at all, or that aren't held. Raises as `read` does for
        a table or a column. May be called by several threads.
        """

    def read(self, table: str, ids: Any, column: str = WEIGHT) -> Array:
        """Rows by id or key, in any order, as a reader decodes them, in memory of the caller's own.

        Raises `MissingKeyError` for a table, column, row or key that isn't stored, and `UsageError` where no version
        is known.
        """

    def close(self) -> None:
        """Lets go of everything; the next `update` starts afresh."""


class InMemory:
    """Stored values in memory, columns of integers as integers; an update reads what changed.

    Parameters
    ----------
    max_bytes
        The most that is held, and taken while a table grows: its old and its new array of one column are then there at
        once. Beside it, an update takes the row ids of what changed in one table, and what reading takes (some ten MiB,
        and the row indexes that the checkpoint keeps).
    integers_only
        Keeps what differences are taken from, and no other columns.
    """

    def __init__(self, max_bytes: int, *, integers_only: bool = False) -> None:
        self._limit, self._integers_only = _checked(max_bytes), integers_only
        self._tables: dict[str, KeptTable] = {}
        self._known: Manifest | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept."""
        return sum(kept.nbytes for kept in self._tables.values())

    @property
    def state(self) -> bytes | None:
        """As `StoredValues.state`."""
        return None if self._known is None else self._known.state

    def update(
        self, ck: Checkpoint, held: Mapping[str, Held] | None = None, *, baseline: Manifest | None = None
    ) -> None:
        """As `StoredValues.update`."""
        since, before = self._known, self._tables
        # Whatever goes wrong from here on, nothing is taken for known that may be half old and half new.
        self.close()
        view = ck.view if baseline is None else ck.view.at(baseline)
        tables = {schema.name: Table(view, schema) for schema in view.manifest.tables}
        wanted = dict.fromkeys(tables, Held()) if held is None else {n: one for n, one in held.items() if n in tables}
        if since is not None and since.container_id != view.manifest.container_id:
            since = None
        only = self._integers_only
        moves = [Move(view, tables[name], one, before.get(name), since, only) for name, one in wanted.items()]
        before.clear()
        room = Room(self._limit, sum(move.nbytes for move in moves))
        found = {}
        with guarded("stored values"):
            for move in moves:
                found[move.table.name] = move.made(room)
        self._tables, self._known = found, view.manifest

    def plan(self, table: str) -> GridPlan | None:
        """As `StoredValues.plan`."""
        kept = self._tables.get(table)
        return None if kept is None else kept.plan

    def integers(self, table: str, columns: Sequence[str], ids: Ids) -> dict[str, StoredIntegers]:
        """As `StoredValues.integers`."""
        kept = _named(self._tables, table, self._known is not None)
        positions = kept.find(ids)
        found = {}
        for name in columns:
            if self._integers_only and name not in kept.columns and kept.schema.column(name) is not None:
                found[name] = StoredIntegers.nothing(len(ids), 1)
            else:
                found[name] = _column_of(kept.columns, table, name).integers(positions)
        return found

    def read(self, table: str, ids: Any, column: str = WEIGHT) -> Array:
        """As `StoredValues.read`."""
        kept = _named(self._tables, table, self._known is not None)
        values = _column_of(kept.columns, table, column)
        wanted = as_ids(ids, f"table {table!r}: row ids")
        positions = kept.find(wanted)
        if (positions < 0).any():
            what = "row" if kept.keys is None else "key"
            lost = wanted[positions < 0][0]
            raise MissingKeyError(f"table {table!r} has no {what} {lost} among the stored values")
        rows: Array = values.read(positions)
        return rows

    def close(self) -> None:
        """As `StoredValues.close`."""
        self._tables, self._known = {}, None


class FromContainer:
    """Stored values that are read from the container when they are asked for; nothing is kept but row indexes.

    Parameters
    ----------
    path
        The container; each update opens it anew at the version that it is given.
    max_bytes
        The most that row indexes, keys and codebooks take, and the most for what one `read` gives. Mapped pages of
        the files themselves are the operating system's to keep or drop, and aren't counted.
    threads
        How many threads a read may use.
    """

    def __init__(self, path: PathLike, max_bytes: int, *, threads: int | None = None, fs: Fs | None = None) -> None:
        self._path, self._limit, self._threads, self._fs = path_text(path), _checked(max_bytes), threads, fs
        self._ck: Checkpoint | None = None
        self._manifest: Manifest | None = None
        self._tables: dict[str, Table] = {}
        self._held: Mapping[str, Held] = {}
        self._plans: dict[str, GridPlan | None] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that row indexes, keys and codebooks take once all are decoded."""
        return self._nbytes

    @property
    def state(self) -> bytes | None:
        """As `StoredValues.state`."""
        return None if self._manifest is None else self._manifest.state

    def update(
        self, ck: Checkpoint, held: Mapping[str, Held] | None = None, *, baseline: Manifest | None = None
    ) -> None:
        """As `StoredValues.update`."""
        self.close()
        with _bounded():
            opened = reader.open(
                self._path,
                version=ck.version,
                digest=ck.digest,
                threads=self._threads,
                max_bytes=self._limit,
                fs=self._fs,
            )
        try:
            view = opened.view if baseline is None else opened.view.at(baseline)
            tables = {schema.name: Table(view, schema) for schema in view.manifest.tables}
            nbytes = sum(_index_bytes(view, table) for table in tables.values())
            _check_limit(self._limit, nbytes, f"{self._path}, row indexes of version {ck.version}")
            self._held = dict(held or {})
            self._plans = {n: plan_of(view, table.schema, self._held_of(n)) for n, table in tables.items()}
        except BaseException:
            opened.close()
            raise
        self._ck, self._manifest, self._tables, self._nbytes = opened, view.manifest, tables, nbytes

    def _held_of(self, table: str) -> Held:
        return self._held.get(table, Held())

    def plan(self, table: str) -> GridPlan | None:
        """As `StoredValues.plan`."""
        return self._plans.get(table)

    def integers(self, table: str, columns: Sequence[str], ids: Ids) -> dict[str, StoredIntegers]:
        """As `StoredValues.integers`."""
        found: Table = _named(self._tables, table, self._ck is not None)
        return {name: self._integers(found, name, ids) for name in columns}

    def _integers(self, table: Table, column: str, ids: Ids) -> StoredIntegers:
        name, schema = table.name, table.schema.column(column)
        if schema is None:
            raise _no_column(name, column, table.columns)
        elements = elements_of(schema, table.schema, self._held_of(name))
        grid = grids_of(self._plans[name]).get(column)
        if grid is None:
            return StoredIntegers.nothing(len(ids), elements[1] - elements[0])
        with _bounded():
            integers, known = table.read_integers(ids, column, grid, elements)
        return StoredIntegers(np.ascontiguousarray(integers), np.where(known, np.arange(len(ids)), -1))

    def read(self, table: str, ids: Any, column: str = WEIGHT) -> Array:
        """As `StoredValues.read`."""
        found = _named(self._tables, table, self._ck is not None)
        with _bounded():
            rows: Array = found.read(as_ids(ids, f"table {table!r}: row ids"), column=column)
        return rows

    def close(self) -> None:
        """As `StoredValues.close`."""
        if self._ck is not None:
            self._ck.close()
        self._ck, self._manifest, self._tables, self._plans, self._held, self._nbytes = None, None, {}, {}, {}, 0


def _named(tables: Any, name: str, known: bool) -> Any:
    if not known:
        raise UsageError("stored values: no version is known; update(checkpoint) makes one known")
    if name not in tables:
        raise MissingKeyError(f"stored values: no table {name!r}; there are {', '.join(map(repr, tables)) or 'none'}")
    return tables[name]


def _column_of(columns: Mapping[str, KeptColumn], table: str, name: str) -> KeptColumn:
    if name not in columns:
        raise _no_column(table, name, columns)
    return columns[name]


def _no_column(table: str, name: str, columns: Iterable[str]) -> MissingKeyError:
    return MissingKeyError(f"table {table!r} has no column {name!r}; it has {', '.join(columns)}")


def _index_bytes(view: View, table: Table) -> int:
    """Bytes that reading any rows comes to keep: row indexes, keys, codebooks; an upper bound."""
    total = 0
    for entry in (entry for step in view.steps_of(table.schema.table_id) for _, entry in step):
        # Each row that was written is a key at the most.
        copies = 2 if table.keyed else 1
        total += sum(8 * copies * row_set.count for row_set in entry.row_sets if row_set.section is not None)
        total += sum(3 * part.layout.codebook_bytes(entry.row_sets[part.rows].count) for part in entry.parts)
    return total


def _checked(max_bytes: Any) -> int:
    limit = check_limit(max_bytes)
    if limit is None:
        raise UsageError("max_bytes must be an integer of at least 0: how much memory stored values may take")
    return limit


def _check_limit(limit: int, nbytes: int, what: str) -> None:
    if nbytes > limit:
        raise TooLargeError(what, nbytes, limit, "stored_bytes")


@contextmanager
def _bounded() -> Iterator[None]:
    """What a reader's `max_bytes` doesn't allow within, the `stored_bytes` don't that a manager was given."""
    try:
        yield
    except TooLargeError as error:
        raise TooLargeError(error.what, error.asked, error.limit, "stored_bytes") from None
