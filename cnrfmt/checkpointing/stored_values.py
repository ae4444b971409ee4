"""Each row as the newest version stores it: what a reader of that version would decode, at hand for the trainer.

A delta that stores differences needs the values that they are differences from. They are kept in host memory, or read
back from the container; either way within a bound that the caller states, and equal to what a reader gets, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cnrfmt import dtypes, reader
from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import DamagedError, MissingKeyError, TooLargeError, UsageError
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.inputs import as_ids
from cnrfmt.memory import check_limit, guarded
from cnrfmt.reader import Checkpoint, PathLike
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import Fs
from cnrfmt.table import Table

_CHUNK = 8 << 20
"""Bytes of decoded rows on their way to their places."""


class StoredValues(Protocol):
    """The stored value of any row.

    Attributes
    ----------
    nbytes
        The memory that is held now, or may come to be held until the next `update`.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def update(self, ck: Checkpoint) -> None:
        """Moves on to the version that is open: after a commit, or after a restore.

        Raises `TooLargeError` before more memory is taken than the bound allows. After any error, nothing is known
        until an update succeeds.
        """

    def read(self, table: str, ids: Any, column: str = WEIGHT) -> Array:
        """Rows by id or key, in any order, as a reader decodes them, in memory of the caller's own.

        Raises `MissingKeyError` for a table, column, row or key that isn't stored, and `UsageError` where no version
        is known.
        """

    def close(self) -> None:
        """Lets go of everything; the next `update` starts afresh."""


@dataclass
class _Kept:
    """A table as it is kept: columns by name, rows in the order of their ids or keys."""

    schema: TableSchema
    keys: Ids | None
    columns: dict[str, Array]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.columns.values()) + (0 if self.keys is None else self.keys.nbytes)


class InMemory:
    """Stored values that are kept in host memory, each column in its own dtype.

    An `update` to a version that shares a state with the one before it (the next of a chain, another delta on the same
    baseline, a merge) decodes the rows that changed, and no others.

    Parameters
    ----------
    max_bytes
        The most that is held, and taken while a table grows: its old and its new array of one column are then there at
        once. Beside it, an update takes the row ids of what changed in one table, and what reading takes (some MiB, and
        the row indexes that the checkpoint keeps).
    """

    def __init__(self, max_bytes: int) -> None:
        self._limit = _checked(max_bytes)
        self._tables: dict[str, _Kept] = {}
        self._known: Manifest | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept."""
        return sum(kept.nbytes for kept in self._tables.values())

    def update(self, ck: Checkpoint) -> None:
        """As `StoredValues.update`."""
        since, before = self._known, self._tables
        # Whatever goes wrong from here on, nothing is taken for known that may be half old and half new.
        self.close()
        kept: dict[str, _Kept] = {}
        if since is not None and since.container_id == ck.manifest.container_id:
            kept = {name: one for name in ck if (one := _goes_on(before.get(name), ck[name].schema)) is not None}
        before.clear()
        self._check_peak(ck, kept)
        found = {}
        with guarded("stored values"):
            for name in ck:
                found[name] = _moved_on(ck, ck[name], kept.pop(name, None), since)
        self._tables, self._known = found, ck.manifest

    def _check_peak(self, ck: Checkpoint, kept: dict[str, _Kept]) -> None:
        """That what is held never exceeds the limit while tables move on in their order; raises `TooLargeError`."""
        held = sum(one.nbytes for one in kept.values())
        for name in ck:
            table, before = ck[name], kept.get(name)
            same_rows = before is not None and _same_rows(table, before)
            held += 0 if table.keys is None or same_rows else table.keys.nbytes
            for column in table.schema.columns:
                new = len(table) * column.width(table.schema.dim) * dtypes.dtype_of(column.dtype).itemsize
                old = 0 if before is None or column.name not in before.columns else before.columns[column.name].nbytes
                if not (old and same_rows):
                    _check_limit(self._limit, held + new, f"stored values, table {name!r}, column {column.name!r}")
                    held += new - old
            if before is not None and before.keys is not None and not same_rows:
                held -= before.keys.nbytes

    def read(self, table: str, ids: Any, column: str = WEIGHT) -> Array:
        """As `StoredValues.read`."""
        kept = _named(self._tables, table, self._known is not None)
        values = kept.columns.get(column)
        if values is None:
            raise MissingKeyError(f"table {table!r} has no column {column!r}; it has {', '.join(kept.columns)}")
        positions = wanted = as_ids(ids, f"table {table!r}: row ids")
        if kept.keys is not None:
            positions = _find(kept.keys, wanted)
        lost = (positions < 0) | (positions >= len(values))
        if lost.any():
            what = "row" if kept.keys is None else "key"
            raise MissingKeyError(f"table {table!r} has no {what} {wanted[lost][0]} among the stored values")
        rows: Array = values[positions]
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
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that row indexes, keys and codebooks take once all are decoded."""
        return self._nbytes

    def update(self, ck: Checkpoint) -> None:
        """As `StoredValues.update`."""
        self.close()
        opened = reader.open(
            self._path,
            version=ck.version,
            digest=ck.digest,
            threads=self._threads,
            max_bytes=self._limit,
            fs=self._fs,
        )
        try:
            nbytes = _index_bytes(opened)
            _check_limit(self._limit, nbytes, f"{self._path}, row indexes of version {ck.version}")
        except BaseException:
            opened.close()
            raise
        self._ck, self._nbytes = opened, nbytes

    def read(self, table: str, ids: Any, column: str = WEIGHT) -> Array:
        """As `StoredValues.read`."""
        found = _named({} if self._ck is None else self._ck, table, self._ck is not None)
        rows: Array = found.read(as_ids(ids, f"table {table!r}: row ids"), column=column)
        return rows

    def close(self) -> None:
        """As `StoredValues.close`."""
        if self._ck is not None:
            self._ck.close()
        self._ck, self._nbytes = None, 0


