"""What `convert` hands between formats: named arrays, read and written by slices."""

from __future__ import annotations

import errno
import math
import mmap
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Array
from cnrfmt.errors import DamagedError, StorageError, UsageError
from cnrfmt.format import limits
from cnrfmt.integrations.notes import Notes
from cnrfmt.storage.fs import POSIX

Json = Any

SLICE_BYTES = 4 << 20
"""Bytes of rows that are read, or written, at a time."""
TILE = 1024
"""Rows and columns of a table in Fortran order that are turned round at a time."""
MAX_ARRAYS = limits.MAX_TABLES + limits.MAX_DENSE
"""How many arrays a foreign file may have: more don't fit into a container either."""
RULE = "foreign-file"
"""The error id for foreign files that break the rules of their own format."""


def damaged(place: str, *, expected: object, found: object) -> DamagedError:
    """The error for a foreign file that breaks the rules of its own format."""
    return DamagedError(
        RULE,
        place,
        expected=expected,
        found=found,
        advice="the file is damaged or was written by something else: make it anew",
    )


def row_step(shape: tuple[int, ...], itemsize: int) -> int:
    """How many rows make up a slice of some `SLICE_BYTES`."""
    return max(1, SLICE_BYTES // max(1, itemsize * math.prod(shape[1:])))


def slices(rows: int, step: int) -> Iterator[slice]:
    """The rows 0 to rows - 1 in slices of `step`."""
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def check_shape(shape: tuple[int, ...], itemsize: int, place: str) -> int:
    """The bytes of an array of this shape; raises `DamagedError` where no array can have it."""
    if len(shape) > limits.MAX_DIMENSIONS:
        raise damaged(
            place, expected=f"at most {limits.MAX_DIMENSIONS} dimensions", found=len(shape)
        )
    # numpy refuses a shape whose dimensions are too large even where one of them is zero.
    if math.prod(max(1, n) for n in shape) * max(1, itemsize) > limits.MAX_BYTES:
        raise damaged(place, expected="an array of less than 2^53 bytes", found=f"shape {shape}")
    return math.prod(shape) * itemsize


def check_booleans(array: Array, place: str) -> Array:
    """The array; raises `DamagedError` if it is boolean with bytes other than 0 and 1."""
    if array.dtype == np.bool_ and array.size and int(array.view(np.uint8).max()) > 1:
        raise damaged(place, expected="booleans of 0 or 1", found="another byte")
    return array


class FileArray:
    """An array at some offset of a file, read by slices along its first axis, as a dataset of h5py is.

    Safe to read from many threads. The file must stay open.
    """

    read_by_slices = True

    def __init__(
        self,
        file: BinaryIO,
        place: str,
        offset: int,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        *,
        fortran: bool = False,
    ) -> None:
        self._file, self.place, self._offset = file, place, offset
        self.dtype, self.shape = np.dtype(dtype), shape
        self.fortran = fortran and len(shape) > 1
        check_shape(shape, self.dtype.itemsize, place)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def _read(self, first: int, count: int) -> Array:
        out = np.empty(count, self.dtype)
        start = self._offset + first * self.dtype.itemsize
        found = POSIX.pread_into(self._file.fileno(), start, out.view(np.uint8))
        if found != out.nbytes:
            raise damaged(
                self.place, expected=f"{out.nbytes} bytes from byte {start}", found=f"{found}"
            )
        return check_booleans(out, self.place)

    def __getitem__(self, key: slice | tuple[()]) -> Array:
        if not isinstance(key, slice):
            order: Literal["F", "C"] = "F" if self.fortran else "C"
            return self._read(0, math.prod(self.shape)).reshape(self.shape, order=order)
        start, stop, step = key.indices(self.shape[0])
        if step != 1:
            raise UsageError(f"{self.place}: only slices with a step of 1 can be read")
        count = max(0, stop - start)
        width = math.prod(self.shape[1:])
        if not self.fortran:
            return self._read(start * width, count * width).reshape(count, *self.shape[1:])
        columns = self.columns(slice(0, width), slice(start, stop))
        return columns.T.reshape((count, *self.shape[1:]), order="F")

    def columns(self, columns: slice, rows: slice) -> Array:
        """Columns of an array in Fortran order, `columns x rows`, each cut to some rows."""
        out = np.empty((columns.stop - columns.start, max(0, rows.stop - rows.start)), self.dtype)
        if out.shape[1] == self.shape[0]:
            out[:] = self._read(columns.start * self.shape[0], out.size).reshape(out.shape)
        else:
            for number, column in enumerate(out, columns.start):
                column[:] = self._read(number * self.shape[0] + rows.start, out.shape[1])
        return out

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the array is in a file; it can't be had without a copy")
        return self[()] if dtype is None else self[()].astype(dtype)


class Spool:
    """A nameless temporary file in some folder, for what can't be read by slices where it is."""

    def __init__(self, file: BinaryIO, folder: str) -> None:
        self._file, self._folder, self._end = file, folder, 0

    def keep(
        self,
        pieces: Iterable[Any],
        place: str,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        *,
        fortran: bool = False,
    ) -> FileArray:
        """Writes buffers one behind the other, and gives the array that they make up.

        Raises `StorageError` where there isn't room.
        """
        size = check_shape(shape, np.dtype(dtype).itemsize, place)
        check_room(self._folder, size, place)
        # Where an array starts a mapping may start.
        start = position = limits.round_up(self._end, mmap.ALLOCATIONGRANULARITY)
        for piece in pieces:
            POSIX.pwrite(self._file.fileno(), position, piece)
            position += memoryview(piece).nbytes
        self._end = position
        return FileArray(self._file, place, start, dtype, shape, fortran=fortran)

    def turned(self, array: FileArray) -> FileArray:
        """A copy in C order of a wide table in Fortran order, each of whose rows lies all over the file."""
        rows, width = array.shape
        kept = self.keep((), array.place, array.dtype, array.shape)
        # Nothing is kept yet: the array starts where the file ends.
        start, self._end = self._end, self._end + rows * width * array.dtype.itemsize
        for down in slices(rows, TILE):
            for across in slices(width, TILE):
                block = np.ascontiguousarray(array.columns(across, down).T).view(np.uint8)
                for number, row in enumerate(block, down.start):
                    at = start + (number * width + across.start) * array.dtype.itemsize
                    POSIX.pwrite(self._file.fileno(), at, row)
        return kept

    def mapped(self, array: Any, place: str) -> Array:
        """A copy of a large array of any shape that needs no memory of its own: a mapped file."""
        step = row_step(array.shape, array.dtype.itemsize)
        dtype = array.dtype.newbyteorder("<")
        start = limits.round_up(self._end, mmap.ALLOCATIONGRANULARITY)
        self.keep(
            (
                check_booleans(np.asarray(array[part], dtype, order="C"), place)
                .reshape(-1)
                .view(np.uint8)
                for part in slices(array.shape[0], step)
            ),
            place,
            dtype,
            array.shape,
        )
        data = np.memmap(self._file, np.uint8, "r", start, (self._end - start,))
        return np.asarray(data.view(dtype).reshape(array.shape))


@contextmanager
def spooling(folder: str) -> Iterator[Spool]:
    """A spool whose file is in this folder, as long as the context lasts."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        yield Spool(cast("BinaryIO", file), folder)


def check_room(folder: str, size: int, what: str) -> None:
    """Raises `StorageError` unless a folder has room for so many bytes."""
    free = POSIX.free_bytes(folder)
    if free is not None and size > free:
        text = f"{what}: {size} bytes don't fit, {free} bytes are free"
        raise StorageError(errno.ENOSPC, text, folder)


@dataclass
class Incoming:
    """What a foreign file holds.

    Attributes
    ----------
    arrays
        Names to arrays: `FileArray`, datasets of h5py or numpy arrays.
    values
        Names to what isn't an array of numbers: JSON values or bytes, which become dense state.
    metadata
        What becomes user metadata.
    notes
        What an earlier conversion out of a container noted there.
    skipped
        What a container can't hold, in words.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Json | bytes] = field(default_factory=dict)
    metadata: dict[str, Json] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outgoing:
    """An array to be written: `chunks` gives it C-contiguous and little-endian, in slices of the first axis.

    `name` is the array's name in the file, `origin` that of the table or dense entry whose values it holds.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[Array]]
    origin: str | None = None

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, name: str, array: Array, origin: str | None = None) -> Outgoing:
        """An array that is in memory."""
        return cls(name, array.dtype, array.shape, lambda: iter((array,)), origin)


@dataclass(frozen=True)
class Export:
    """What a foreign file is to hold.

    `native` is the part of the user metadata that the format has a place for, `values` are dense entries that it
    writes as strings.
    """

    arrays: list[Outgoing]
    values: dict[str, Json | bytes]
    native: Mapping[str, Any]
    notes: Notes


class Format(ABC):
    """A foreign format."""

    name: str
    suffixes: tuple[str, ...]
    reserved: frozenset[str] = frozenset()
    """Names that no array may have."""
    nested = False
    """Whether ``a/b`` lies in something named ``a``, which then can't be an array."""

    def legal(self, name: str) -> bool:
        """Whether an array may have this name."""
        return True

    def check_dtype(self, dtype: np.dtype[Any], what: str) -> None:
        """Raises `UsageError` if the format has no such data type."""
        return

    def native(self, metadata: Mapping[str, Json]) -> tuple[dict[str, Any], dict[str, Json]]:
        """User metadata in two: what the format has a place for, in its own terms, and the rest."""
        return {}, dict(metadata)

    def strings(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """The names of dense entries that were strings in a file of this format, with how to write them."""
        return {}

    @abstractmethod
    def read(self, path: str, spool: Spool) -> AbstractContextManager[Incoming]:
        """Opens a file; its arrays can be read as long as the context lasts."""

    @abstractmethod
    def write(self, path: str, export: Export) -> None:
        """Writes a file where nothing is yet."""
