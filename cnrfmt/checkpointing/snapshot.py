"""The snapshot is the encoding: rows go from the live arrays into encoded buffers, and are written behind.

Threads encode the rows of a segment in the order in which it is written, chunk by chunk, while another thread may be
writing it already. What is encoded and not written yet takes a bounded amount of memory; the rows themselves are
never copied, save those that an encoding can't hold and those that are stored raw.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.checkpointing.job_queue import Job, JobQueue, work
from cnrfmt.encodings import Encoded, encoder
from cnrfmt.encodings.rowwise_encoder import RowwiseEncoder
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.schema import WEIGHT
from cnrfmt.inputs import Picked
from cnrfmt.segment_writer import chunk_rows
from cnrfmt.slices import LiveSlice, is_sliced, sliced
from cnrfmt.source_rows import SourceRows
from cnrfmt.stored_integers import Stored
from cnrfmt.table_writes import ColumnWrite, EncodedRows, RowIds, Slice, SliceSections, TableWrite
from cnrfmt.trainer_rows import TrainerRows

__all__ = ["Picked", "Snapshot"]

Mode = Literal["encode", "copy"]


class Snapshot:
    """What a segment writes, taken from arrays that change again as soon as `wait` returns.

    `writes` are those it was given, with sources that hand out what was encoded: whoever writes them has to write all
    of them, once, in their order. An error in any of the threads, or one that `cancel` is told of, is raised by
    everybody who waits here.

    Parameters
    ----------
    writes
        What to write of each table. Sources that are encoded already stay as they are.
    threads
        How many threads encode.
    limit_bytes
        How many bytes of encoded rows are held at the most; encoders wait for the writer then. None for no limit. Each
        thread may hold one chunk (of 4 MiB of rows) in any case. Rows that an encoding can't hold, which are few, are
        kept besides.
    stored
        What the version that is gone on from has stored, for columns that are stored as differences.
    counts
        What knows how many checkpoints rows were in, where these are counted.
    salt
        Another one for each checkpoint (32 bits), so that numbers which are rounded by lot aren't always rounded alike.
    sends_all
        Writes rows that are as they are stored, too: where an older version is gone on from than the newest, rows that
        aren't written would read as they were there, in all their columns.
    mode
        ``"encode"``; ``"copy"`` only copies the rows, which is sooner done and takes their size in memory, and lets
        the threads of the writer encode them.

    Raises
    ------
    UsageError
        A limit, a mode or a number of threads that can't be.
    """

    def __init__(
        self,
        writes: Iterable[TableWrite],
        *,
        threads: int,
        limit_bytes: int | None = None,
        mode: Mode = "encode",
        stored: Stored | None = None,
        counts: Stored | None = None,
        salt: int = 0,
        sends_all: bool = False,
    ) -> None:
        if mode not in ("encode", "copy"):
            raise UsageError(f'mode must be "encode" or "copy", found {mode!r}')
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise UsageError(f"threads must be an integer of at least 1, found {threads!r}")
        if limit_bytes is not None and (isinstance(limit_bytes, bool) or limit_bytes < 0):
            raise UsageError(f"limit_bytes must be at least 0, or None, found {limit_bytes!r}")
        self._threads, self._mode, self._salt = threads, mode, salt
        self._stored, self._counts, self._sends_all = stored, counts, sends_all
        jobs: list[Job] = []
        self._sliced: list[tuple[str, LiveSlice]] = []
        self.encoded_bytes = 0
        """What all rows take when they are encoded, those aside that their encoding can't hold; of slices a guess."""
        self._queue = JobQueue(threads)
        self.writes = tuple(self._taken(write, jobs) for write in writes)
        self._queue.fill(jobs, limit_bytes)

    @property
    def nbytes(self) -> int:
        """How many bytes are held now."""
        return self._queue.held

    @property
    def peak_bytes(self) -> int:
        """The most that were held."""
        return self._queue.peak

    @property
    def stall_seconds(self) -> float:
        """From `start` until the arrays could change again; 0 before."""
        return self._queue.seconds

    @property
    def error(self) -> BaseException | None:
        """What it was given up for, or what failed in it; None if nothing did."""
        return self._queue.error

    def unsent(self) -> dict[str, Ids]:
        """Of each table the ids of rows that weren't written since they are as they are stored; once all is written."""
        found: dict[str, list[Ids]] = {}
        for table, one in self._sliced:
            found.setdefault(table, []).append(one.unsent)
        return {table: np.concatenate(ids) for table, ids in found.items()}

    def mean_errors(self) -> dict[str, float]:
        """Of tables on a grid the mean relative errors of weights that stand alone; once all is written.

        They are those of samples, which are measured in any case.
        """
        found: dict[str, tuple[int, float]] = {}
        for table, one in self._sliced:
            for piece in one.pieces:
                count, total, _ = piece.absolute.errors.get(WEIGHT, (0, 0.0, 0.0))
                before = found.get(table, (0, 0.0))
                found[table] = before[0] + count, before[1] + total
        return {table: total / count for table, (count, total) in found.items() if count}

    def _taken(self, write: TableWrite, jobs: list[Job]) -> TableWrite:
        """The same with rows in the order of their ids, and with sources that wait for what is encoded."""
        if is_sliced(write):
            return self._taken_slices(write, jobs)
        ordered: dict[int, RowIds] = {}
        columns = []
        for column in write.columns:
            rows = column.rows or write.rows
            if rows is None or not rows.count or isinstance(column.source, EncodedRows):
                columns.append(column)
                continue
            source = _Taken(self._queue, column, rows, write.schema.dim, self._mode)
            jobs.extend(source.jobs.values())
            self.encoded_bytes += sum(job.encoded_size for job in source.jobs.values())
            own = None if column.rows is None else ordered.setdefault(id(column.rows), replace(column.rows, order=None))
            columns.append(replace(column, source=source, rows=own))
        rows = None if write.rows is None else replace(write.rows, order=None)
        return replace(write, rows=rows, columns=tuple(columns))

    def _taken_slices(self, write: TableWrite, jobs: list[Job]) -> TableWrite:
        """The same with slices that wait until they are taken."""
        write, slices = sliced(write, self._stored, counts=self._counts, salt=self._salt, sends_all=self._sends_all)
        self._sliced += [(write.schema.name, one) for one in slices]
        waiting = []
        for one in slices:
            own = [_PieceJob(piece, self._mode == "copy", piece is not one.pieces[0]) for piece in one.pieces]
            jobs.extend(own)
            self.encoded_bytes += sum(piece.nbytes for piece in one.pieces)
            waiting += [_WaitingSlice(self._queue, own, view, view is one.views[-1]) for view in one.views]
        return replace(write, slices=tuple(waiting))

    def take(self) -> None:
        """Encodes, on this thread too, and returns as `wait` does: one thread less has to come to life for it."""
        self._begin(beside=1)
        work(self._queue)
        self.wait()

    def start(self) -> None:
        """Begins to encode. The arrays have to stay as they are until `wait` returns."""
        self._begin(beside=0)

    def _begin(self, *, beside: int) -> None:
        # An interpreter that ends doesn't wait for a snapshot that nobody writes.
        for _ in range(min(self._threads, self._queue.begin()) - beside):
            threading.Thread(target=work, args=(self._queue,), name="cnrfmt-snapshot", daemon=True).start()

    def wait(self) -> None:
        """Returns when the arrays may change again; raises what kept the snapshot from being taken."""
        self._queue.wait(or_full=False)

    def ready(self) -> None:
        """Returns when it is time to write: all is encoded, or as much as may be held. Raises what `wait` raises.

        A writer that begins before takes processors from those who encode, and makes the trainer wait longer.
        """
        self._queue.wait(or_full=True)

    def cancel(self, error: BaseException) -> None:
        """Gives the snapshot up: everybody who waits, or asks for rows, gets the error. The first one counts."""
        self._queue.cancel(error)


