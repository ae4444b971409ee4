"""The snapshot is the encoding: rows go from the live arrays into encoded buffers, and are written behind.

Threads encode the rows of a segment in the order in which it is written, chunk by chunk, while another thread may be
writing it already. What is encoded and not written yet takes a bounded amount of memory; the rows themselves are
never copied, save those that an encoding can't hold and those that are stored raw.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.checkpointing.slabs import Slabs
from cnrfmt.encodings import Encoded, encoder
from cnrfmt.encodings.rowwise_encoder import RowwiseEncoder
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import RawLayout
from cnrfmt.inputs import Picked, Source2D
from cnrfmt.segment_writer import ColumnWrite, EncodedRows, RowIds, TableWrite, chunk_rows

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
    mode
        ``"encode"``; ``"copy"`` only copies the rows, which is sooner done and takes their size in memory, and lets
        the threads of the writer encode them.

    Raises
    ------
    UsageError
        A limit, a mode or a number of threads that can't be.
    """

    def __init__(
        self, writes: Iterable[TableWrite], *, threads: int, limit_bytes: int | None = None, mode: Mode = "encode"
    ) -> None:
        if mode not in ("encode", "copy"):
            raise UsageError(f'mode must be "encode" or "copy", found {mode!r}')
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise UsageError(f"threads must be an integer of at least 1, found {threads!r}")
        if limit_bytes is not None and (isinstance(limit_bytes, bool) or limit_bytes < 0):
            raise UsageError(f"limit_bytes must be at least 0, or None, found {limit_bytes!r}")
        self._threads, self._mode = threads, mode
        jobs: list[_Job] = []
        self._queue = _Queue(threads)
        self.writes = tuple(self._taken(write, jobs) for write in writes)
        self._queue.fill(jobs, limit_bytes)
        self.encoded_bytes = sum(job.encoded_size for job in jobs)
        """What all rows take when they are encoded, those aside that their encoding can't hold."""

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

    def _taken(self, write: TableWrite, jobs: list[_Job]) -> TableWrite:
        """The same with rows in the order of their ids, and with sources that wait for what is encoded."""
        ordered: dict[int, RowIds] = {}
        columns = []
        for column in write.columns:
            rows = column.rows or write.rows
            if rows is None or not rows.count or isinstance(column.source, EncodedRows):
                columns.append(column)
                continue
            source = _Taken(self._queue, column, rows, write.schema.dim, self._mode)
            jobs += source.jobs.values()
            own = None if column.rows is None else ordered.setdefault(id(column.rows), replace(column.rows, order=None))
            columns.append(replace(column, source=source, rows=own))
        rows = None if write.rows is None else replace(write.rows, order=None)
        return replace(write, rows=rows, columns=tuple(columns))

    def take(self) -> None:
        """Encodes, on this thread too, and returns as `wait` does: one thread less has to come to life for it."""
        self._begin(beside=1)
        _work(self._queue)
        self.wait()

    def start(self) -> None:
        """Begins to encode. The arrays have to stay as they are until `wait` returns."""
        self._begin(beside=0)

    def _begin(self, *, beside: int) -> None:
        # An interpreter that ends doesn't wait for a snapshot that nobody writes.
        for _ in range(min(self._threads, self._queue.begin()) - beside):
            threading.Thread(target=_work, args=(self._queue,), name="cnrfmt-snapshot", daemon=True).start()

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


def _work(queue: _Queue) -> None:
    """What a thread does that encodes."""
    try:
        while (given := queue.admit()) is not None:
            job, room = given
            queue.bring(job, job.source.take_chunk(job, room))
            del given, room
    except BaseException as error:
        # Whoever waits raises it.
        queue.cancel(error)


class _Queue:
    """The chunks between those who encode and the one who writes; safe to use from all of them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.held = self.peak = 0
        self.seconds = 0.0
        self._todo: deque[_Job] = deque()
        self._done: dict[_Job, _Chunk] = {}
        self._left = self._out = 0
        self._full = False
        self.error: BaseException | None = None
        self._began: float | None = None
        lock = threading.Lock()
        self._room, self._ended, self._arrived = (threading.Condition(lock) for _ in range(3))

    def fill(self, jobs: Sequence[_Job], limit_bytes: int | None) -> None:
        """Sets what is to be encoded, in the order in which it is written."""
        self._todo.extend(jobs)
        self._left = len(jobs)
        self._slabs = Slabs([job.size for job in jobs], limit_bytes)

    def begin(self) -> int:
        """How many chunks there are to encode from now on."""
        with self._ended:
            if self._began is not None:
                raise UsageError("the snapshot was started already; make another")
            self._began = time.perf_counter()
            return self._left

    def wait(self, *, or_full: bool) -> None:
        """Waits until all is encoded, or until no more may be held."""
        with self._ended:
            if self._began is None and not or_full:
                raise UsageError("the snapshot wasn't started; call start() first")
            while self._left and not (or_full and self._full) and self.error is None:
                self._ended.wait()
            self._check()

    def cancel(self, error: BaseException) -> None:
        """Lets go what is held; chunks that are being encoded or written go with their threads."""
        with self._ended:
            if self.error is None:
                self.error = error
            self._todo.clear()
            self._done.clear()
            self.held = 0
            for condition in (self._room, self._ended, self._arrived):
                condition.notify_all()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def admit(self) -> tuple[_Job, Bytes] | None:
        """The next chunk and room for it, as soon as it may be held; None if there is no more.

        Chunks are admitted in the order in which they are written. So the one that the writer waits for is always among
        those that are admitted, and what stands in its way is written before it.
        """
        with self._room:
            while self._todo:
                size = self._todo[0].size
                if self._out < self._threads or self._slabs.fits(self.held + size):
                    self._out += 1
                    self.held += size
                    self.peak = max(self.peak, self.held)
                    return self._todo.popleft(), self._slabs.take(size)
                self._full = True
                self._ended.notify_all()
                self._room.wait()
        return None

    def bring(self, job: _Job, chunk: _Chunk) -> None:
        """A chunk is encoded."""
        with self._arrived:
            if self.error is not None:
                return
            self._done[job] = chunk
            self._arrived.notify_all()
            self._left -= 1
            if not self._left:
                assert self._began is not None
                self.seconds = time.perf_counter() - self._began
                self._ended.notify_all()

    def hand_out(self, job: _Job) -> _Chunk:
        """What a chunk became, as soon as it is there."""
        with self._arrived:
            while job not in self._done and self.error is None:
                self._arrived.wait()
            self._check()
            return self._done.pop(job)

    def let_go(self, job: _Job) -> None:
        """A chunk takes no memory any more."""
        with self._room:
            if self.error is None:
                self._out -= 1
                self.held -= job.size
                self._room.notify_all()


class _Chunk(NamedTuple):
    """Rows that were taken: encoded, with the raw ones that the encoding can't hold; or copied, to be encoded."""

    encoded: Encoded | None
    raw: Array


