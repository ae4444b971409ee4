"""What every encoding can do: the way back from bytes to rows, and the way there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings.checks import Flags, zero_rows
from cnrfmt.errors import UsageError
from cnrfmt.format.encoding import CastLayout, CodebookLayout, GridLayout, Layout, LogLayout, RawLayout
from cnrfmt.format.scheme import Scheme

_KEPT = 1024


class Coder(ABC):
    """Decodes the rows of a part under one layout. Immutable; safe to use from many threads.

    `data` are bytes as a 1-D uint8 array, which may be read-only; the caller answers for its holding every row
    that is asked for. Decoded rows go into `out`, a C-contiguous (n, width) array of `dtype`. `books` is what
    `codebooks` gave for the part, None where its rows share none.
    """

    layout: Layout

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows."""
        return dtypes.dtype_of(self.layout.dtype)

    def codebooks(self, section: Bytes) -> Array:
        """The numbers of shared codebooks, (codebooks, numbers) of float32, from their section."""
        raise NotImplementedError

    @abstractmethod
    def decode_range(self, data: Bytes, offset: int, out: Array, position: int = 0, books: Array | None = None) -> None:
        """Decodes consecutive rows of a part, the first of which is at `position` and begins at `offset` of `data`."""

    @abstractmethod
    def decode_rows(
        self,
        data: Bytes,
        offsets: Ids,
        out: Array,
        targets: Ids,
        positions: Ids | None = None,
        books: Array | None = None,
    ) -> None:
        """Decodes the row at ``positions[i]``, which begins at ``offsets[i]`` of `data`, into ``out[targets[i]]``.

        `positions` may be left out where the layout's rows stand alone.
        """

    def find_padding(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """The first of `count` rows from `offset` on that breaks the rule `code-padding`; -1 if none does."""
        return -1

    def find_parameter(self, data: Bytes, offset: int, count: int, width: int) -> int:
        """The first of `count` rows from `offset` on that breaks the rule `row-parameter`; -1 if none does."""
        return -1

    def are_zero(self, data: Bytes, offsets: Ids, positions: Ids, width: int) -> Flags:
        """Of which of these rows the slot is zero; shared codebooks don't count."""
        return zero_rows(data, offsets, self.layout.row_bytes(width))


class Recipe(NamedTuple):
    """How a column's rows are to be stored: their layout, and how codes are chosen. Raw rows have no scheme."""

    layout: Layout
    scheme: Scheme | None = None


class Encoded(NamedTuple):
    """Encoded rows.

    The slots of rows in `bad`, which the encoding can't hold, are zero. `error_sum` and `worst_error` are those of
    the relative l2 errors of the other rows. `codebooks` is what follows in the section of shared ones.
    """

    data: Bytes
    bad: Ids
    error_sum: float = 0.0
    worst_error: float = 0.0
    codebooks: Bytes | None = None


class Encoder(Protocol):
    """Encodes rows as a recipe says. Immutable; safe to use from many threads."""

    @property
    def step(self) -> int:
        """Rows are encoded so many at a time, or a multiple of it; but for the last ones of a part."""

    def encode(self, rows: Array) -> Encoded:
        """Encodes rows (n, width). The bytes may be a view of the rows; they don't depend on the number of threads."""


# Bounded, since each part of logarithmic codes has a layout of its own.
@lru_cache(maxsize=_KEPT)
def coder(layout: Layout) -> Coder:
    """What decodes rows that are stored under this layout to values.

    Raises `UsageError` for residual parts, and those in groups: their integers are decoded by an `IntegerCoder`.
    """
    from cnrfmt.encodings.cast import CastCoder
    from cnrfmt.encodings.codebook import CodebookCoder
    from cnrfmt.encodings.fixed_grid import FixedGridCoder
    from cnrfmt.encodings.log import LogCoder
    from cnrfmt.encodings.raw import RawCoder
    from cnrfmt.encodings.rowwise import RowwiseCoder

    if layout.is_residual or layout.is_grouped:
        raise UsageError(f"rows under {layout} have no values of their own, or aren't stored one by one")
    if isinstance(layout, GridLayout):
        return FixedGridCoder(layout)
    if isinstance(layout, RawLayout):
        return RawCoder(layout)
    if isinstance(layout, CastLayout):
        return CastCoder(layout)
    if isinstance(layout, CodebookLayout):
        return CodebookCoder(layout)
    if isinstance(layout, LogLayout):
        return LogCoder(layout)
    return RowwiseCoder(layout)


@lru_cache(maxsize=_KEPT)
def encoder(recipe: Recipe) -> Encoder:
    """What encodes rows as this recipe says; raises `UsageError` for grids and for parts in groups."""
    from cnrfmt.encodings.cast import CastEncoder
    from cnrfmt.encodings.codebook import CodebookEncoder
    from cnrfmt.encodings.log import LogEncoder
    from cnrfmt.encodings.raw import RawEncoder
    from cnrfmt.encodings.rowwise_encoder import RowwiseEncoder

    layout, scheme = recipe
    if isinstance(layout, GridLayout) or layout.is_grouped:
        raise UsageError(f"rows under {layout} are encoded together, as sections of integers")
    if isinstance(layout, RawLayout):
        return RawEncoder(layout)
    assert scheme is not None
    if isinstance(layout, CastLayout):
        return CastEncoder(layout, scheme)
    if isinstance(layout, CodebookLayout):
        return CodebookEncoder(layout, scheme)
    if isinstance(layout, LogLayout):
        return LogEncoder(layout, scheme)
    return RowwiseEncoder(layout, scheme)
