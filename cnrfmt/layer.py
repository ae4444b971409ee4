"""One layer of a chain: a part of a column, or tombstones, with its rows and their bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import coder
from cnrfmt.format.encoding import IntegerLayout, RawLayout
from cnrfmt.format.toc import Part, RowSet
from cnrfmt.part_integers import PartIntegers, is_run
from cnrfmt.segment_reader import SegmentReader

_STREAM = 64 << 10
"""Runs of stored bytes from this length on are read, the first time, rather than faulted into a mapping."""
_BATCH = 4096
"""Rows from anywhere that are fetched at a time."""
_SPARSE = 8
"""Where fewer than one row in so many is wanted, the others aren't read."""

Elements = tuple[int, int]
"""The first element of a range, and the end behind the last."""


@dataclass(frozen=True)
class Layer:
    """One part, or one set of tombstones, of the strips that it covers.

    Rows of a dense table from `limit` on were cut off by a newer step and don't count. `elements`, where a
    method takes them, are those of the strip; the part may be wider.
    """

    segment: SegmentReader
    row_set: RowSet
    part: Part | None
    limit: int
    integers: PartIntegers | None = field(init=False, repr=False, compare=False)
    """What the part says if it is under an integer encoding; None for other parts and tombstones."""

    def __post_init__(self) -> None:
        part, found = self.part, None
        if part is not None and isinstance(part.layout, IntegerLayout):
            found = PartIntegers(self.segment, part, self.row_set.count)
        object.__setattr__(self, "integers", found)

    @property
    def place(self) -> str:
        """Its segment, as errors name it."""
        return self.segment.place

    @property
    def is_range(self) -> bool:
        """Whether the rows are a range, without a row index."""
        return self.row_set.section is None

    @cached_property
    def ids(self) -> Ids:
        """The row ids, below the limit."""
        ids = self.segment.indexes.ids(self.row_set)
        return ids[: int(np.searchsorted(ids, self.limit))] if self.row_set.last >= self.limit else ids

    def load_ids(self) -> None:
        """Decodes the row index, if there is one, for everybody who asks later."""
        if self.part is None:
            self.segment.indexes.holds(self.row_set, np.empty(0, np.int64))
        elif not self.is_range:
            _ = self.ids

    @property
    def cost(self) -> int:
        """Bytes of memory that `load_ids` takes."""
        return self.segment.indexes.cost(self.row_set, whole=self.part is not None)

    @property
    def has_shared(self) -> bool:
        """Whether rows share anything: codebooks, or what the groups of integers have in common."""
        return self.integers is not None or (self.part is not None and self.part.codebooks is not None)

    @property
    def shared_cost(self) -> int:
        """Bytes of memory that `load_shared` takes."""
        if self.integers is not None:
            return self.integers.cost
        if self.part is None or "_codebooks" in self.__dict__:
            return 0
        # Their section, and each number as a float32.
        return 3 * self.part.layout.codebook_bytes(self.row_set.count)

    def load_shared(self) -> None:
        """Decodes what the rows share, for everybody who asks later."""
        if self.integers is not None:
            self.integers.load()
        else:
            _ = self._codebooks

    @property
    def stop(self) -> int:
        """Behind the last row of a range."""
        return min(self.row_set.last + 1, self.limit)

    def is_at_hand(self, position: int, count: int) -> bool:
        """Whether the stored bytes of consecutive rows are verified in a mapping, or few."""
        offset, length = self._span(position, count)
        return length < _STREAM or self.segment.is_verified(offset, length)

    def decode_range(self, position: int, out: Array, elements: Elements) -> None:
        """Decodes `len(out)` consecutive rows from a position in the row set."""
        part = self._part
        whole = out if part.elements == elements else self._whole_rows(len(out), out.dtype)
        offset, length = self._span(position, len(out))
        if length >= _STREAM and isinstance(part.layout, RawLayout):
            self.segment.read_into(offset, whole.reshape(-1).view(np.uint8))
        else:
            fetch = self.segment.fetch_range if self.is_at_hand(position, len(out)) else self.segment.read_scratch
            data, start = fetch(offset, length)
            coder(part.layout).decode_range(data, offset - start, whole, position, self._codebooks)
        if whole is not out:
            out[:] = self._cut(whole, elements)

    def decode_rows(self, positions: Ids, out: Array, targets: Ids, elements: Elements) -> None:
        """Decodes the rows at these positions of the row set into the rows `targets` of `out`."""
        part = self._part
        offsets = self.segment.toc.sections[part.section][0] + part.layout.offsets(positions, part.width)
        # A batch touches a bounded number of pieces, however short the rows are.
        for start in range(0, len(offsets), _BATCH):
            batch = slice(start, start + _BATCH)
            data, found = self.segment.fetch_rows(offsets[batch], part.row_bytes)
            self._decode(data, found, out, targets[batch], positions[batch], elements)

    def copy_near(self, positions: Ids, out: Bytes, targets: Ids) -> None:
        """Copies the stored bytes of rows at ascending positions into the rows `targets` of `out`, (n, row bytes).

        Only for layouts whose rows stand alone.
        """
        from cnrfmt.kernels import rows as kernel

        part = self._part
        section, row_bytes = self.segment.toc.sections[part.section][0], part.row_bytes
        first, last, count = int(positions[0]), int(positions[-1]), len(positions)
        if count * _SPARSE >= last - first:
            data, start = self.segment.read_scratch(*self._span(first, last - first + 1))
            kernel.gather_rows(data, positions * row_bytes + (section - start), row_bytes, out, targets)
            return
        for begin in range(0, count, _BATCH):
            batch = slice(begin, begin + _BATCH)
            data, found = self.segment.fetch_rows(section + positions[batch] * row_bytes, row_bytes)
            kernel.gather_rows(data, found, row_bytes, out, targets[batch])

    def read_range(self, position: int, out: Bytes) -> None:
        """Copies the stored bytes of consecutive rows from a position in the row set, (n, row bytes)."""
        self.segment.read_into(self._span(position, len(out))[0], out.reshape(-1))

    def decode_near(self, positions: Ids, out: Array, targets: Ids, elements: Elements) -> None:
        """The same for ascending positions that lie close together: all between them is read in one go."""
        part = self._part
        first, last = int(positions[0]), int(positions[-1])
        offset, length = self._span(first, last - first + 1)
        if length < _STREAM or len(positions) * _SPARSE < last - first:
            self.decode_rows(positions, out, targets, elements)
        else:
            data, start = self.segment.read_scratch(offset, length)
            section = self.segment.toc.sections[part.section][0]
            offsets = part.layout.offsets(positions, part.width) + (section - start)
            self._decode(data, offsets, out, targets, positions, elements)

    def decode_any(self, positions: Ids, out: Array, targets: Ids, elements: Elements) -> None:
        """The same for any positions, in the way that suits them."""
        if is_run(positions) and is_run(targets):
            first = int(targets[0])
            self.decode_range(int(positions[0]), out[first : first + len(targets)], elements)
        elif len(positions) > 1 and (positions[1:] > positions[:-1]).all():
            self.decode_near(positions, out, targets, elements)
        else:
            self.decode_rows(positions, out, targets, elements)

    @property
    def _part(self) -> Part:
        assert self.part is not None
        return self.part

    @cached_property
    def _codebooks(self) -> Array | None:
        """What the rows share, decoded and kept."""
        if self._part.codebooks is None:
            return None
        return coder(self._part.layout).codebooks(self.segment.section(self._part.codebooks))

    def _span(self, position: int, count: int) -> tuple[int, int]:
        start, length = self._part.layout.span(position, count, self._part.width)
        return self.segment.toc.sections[self._part.section][0] + start, length

    def _decode(
        self, data: Bytes, offsets: Ids, out: Array, targets: Ids, positions: Ids, elements: Elements
    ) -> None:
        code = coder(self._part.layout)
        if self._part.elements == elements:
            code.decode_rows(data, offsets, out, targets, positions, self._codebooks)
            return
        whole = self._whole_rows(len(offsets), out.dtype)
        slots = np.arange(len(offsets), dtype=np.int64)
        code.decode_rows(data, offsets, whole, slots, positions, self._codebooks)
        out[targets] = self._cut(whole, elements)

    def _whole_rows(self, count: int, dtype: np.dtype[Any]) -> Array:
        return np.empty((count, self._part.width), dtype)

    def _cut(self, whole: Array, elements: Elements) -> Array:
        first = self._part.elements[0]
        return whole[:, elements[0] - first : elements[1] - first]
