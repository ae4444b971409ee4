"""Which bytes give each row: a chain resolved by row sets, newest first, each row decoded once.

This follows section 8 of the specification. A column is cut into *strips*, ranges of elements that no part
divides; within a strip the chain is a list of *layers*, from the newest to the oldest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import coder
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import Part, RowSet, TableEntry
from cnrfmt.segment_reader import SegmentReader

_STREAM = 64 << 10
"""Runs of stored bytes from this length on are read rather than faulted into a mapping."""
_BATCH = 4096
"""Rows from anywhere that are fetched at a time."""
_SPARSE = 8
"""Where fewer than one row in so many is wanted, the others aren't read."""


@dataclass(frozen=True)
class Layer:
    """One part, or one set of tombstones, of a strip.

    Rows of a dense table from `limit` on were cut off by a newer step and don't count. `elements` are
    those of the strip; a part may be wider.
    """

    segment: SegmentReader
    row_set: RowSet
    part: Part | None
    limit: int
    elements: tuple[int, int]

    @property
    def is_range(self) -> bool:
        """Whether the rows are a range, without a row index."""
        return self.row_set.section is None

    @cached_property
    def ids(self) -> Ids:
        """The row ids, below the limit."""
        ids = self.segment.ids(self.row_set)
        return ids[: int(np.searchsorted(ids, self.limit))] if self.row_set.last >= self.limit else ids

    def load_ids(self) -> None:
        """Decodes the row index, if there is one, for everybody who asks later."""
        if not self.is_range:
            _ = self.ids

    @property
    def stop(self) -> int:
        """Behind the last row of a range."""
        return min(self.row_set.last + 1, self.limit)

    def decode_range(self, position: int, out: Array) -> None:
        """Decodes `len(out)` consecutive rows from a position in the row set."""
        assert self.part is not None
        whole = out if self.part.elements == self.elements else self._whole_rows(len(out), out.dtype)
        offset, length = self._span(position, len(out))
        if length >= _STREAM and isinstance(self.part.layout, RawLayout):
            self.segment.read_into(offset, whole.reshape(-1).view(np.uint8))
        else:
            fetch = self.segment.fetch_range if length < _STREAM else self.segment.read_scratch
            data, start = fetch(offset, length)
            coder(self.part.layout).decode_range(data, offset - start, whole)
        if whole is not out:
            out[:] = self._cut(whole)

    def decode_rows(self, positions: Ids, out: Array, targets: Ids) -> None:
        """Decodes the rows at these positions of the row set into the rows `targets` of `out`."""
        assert self.part is not None
        row_bytes = self.part.row_bytes
        offsets = self.segment.toc.sections[self.part.section][0] + positions * row_bytes
        # A batch touches a bounded number of pieces, however short the rows are.
        for start in range(0, len(offsets), _BATCH):
            batch = slice(start, start + _BATCH)
            data, found = self.segment.fetch_rows(offsets[batch], row_bytes)
            self._decode(data, found, out, targets[batch])

    def decode_near(self, positions: Ids, out: Array, targets: Ids) -> None:
        """The same for ascending positions that lie close together: all between them is read in one go."""
        assert self.part is not None
        first, last = int(positions[0]), int(positions[-1])
        offset, length = self._span(first, last - first + 1)
        if length < _STREAM or len(positions) * _SPARSE < last - first:
            self.decode_rows(positions, out, targets)
        else:
            data, start = self.segment.read_scratch(offset, length)
            self._decode(data, (positions - first) * self.part.row_bytes + (offset - start), out, targets)

    def _span(self, position: int, count: int) -> tuple[int, int]:
        assert self.part is not None
        row_bytes = self.part.row_bytes
        return self.segment.toc.sections[self.part.section][0] + position * row_bytes, count * row_bytes

    def _decode(self, data: Bytes, offsets: Ids, out: Array, targets: Ids) -> None:
        assert self.part is not None
        code = coder(self.part.layout)
        if self.part.elements == self.elements:
            code.decode_rows(data, offsets, out, targets)
            return
        whole = self._whole_rows(len(offsets), out.dtype)
        code.decode_rows(data, offsets, whole, np.arange(len(offsets), dtype=np.int64))
        out[targets] = self._cut(whole)

    def _whole_rows(self, count: int, dtype: np.dtype[Any]) -> Array:
        assert self.part is not None
        return np.empty((count, self.part.elements[1] - self.part.elements[0]), dtype)

    def _cut(self, whole: Array) -> Array:
        assert self.part is not None
        first = self.part.elements[0]
        return whole[:, self.elements[0] - first : self.elements[1] - first]


