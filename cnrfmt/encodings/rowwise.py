"""The row-wise encodings: codes of 2 to 8 bits with scales and biases (specification, section 6.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.base import Coder
from cnrfmt.encodings.checks import Flags, finite, first_row, padding_of_codes
from cnrfmt.encodings.errors import KINDS
from cnrfmt.format.encoding import RowwiseLayout

_NO_BIAS = -1


Geometry = tuple[int, int, int, int, int, int, int, int]
"""What kernels are told of a layout: bits, group, three offsets in a row, kinds of scale and bias, row bytes."""


def geometry(layout: RowwiseLayout, width: int) -> Geometry:
    """Where rows of `width` elements have what."""
    scale_kind, bias_kind = KINDS[layout.scale], _NO_BIAS if layout.bias is None else KINDS[layout.bias]
    group = width if layout.group is None else min(layout.group, width)
    return layout.bits, group, *layout.places(width), scale_kind, bias_kind, layout.row_bytes(width)


@dataclass(frozen=True)
class RowwiseCoder(Coder):
    """Rows of codes with parameters; see `Coder` for what each method does."""

    layout: RowwiseLayout

    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Decodes consecutive rows."""
        from cnrfmt.kernels import layouts, rowwise

        layout = self.layout
        if layout.placement != "tail":
            layouts.decode_range(data, offset, *geometry(layout, out.shape[1]), out)
        elif layout.bits == 8:
            rowwise.decode_range_8(data, offset, out)
        else:
            rowwise.decode_range_nbit(data, offset, layout.bits, out)

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
        from cnrfmt.kernels import layouts, rowwise

        layout = self.layout
        if layout.placement != "tail":
            layouts.decode_rows(data, offsets, *geometry(layout, out.shape[1]), out, targets)
        elif layout.bits == 8:
            rowwise.decode_rows_8(data, offsets, out, targets)
        else:
            rowwise.decode_rows_nbit(data, offsets, layout.bits, out, targets)

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks the highest bits of the last code byte, and the bytes that follow it in the layout `head`."""
        layout = self.layout
        row_bytes, codes_at = layout.row_bytes(width), layout.places(width)[0]
        end = codes_at + layout.code_bytes(width)
        found = padding_of_codes(data, offset, count, row_bytes, end - 1, width * layout.bits % 8)
        if layout.placement != "head":
            return found
        other = first_row(data, offset, count, row_bytes, lambda rows: np.asarray(rows[:, end:].any(axis=1)))
        return min(found, other) if found >= 0 and other >= 0 else max(found, other)

    def find_parameter(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """Checks that scales and biases are finite."""
        layout, groups = self.layout, self.layout.groups(width)
        _, scales_at, biases_at = layout.places(width)
        places = [(scales_at, dtypes.dtype_of(layout.scale))]
        if layout.bias is not None:
            places.append((biases_at, dtypes.dtype_of(layout.bias)))

        def broken(rows: Bytes) -> Flags:
            found = np.zeros(len(rows), np.bool_)
            for at, kind in places:
                found |= ~finite(np.ascontiguousarray(rows[:, at : at + groups * kind.itemsize]).view(kind))
            return found

        return first_row(data, offset, count, layout.row_bytes(width), broken)
