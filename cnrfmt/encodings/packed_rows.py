"""Rows of codes in as little memory as goes without entropy coding, until it is known what is to be written of them."""

from __future__ import annotations

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids


class PackedRows:
    """Codes of rows, each as wide as its row needs, with the row's exponent; appended by one thread, then read.

    Parameters
    ----------
    width
        Elements of a row.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._chunks: list[tuple[Bytes, Bytes, Bytes]] = []
        self.exponents: Bytes = np.empty(0, np.uint8)
        self.widths: Bytes = np.empty(0, np.uint8)
        self._data: Bytes = np.empty(0, np.uint8)
        self._starts: Ids = np.zeros(1, np.int64)

    def append(self, exponents: Bytes, widths: Bytes, data: Bytes) -> None:
        """Appends rows; the arrays are kept."""
        self._chunks.append((exponents, widths, data))

    def join(self, other: PackedRows) -> None:
        """Appends the rows of another, which isn't sealed either."""
        self._chunks += other._chunks

    def seal(self) -> None:
        """Ends the appending."""
        if self._chunks:
            parts = [np.concatenate(part) for part in zip(*self._chunks, strict=True)]
            self.exponents, self.widths, self._data = parts
            self._chunks.clear()
        self._place()

    def _place(self) -> None:
        sizes = (self.widths.astype(np.int64) * self.width + 7) >> 3
        self._starts = np.concatenate(([0], np.cumsum(sizes)))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        kept = sum(a.nbytes for chunk in self._chunks for a in chunk)
        return kept + sum(a.nbytes for a in (self.exponents, self.widths, self._data, self._starts))

    def __len__(self) -> int:
        return len(self.widths)

    def codes(self, first: int, stop: int, out: Array, exponents: Bytes) -> None:
        """The codes of rows first .. stop - 1, (n, width) of int32, and their exponents."""
        from cnrfmt.kernels import integers as kernel

        start, end = int(self._starts[first]), int(self._starts[stop])
        exponents[:] = self.exponents[first:stop]
        kernel.unpack_rows(self._data[start:end], 0, self.widths[first:stop], np.zeros(stop - first, np.uint8), out)

    def only(self, kept: Ids) -> PackedRows:
        """The rows at these ascending positions, and no others."""
        found = PackedRows(self.width)
        found.exponents, found.widths = self.exponents[kept], self.widths[kept]
        found._place()
        # Rows without codes take no bytes, so that those which are left out are mostly nothing to leave out.
        sizes = np.diff(self._starts)
        if int(found._starts[-1]) == int(self._starts[-1]):
            found._data = self._data
        else:
            chosen = np.zeros(len(self), np.bool_)
            chosen[kept] = True
            found._data = self._data[np.repeat(chosen, sizes)]
        return found