@dataclass(frozen=True, eq=False)
class _Job:
    """A chunk of a column to be taken; `size` is what it takes in memory, `encoded_size` what it takes encoded."""

    source: _Taken
    start: int
    stop: int
    size: int
    encoded_size: int


class _Taken(EncodedRows):
    """A column of a snapshot, as its writer sees it."""

    errors = None

    def __init__(self, queue: _Queue, column: ColumnWrite, rows: RowIds, dim: int, mode: Mode) -> None:
        assert not isinstance(column.source, EncodedRows)
        first, end = column.range_of(dim)
        self._queue, self._recipe, self._width = queue, column.recipe, end - first
        self.dtype = column.source.dtype
        self._rows = _rows_of(column.source, rows.order)
        layout = column.recipe.layout
        self._copies = mode == "copy" or isinstance(layout, RawLayout)
        self._exact: dict[int, tuple[Ids, Array]] = {}
        step = chunk_rows(column.recipe, self._width, self.dtype)
        self.jobs: dict[int, _Job] = {}
        for start in range(0, rows.count, step):
            stop = min(start + step, rows.count)
            encoded = layout.span(start, stop - start, self._width)[1] + layout.codebook_bytes(stop - start)
            size = (stop - start) * self._width * self.dtype.itemsize if self._copies else encoded
            self.jobs[start] = _Job(self, start, stop, size, encoded)

    # Called by encoders

    def take_chunk(self, job: _Job, room: Bytes) -> _Chunk:
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
        found, raw = self._queue.hand_out(job)
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


class _Rows:
    """The rows of a source that are written, in the order of their ids."""

    def __init__(self, source: Source2D, positions: Ids | None) -> None:
        self._source, self._positions = source, positions
        self._whole = source.rows(0, source.shape[0]) if source.is_contiguous else None

    def _positions_of(self, start: int, stop: int) -> tuple[int, int] | Ids:
        """Where the rows are in the source: from one position up to another, or anywhere."""
        if self._positions is None:
            return start, stop
        some = self._positions[start:stop]
        first, last = int(some[0]), int(some[-1])
        if last - first == len(some) - 1 and (some[1:] > some[:-1]).all():
            return first, last + 1
        return some

    def direct(self, start: int, stop: int) -> tuple[Array, Ids | None] | None:
        """An array in memory, and which of its rows are meant unless all are; None if there is no such array."""
        if self._whole is None:
            return None
        where = self._positions_of(start, stop)
        return (self._whole[slice(*where)], None) if isinstance(where, tuple) else (self._whole, where)

    def read(self, start: int, stop: int) -> Array:
        """The rows, which may be a view of those that change."""
        where = self._positions_of(start, stop)
        if isinstance(where, tuple):
            return self._source.rows(*where)
        if self._whole is None:
            return self._source.take(where)
        out = np.empty((stop - start, *self._whole.shape[1:]), self._whole.dtype)
        _gather(self._whole, where, out)
        return out

    def copy(self, start: int, stop: int, out: Array) -> None:
        """Copies the rows."""
        where = self._positions_of(start, stop)
        if self._whole is None or isinstance(where, tuple):
            out[:] = self.read(start, stop).reshape(out.shape)
        else:
            _gather(self._whole, where, out)


def _rows_of(source: Source2D, order: Ids | None) -> _Rows:
    """The rows of a source, picked from what it picks them from."""
    if not isinstance(source, Picked):
        return _Rows(source, order)
    return _Rows(source.base, source.positions if order is None else source.positions[order])


def _gather(rows: Array, positions: Ids, out: Array) -> None:
    from cnrfmt.kernels import gather

    flat, target = (array.reshape(-1).view(np.uint8) for array in (rows, out))
    gather.gather(flat, positions, 0, target.size // len(positions), target)