class _Chunk(NamedTuple):
    """Rows that were taken: encoded, with the raw ones that the encoding can't hold; or copied, to be encoded."""

    encoded: Encoded | None
    raw: Array


@dataclass(eq=False)
class _ChunkJob:
    """A chunk of a column to be taken; `size` is what it takes in memory, `encoded_size` what it takes encoded."""

    source: _Taken
    start: int
    stop: int
    size: int
    encoded_size: int
    goes_on: bool = False

    @property
    def room(self) -> int:
        """All that it takes."""
        return self.size

    def take(self, room: Bytes) -> tuple[_Chunk, int]:
        """Encodes or copies the rows."""
        return self.source.take_chunk(self, room), self.size


@dataclass(eq=False)
class _PieceJob:
    """A piece of a slice to be taken, or to be copied and taken by its writer; `size` is a guess until then."""

    piece: TrainerRows
    copies: bool
    goes_on: bool
    room: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        self.size = self.piece.copied_bytes if self.copies else self.piece.nbytes

    def take(self, room: Bytes) -> tuple[TrainerRows, int]:
        """Encodes or copies the rows."""
        if self.copies:
            self.piece.copy()
            return self.piece, self.size
        self.piece.take()
        return self.piece, self.piece.nbytes


@dataclass
class _WaitingSlice:
    """Rows of a slice as its writer sees them, which wait until all pieces are there; `is_last`: of the slice."""

    queue: JobQueue
    jobs: list[_PieceJob]
    view: Slice
    is_last: bool

    def sections(self) -> SliceSections:
        """As soon as all pieces are there."""
        for job in self.jobs:
            self.queue.hand_out(job, keep=True)
        return self.view.sections()

    def written(self) -> None:
        """Lets the slice go when its last rows are written."""
        self.view.written()
        for job in self.jobs if self.is_last else ():
            self.queue.hand_out(job)
            self.queue.let_go(job)


