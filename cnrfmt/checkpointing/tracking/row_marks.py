"""A set of rows of a dense table: a bitmap, of which only the pages that were written to take memory."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids, Words

_PAGE_ROWS, _PAGE_BYTES = 32768, 4096
"""A page of the bitmap, as the kernels count."""


class RowMarks:
    """Rows from 0 to `rows` - 1, none of them marked at first. Not safe for several threads by itself."""

    def __init__(self, rows: int, *, room: int = 0) -> None:
        """An empty set; `room` is how many rows it can `grow` to without being copied. Raises `MemoryError`."""
        from cnrfmt.kernels import marks as kernel

        # An import in each call would take as long as the call does.
        self._kernel = kernel
        self.rows = rows
        self._words, self._pages = _bitmap(-(-max(rows, room, 1) // _PAGE_ROWS))

    @property
    def room(self) -> int:
        """How many rows the bitmap has bits for."""
        return _PAGE_ROWS * len(self._pages)

    @property
    def nbytes(self) -> int:
        """Bytes of memory: the pages that were ever written to, and a byte for each page there is."""
        return _PAGE_BYTES * int(np.count_nonzero(self._pages)) + len(self._pages)

    def empty(self) -> RowMarks:
        """An empty set of the same size."""
        return RowMarks(self.rows, room=self.room)

    def mark(self, ids: npt.NDArray[np.signedinteger]) -> int:
        """Marks rows: int32 or int64, 1-D, contiguous.

        Returns -1, or the position of an id that isn't a row; then nothing is marked.
        """
        return int(self._kernel.mark(ids, self.rows, self._words, self._pages))

    def add_older(self, other: RowMarks) -> None:
        """Marks what another set of the same size has marked."""
        self._kernel.merge(other._words, other._pages, self._words, self._pages)

    add_newer = add_older
    """A row that is marked in either set is marked: which one is newer doesn't matter."""

    def count(self) -> int:
        """How many rows are marked."""
        return int(self._kernel.count(self._words, self._pages, self._words, self._pages))

    def ids(self, older: RowMarks | None = None) -> Ids:
        """The rows that are marked here or in an older set of the same size: sorted and distinct."""
        other = self if older is None else older
        both = self._words, self._pages, other._words, other._pages
        out = np.empty(int(self._kernel.count(*both)), np.int64)
        return out[: int(self._kernel.extract(*both, out))]

    def larger(self, rows: int) -> RowMarks:
        """A set with room for so many rows and the same ones marked: itself where it has the room."""
        if rows <= self.room:
            return self
        # Addresses that are never written to cost nothing. A table that grows by a little each time is copied seldom.
        grown = RowMarks(self.rows, room=max(rows, 2 * self.room))
        grown.add_older(self)
        return grown

    def resize(self, rows: int) -> None:
        """Changes the number of rows, which there is room for; those that go lose their marks."""
        if rows < self.rows:
            self._kernel.clear_from(rows, self._words, self._pages)
        self.rows = rows


def _bitmap(pages: int) -> tuple[Words, Bytes]:
    """Words of zeros, and a byte for each page of them.

    The mapping is private, so that a forked child writes to copies, and it has small pages: numpy asks for huge
    ones, of which a single marked row would take 2 MiB.
    """
    try:
        memory = mmap.mmap(-1, pages * _PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"a bitmap of {pages * _PAGE_BYTES} bytes: {error}") from error
    # A kernel without huge pages doesn't know the advice, and doesn't need it.
    with suppress(OSError):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint64), np.zeros(pages, np.uint8)
