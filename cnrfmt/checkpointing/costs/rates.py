"""How fast this machine encodes rows and writes them: measured when it is asked, in about a second."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cnrfmt import dtypes, parallel
from cnrfmt.checkpointing.costs.estimates import TableShape
from cnrfmt.checkpointing.snapshot import Snapshot
from cnrfmt.encodings import Recipe
from cnrfmt.errors import UsageError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.inputs import Picked, Source2D, as_source
from cnrfmt.table_writes import ColumnWrite, RowIds, TableWrite

_TABLE = 128 << 20
"""The most bytes of rows in memory that are picked from: more than caches hold."""
_SMALL = 16 << 20
"""A snapshot of a table of fewer bytes than this takes little more than one of an empty table."""
_SHARE = 4
"""One row in so many is picked, or as many are taken one behind the other."""
_ROUNDS = 5
"""How often each snapshot is taken. The fastest counts: what else the machine does makes them only slower."""
_WRITE_SECONDS = 0.3
_FIRST_WRITE, _LAST_WRITE = 4 << 20, 1 << 30


@dataclass(frozen=True)
class Rates:
    """Bytes per second, of all threads together.

    Attributes
    ----------
    encode
        A snapshot of rows one behind the other, from memory to what is stored; counted as they lie in memory.
    gather
        A snapshot of rows from all over their table.
    write
        Bytes to a file, synced.
    """

    encode: float
    gather: float
    write: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise UsageError(f"rates: {name} is a number of bytes per second above 0, found {value!r}")


def measure_rates(
    folder: str | os.PathLike[str], table: TableShape, recipe: Recipe, *, threads: int | None = None
) -> Rates:
    """The rates for the weights of a table, stored by a recipe, with checkpoints in a folder.

    Rows are random numbers; a file is written to the folder, synced and removed. Kernels are compiled before the clock
    starts. Raises `UsageError`, or `OSError` where the folder can't be written to.
    """
    return Rates(*snapshot_rates(table, recipe, parallel.thread_count(threads)), measure_write(folder))


def snapshot_rates(table: TableShape, recipe: Recipe, threads: int) -> tuple[float, float]:
    """The rates `encode` and `gather`."""
    column, dim = table.schema.columns[0], table.schema.dim
    dtype = dtypes.dtype_of(column.dtype)
    size = max(1, min(table.count, _TABLE // (dtype.itemsize * dim)))
    rng = np.random.default_rng(0)
    # To draw so many numbers would take longer than all the rest.
    few = rng.standard_normal((min(size, max(1, (1 << 20) // dim)), dim), np.float32).astype(dtype)
    rows = np.resize(few, (size, dim))
    count = max(1, size // _SHARE)
    picked = np.sort(rng.choice(size, count, replace=False))

    def rate(source: Source2D) -> float:
        write = TableWrite(table.schema, RowIds(count), (ColumnWrite(column, source, recipe),))
        seconds = min(_snapshot_seconds(write, threads) for _ in range(_ROUNDS))
        return count * dim * dtype.itemsize / seconds

    warm = TableWrite(table.schema, RowIds(1), (ColumnWrite(column, Picked(few, [0]), recipe),))
    _snapshot_seconds(warm, threads)
    return rate(as_source(rows[:count], what=WEIGHT)), rate(Picked(rows, picked))


def is_small(table: TableShape) -> bool:
    """Whether a snapshot of a table is so soon done that what it takes in any case is most of it."""
    return table.count * table.plain_bytes < _SMALL


def _snapshot_seconds(write: TableWrite, threads: int) -> float:
    """How long the rows mayn't change."""
    snapshot = Snapshot([write], threads=threads)
    snapshot.start()
    snapshot.wait()
    # What was encoded is written by nobody.
    snapshot.cancel(UsageError("the snapshot was only measured"))
    return max(snapshot.stall_seconds, 1e-9)


def measure_write(folder: str | os.PathLike[str]) -> float:
    """Bytes per second to a file in a folder, synced: of the largest write that there is time for.

    Raises `OSError` where the folder can't be written to.
    """
    block = np.random.default_rng(0).bytes(_FIRST_WRITE)
    size, spent = _FIRST_WRITE, 0.0
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".cnrfmt-rate-") as file:
        while True:
            file.seek(0)
            start = time.perf_counter()
            for _ in range(size // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            took = time.perf_counter() - start
            spent += took
            # The next write would take about twice as long.
            if spent + 2 * took > _WRITE_SECONDS or 2 * size > _LAST_WRITE:
                return size / took
            size *= 2


def largest(tables: Sequence[TableShape]) -> TableShape:
    """The table whose rows take the most bytes in memory; raises `UsageError` where there is none."""
    if not any(table.count for table in tables):
        raise UsageError("there are no rows in any table")
    return max(tables, key=lambda table: table.count * table.plain_bytes)
