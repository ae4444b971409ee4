"""The row-wise encodings: codes of 8, 4 or 2 bits with a scale and a bias for each row.

Layout `tail` of the specification (section 6). The codes are those that inference operators choose
themselves, so that an encoded table is bit for bit what they would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.format.encoding import RowwiseLayout

_CHUNK = 4 << 20
"""Bytes of encoded rows that a check looks at in one step."""


@dataclass(frozen=True)
class RowwiseCoder:
    """Float32 rows as codes with scale and bias; see `Coder` for what each method does."""

    layout: RowwiseLayout

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return dtypes.dtype_of(self.layout.dtype)

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` elements, parameters included."""
        return self.layout.row_bytes(width)

    def encode(self, rows: Array) -> tuple[Bytes, Ids]:
        """Encodes; rows with a NaN or an infinity, or beyond the parameters' range, can't be held."""
        from cnrfmt.kernels import rowwise as kernel

        count, width = rows.shape
        rows = np.asarray(rows, self.dtype, order="C")
        out = np.empty((count, self.row_bytes(width)), np.uint8)
        bad = np.empty(count, np.uint8)
        if self.layout.bits == 8:
            failed = kernel.encode_rows_8(rows, out, bad)
        else:
            failed = kernel.encode_rows_nbit(rows, self.layout.bits, out, bad)
        positions = np.flatnonzero(bad) if failed else np.empty(0, np.int64)
        return out.reshape(-1), positions.astype(np.int64, copy=False)

    def decode_range(self, data: Bytes, offset: int, out: Array) -> None:
        """Decodes consecutive rows."""
        from cnrfmt.kernels import rowwise as kernel

        if self.layout.bits == 8:
            kernel.decode_range_8(data, offset, out)
        else:
            kernel.decode_range_nbit(data, offset, self.layout.bits, out)

    def decode_rows(self, data: Bytes, offsets: Ids, out: Array, targets: Ids) -> None:
        """Decodes rows from anywhere."""
        from cnrfmt.kernels import rowwise as kernel

        if self.layout.bits == 8:
            kernel.decode_rows_8(data, offsets, out, targets)
        else:
            kernel.decode_rows_nbit(data, offsets, self.layout.bits, out, targets)

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks the highest bits of the last code byte, which belong to no code."""
        used = width * self.layout.bits % 8
        if not used:
            return -1
        last = self.layout.code_bytes(width) - 1
        return self._first(data, offset, count, width, lambda rows: rows[:, last] >> used != 0)

    def find_parameter(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks that scale and bias are finite."""
        first = self.layout.code_bytes(width)
        parameter = dtypes.dtype_of(self.layout.parameter)

        def broken(rows: Bytes) -> npt.NDArray[np.bool_]:
            values = np.ascontiguousarray(rows[:, first:]).view(parameter)
            sound: npt.NDArray[np.bool_] = np.isfinite(values).all(axis=1)
            return ~sound

        return self._first(data, offset, count, width, broken)

    def _first(
        self,
        data: Bytes,
        offset: int,
        count: int,
        width: int,
        broken: Callable[[Bytes], npt.NDArray[np.bool_]],
    ) -> int:
        """The first row of which `broken` is true, looked for in chunks."""
        row_bytes = self.row_bytes(width)
        rows = data[offset : offset + count * row_bytes].reshape(count, row_bytes)
        step = max(1, _CHUNK // row_bytes)
        for start in range(0, count, step):
            found = broken(rows[start : start + step])
            if found.any():
                return start + int(np.argmax(found))
        return -1