class _Taken(EncodedRows):
    """A column of a snapshot, as its writer sees it."""

    errors = None

    def __init__(self, queue: JobQueue, column: ColumnWrite, rows: RowIds, dim: int, mode: Mode) -> None:
        assert not isinstance(column.source, EncodedRows)
        first, end = column.range_of(dim)
        self._queue, self._recipe, self._width = queue, column.recipe, end - first
        self.dtype = column.source.dtype
        self._rows = SourceRows.of(column.source, rows.order)
        layout = column.recipe.layout
        self._copies = mode == "copy" or isinstance(layout, RawLayout)
        self._exact: dict[int, tuple[Ids, Array]] = {}
        step = chunk_rows(column.recipe, self._width, self.dtype)
        self.jobs: dict[int, _ChunkJob] = {}
        for start in range(0, rows.count, step):
            stop = min(start + step, rows.count)
            encoded = layout.span(start, stop - start, self._width)[1] + layout.codebook_bytes(stop - start)
            size = (stop - start) * self._width * self.dtype.itemsize if self._copies else encoded
            self.jobs[start] = _ChunkJob(self, start, stop, size, encoded)

    # Called by encoders

    def take_chunk(self, job: _ChunkJob, room: Bytes) -> _Chunk:
        """Reads the rows of a chunk, for the only time."""
        shape = job.stop - job.start, self._width
        if self._copies:
            copied = room.view(self.dtype).reshape(shape)
            self._rows.copy(job.start, job.stop, copied)
            return _Chunk(None, copied)
        encoding = encoder(self._recipe)
        direct = self._rows.direct(job.start, job.stop)
        if isinstance(encoding, RowwiseEncoder) and direct is not None:
            rows, positions = direct
            found = encoding.encode(rows.reshape(-1, self._width), positions, room)
        else:
            rows, positions = self._rows.read(job.start, job.stop).reshape(shape), None
            found = encoding.encode(rows)
        bad = found.bad if positions is None else positions[found.bad]
        return _Chunk(found, rows[bad].reshape(-1, self._width))

    # Called by the writer

    def encoded(self, start: int, stop: int) -> Encoded:
        """A chunk as it was encoded, or encodes the copy of its rows."""
        job = self.jobs[start]
        assert stop == job.stop
        taken: _Chunk = self._queue.hand_out(job)
        found, raw = taken
        if found is None:
            found = encoder(self._recipe).encode(raw)
            raw = raw[found.bad]
        if len(found.bad):
            self._exact[start] = found.bad + start, raw
        return found

    def written(self, start: int) -> None:
        """Lets the chunk go."""
        self._queue.let_go(self.jobs.pop(start))

    def take(self, positions: Ids) -> Array:
        """Rows that the encoding doesn't hold, in ascending order, as they were when they were encoded."""
        found = [np.empty((0, self._width), self.dtype)]
        for _, (bad, rows) in sorted(self._exact.items()):
            some = positions[np.searchsorted(positions, bad[0]) : np.searchsorted(positions, bad[-1], "right")]
            found.append(rows[np.searchsorted(bad, some)])
        return np.concatenate(found)
