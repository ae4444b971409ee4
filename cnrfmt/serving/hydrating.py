"""Instant restore: live arrays at once, in which rows are decoded when they are first touched, the rest behind."""

from __future__ import annotations

import copy
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from cnrfmt import dtypes, sorted_ids
from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.inputs import as_ids, as_target
from cnrfmt.memory import Budget
from cnrfmt.patterns import Patterns
from cnrfmt.serving.held_rows import Wanted
from cnrfmt.serving.positions import Positions, positions_of
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData

_BLOCK = 4 << 20
"""Bytes of decoded rows that the background makes at a time: who touches a row of them meanwhile waits so long."""
_AT_ONCE = 64 << 20
"""Bytes of decoded rows that are made at a time for who touches very many."""


class Progress(NamedTuple):
    """How far a hydration has come: rows that are there, and rows in all."""

    rows: int
    of_rows: int


class HydratedTable:
    """The rows of one table, or some of them, in arrays that fill up.

    A row may be read, and written, once `ensure` has returned for it: from then on nothing else writes to it. Safe to
    use from many threads.

    Attributes
    ----------
    name
        The table's.
    ids
        The ids or keys of the rows of `arrays`, in their order: a range, or sorted int64.
    arrays
        By column, `weight` first: (rows, elements), or (rows,) for a column of one value per row.
    """

    def __init__(
        self,
        owner: Hydration,
        table: Table,
        ids: range | Ids,
        arrays: dict[str, Array],
        elements: tuple[int, int] | None,
    ) -> None:
        self.name, self.ids, self.arrays = table.name, ids, arrays
        self._owner, self._elements, self._is_keyed = owner, elements, table.keyed
        # It is let go of once all rows are there, and with it the files of its version.
        self._table: Table | None = table
        self._positions = positions_of(ids)
        # Their rows are read by position, which needs no look-up of keys.
        self._is_whole_keyed = table.keyed and len(ids) == len(table)
        row_bytes = sum(a.itemsize * math.prod(a.shape[1:]) for a in arrays.values())
        self._block, self._at_once = (max(1, size // max(1, row_bytes)) for size in (_BLOCK, _AT_ONCE))
        self._present = np.zeros(len(ids), np.uint8)
        self._busy = np.zeros(-(-len(ids) // self._block), np.bool_)
        self._left = len(ids)
        self._changed = threading.Condition()

    @property
    def array(self) -> Array:
        """The column `weight`."""
        return self.arrays[WEIGHT]

    @property
    def index(self) -> Positions:
        """Where rows are in the arrays."""
        return self._positions

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return not self._left

    @property
    def progress(self) -> Progress:
        """How many rows are there."""
        return Progress(len(self.ids) - self._left, len(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def ensure(self, ids: Any = None) -> None:
        """Returns when these rows are in the arrays; all rows if None.

        Raises
        ------
        MissingKeyError
            A row that isn't among `ids` of this table.
        DamagedError, StorageError, TooLargeError
            The rows couldn't be read, or others in the background couldn't: the error names the place.
        """
        self._owner.raise_error()
        if ids is None:
            self.complete()
        else:
            self.ensure_positions(self.positions(ids))

    def gather(self, ids: Any, *, out: Array | None = None, column: str = WEIGHT) -> Array:
        """Rows by id or key, in any order, in memory of the caller's own or in `out`; raises as `ensure` does."""
        if column not in self.arrays:
            raise MissingKeyError(f"table {self.name!r}: no column {column!r} here; there are {', '.join(self.arrays)}")
        self._owner.raise_error()
        positions = self.positions(ids)
        self.ensure_positions(positions)
        found: Array = np.take(self.arrays[column], positions, axis=0, out=out, mode="raise" if out is None else "clip")
        return found

    def positions(self, ids: Any) -> Ids:
        """Where rows are in the arrays; raises `MissingKeyError`."""
        wanted = as_ids(ids, f"table {self.name!r}: row ids")
        found = self._positions.of(wanted)
        if len(wanted) and int(found.min()) < 0:
            what = "key" if self._is_keyed else "row"
            lost = wanted[np.argmin(found)]
            raise MissingKeyError(f"table {self.name!r}: no {what} {lost} among those that are held")
        return found

    def complete(self) -> None:
        """As `ensure_positions`, of all rows."""
        self.ensure_positions(np.flatnonzero(self._present == 0).astype(np.int64, copy=False))

    def ensure_positions(self, positions: Ids) -> None:
        """As `ensure`, of rows by their positions, whatever went wrong with others in the background."""
        while self._left and len(absent := positions[self._present[positions] == 0]):
            self._touch(sorted_ids.union(absent)[: self._at_once])

    def _touch(self, absent: Ids) -> None:
        """Decodes rows that somebody wants now, or waits for the background where all of them are just coming."""
        blocks = absent // self._block
        mine = absent[~self._busy[blocks]]
        if len(mine):
            rows = self._decoded(mine)
            with self._changed:
                self._put(mine, rows)
        else:
            with self._changed:
                self._changed.wait_for(lambda: not self._busy[blocks].any())

    def _put(self, positions: Ids, rows: dict[str, Array]) -> None:
        """Puts rows in their places, but for those that came there meanwhile, or are just coming."""
        put = (self._present[positions] == 0) & ~self._busy[positions // self._block]
        places = positions[put]
        for column, array in self.arrays.items():
            array[places] = rows[column][put]
        self._present[places] = 1
        self._came(len(places))

    def _came(self, count: int) -> None:
        """Counts rows that have come, and has those who wait look again."""
        self._left -= count
        if not self._left:
            self._table = None
        self._changed.notify_all()

    def blocks(self, counts: Any) -> Ids:
        """The numbers of the blocks in the order in which they are to come: by how often their rows are looked up."""
        numbers = np.arange(len(self._busy), dtype=np.int64)
        if counts is None or not len(numbers):
            return numbers
        heat = np.add.reduceat(np.asarray(counts, np.float64), numbers * self._block)
        return np.argsort(-heat, kind="stable")

    def fill(self, block: int) -> None:
        """Decodes what isn't there yet of a block; for one thread of the background."""
        first, stop = block * self._block, min((block + 1) * self._block, len(self.ids))
        present = self._present[first:stop]
        with self._changed:
            if present.all():
                return
            alone = not present.any()
            # Rows that somebody has may have been written to: then a block can't be decoded where it belongs.
            self._busy[block] = alone
        try:
            if alone:
                self._decode(slice(first, stop), {name: array[first:stop] for name, array in self.arrays.items()})
                with self._changed:
                    present[:] = 1
                    self._came(stop - first)
            else:
                absent = np.flatnonzero(present == 0).astype(np.int64, copy=False) + first
                rows = self._decoded(absent)
                with self._changed:
                    self._put(absent, rows)
        finally:
            with self._changed:
                self._busy[block] = False
                self._changed.notify_all()

    def _decoded(self, positions: Ids) -> dict[str, Array]:
        rows = {name: np.empty((len(positions), *a.shape[1:]), a.dtype) for name, a in self.arrays.items()}
        self._decode(positions, rows)
        return rows

    def _decode(self, positions: slice | Ids, out: dict[str, Array]) -> None:
        table, by = self._table, "id"
        if table is None:
            # All rows came meanwhile: then none of these is put anywhere.
            return
        rows: Any
        if isinstance(self.ids, range):
            first = self.ids.start
            rows = positions + first if not isinstance(positions, slice) else _moved(positions, first)
        elif self._is_whole_keyed:
            rows, by = positions, "position"
        else:
            rows = self.ids[positions]
        for column, target in out.items():
            if self._elements is None or target.ndim == 1:
                table.read(rows, out=target, column=column, by=by)
            else:
                target[...] = table.read(rows, column=column, by=by, dtype=target.dtype)[:, slice(*self._elements)]


def _moved(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


class Hydration(Mapping[str, HydratedTable]):
    """Tables that are being hydrated, by name. A context manager: at its end the background ends.

    Raises what went wrong in the background at the next touch of any table, and at `wait`.
    """

    def __init__(self, path: str, version: int, threads: int) -> None:
        self.path, self.version = path, version
        self._threads = threads
        self._tables: dict[str, HydratedTable] = {}
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._workers: list[threading.Thread] = []

    def start(self, tables: dict[str, HydratedTable], counts: Mapping[str, Any]) -> None:
        """Begins with the background."""
        self._tables = tables
        self._begin([(table, int(n)) for table in tables.values() for n in table.blocks(counts.get(table.name))])

    def resume(self) -> None:
        """Begins with the background once more, where something went wrong with it; what wasn't there yet may come."""
        if self._error is not None:
            self.close()
            self._error = None
            self._over = threading.Event()
            self._begin([(table, int(n)) for table in self._tables.values() for n in table.blocks(None)])

    def _begin(self, blocks: list[tuple[HydratedTable, int]]) -> None:
        todo, over = iter(blocks), self._over
        taking = threading.Lock()

        def take() -> tuple[HydratedTable, int] | None:
            with taking:
                return None if over.is_set() else next(todo, None)

        self._workers = [
            threading.Thread(target=_work, args=(take, self._failed), name="cnrfmt hydration", daemon=True)
            for _ in range(self._threads)
        ]
        for worker in self._workers:
            worker.start()
        # The interpreter mustn't go while a kernel runs in one of them.
        weakref.finalize(self, _end, self._over, self._workers)

    def _failed(self, error: BaseException) -> None:
        if self._error is None:
            # Without its traceback, whose frames would keep files open.
            self._error = error.with_traceback(None)
        self._over.set()

    def __getitem__(self, name: str) -> HydratedTable:
        if name not in self._tables:
            raise MissingKeyError(f"{self.path}: no table {name!r} is hydrated; there are {', '.join(self._tables)}")
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return all(table.is_complete for table in self._tables.values())

    @property
    def progress(self) -> Progress:
        """How many rows of all tables are there."""
        some = [table.progress for table in self._tables.values()]
        return Progress(sum(p.rows for p in some), sum(p.of_rows for p in some))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all rows are there, or so many seconds; says whether they are. Raises as `ensure` does."""
        end = None if timeout is None else time.monotonic() + timeout
        for worker in self._workers:
            worker.join(None if end is None else max(0.0, end - time.monotonic()))
        self.raise_error()
        return self.is_complete

    def raise_error(self) -> None:
        """Raises what went wrong in the background."""
        if self._error is not None:
            raise copy.copy(self._error)

    def close(self) -> None:
        """Ends the background. The arrays stay as they are, and `ensure` still decodes what it is asked for."""
        _end(self._over, self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        rows, of_rows = self.progress
        return f"<cnrfmt.Hydration of {self.path!r}, version {self.version}: {rows} of {of_rows} rows>"


def _work(take: Callable[[], tuple[HydratedTable, int] | None], failed: Callable[[BaseException], None]) -> None:
    while (found := take()) is not None:
        table, block = found
        try:
            table.fill(block)
        except BaseException as error:
            failed(error)
            return


def _end(over: threading.Event, workers: Sequence[threading.Thread]) -> None:
    over.set()
    for worker in workers:
        if worker is not threading.current_thread():
            worker.join()


def hydrate(
    path: str,
    version: int,
    stored: Mapping[str, Table],
    *,
    tables: Iterable[str] | None,
    wanted: Wanted,
    columns: bool | Iterable[str],
    elements: Mapping[str, tuple[int, int]],
    into: Mapping[str, Any],
    order: Mapping[str, Any],
    threads: int,
    budget: Budget,
) -> Hydration:
    """Begins to hydrate tables; see `Checkpoint.hydrate`."""
    patterns = Patterns(tables)
    patterns.check(list(stored), path)
    names = [name for name in stored if name in patterns]
    for argument, given in (("rows", wanted.rows), ("elements", elements), ("into", into), ("order", order)):
        if unknown := set(given) - set(names):
            raise MissingKeyError(f"{argument} names a table that isn't hydrated: {min(unknown)!r}")
    found = Hydration(path, version, threads)
    made = {}
    for name in names:
        table = stored[name]
        ids = wanted.choice(table).of(table)
        counts = order.get(name)
        if counts is not None and np.shape(counts) != (len(ids),):
            raise UsageError(f"order[{name!r}]: a number for each of {len(ids)} rows, found shape {np.shape(counts)}")
        part = elements.get(name)
        arrays = _arrays(table, _columns(table, columns), len(ids), part, into.get(name), budget)
        budget.take(len(ids) * (1 if isinstance(ids, range) else 25), f"table {name!r}, which rows are there")
        made[name] = HydratedTable(found, table, ids, arrays, part)
    found.start(made, order)
    return found


def _columns(table: Table, columns: bool | Iterable[str]) -> list[str]:
    own = [name for name in table.columns if name != CHECKPOINTS]
    if isinstance(columns, bool):
        return own if columns else own[:1]
    if isinstance(columns, str):
        raise UsageError(f"columns is True, False or a list of names; use columns=[{columns!r}]")
    chosen = list(columns)
    # A table lacks the columns that others have; a name that nobody has is told of where it is looked for.
    return [WEIGHT, *(name for name in own[1:] if name in chosen)]


def _arrays(
    table: Table, columns: list[str], count: int, elements: tuple[int, int] | None, into: Any, budget: Budget
) -> dict[str, Array]:
    name, dim = table.name, table.schema.dim
    if elements is not None:
        whole = len(elements) == 2 and all(isinstance(n, int) for n in elements)
        if not whole or not 0 <= elements[0] < elements[1] <= dim:
            raise UsageError(f"elements[{name!r}]: (first, end) within 0 to {dim}, found {elements!r}")
    given = {} if into is None else _given(name, into)
    if unknown := set(given) - set(columns):
        raise MissingKeyError(f"into[{name!r}] has a column that isn't hydrated: {min(unknown)!r}; see columns=")
    found = {}
    for column in columns:
        schema = table.schema.column(column)
        assert schema is not None
        shape = (count,) if schema.per_row else (count, dim if elements is None else elements[1] - elements[0])
        array = given.get(column)
        if array is None:
            dtype = dtypes.dtype_of(schema.dtype)
            budget.take(math.prod(shape) * dtype.itemsize, f"table {name!r}, column {column!r}")
            array = np.empty(shape, dtype)
        elif array.shape != shape or not array.flags.writeable:
            raise UsageError(
                f"into[{name!r}], column {column!r}: a writable array of shape {shape}, found one of {array.shape}"
            )
        found[column] = array
    return found


def _given(name: str, into: Any) -> dict[str, Array]:
    """The arrays of a target: an array for the weights alone, or by column."""
    # A tensor of torch, too, has something that is called `values`.
    columns = {WEIGHT: into.values, **(into.columns or {})} if isinstance(into, TableData) else {WEIGHT: into}
    return {column: as_target(one, what=f"into[{name!r}], column {column!r}") for column, one in columns.items()}
