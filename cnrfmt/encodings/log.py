"""Logarithmic codes of one value per row, which stand one after the other (specification, section 6.5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.base import Coder, Encoded
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.errors import measured, take_out, total
from cnrfmt.format.encoding import LogLayout
from cnrfmt.format.scheme import Scheme

_HALF_BYTE = 4


@dataclass(frozen=True)
class LogCoder(Coder):
    """Rows of one value; see `Coder` for what each method does. With 12 bits, two rows share a byte."""

    layout: LogLayout

    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Decodes consecutive rows."""
        from cnrfmt.kernels import logs as kernel

        layout = self.layout
        kernel.decode_range(data, offset, position, layout.bits, layout.base, layout.shift, out.reshape(-1))

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
        from cnrfmt.kernels import logs as kernel

        layout = self.layout
        # Without positions, which the rows of whole bytes can do without, any will do.
        positions = targets if positions is None else positions
        kernel.decode_rows(
            data, offsets, positions, layout.bits, layout.base, layout.shift, out.reshape(-1), targets
        )

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks the half byte that is left over of an odd number of rows."""
        if count * self.layout.bits % 8 == 0:
            return -1
        last = offset + count * self.layout.bits // 8
        return count - 1 if data[last] >> _HALF_BYTE else -1

    def are_zero(self, data: Bytes, offsets: Ids, positions: Ids, width: int) -> Flags:
        """Looks at the codes."""
        first = data[offsets]
        second = np.zeros_like(first) if self.layout.bits == 8 else data[offsets + 1]
        if not self.layout.stands_alone:
            odd = positions & 1 == 1
            first = np.where(odd, first >> _HALF_BYTE, first)
            second = np.where(odd, second, second & 0xF)
        found: Flags = (first | second) == 0
        return found


@dataclass(frozen=True)
class LogEncoder:
    """Chooses the nearest codes; rows that are negative, not finite, or out of the codes' reach, can't be held."""

    layout: LogLayout
    scheme: Scheme

    @property
    def step(self) -> int:
        """Two by two, so that whole bytes are made."""
        return 2

    def encode(self, rows: Array) -> Encoded:
        """Encodes; rows that are off by more than the bound are taken out and all are encoded again."""
        values = np.asarray(rows, np.float32, order="C").reshape(-1)
        out, bad, errors, beyond = self._encode(values)
        if beyond.any():
            out, bad, errors, _ = self._encode(np.where(beyond, np.float32(np.nan), values))
        return Encoded(out, np.flatnonzero(bad).astype(np.int64, copy=False), *total(errors))

    def _encode(self, values: Array) -> tuple[Bytes, Bytes, Array, Flags]:
        from cnrfmt.kernels import logs as kernel

        layout = self.layout
        out = np.empty(layout.section_bytes(len(values), 1), np.uint8)
        bad = np.empty(len(values), np.uint8)
        kernel.encode(values, layout.bits, layout.base, layout.shift, out, bad)
        decoded = np.empty_like(values)
        kernel.decode_range(out, 0, 0, layout.bits, layout.base, layout.shift, decoded)
        errors = measured(values.reshape(-1, 1), decoded.reshape(-1, 1))
        return out, bad, errors, take_out(errors, bad, self.scheme.bound)
