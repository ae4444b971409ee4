"""What a segment writes of a table: rows of columns, to be encoded or encoded already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import Encoded, Recipe
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.scheme import Errors
from cnrfmt.inputs import Source2D


@dataclass(frozen=True)
class RowIds:
    """The rows that a segment writes of a table.

    `ids` is None for the rows first .. first+count-1 of a dense table; otherwise the sorted ids. `order` says which
    row of the sources belongs to each, None if the sources are in that order already.
    """

    count: int
    ids: Ids | None = None
    order: Ids | None = None
    first: int = 0

    @property
    def is_range(self) -> bool:
        """Whether the ids have no gaps."""
        return self.ids is None or int(self.ids[-1]) - int(self.ids[0]) == self.count - 1


class EncodedRows(ABC):
    """Rows that are encoded already: their bytes are written as they are."""

    dtype: np.dtype[Any]
    errors: Errors | None
    """What encoding did to them, once; None if `encoded` tells it, chunk by chunk."""

    @abstractmethod
    def encoded(self, start: int, stop: int) -> Encoded:
        """The bytes of rows start .. stop - 1, and which of them, from `start` on, the encoding doesn't hold.

        The slots of such rows are zero bytes. Each chunk of `chunk_rows` is asked for once, in order, but from several
        threads.
        """

    @abstractmethod
    def take(self, positions: Ids) -> Array:
        """The decoded rows at these positions, C-contiguous; of rows that the encoding doesn't hold, the exact ones."""

    def written(self, start: int) -> None:  # noqa: B027  Most have nothing to let go.
        """Says that the chunk from `start` on is written: its bytes may be let go."""


@dataclass(frozen=True)
class ColumnWrite:
    """A column's new values, one row per id, and how to store them.

    `rows` are its own where they aren't those of its table; `elements` where they aren't all.
    """

    column: ColumnSchema
    source: Source2D | EncodedRows
    recipe: Recipe
    rows: RowIds | None = None
    elements: tuple[int, int] | None = None

    def range_of(self, dim: int) -> tuple[int, int]:
        """The elements that it writes."""
        return self.elements or (0, self.column.width(dim))


class EncodedColumn(NamedTuple):
    """A part that is encoded already: its whole section.

    `bad` are the positions of the rows that it doesn't hold, ascending, whose slots are zero; `exact` are these rows.
    """

    column: ColumnSchema
    elements: tuple[int, int]
    recipe: Recipe
    errors: Errors
    data: Bytes
    bad: Ids
    exact: Array


class SliceSections(NamedTuple):
    """What a slice became: its rows, which may be none, and a part for each column."""

    rows: RowIds
    columns: tuple[EncodedColumn, ...]


class Slice(Protocol):
    """Some rows of a table, in all their columns, of which it isn't known yet how many bytes they take."""

    def sections(self) -> SliceSections:
        """Encodes them. Asked for once, in order, but from several threads and ahead of time."""

    def written(self) -> None:
        """Says that all is written and may be let go."""


@dataclass(frozen=True)
class TableWrite:
    """What a segment writes of one table: columns of which the rows are known, and slices of rows."""

    schema: TableSchema
    rows: RowIds | None = None
    columns: tuple[ColumnWrite, ...] = ()
    deleted: Ids | None = None
    slices: tuple[Slice, ...] = ()

    @property
    def data_bytes(self) -> int:
        """How many bytes the parts will take, exceptions and row indexes aside."""
        found = 0
        for write in self.columns:
            rows = write.rows or self.rows
            first, end = write.range_of(self.schema.dim)
            if rows is not None:
                found += write.recipe.layout.section_bytes(rows.count, end - first)
                found += write.recipe.layout.codebook_bytes(rows.count)
        return found
