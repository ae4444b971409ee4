"""Live rows as they are taken while the trainer waits: packed codes, and what can't be packed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import Recipe, encoder, moments
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.errors import measured
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.encodings.grid_plan import GridPlan
from cnrfmt.encodings.integers import values as values_of
from cnrfmt.encodings.packed_rows import PackedRows
from cnrfmt.format.encoding import GridLayout, LogLayout
from cnrfmt.inputs import as_source
from cnrfmt.source_rows import SourceRows
from cnrfmt.stored_integers import Stored, StoredIntegers
from cnrfmt.table_writes import ColumnWrite, EncodedRows, TableWrite
from cnrfmt.taken_rows import Taken

_BLOCK = 1 << 18
"""Values of a block, by which errors are sampled."""
_BLOCKS = 4
"""Blocks that are taken at a time."""
_SAMPLED = 64
"""Rows of each block whose errors are measured, about."""
_GUESS = 4
"""Bits of a value that is taken, about, until it is known."""
_NOTHING = np.empty(0, np.int16)

Integers = npt.NDArray[np.int32]


def is_integer(recipe: Recipe) -> bool:
    """Whether rows are integers whose section's length isn't known before."""
    layout = recipe.layout
    return isinstance(layout, GridLayout) or (isinstance(layout, LogLayout) and layout.is_grouped)


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
    def is_afresh(self) -> bool:
        """Whether rows are stored as they are each time, in steps that follow from themselves: of a first moment."""
        return isinstance(self.write.recipe.layout, GridLayout) and moments.may_be(self.name)

    @property
    def rows(self) -> SourceRows:
        """Where the rows are; not to be asked once they are the trainer's again."""
        assert self.source is not None
        return self.source


def live_columns(write: TableWrite) -> list[LiveColumn]:
    """The columns of a write as slices have them."""
    rows, found = write.rows, []
    assert rows is not None
    for column in write.columns:
        assert not isinstance(column.source, EncodedRows)
        source = SourceRows.of(column.source, rows.order)
        found.append(LiveColumn(column, source, column.range_of(write.schema.dim)))
    return found