def _named(tables: Any, name: str, known: bool) -> Any:
    if not known:
        raise UsageError("stored values: no version is known; update(checkpoint) makes one known")
    if name not in tables:
        raise MissingKeyError(f"stored values: no table {name!r}; there are {', '.join(map(repr, tables)) or 'none'}")
    return tables[name]


def _goes_on(kept: _Kept | None, now: TableSchema) -> _Kept | None:
    """What was kept of a table, if it still is that table: without columns that went or are others now."""
    if kept is None:
        return None
    before = kept.schema
    if (before.table_id, before.dim, before.keyed) != (now.table_id, now.dim, now.keyed):
        return None
    columns = {name: a for name, a in kept.columns.items() if before.column(name) == now.column(name)}
    return _Kept(before, kept.keys, columns)


def _same_rows(table: Table, kept: _Kept) -> bool:
    if table.keys is not None and kept.keys is not None:
        return np.array_equal(table.keys, kept.keys)
    return all(len(a) == len(table) for a in kept.columns.values())


def _moved_on(ck: Checkpoint, table: Table, kept: _Kept | None, since: Manifest | None) -> _Kept:
    """A table as the open version has it, from what was kept of an older one, whose arrays are changed or let go of."""
    rows = np.empty(0, np.int64)
    if kept is not None and since is not None:
        try:
            changes = ck.view.changed_since(table, since, ck.view.budget())
        except DamagedError:
            # Of the version before, maybe; the open one is read whole, and says so itself if it is its own.
            kept = None
        else:
            rows = changes.rows
            kept = kept if changes.exact else None
    keys, old_keys = table.keys, None
    if kept is not None and _same_rows(table, kept):
        keys = kept.keys
    elif keys is not None:
        keys = keys.copy()
    if kept is not None:
        old_keys = kept.keys
    found = _Kept(table.schema, keys, {})
    for column in table.schema.columns:
        old = None if kept is None else kept.columns.pop(column.name, None)
        found.columns[column.name] = _column(table, column, keys, old, old_keys, rows)
    return found


def _column(
    table: Table, column: ColumnSchema, keys: Ids | None, old: Array | None, old_keys: Ids | None, rows: Ids
) -> Array:
    """One column as the open version has it; only these rows are read, the others are as they were."""
    if old is None:
        return table.read(column=column.name)
    positions, new = rows, old
    shape = (len(table), *old.shape[1:])
    if keys is not None:
        assert old_keys is not None
        positions = np.searchsorted(keys, rows)
        if keys is not old_keys:
            new = np.empty(shape, old.dtype)
            for start, stop in _pieces(len(keys), old):
                there = _find(old_keys, keys[start:stop])
                # A key that wasn't there is among the rows that changed.
                new[start:stop][there >= 0] = old[there[there >= 0]]
    elif len(table) != len(old):
        new = np.empty(shape, old.dtype)
        both = min(len(table), len(old))
        new[:both] = old[:both]
    for start, stop in _pieces(len(rows), old):
        new[positions[start:stop]] = table.read(rows[start:stop], column=column.name)
    return new


def _pieces(count: int, like: Array) -> Iterator[tuple[int, int]]:
    """Ranges of rows that take some MiB at a time."""
    row_bytes = like.itemsize * (like.shape[1] if like.ndim == 2 else 1)
    step = max(1, _CHUNK // row_bytes)
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _find(keys: Ids, wanted: Ids) -> Ids:
    """The place of each wanted key among sorted ones; -1 where it isn't there."""
    from cnrfmt.kernels import rows as kernel

    positions = np.empty(len(wanted), np.int64)
    kernel.find(keys, wanted, positions)
    return positions


def _index_bytes(ck: Checkpoint) -> int:
    """Bytes that reading any rows comes to keep: row indexes, keys, codebooks; an upper bound."""
    total = 0
    for table in ck.values():
        steps = ck.view.steps_of(table.schema.table_id)
        for entry in (entry for step in steps for _, entry in step):
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
        raise TooLargeError(what, nbytes, limit)
