"""A restore that returns at once: rows are decoded when the trainer first touches them, the rest behind it."""

from __future__ import annotations

import glob
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.checkpointing.resuming.targets import Fill, Source, Target, own_columns
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.inputs import as_ids, as_target
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData

if TYPE_CHECKING:
    from cnrfmt.serving.hydrated_table import HydratedTable
    from cnrfmt.serving.hydrating import Hydration


class LazyRestore:
    """Tables that are being restored while the trainer goes on, by the names that the trainer has for them.

    A row may be read and written once `ensure` has returned for it. Safe to use from many threads.
    """

    def __init__(self, hydration: Hydration, stored: Mapping[str, str]) -> None:
        self._hydration = hydration
        self._tables: dict[str, HydratedTable] = {name: hydration[one] for name, one in stored.items()}
        self._files, self._closing = ExitStack(), threading.Lock()
        self._is_pending = True
        self._is_known = False

    def keep(self, files: ExitStack) -> None:
        """Takes over what has to stay open until all rows are there."""
        self._files = files

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        # Whoever knows it may have copied the arrays since.
        self._is_known = self._is_known or self._hydration.is_complete
        return self._is_known

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays of a table that are being filled, by column."""
        return self._tables[name].arrays

    def ensure(self, name: str, ids: Any) -> None:
        """Returns when these rows of a table are there: ids, of a shard's rows its own, or keys.

        What isn't stored is passed over. Raises what kept rows from being read, these or others before them.
        """
        found = self._tables.get(name)
        if found is None or not self._is_pending:
            return
        self._hydration.raise_error()
        wanted = as_ids(ids, f"table {name!r}: row ids")
        # A dense table's rows are in the order of their ids, from whatever row a shard begins with.
        positions = wanted if isinstance(found.ids, range) else found.index.of(wanted)
        found.ensure_positions(positions[(positions >= 0) & (positions < len(found))])

    def ensure_from(self, name: str, row: int) -> None:
        """As `ensure`, of the rows of a dense table from this one on."""
        found = self._tables.get(name)
        if found is not None and isinstance(row, int | np.integer):
            self.ensure(name, range(row, len(found)))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all rows are there, or so many seconds; says whether they are. Raises as `ensure` does."""
        if timeout is None:
            self.complete()
        else:
            self._hydration.wait(timeout)
        return self.is_complete

    def complete(self) -> None:
        """Waits until all rows are there, those too that nobody makes in the background any more."""
        if not self.finish():
            for table in self._tables.values():
                table.ensure()
            self.finish()

    def finish(self) -> bool:
        """Waits until all rows are there, or nobody makes them in the background; says whether they are.

        Raises as `ensure` does.
        """
        complete = self._hydration.wait()
        if complete:
            self._is_pending = False
            self._close_files()
        return complete

    def _close_files(self) -> None:
        # Who saves, and the background, come here at once.
        with self._closing:
            self._files.close()

    def settle(self, tables: Mapping[str, Any]) -> None:
        """Waits until all rows are there, so that these tables can be saved; raises as `ensure` does.

        Raises `UsageError` where a table isn't in the memory that is filled, and nobody has waited for that: a copy
        that was made too early lacks rows.
        """
        if not self._is_known:
            for name, value in tables.items():
                if name in self._tables:
                    self._check_same(name, value)
        self.complete()

    def _check_same(self, name: str, value: Any) -> None:
        given = Target.of(value).columns
        for column, filled in self._tables[name].arrays.items():
            if column in given and not _is_same(filled, given[column], f"table {name!r}, column {column!r}"):
                raise UsageError(
                    f"table {name!r}, column {column!r}: it was restored lazily, and save was given other memory than "
                    "that which is filled, a copy perhaps that lacks rows; nothing was begun: give the arrays that "
                    "restore gave or was given, or call wait() of what it returned before they are copied"
                )

    def stop(self) -> None:
        """Ends the background: what isn't there yet comes when it is touched."""
        self._hydration.close()

    def close(self) -> None:
        """Ends the background, and lets go of files: what isn't there yet doesn't come any more."""
        self._hydration.give_up()
        self._close_files()


def _is_same(filled: Array, value: Any, what: str) -> bool:
    """Whether a value is the memory that is filled, perhaps with more rows and elements behind it."""
    try:
        given = as_target(value, what=what)
    except UsageError:
        # Nothing that can't be filled is what was.
        return False
    return not filled.size or given.ctypes.data == filled.ctypes.data


def begin(
    ck: Checkpoint,
    fills: Iterable[Fill],
    fresh: Mapping[str, Source],
    names: Mapping[str, str],
    *,
    columns: bool,
    order: Mapping[str, Any],
    threads: int,
) -> LazyRestore:
    """Begins to fill targets, and new arrays for these rows of `fresh` tables.

    `names` goes from the trainer's names to the stored ones. Raises `UsageError` where rows don't come in the order in
    which they are stored, `MissingKeyError` and `TooLargeError`; nothing was begun then.
    """
    if unknown := set(order) - set(names):
        raise MissingKeyError(f"order names a table that isn't restored: {min(unknown)!r}")
    rows: dict[str, Any] = {}
    into: dict[str, TableData] = {}
    chosen: dict[str, Sequence[str]] = {}
    elements: dict[str, tuple[int, int]] = {}
    to_name = {stored: name for name, stored in names.items()}
    for name, source in fresh.items():
        table = ck[names[name]]
        rows[table.name] = _rows(name, table, source)
        chosen[table.name] = own_columns(table) if columns else ()
    for stored, (weight, *others) in _by_table(fills).items():
        rows[stored] = _rows(to_name[stored], weight.table, weight.source)
        chosen[stored] = [fill.column for fill in others]
        into[stored] = TableData(_filled(weight), columns={fill.column: _filled(fill) for fill in others})
        if weight.elements is not None:
            elements[stored] = weight.elements
    found = ck.hydrate(
        # A name isn't a pattern.
        [glob.escape(name) for name in rows],
        rows={name: some for name, some in rows.items() if some is not None},
        columns=chosen,
        elements=elements,
        into=into,
        order={names[name]: counts for name, counts in order.items()},
        threads=threads,
    )
    return LazyRestore(found, {to_name[stored]: stored for stored in rows})


def _rows(name: str, table: Table, source: Source) -> Any:
    """Rows of a table as `Checkpoint.hydrate` takes them; None for all."""
    if not isinstance(source.rows, slice):
        raise UsageError(
            f"table {name!r}: lazy=True restores rows as they are stored, all or a range of them; leave out remap and "
            "lists of rows, or restore this table with lazy=False"
        )
    first, stop = source.rows.start, source.rows.stop
    if (first, stop) == (0, len(table)):
        return None
    return (first, stop) if table.keys is None else table.keys[first:stop]


def _by_table(fills: Iterable[Fill]) -> dict[str, list[Fill]]:
    """The fills of each stored table, that of its weights first."""
    found: dict[str, list[Fill]] = {}
    for fill in fills:
        found.setdefault(fill.table.name, []).append(fill)
    return found


def _filled(fill: Fill) -> Array:
    """The part of a target that stored rows and elements go to."""
    assert isinstance(fill.places, slice)
    rows = fill.out[fill.places]
    return rows if fill.elements is None else rows[:, : fill.elements[1] - fill.elements[0]]