class TrainerRows:
    """Some consecutive rows of those that a table's write lists, in all their columns; `take` reads them, once.

    Safe to use from many threads.

    Attributes
    ----------
    residual, absolute
        What was taken of rows that are differences from what is stored, and of those that nothing is known of that they
        could differ from.
    """

    def __init__(
        self,
        write: TableWrite,
        columns: Sequence[LiveColumn],
        start: int,
        stop: int,
        stored: Stored | None,
        counts: Stored | None,
        salt: int,
    ) -> None:
        rows = write.rows
        assert rows is not None
        self._table, self._rows, self._salt = write.schema.name, rows, salt
        self._stored, self._counts = stored, counts
        self._start, self._stop = start, stop
        self.columns = list(columns)
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
            for a, b in self._chunks(_block_rows(column.width)):
                column.rows.copy(a, b, out[a - self._start : b - self._start])
            at_start = SourceRows(as_source(out, what="a copy"), None, first=self._start)
            self.columns[number] = replace(column, source=at_start)

    def take(self) -> None:
        """Encodes the rows, unless that was done."""
        with self._lock:
            if self._is_taken:
                return
            block = _block_rows(max(column.width for column in self.columns))
            for a, b in self._chunks(_BLOCKS * block):
                self._take_chunk(a, b, block)
            # The arrays are the trainer's again.
            self.columns = [replace(column, source=None) for column in self.columns]
            self._is_taken = True

    def _chunks(self, step: int) -> list[tuple[int, int]]:
        return [(a, min(a + step, self._stop)) for a in range(self._start, self._stop, step)]

    def _take_chunk(self, a: int, b: int, block: int) -> None:
        ids = np.arange(a, b) + self._rows.first if self._rows.ids is None else self._rows.ids[a:b]
        stored, counts = self._looked_up(ids)
        columns = [column for column in self.columns if column.name != CHECKPOINTS or counts is None]
        live = {column.name: column.rows.found(a, b) for column in columns}
        starts = np.arange(0, b - a, block)
        rows = _Rows(range(a, b), live, stored, counts, _slices(starts, b - a))
        known = rows.known
        if known is None or known.all():
            self._take_rows(self.absolute if known is None else self.residual, rows)
            return
        for taken, some in ((self.residual, np.flatnonzero(known)), (self.absolute, np.flatnonzero(~known))):
            if some.size:
                self._take_rows(taken, rows.only(some, _slices(np.searchsorted(some, starts), len(some))))

    def _looked_up(self, ids: Ids) -> tuple[dict[str, StoredIntegers], Integers | None]:
        """What is stored of rows, by column, empty if none are differences; and the checkpoints that they were in.

        This checkpoint is among those; a baseline, where all rows are, counts as none.
        """
        differ = (column for column in self.columns if not column.is_afresh)
        names = [column.name for column in differ if is_integer(column.write.recipe)]
        stored, counts = dict[str, StoredIntegers](), None
        if self._counts is not None and (self._is_counted or CHECKPOINTS in names):
            stored = self._counts.integers(self._table, [CHECKPOINTS], ids)
        if self._is_counted:
            counts = np.ones(len(ids), np.int32)
            if stored:
                before, at = stored[CHECKPOINTS]
                there = at >= 0
                at, where = (at, slice(None)) if there.all() else (at[there], there)
                counts[where] = before.reshape(-1).take(at)
                counts[where] += 0 if self._stored is None else 1
                np.maximum(counts, 1, out=counts)
        if self._stored is None or (CHECKPOINTS in names and not stored):
            return {}, counts
        others = [name for name in names if name != CHECKPOINTS]
        stored = {**self._stored.integers(self._table, others, ids), **stored}
        return {name: stored[name] for name in names}, counts

    @property
    def _is_counted(self) -> bool:
        """Whether rows are stored in steps that follow from the number of checkpoints that they were in."""
        schemes = (column.write.recipe.scheme for column in self.columns)
        return any(x is not None and x.step is not None and x.step.column == CHECKPOINTS for x in schemes)

    def _take_rows(self, taken: Taken, rows: _Rows) -> None:
        for column in self.columns:
            stored = rows.stored.get(column.name) if taken is self.residual else None
            if column.name == CHECKPOINTS and rows.counts is not None:
                codes = rows.counts if stored is None else rows.counts - stored.rows.reshape(-1).take(stored.positions)
                taken.codes.setdefault(CHECKPOINTS, []).append(_narrow(codes.reshape(-1, 1)))
            else:
                self._take_column(taken, column, rows, stored)
        taken.numbers.append(rows.numbers)
        taken.count += len(rows.numbers)

    def _take_column(self, taken: Taken, column: LiveColumn, rows: _Rows, stored: StoredIntegers | None) -> None:
        layout, count = column.write.recipe.layout, len(rows.numbers)
        values, positions = rows.live[column.name]
        bad = np.empty(count, np.uint8)
        if isinstance(layout, GridLayout):
            self._pack(taken, column, rows, stored, layout, bad)
        elif isinstance(layout, LogLayout) and layout.is_grouped:
            codes = _log_codes(layout, values, positions, self._salt, bad)
            samples = rows.samples
            if bad.any():
                samples = [np.flatnonzero(bad[b] == 0)[:: _stride(b)] + b.start for b in rows.blocks]
            sampled = np.concatenate(samples)
            decoded = np.empty((len(sampled), column.width), np.float32)
            values_of(layout, codes[sampled], decoded)
            taken.add_errors(column.name, measured(values[positions[sampled]], decoded), samples)
            if stored is not None:
                codes -= stored.rows.take(stored.positions, axis=0)
                codes[bad != 0] = 0
            taken.codes.setdefault(column.name, []).append(_narrow(codes))
        else:
            encoded = encoder(column.write.recipe).encode(np.ascontiguousarray(values[positions]))
            taken.others.setdefault(column.name, []).append(np.array(encoded.data).reshape(count, -1))
            bad[:] = 0
            bad[encoded.bad] = 1
        taken.add_exceptions(column.name, bad, lambda at: values[positions[at]])

    @staticmethod
    def _pack(
        taken: Taken,
        column: LiveColumn,
        rows: _Rows,
        stored: StoredIntegers | None,
        layout: GridLayout,
        bad: Bytes,
    ) -> None:
        from cnrfmt.kernels import quantising as kernel

        count, width = len(bad), column.width
        values, positions = rows.live[column.name]
        before, at = StoredIntegers(_NOTHING.reshape(0, width), positions) if stored is None else stored
        exponents, widths = _exponents(column, layout, rows), np.empty(count, np.uint8)
        room = np.empty(count * (-(-width * 26 // 8)) + 64, np.uint8)
        # Where all codes of a row are zero, its exponent becomes zero, too.
        wanted = exponents.copy()
        used = kernel.quantise_packed(values, positions, before, at, layout.floor, exponents, widths, bad, room)
        # What isn't used of the room is given back, without copying the rest.
        room.resize(used, refcheck=False)
        taken.grids.setdefault(column.name, PackedRows(width)).append(exponents, widths, room)
        samples = [every[bad[every] == 0] for every in rows.samples] if bad.any() else rows.samples
        some = np.concatenate(samples)
        errors = np.empty(len(some), np.float64)
        kernel.sampled_errors(values, positions, before, at, layout.floor, wanted, some, errors)
        taken.add_errors(column.name, errors, samples)


@dataclass(frozen=True)
class _Rows:
    """Rows of a chunk: their numbers among all that are listed, and of each column where they are in which array.

    Likewise what is stored of them; of no column if none are differences. `counts` are the checkpoints that they were
    in, this one among them, where these are counted. `blocks` are positions of rows whose errors are sampled together.
    """

    numbers: range | Ids
    live: dict[str, tuple[Array, Ids]]
    stored: dict[str, StoredIntegers]
    counts: Integers | None
    blocks: list[slice]

    @property
    def known(self) -> Flags | None:
        """Of which rows something is stored that they can be differences from; None if of none, for sure."""
        flags: Flags | None = None
        for found in {id(one.positions): one.positions for one in self.stored.values()}.values():
            there = found >= 0
            flags = there if flags is None else flags & there
        return flags

    @cached_property
    def samples(self) -> list[Ids]:
        """Of each block the rows whose errors are measured, if they have any."""
        return [np.arange(block.start, block.stop, _stride(block)) for block in self.blocks]

    def only(self, some: Ids, blocks: list[slice]) -> _Rows:
        """Those at these ascending positions, in these blocks."""
        numbers = some + self.numbers.start if isinstance(self.numbers, range) else self.numbers[some]
        live = {name: (values, positions[some]) for name, (values, positions) in self.live.items()}
        stored = {name: StoredIntegers(rows, positions[some]) for name, (rows, positions) in self.stored.items()}
        return _Rows(numbers, live, stored, None if self.counts is None else self.counts[some], blocks)


def _block_rows(width: int) -> int:
    return max(1, _BLOCK // width)


def _slices(starts: Ids, end: int) -> list[slice]:
    """From each of these positions to the next one, as far as there is something between them."""
    bounds = [*starts.tolist(), end]
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]


def _stride(block: slice) -> int:
    """Of so many rows of a block one is sampled."""
    return max(1, len(range(block.start, block.stop)) // _SAMPLED)


def _exponents(column: LiveColumn, layout: GridLayout, rows: _Rows) -> Bytes:
    """The exponent of each row; 0 where no rule of steps is known, as of whole numbers."""
    scheme, count = column.write.recipe.scheme, len(rows.numbers)
    if column.is_afresh:
        from cnrfmt.kernels import moments as kernel

        found = np.empty(count, np.uint8)
        kernel.exponents_by_size(*rows.live[column.name], moments.SHARE, layout.floor, found)
        return found
    if scheme is None or scheme.step is None:
        return np.zeros(count, np.uint8)
    plan, by = GridPlan(layout.floor, scheme.step, "rans", ()), scheme.step.column
    if by == CHECKPOINTS and rows.counts is not None:
        most = int(rows.counts.max())
        if most < count:
            # Rows have few different counts.
            return plan.exponents(np.arange(most + 1, dtype=np.float32), most + 1)[rows.counts]
        return plan.exponents(rows.counts.astype(np.float32), count)
    activity = None
    if by is not None and by in rows.live:
        every, at = rows.live[by]
        activity = every[at]
    return plan.exponents(activity, count)


def _log_codes(layout: LogLayout, values: Array, positions: Ids, salt: int, bad: Bytes) -> Integers:
    """Logarithmic codes of rows, (rows, elements), rounded by lot."""
    codes = np.empty((len(positions), values.shape[1]), np.int32)
    if values.shape[1] == 1:
        from cnrfmt.kernels import logs

        numbers = values[positions].reshape(-1)
        logs.dithered(numbers, layout.bits, layout.base, layout.shift, salt, codes.reshape(-1), bad)
    else:
        from cnrfmt.kernels import moments as kernel

        kernel.log_codes(values, positions, layout.bits, layout.base, layout.shift, salt, codes, bad)
    return codes


def _narrow(codes: Integers) -> Array:
    """Codes in as few bytes as hold them."""
    least, greatest = int(codes.min()), int(codes.max())
    for kind in (np.int8, np.uint8, np.int16):
        if np.iinfo(kind).min <= least and greatest <= np.iinfo(kind).max:
            return codes.astype(kind)
    return codes
