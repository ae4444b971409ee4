"""Reading the bytes of segments: one open file, shared by the spans in it."""

from __future__ import annotations

import threading
from contextlib import suppress
from mmap import ALLOCATIONGRANULARITY, PAGESIZE, mmap
from typing import Any

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import DamagedError, StorageError, UsageError
from cnrfmt.storage.fs import Fs, byte_view
from cnrfmt.storage.mapping import NOTHING


class OpenFile:
    """A file open for reading. It is closed when its last user lets go of it.

    So a reader that is in the middle of a call never has the handle closed, and given to another file, under it.
    """

    def __init__(self, fs: Fs, path: str, *, follow: bool = False) -> None:
        self.fs, self.path = fs, path
        self._handle: int | None = None
        self._handle = fs.open(path, "read", follow=follow)
        self._map: mmap | None = None
        self._mapping = threading.Lock()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes it now; right only where nobody else has it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(StorageError):
                self.fs.close(handle)

    @property
    def handle(self) -> int:
        """The handle, for calls made while the object is held."""
        assert self._handle is not None
        return self._handle

    @property
    def size(self) -> int:
        """The file's length at this moment."""
        return self.fs.stat_handle(self.handle).size

    @property
    def identity(self) -> tuple[int, int]:
        """Which file it is."""
        return self.fs.stat_handle(self.handle).identity

    def read(self, offset: int, length: int) -> bytes:
        """The bytes from `offset` on, fewer at the file's end."""
        buffer = bytearray(length)
        return bytes(memoryview(buffer)[: self.fs.pread_into(self.handle, offset, buffer)])

    def map(self, end: int, rule: str, place: str) -> mmap:
        """A map of at least `end` bytes, one for all who ask until the file has grown."""
        with self._mapping:
            if self._map is None or len(self._map) < end:
                size = self.size
                if size < end:
                    raise DamagedError(rule, place, expected=f"{end} bytes", found=f"{size} bytes")
                self._map = self.fs.map(self.handle, size)
            return self._map

    def map_private(self, start: int, end: int) -> Bytes:
        """The bytes from `start` to `end`, mapped anew for whoever asks: writing to them changes no file.

        Only pages that are written take memory of the process. Raises `StorageError`.
        """
        first = start // ALLOCATIONGRANULARITY * ALLOCATIONGRANULARITY
        return np.frombuffer(self.fs.map_private(self.handle, first, end - first), np.uint8)[start - first :]


class Source:
    """The bytes of one segment, or of any span of a file. Safe to use from many threads."""

    def __init__(self, file: OpenFile, offset: int, length: int, place: str, rule: str) -> None:
        self._file: OpenFile | None = file
        self._offset, self.length, self.place, self._rule = offset, length, place, rule
        self.needs = NOTHING
        """What its map needs; `map` sees to it."""

    def pread_into(self, offset: int, buffer: Any) -> None:
        """Fills a contiguous buffer with the bytes from `offset` of the span on.

        Raises `DamagedError` where the file ends too soon, and `StorageError`.
        """
        file, view = self._opened(), byte_view(buffer)
        if offset < 0 or offset + len(view) > self.length:
            raise UsageError(f"{self.place}: bytes {offset} to {offset + len(view)} of {self.length} asked for")
        found = file.fs.pread_into(file.handle, self._offset + offset, view)
        if found < len(view):
            raise DamagedError(
                self._rule,
                self.place,
                expected=f"{len(view)} bytes at {offset}",
                found=f"{found} bytes, then the file's end",
            )

    def pread_ranges(self, offsets: Ids, length: int, buffer: Bytes) -> None:
        """Reads ranges of `length` bytes of the span, one behind the other; the last ends with the buffer.

        Raises what `pread_into` raises.
        """
        file = self._opened()
        ends = offsets + length
        ends[-1:] += len(buffer) - len(offsets) * length
        if len(offsets) and not (offsets.min() >= 0 and ends.max() <= self.length):
            raise UsageError(f"{self.place}: ranges outside its {self.length} bytes asked for")
        done = file.fs.pread_ranges(file.handle, offsets + self._offset, length, buffer)
        for k in range(done, len(offsets)):
            self.pread_into(int(offsets[k]), buffer[k * length : (k + 1) * length])

    def map(self) -> Bytes:
        """All bytes as a read-only array of uint8, mapped. It stays valid after `close`."""
        file = self._opened()
        if self.length == 0:
            return np.frombuffer(b"", np.uint8)
        end = self._offset + self.length
        found = file.map(end, self._rule, self.place)
        first = self._offset // PAGESIZE * PAGESIZE
        for need in self.needs.each():
            file.fs.prepare_map(file.handle, found, first, end - first, need)
        return np.frombuffer(found, np.uint8)[self._offset : end]

    @property
    def start(self) -> tuple[OpenFile, int]:
        """The file that the bytes are in, and where in it they begin."""
        return self._opened(), self._offset

    def close(self) -> None:
        """Lets go of the file; maps stay valid."""
        self._file = None

    def _opened(self) -> OpenFile:
        file = self._file
        if file is None:
            raise UsageError(f"{self.place}: it was closed; open the container again")
        return file
