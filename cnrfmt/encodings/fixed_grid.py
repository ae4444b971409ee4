"""Values of absolute grid parts whose codes are equally wide (specification, section 6.7): rows that stand alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.base import Coder
from cnrfmt.encodings.checks import padding_of_codes
from cnrfmt.encodings.integers import integer_coder, values
from cnrfmt.format.encoding import GridLayout

_PLACE = "a grid part"
"""Coders aren't told where their bytes are."""


@dataclass(frozen=True)
class FixedGridCoder(Coder):
    """See `Coder` for what each method does; decoding raises `DamagedError` (``grid-codes``, ``code-padding``)."""

    layout: GridLayout

    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Decodes consecutive rows, the integers in the place of their values."""
        count, width = out.shape
        integers = out.view(np.int32)
        integer_coder(self.layout, position + count, width, _PLACE).opened(data[:0], 0).decode(
            data, offset, position, integers
        )
        values(self.layout, integers, out)

    def decode_rows(
        self,
        data: Bytes,
        offsets: Ids,
        out: Array,
        targets: Ids,
        positions: Ids | None = None,
        books: Array | None = None,
    ) -> None:
        """Decodes rows from anywhere."""
        count, width = len(offsets), out.shape[1]
        # What is all the same for rows of whole bytes.
        slots = np.arange(count, dtype=np.int64)
        rows = np.empty((count, width), np.float32)
        integers = rows.view(np.int32)
        integer_coder(self.layout, count, width, _PLACE).opened(data[:0], 0).decode_at(
            data, offsets, slots if positions is None else positions, integers, slots
        )
        values(self.layout, integers, rows)
        out[targets] = rows

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks the bits behind the last code."""
        assert self.layout.bits is not None
        row_bytes = self.layout.row_bytes(width)
        return padding_of_codes(data, offset, count, row_bytes, row_bytes - 1, width * self.layout.bits % 8)