@dataclass(frozen=True)
class Strip:
    """A range of elements of a column, and its layers from the newest to the oldest."""

    first: int
    end: int
    layers: tuple[Layer, ...]
    fill: Array

    def read_range(self, start: int, out: Array) -> None:
        """Decodes the rows start .. start + len(out) - 1 of a dense table into `out` (rows x elements)."""
        stop = start + len(out)
        for layer in self.layers:
            if layer.is_range:
                if layer.row_set.first <= start and stop <= layer.stop:
                    layer.decode_range(start - layer.row_set.first, out)
                    return
                if layer.row_set.first < stop and start < layer.stop:
                    break
            else:
                ids = layer.ids
                if np.searchsorted(ids, start) < np.searchsorted(ids, stop):
                    break
        else:
            out[:] = self.fill
            return
        self._read_claims(start, out)

    def _read_claims(self, start: int, out: Array) -> None:
        from cnrfmt.kernels import rows as kernel

        count = len(out)
        stop = start + count
        claimed = np.zeros(count, np.uint8)
        positions, targets = np.empty(count, np.int64), np.empty(count, np.int64)
        picked: list[tuple[Layer, Ids, Ids]] = []
        left = count
        floor = None
        for layer in self.layers:
            if layer.is_range:
                a, b = max(start, layer.row_set.first), min(stop, layer.stop)
                if a >= b:
                    continue
                if (a, b) == (start, stop) and 2 * left >= count:
                    # Most rows are this layer's: it is decoded as a run, and the newer rows are put over it.
                    floor, left = layer, 0
                    break
                n = kernel.unclaimed(claimed[a - start : b - start], targets)
                claimed[a - start : b - start] = 1
                targets[:n] += a - start
                np.add(targets[:n], start - layer.row_set.first, out=positions[:n])
            else:
                a, b = np.searchsorted(layer.ids, (start, stop))
                if a == b:
                    continue
                n = kernel.claim(layer.ids[a:b], start, claimed, positions, targets)
                positions[:n] += a
            if n:
                picked.append((layer, positions[:n].copy(), targets[:n].copy()))
                left -= n
                if not left:
                    break
        if floor is not None:
            floor.decode_range(start - floor.row_set.first, out)
        elif left:
            n = kernel.unclaimed(claimed, targets)
            out[targets[:n]] = self.fill
        for layer, found, into in picked:
            layer.decode_near(found, out, into)

    def read_ids(self, ids: Ids, out: Array) -> None:
        """Decodes the rows of these ids, in any order and with repeats, into `out`."""
        from cnrfmt.kernels import rows as kernel

        wanted, targets = ids, np.arange(len(ids), dtype=np.int64)
        for layer in self.layers:
            if not len(wanted):
                return
            if layer.is_range:
                positions = wanted - layer.row_set.first
                found = (positions >= 0) & (wanted < layer.stop)
            else:
                positions = np.empty(len(wanted), np.int64)
                kernel.find(layer.ids, wanted, positions)
                found = positions >= 0
            if found.all():
                hits, hit_targets = positions, targets
                wanted = targets = targets[:0]
            else:
                hits, hit_targets = positions[found], targets[found]
                wanted, targets = wanted[~found], targets[~found]
            if not len(hits):
                continue
            if layer.part is None:
                out[hit_targets] = self.fill
            else:
                layer.decode_rows(hits, out, hit_targets)
        if len(wanted):
            out[targets] = self.fill


Steps = Sequence[Sequence[tuple[SegmentReader, TableEntry]]]
"""The steps of a chain from the oldest to the newest, each with what its segments say of one table."""


def strips(schema: TableSchema, column: ColumnSchema, steps: Steps, fill: Array) -> list[Strip]:
    """The strips of a column."""
    width = column.width(schema.dim)
    cuts = {0, width}
    for step in steps:
        for _, entry in step:
            cuts.update(x for p in entry.parts if p.column == column.name for x in p.elements)
    edges = sorted(cuts)
    return [
        Strip(a, b, tuple(_layers(column.name, a, b, steps)), fill)
        for a, b in pairwise(edges)
    ]


def _layers(column: str, first: int, end: int, steps: Steps) -> list[Layer]:
    found: list[Layer] = []
    limit = 1 << 63
    for step in reversed(steps):
        # An exception part overrides its main part; no other two parts of a step share an element.
        parts = [
            (segment, entry, part)
            for segment, entry in step
            for part in entry.parts
            if part.column == column and part.elements[0] <= first and end <= part.elements[1]
        ]
        parts.sort(key=lambda item: item[2].exceptions_of is None)
        found += [
            Layer(s, entry.row_sets[part.rows], part, limit, (first, end))
            for s, entry, part in parts
        ]
        for segment, entry in step:
            if entry.deleted is not None:
                tombstones = entry.row_sets[entry.deleted]
                found.append(Layer(segment, tombstones, None, limit, (first, end)))
            if entry.rows is not None:
                limit = min(limit, entry.rows)
    return found


def live_keys(steps: Steps) -> Ids:
    """The keys of a keyed table that exist, sorted."""
    keys = np.empty(0, np.int64)
    for step in steps:
        for segment, entry in step:
            if entry.deleted is not None:
                keys = np.setdiff1d(keys, segment.ids(entry.row_sets[entry.deleted]), True)
        for segment, entry in step:
            for row_set in written(entry):
                keys = np.union1d(keys, segment.ids(row_set)) if len(keys) else segment.ids(row_set)
    return keys


def written(entry: TableEntry) -> list[RowSet]:
    """The row sets whose rows a segment writes; those of exception parts add nothing."""
    used = {p.rows for p in entry.parts if p.exceptions_of is None}
    return [r for number, r in enumerate(entry.row_sets) if number in used]


def touched(steps: Steps) -> Ids:
    """The row ids that these steps write, sorted and distinct."""
    parts = [np.empty(0, np.int64)]
    for step in steps:
        for segment, entry in step:
            for row_set in written(entry):
                if row_set.section is None:
                    parts.append(np.arange(row_set.first, row_set.last + 1, dtype=np.int64))
                else:
                    parts.append(segment.ids(row_set))
    return parts[1] if len(parts) == 2 else np.unique(np.concatenate(parts))
