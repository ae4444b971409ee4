"""The rows of one table in arrays that fill up: what is asked for first, the rest from behind."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import CnrError, MissingKeyError, UsageError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.inputs import as_ids
from cnrfmt.serving.lazy_memory import fill_soon
from cnrfmt.serving.positions import Positions, positions_of
from cnrfmt.table import Table

if TYPE_CHECKING:
    from cnrfmt.serving.hydrating import Hydration

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
        self._is_given_up = False

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
        self._owner.check_process()
        self._check_wanted()
        blocks = absent // self._block
        mine = absent[~self._busy[blocks]]
        if len(mine):
            try:
                with self._owner.is_urgent():
                    rows = self._decoded(mine)
            except CnrError:
                if self._left:
                    raise
                # All rows came meanwhile, and the files were closed then.
                return
            with self._changed:
                self._put(mine, rows)
        else:
            with self._changed:
                self._changed.wait_for(lambda: not self._busy[blocks].any())

    def _put(self, positions: Ids, rows: dict[str, Array]) -> None:
        """Puts rows in their places, but for those that came there meanwhile, or are just coming."""
        self._check_wanted()
        put = (self._present[positions] == 0) & ~self._busy[positions // self._block]
        places = positions[put]
        for column, array in self.arrays.items():
            array[places] = rows[column][put]
        self._present[places] = 1
        self._came(len(places))

    def _check_wanted(self) -> None:
        if self._is_given_up:
            raise UsageError(
                f"table {self.name!r}: its rows don't come any more, since another restore was begun, or the manager "
                "was closed; touch what was restored last"
            )

    def give_up(self) -> None:
        """From when it returns on, nothing is put into the arrays."""
        with self._changed:
            self._is_given_up = True

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
                rows = {name: array[first:stop] for name, array in self.arrays.items()}
                for array in rows.values():
                    fill_soon(array)
                self._decode(slice(first, stop), rows)
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
