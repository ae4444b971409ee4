"""A table of an open checkpoint: rows by number, slice, id list, mask or key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cnrfmt import chunks, dtypes, pooling
from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.integers import Integers
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format.encoding import Layout
from cnrfmt.format.schema import WEIGHT, ColumnSchema, TableSchema
from cnrfmt.memory import Budget, guarded, new_array
from cnrfmt.part_integers import Grid
from cnrfmt.resolve import Steps, Strip, strips
from cnrfmt.selection import check_keys, check_row_ids, select
from cnrfmt.step_rows import keys_cost, live_keys

if TYPE_CHECKING:
    from types import EllipsisType

    from cnrfmt.encodings.quantize import Quantize
    from cnrfmt.integrations.torch_quantized import QuantizedRows
    from cnrfmt.mapped_rows import MapVerify
    from cnrfmt.view import View


class Changes(NamedTuple):
    """Which rows of a table changed after a version.

    `rows` (sorted int64 ids or keys) never leaves out a row that changed; `deleted` are ids that are gone. Where
    `exact` is True, `rows` are those that were written, deleted or cut off by one of the two versions after the newest
    state that both stand on: one of them may have been given the value that it had, or the same by both. A column that
    came or went touches the rows that were written to it. `exact` is False where the versions share no state, where
    the older one is no longer there, or where it had another table of the same name: then `rows` lists every row, and
    whatever it doesn't list is gone.
    """

    rows: Ids
    deleted: Ids
    exact: bool


class Table:
    """A table of one version; it stays as it is when the checkpoint moves on to a newer version.

    Indexing reads the column `weight`. ``t[5]`` gives a row; ``t[2:9:-1]``, ``t[ids]`` (any order, repeats),
    ``t[mask]`` and ``t[...]`` give arrays of `rows x dim`. In a keyed table ``t[k]`` and ``t[ks]`` take keys, and
    ``t.at[...]`` takes positions in key order. Row ids in a list must be those of rows; a negative number counts
    from the end only where it stands alone or in a slice.
    """

    def __init__(self, view: View, schema: TableSchema) -> None:
        self._view, self._schema = view, schema
        self._keys: Ids | None = None

    @property
    def name(self) -> str:
        """The table's name."""
        return self._schema.name

    @property
    def schema(self) -> TableSchema:
        """Id, kind, rows, dim and columns, as the manifest says."""
        return self._schema

    @property
    def keyed(self) -> bool:
        """Whether rows are found by key rather than by number."""
        return self._schema.keyed

    @property
    def keys(self) -> Ids | None:
        """The keys of a keyed table, sorted int64; None for a dense table."""
        if self._keys is None and self.keyed:
            self._load_keys(self._view.budget())
        return self._keys

    def _load_keys(self, budget: Budget) -> None:
        what = f"table {self.name!r}, keys"
        budget.take(keys_cost(self._steps), what)
        with guarded(what):
            keys = live_keys(self._steps)
        keys.flags.writeable = False
        self._keys = keys

    def __len__(self) -> int:
        return self._schema.rows if self._schema.rows is not None else len(self._known_keys)

    @property
    def _known_keys(self) -> Ids:
        assert self.keys is not None
        return self.keys

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and dim."""
        return len(self), self._schema.dim

    @property
    def ndim(self) -> int:
        """2: rows and elements."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the column `weight`."""
        return dtypes.dtype_of(self._schema.columns[0].dtype)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, `weight` first."""
        return tuple(c.name for c in self._schema.columns)

    @property
    def encoding(self) -> Layout | None:
        """How the oldest part of the column `weight` is stored; None where nothing was ever written."""
        for step in self._steps:
            for _, entry in step:
                for part in entry.parts:
                    if part.column == WEIGHT:
                        return part.layout
        return None

    @property
    def view(self) -> View:
        """The opened version, for those who want to look at its segments."""
        return self._view

    def strips(self, column: str = WEIGHT, *, budget: Budget) -> list[Strip]:
        """The parts that a column is read from, for those who want its rows as they are stored."""
        return self._column_strips(self._column(column), budget)

    @property
    def _steps(self) -> Steps:
        return self._view.steps_of(self._schema.table_id)

    def _column(self, name: str) -> ColumnSchema:
        found = self._schema.column(name)
        if found is None:
            raise MissingKeyError(
                f"table {self.name!r} has no column {name!r}; it has {', '.join(self.columns)}"
            )
        return found

    def fill(self, column: str = WEIGHT) -> Array:
        """The value of rows that were never written, 0-dim."""
        schema = self._column(column)
        return np.frombuffer(schema.fill, dtypes.dtype_of(schema.dtype)).reshape(())

    def _column_strips(self, column: ColumnSchema, budget: Budget) -> list[Strip]:
        known, key = self._view.strips, (self._schema.table_id, column.name)
        found = known.get(key)
        if found is None:
            found = known[key] = strips(self._schema, column, self._steps, self.fill(column.name), budget)
        return found

    def __getitem__(self, key: int | slice | EllipsisType | Any) -> Array:
        if isinstance(key, slice) and self.keyed:
            raise UsageError(
                f"table {self.name!r} is keyed: a slice has no meaning among keys; "
                "use t.at[a:b] for positions in key order"
            )
        return self.read(key)

    @property
    def at(self) -> _At:
        """Rows by position: ``t.at[i]``, ``t.at[a:b]``; of a keyed table in the order of its keys."""
        return _At(self)

    def __iter__(self) -> Iterator[Array]:
        for start in range(0, len(self), 4096):
            yield from self.at[start : start + 4096]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a table is decoded into new memory; it can't be had without a copy")
        return self.read(dtype=dtype)

    def read(
        self,
        rows: int | slice | EllipsisType | Any = None,
        *,
        out: Array | None = None,
        dtype: npt.DTypeLike | None = None,
        column: str = WEIGHT,
        missing: str = "error",
        by: str = "id",
    ) -> Array:
        """Decodes rows of one column.

        Parameters
        ----------
        rows
            All (None or ``...``), a number, a slice, a list or array of row ids or keys, or a boolean mask of
            length `rows`.
        out
            Array of the result's shape to fill; its dtype is the result's.
        dtype
            Converts to this dtype, as ``astype`` does.
        column
            `weight` or the name of another column; a column with one value per row has no second axis.
        missing
            ``"error"``, or ``"fill"``: keys that a keyed table lacks give the column's fill value.
        by
            ``"id"``, or ``"position"``: rows of a keyed table by position in key order.

        Raises
        ------
        MissingKeyError
            A row id, key or column that isn't there.
        TooLargeError
            It would take more memory than `max_bytes` of `open` allows, or than there is.
        DamagedError
            The bytes read break a rule of the specification.
        """
        budget = self._view.budget()
        with guarded(f"table {self.name!r}"):
            return self.read_within(budget, rows, out=out, dtype=dtype, column=column, missing=missing, by=by)

    def read_within(
        self,
        budget: Budget,
        rows: int | slice | EllipsisType | Any = None,
        *,
        out: Array | None = None,
        dtype: npt.DTypeLike | None = None,
        column: str = WEIGHT,
        missing: str = "error",
        by: str = "id",
    ) -> Array:
        """As `read`, as part of a call that has taken memory already."""
        if missing not in ("error", "fill") or by not in ("id", "position"):
            raise UsageError(
                f"missing is 'error' or 'fill' and by is 'id' or 'position', found {missing!r}, {by!r}"
            )
        self._view.check_open()
        schema = self._column(column)
        if self._keys is None and self.keyed:
            self._load_keys(budget)
        selection, single = select(rows, len(self), self._keys, by, f"table {self.name!r}", budget)
        shape: tuple[int, ...] = (len(selection),)
        if not schema.per_row:
            shape += (self._schema.dim,)
        shown = shape[1:] if single else shape
        if out is not None and not (isinstance(out, np.ndarray) and out.shape == shown and out.flags.writeable):
            raise UsageError(
                f"table {self.name!r}: out must be a writable numpy array of shape {shown}, "
                f"found a {type(out).__name__} of shape {np.shape(out)}"
            )
        stored = dtypes.dtype_of(schema.dtype)
        target = out.dtype if out is not None else self._dtype(dtype, stored)
        result = new_array(shape, target, f"table {self.name!r}", budget) if out is None else out.reshape(shape)
        if out is not None and not np.shares_memory(result, out) and out.size:
            result = new_array(shape, target, f"table {self.name!r}", budget)
        self._decode(schema, selection, result, stored, missing, budget)
        if out is not None:
            if not np.shares_memory(result, out):
                out[...] = result.reshape(shown)
            return out
        return result.reshape(shown)

    def _dtype(self, dtype: npt.DTypeLike | None, stored: np.dtype[Any]) -> np.dtype[Any]:
        try:
            return stored if dtype is None else np.dtype(dtype)
        except TypeError as error:
            raise UsageError(f"table {self.name!r}: {dtype!r} is no dtype: {error}") from None

    def __contains__(self, row: object) -> bool:
        """Whether a row id or key is there."""
        if not isinstance(row, int | np.integer):
            return False
        if not self.keyed:
            return bool(0 <= row < len(self))
        at = int(np.searchsorted(self._known_keys, row))
        return at < len(self) and bool(self._known_keys[at] == row)

    def _decode(
        self,
        schema: ColumnSchema,
        selection: range | Ids,
        result: Array,
        stored: np.dtype[Any],
        missing: str,
        budget: Budget,
    ) -> None:
        if not isinstance(selection, range) and self.keyed and missing == "error":
            check_keys(selection, self._known_keys, f"table {self.name!r}")
        found = self._column_strips(schema, budget)
        grid = result.reshape(len(result), schema.width(self._schema.dim))
        keys = self._known_keys if self.keyed and isinstance(selection, range) else None
        chunks.decode(found, selection, keys, grid, stored, self._view.threads, budget)

    def pool(
        self,
        ids: Any,
        offsets: Any,
        weights: Any = None,
        mode: pooling.Mode = "sum",
        *,
        column: str = WEIGHT,
        missing: str = "error",
    ) -> pooling.Pooled:
        """Sums rows bag by bag while they are decoded, as torch's ``embedding_bag`` does.

        Parameters
        ----------
        ids
            Row ids, or keys of a keyed table: those of all bags, one behind the other.
        offsets
            Where each bag begins among the ids, the first at 0; the last ends with the ids.
        weights
            What rows are multiplied by, one number for each id; with mode ``"sum"`` alone.
        mode
            ``"sum"``, ``"mean"`` or ``"max"``. An empty bag is zeros; a maximum is NaN where a row is.
        column, missing
            As for `read`.

        Returns
        -------
        numpy.ndarray
            float32 of (bags, dim); rows are added in the order of the ids, so that every machine gives the same bits.

        Raises
        ------
        UsageError, MissingKeyError, TooLargeError, DamagedError
        """
        place = f"table {self.name!r}"
        bags = pooling.as_bags(place, ids, offsets, weights, mode)
        budget = self._view.budget()
        with guarded(place):
            if missing not in ("error", "fill"):
                raise UsageError(f"missing is 'error' or 'fill', found {missing!r}")
            self._view.check_open()
            schema = self._column(column)
            stored = dtypes.dtype_of(schema.dtype)
            pooling.check_pooled(place, stored)
            pooled = pooling.pool(
                self._column_strips(schema, budget),
                bags,
                lambda: self._check(bags.ids, missing, budget),
                stored,
                self._view.threads,
                budget,
                place,
            )
        return pooled.reshape(-1) if schema.per_row else pooled

    def _check(self, ids: Ids, missing: str, budget: Budget) -> None:
        """That rows may be asked for; raises `MissingKeyError`."""
        if not self.keyed:
            check_row_ids(ids, len(self), f"table {self.name!r}")
        elif missing == "error":
            if self._keys is None:
                self._load_keys(budget)
            check_keys(ids, self._known_keys, f"table {self.name!r}")

    def read_integers(
        self, ids: range | Ids, column: str, grid: Grid, elements: tuple[int, int] | None = None
    ) -> tuple[Integers, Flags]:
        """What rows of a column have stored as integers on a grid, for those who write differences from it.

        Parameters
        ----------
        ids
            Row ids or keys, in any order, or a range of the row ids of a dense table; they needn't be there.
        grid
            As layouts have it.
        elements
            The first and the end of a range of elements; all if None. Others needn't be on the grid.

        Returns
        -------
        tuple
            The integers, int32 of (rows, values per row or elements), and which rows have any: those whose newest value
            is on this grid. The others' are zero.

        Raises
        ------
        DamagedError, TooLargeError, MissingKeyError
            As `read` raises them.
        """
        budget, what = self._view.budget(), f"table {self.name!r}, integers of {len(ids)} rows"
        with guarded(what):
            self._view.check_open()
            schema = self._column(column)
            a, b = elements or (0, schema.width(self._schema.dim))
            found = [strip for strip in self._column_strips(schema, budget) if a < strip.end and strip.first < b]
            first, width = found[0].first, found[-1].end - found[0].first
            budget.take((4 * width + 2) * len(ids), what)
            integers, known = chunks.integers(found, ids, grid, width, self._view.threads, budget)
            return integers[:, a - first : b - first], known

    def as_torch_quantized(
        self,
        *,
        overlay: bool = False,
        convert: bool | Quantize = False,
        exceptions: Literal["refuse", "ignore"] = "refuse",
        verify: MapVerify | None = None,
    ) -> QuantizedRows:
        """The rows as torch's quantised embedding operators take them, mapped from the file.

        See `cnrfmt.integrations.torch_quantized.quantized_rows`.
        """
        from cnrfmt.integrations.torch_quantized import quantized_rows

        return quantized_rows(self, overlay=overlay, convert=convert, exceptions=exceptions, verify=verify)

    def changed(self, since: int) -> Changes:
        """The rows that were touched after version `since`, or by it alone; never fewer than changed.

        Raises `VersionNotFoundError` for a version that was never committed.
        """
        return self._view.changed(self, since, self._view.budget())

    def __repr__(self) -> str:
        kind = "keyed" if self.keyed else "dense"
        rows = "" if self.keyed else f"{self._schema.rows} x "
        return f"<cnrfmt.Table {self.name!r}: {kind}, {rows}{self._schema.dim} {self.dtype}>"


class _At:
    """Rows by position."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __getitem__(self, key: int | slice | EllipsisType | Any) -> Array:
        return self._table.read(key, by="position")
