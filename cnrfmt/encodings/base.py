"""What every encoding can do, and which one belongs to a layout."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.raw import RawCoder
from cnrfmt.encodings.rowwise import RowwiseCoder
from cnrfmt.format.encoding import Layout, RawLayout


class Coder(Protocol):
    """Encodes and decodes the rows of a part under one layout. Immutable; safe to use from many threads.

    `data` are bytes as a 1-D uint8 array, which may be read-only; the caller answers for its holding every row
    that is asked for. Decoded rows go into `out`, a C-contiguous (n, width) array of `dtype`.
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows."""

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` elements."""

    def encode(self, rows: Array) -> tuple[Bytes, Ids]:
        """The bytes of rows (n, width) of `dtype`, and the positions of those that the encoding can't hold.

        The slots of such rows are zero bytes. The bytes may be a view of the rows.
        """

    def decode_range(self, data: Bytes, offset: int, out: Array) -> None:
        """Decodes the rows that follow each other in `data` from `offset` on."""

    def decode_rows(self, data: Bytes, offsets: Ids, out: Array, targets: Ids) -> None:
        """Decodes the row at ``offsets[i]`` of `data` into ``out[targets[i]]``, for each i."""

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """The first of `count` rows from `offset` on that breaks the rule `code-padding`; -1 if none does."""

    def find_parameter(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """The first of `count` rows from `offset` on that breaks the rule `row-parameter`; -1 if none does."""


@cache
def coder(layout: Layout) -> Coder:
    """The encoding that stores rows under this layout."""
    if isinstance(layout, RawLayout):
        return RawCoder(layout)
    return RowwiseCoder(layout)
