"""The rows of one table at one version, in memory: look-ups that others' updates don't change."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format.schema import TableSchema
from cnrfmt.inputs import as_ids
from cnrfmt.pooling import Pooled, as_bags, check_pooled
from cnrfmt.serving.generations import Lease
from cnrfmt.serving.held_rows import Choice
from cnrfmt.serving.hydrated_table import HydratedTable
from cnrfmt.serving.positions import Positions, RangePositions
from cnrfmt.serving.slots import Map

_NO_MAP = np.empty(0, np.int32)
_SCRATCH = 256 << 10
"""Bytes of rows that are converted at a time."""


class LiveRows:
    """The rows of a table as a version has them. Safe to use from many threads, for as long as it is held."""

    def __init__(
        self,
        schema: TableSchema,
        positions: Positions,
        rows: int,
        map_: Map | None,
        store: Array,
        default: Array,
        base: HydratedTable | None,
        lease: Lease,
        choice: Choice,
    ) -> None:
        self._schema, self._positions, self._rows, self._choice = schema, positions, rows, choice
        self._map, self._store, self._default, self._base, self._lease = map_, store, default, base, lease
        self._bytes, self._default_bytes = (a.reshape(-1).view(np.uint8) for a in (store, default))

    @property
    def name(self) -> str:
        """The table's name."""
        return self._schema.name

    @property
    def schema(self) -> TableSchema:
        """Id, kind, rows, dim and columns, as the version's manifest says."""
        return self._schema

    @property
    def keyed(self) -> bool:
        """Whether rows are found by key rather than by number."""
        return self._schema.keyed

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that are held, and dim."""
        return self._rows, self._store.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of rows."""
        return self._store.dtype

    @property
    def index(self) -> Positions:
        """Where rows are; of a keyed table also those that were held once."""
        return self._positions

    @property
    def map(self) -> Map | None:
        """The slot of each position; None where each is in the slot of its own number."""
        return self._map

    def __len__(self) -> int:
        return self._rows

    def lookup(self, ids: Any, *, out: Array | None = None) -> Array:
        """Rows by id or key, in any order and with repeats.

        Parameters
        ----------
        ids
            Integers, 1-D.
        out
            A C-contiguous array (ids, dim) of the rows' dtype to fill.

        Returns
        -------
        array
            (ids, dim). A keyed table gives its default row, the fill value, for keys that it lacks.

        Raises
        ------
        MissingKeyError
            A row of a dense table that isn't held; or a key that isn't one of those that were chosen, of another shard
            say.
        UsageError
            `ids` or `out` is something else.
        DamagedError, StorageError
            A row that isn't there yet couldn't be read.
        """
        wanted = as_ids(ids, f"table {self.name!r}: row ids")
        shape = (len(wanted), self._store.shape[1])
        if out is not None:
            self._check_out(out, shape)
        positions = self._positions
        if isinstance(positions, RangePositions) and (self._base is None or self._base.is_complete):
            return self._rows_of_range(wanted, positions, out)
        return self._rows_in(self._slots(wanted), out)

    def pool(self, ids: Any, offsets: Any, weights: Any = None, mode: str = "sum") -> Pooled:
        """Bags of rows, summed, averaged or maximised to float32 (bags, dim), without building their rows.

        As `torch.nn.functional.embedding_bag` does it, in float32, in the order of the ids; a bag of nothing is zeros.

        Parameters
        ----------
        ids
            As `lookup` has them.
        offsets
            Where each bag begins among the ids, the first at 0; the last ends with them.
        weights
            A number for each id that its row is multiplied by, with mode ``"sum"`` alone.
        mode
            ``"sum"``, ``"mean"`` or ``"max"``.

        Raises
        ------
        UsageError
            Something of it is something else.
        MissingKeyError, DamagedError, StorageError
            As `lookup` raises them.
        """
        from cnrfmt.kernels import pooling as kernel

        place = f"table {self.name!r}"
        bags = as_bags(place, ids, offsets, weights, mode)
        check_pooled(place, self.dtype)
        slots = self._slots(bags.ids)
        out = np.zeros((len(bags.offsets), self._store.shape[1]), np.float32)
        begins, factors, count = bags.offsets, bags.weights, len(slots)
        if self.dtype.name in kernel.KINDS:
            kernel.pool_slots(self._store, self._default, slots, begins, count, factors, bags.mode, out)
            return out
        bag, step = 0, max(1, _SCRATCH // max(1, self._default.nbytes))
        for first in range(0, count, step):
            rows = self._rows_in(slots[first : first + step]).astype(np.float32)
            bag = kernel.pool_rows(rows, first, bag, begins, count, factors, bags.mode, out)
        return out

    def _rows_of_range(self, wanted: Ids, held: RangePositions, out: Array | None) -> Array:
        """What is looked up most, consecutive rows of a dense table that are all there, in one go."""
        from cnrfmt.kernels import lookup as kernel

        if out is None:
            out = np.empty((len(wanted), self._store.shape[1]), self.dtype)
        is_mapped = self._map is not None
        lost = kernel.rows_of_range(
            self._bytes, self._map if self._map is not None else _NO_MAP, is_mapped, wanted, held.first, held.count,
            self._default.nbytes, out.reshape(-1).view(np.uint8),
        )  # fmt: skip
        if lost >= 0:
            raise self._missing(wanted[lost])
        return out

    def _missing(self, row: int) -> MissingKeyError:
        return MissingKeyError(f"table {self.name!r} holds no row {row}; it has {self._held()}")

    def _check_out(self, out: Any, shape: tuple[int, int]) -> None:
        is_array = isinstance(out, np.ndarray)
        if not (is_array and (out.shape, out.dtype) == (shape, self.dtype)) or not (
            out.flags.c_contiguous and out.flags.writeable
        ):
            raise UsageError(
                f"table {self.name!r}: out must be a writable C-contiguous array of {self.dtype}, shape {shape}, "
                f"found a {type(out).__name__} of {getattr(out, 'dtype', 'no dtype')}, shape {np.shape(out)}"
            )

    def _rows_in(self, slots: Ids, out: Array | None = None) -> Array:
        """The rows in these slots; the default row for -1."""
        from cnrfmt.kernels import lookup as kernel

        if out is None:
            out = np.empty((len(slots), self._store.shape[1]), self.dtype)
        row_bytes = self._default.nbytes
        if len(slots) and row_bytes:
            kernel.rows_of(self._bytes, slots, row_bytes, self._default_bytes, out.reshape(-1).view(np.uint8))
        return out

    def _slots(self, wanted: Ids) -> Ids:
        """The slot of each row, -1 for the default row; what isn't there yet is there then."""
        from cnrfmt.kernels import lookup as kernel

        positions = slots = self._positions.of(wanted)
        if self._map is not None:
            slots = np.empty(len(positions), np.int64)
            kernel.slots_of(self._map, positions, slots)
        if len(wanted) and not (self.keyed and self._choice.is_all) and int(slots.min()) < 0:
            self._check_lost(wanted[slots < 0])
        base = self._base
        if base is not None and not base.is_complete:
            base.ensure_positions(slots[(slots >= 0) & (slots < len(base))])
        return slots

    def _check_lost(self, ids: Ids) -> None:
        """That rows which aren't here are keys that would be, if the table had them; raises `MissingKeyError`."""
        if not self.keyed:
            raise self._missing(ids[0])
        strange = ids[~self._choice.among(ids)]
        if len(strange):
            raise MissingKeyError(f"table {self.name!r}: key {strange[0]} isn't {self._choice}")

    def _held(self) -> str:
        rows = self._schema.rows
        if not self._rows:
            return "no rows"
        return f"rows 0 to {self._rows - 1}" if self._rows == rows else f"{self._rows} of {rows} rows"

    def __repr__(self) -> str:
        kind = "keyed" if self.keyed else "dense"
        return f"<cnrfmt.LiveRows {self.name!r}: {kind}, {self._rows} x {self._store.shape[1]} {self.dtype}>"
