"""Codes that are places in codebooks, chosen by k-means (specification, section 6.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.base import Coder, Encoded
from cnrfmt.encodings.checks import Flags, finite, first_row, padding_of_codes
from cnrfmt.encodings.errors import KINDS, measured, take_out, total
from cnrfmt.format.encoding import CodebookLayout
from cnrfmt.format.scheme import Scheme


@dataclass(frozen=True)
class CodebookCoder(Coder):
    """Rows of codes with or without their codebook; see `Coder` for what each method does."""

    layout: CodebookLayout

    def codebooks(self, section: Bytes) -> Array:
        """Widens the numbers of shared codebooks."""
        numbers = section.view(dtypes.dtype_of(self.layout.values)).astype(np.float32)
        return numbers.reshape(-1, 1 << self.layout.bits)

    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Decodes consecutive rows."""
        from cnrfmt.kernels import codebooks as kernel

        layout = self.layout
        if books is None or layout.block is None:
            kernel.decode_range(data, offset, layout.bits, KINDS[layout.values], out)
        else:
            kernel.decode_range_shared(
                data, offset, position, layout.bits, _bytes_of(books), 0, 0, layout.block, out
            )

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
        from cnrfmt.kernels import codebooks as kernel

        layout = self.layout
        if books is None or positions is None or layout.block is None:
            kernel.decode_rows(data, offsets, layout.bits, KINDS[layout.values], out, targets)
        else:
            kernel.decode_rows_shared(
                data, offsets, positions, layout.bits, _bytes_of(books), 0, 0, layout.block, out, targets
            )

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks the highest bits of the last code byte, which belong to no code."""
        row_bytes = self.layout.row_bytes(width)
        return padding_of_codes(data, offset, count, row_bytes, row_bytes - 1, width * self.layout.bits % 8)

    def find_parameter(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks that the rows' own codebooks are finite."""
        if self.layout.block is not None:
            return -1
        kind, size = dtypes.dtype_of(self.layout.values), self.layout.book_bytes

        def broken(rows: Bytes) -> Flags:
            return ~finite(np.ascontiguousarray(rows[:, :size]).view(kind))

        return first_row(data, offset, count, self.layout.row_bytes(width), broken)


@dataclass(frozen=True)
class CodebookEncoder:
    """Chooses each codebook by exact k-means in one dimension; rows that it can't hold are left out of it."""

    layout: CodebookLayout
    scheme: Scheme

    @property
    def step(self) -> int:
        """The rows of a codebook."""
        return self.layout.block or 1

    def encode(self, rows: Array) -> Encoded:
        """Encodes whole blocks, the last of which may be shorter."""
        from cnrfmt.kernels import codebooks as kernel

        rows = np.asarray(rows, np.float32, order="C")
        count, width = rows.shape
        layout, kind = self.layout, KINDS[self.layout.values]
        block = self.step
        books = np.empty((-(-count // block), 1 << layout.bits), np.float32)
        bad = np.empty(count, np.uint8)
        out = np.zeros((count, layout.row_bytes(width)), np.uint8)
        shared: Bytes | None = None
        decoded = np.empty_like(rows)
        if layout.block is None:
            kernel.choose_codebooks(rows, layout.bits, kind, books, bad)
            kernel.encode_codes(rows, books, bad, layout.bits, 1, 0, layout.book_bytes, out)
            kernel.write_codebooks(books, kind, out)
            kernel.decode_range(out.reshape(-1), 0, layout.bits, kind, decoded)
        else:
            kernel.choose_shared(rows, layout.bits, kind, block, books, bad)
            kernel.encode_codes(rows, books, bad, layout.bits, block, 0, 0, out)
            numbers = np.empty((len(books), layout.book_bytes), np.uint8)
            kernel.write_codebooks(books, kind, numbers)
            shared = numbers.reshape(-1)
            kernel.decode_range_shared(out.reshape(-1), 0, 0, layout.bits, shared, 0, kind, block, decoded)
        errors = measured(rows, decoded)
        take_out(errors, bad, self.scheme.bound)
        out[bad != 0] = 0
        return Encoded(out.reshape(-1), np.flatnonzero(bad).astype(np.int64, copy=False), *total(errors), shared)


def _bytes_of(numbers: Array) -> Bytes:
    return numbers.reshape(-1).view(np.uint8)
