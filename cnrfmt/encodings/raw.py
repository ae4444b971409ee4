"""The raw encoding: elements bit for bit as they were given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.base import Coder, Encoded
from cnrfmt.format.encoding import RawLayout


@dataclass(frozen=True)
class RawCoder(Coder):
    """Rows as they are; see `Coder` for what each method does."""

    layout: RawLayout

    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Copies the bytes."""
        target = _bytes_of(out)
        target[:] = data[offset : offset + len(target)]

    def decode_rows(
        self,
        data: Bytes,
        offsets: Ids,
        out: Array,
        targets: Ids,
        positions: Ids | None = None,
        books: Array | None = None,
    ) -> None:
        """Copies the bytes of each row."""
        from cnrfmt.kernels import rows as kernel

        row_bytes = self.layout.row_bytes(out.shape[1])
        target = _bytes_of(out).reshape(len(out), row_bytes)
        kernel.gather_rows(data, offsets, row_bytes, target, targets)


@dataclass(frozen=True)
class RawEncoder:
    """Rows as they are."""

    layout: RawLayout

    @property
    def step(self) -> int:
        """Each row by itself."""
        return 1

    def encode(self, rows: Array) -> Encoded:
        """A view of the rows where they are contiguous; every row can be held."""
        rows = np.asarray(rows, dtypes.dtype_of(self.layout.dtype), order="C")
        return Encoded(_bytes_of(rows), np.empty(0, np.int64))


def _bytes_of(rows: Array) -> Bytes:
    """The memory of a C-contiguous array, without a copy."""
    if not rows.flags.c_contiguous:
        raise ValueError("rows must be C-contiguous: a copy would be filled instead of them")
    return rows.reshape(-1).view(np.uint8)
