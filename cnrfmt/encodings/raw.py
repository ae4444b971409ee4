"""The raw encoding: elements bit for bit as they were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.format.encoding import RawLayout


@dataclass(frozen=True)
class RawCoder:
    """Rows as they are; see `Coder` for what each method does."""

    layout: RawLayout

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows."""
        return dtypes.dtype_of(self.layout.dtype)

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` elements."""
        return self.layout.row_bytes(width)

    def encode(self, rows: Array) -> tuple[Bytes, Ids]:
        """A view of the rows where they are contiguous; every row can be held."""
        return _bytes_of(np.asarray(rows, self.dtype, order="C")), np.empty(0, np.int64)

    def decode_range(self, data: Bytes, offset: int, out: Array) -> None:
        """Copies the bytes."""
        target = _bytes_of(out)
        target[:] = data[offset : offset + len(target)]

    def decode_rows(self, data: Bytes, offsets: Ids, out: Array, targets: Ids) -> None:
        """Copies the bytes of each row."""
        from cnrfmt.kernels import rows as kernel

        row_bytes = self.row_bytes(out.shape[1])
        target = _bytes_of(out).reshape(len(out), row_bytes)
        kernel.gather_rows(data, offsets, row_bytes, target, targets)

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Raw rows have no padding."""
        return -1

    def find_parameter(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Raw rows have no parameters."""
        return -1


def _bytes_of(rows: Array) -> Bytes:
    """The memory of a C-contiguous array, without a copy."""
    if not rows.flags.c_contiguous:
        raise ValueError("rows must be C-contiguous: a copy would be filled instead of them")
    return rows.reshape(-1).view(np.uint8)
