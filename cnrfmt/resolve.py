"""Which bytes give each row: a chain resolved by row sets, newest first, each row decoded once.

This follows section 8 of the specification. A column is cut into *strips*, ranges of elements that no part
divides; within a strip the chain is a list of *layers*, from the newest to the oldest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
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
from cnrfmt.memory import Budget
from cnrfmt.segment_reader import SegmentReader

_STREAM = 64 << 10
"""Runs of stored bytes from this length on are read, the first time, rather than faulted into a mapping."""
_BATCH = 4096
"""Rows from anywhere that are fetched at a time."""
_LAYER = 400
"""Bytes of memory that a layer or a strip takes, about."""
_SPARSE = 8
"""Where fewer than one row in so many is wanted, the others aren't read."""
_MANY = 8
"""Where one row in so many or more is newer than the others, all are mixed as they are stored, and decoded at once."""


_LOCAL = threading.local()

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
    def codebooks_cost(self) -> int:
        """Bytes of memory that `load_codebooks` takes: their section, and each number as a float32."""
        if self.part is None or "_codebooks" in self.__dict__:
            return 0
        return 3 * self.part.layout.codebook_bytes(self.row_set.count)

    def load_codebooks(self) -> None:
        """Decodes the codebooks that the rows share, for everybody who asks later."""
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


@dataclass(frozen=True)
class Strip:
    """A range of elements of a column, and its layers from the newest to the oldest."""

    first: int
    end: int
    layers: tuple[Layer, ...]
    fill: Array

    @property
    def elements(self) -> Elements:
        """The range."""
        return self.first, self.end

    def read_range(self, start: int, out: Array) -> None:
        """Decodes the rows start .. start + len(out) - 1 of a dense table into `out` (rows x elements)."""
        stop = start + len(out)
        for layer in self.layers:
            if layer.is_range:
                if layer.row_set.first <= start and stop <= layer.stop:
                    layer.decode_range(start - layer.row_set.first, out, self.elements)
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
        if floor is not None and self._is_better_mixed(floor, start, count, picked):
            self._decode_over(floor, start, out, picked)
            return
        if floor is not None:
            floor.decode_range(start - floor.row_set.first, out, self.elements)
        elif left:
            n = kernel.unclaimed(claimed, targets)
            out[targets[:n]] = self.fill
        for layer, found, into in picked:
            layer.decode_near(found, out, into, self.elements)

    def _is_better_mixed(
        self, floor: Layer, start: int, count: int, picked: Sequence[tuple[Layer, Ids, Ids]]
    ) -> bool:
        """Whether these layers' rows can be mixed as they are stored, quicker than each layer's can be decoded."""
        layers = [floor, *(layer for layer, _, _ in picked)]
        (layout, elements), *others = {(x.part.layout, x.part.elements) for x in layers if x.part is not None}
        if others or elements != self.elements or isinstance(layout, RawLayout) or not layout.stands_alone:
            return False
        over = sum(len(targets) for _, _, targets in picked)
        # What is verified in a mapping can be decoded where it is, without a copy.
        return over * _MANY >= count or not floor.is_at_hand(start - floor.row_set.first, count)

    def _decode_over(self, floor: Layer, start: int, out: Array, picked: Sequence[tuple[Layer, Ids, Ids]]) -> None:
        """Puts newer rows over those of the floor while they are stored, in fewer bytes, and decodes all at once."""
        part = floor.part
        assert part is not None
        rows = _stored_rows(len(out), part.row_bytes)
        floor.read_range(start - floor.row_set.first, rows)
        for layer, positions, targets in picked:
            layer.copy_near(positions, rows, targets)
        coder(part.layout).decode_range(rows.reshape(-1), 0, out)

    def read_ids(self, ids: Ids, out: Array) -> None:
        """Decodes the rows of these ids, in any order and with repeats, into `out`."""
        from cnrfmt.kernels import rows as kernel

        if not len(ids):
            return
        wanted, targets = ids, np.arange(len(ids), dtype=np.int64)
        low, high = int(ids.min()), int(ids.max())
        for layer in self.layers:
            # Most layers of a long chain, or of a table in very many parts, have nothing to do with a few rows.
            if high < layer.row_set.first or layer.row_set.last < low:
                continue
            if not len(wanted):
                return
            if layer.part is None:
                # Tombstones have no positions that anybody would ask for.
                positions, found = wanted, layer.segment.indexes.holds(layer.row_set, wanted)
            elif layer.is_range:
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
                layer.decode_rows(hits, out, hit_targets, self.elements)
        if len(wanted):
            out[targets] = self.fill


def _stored_rows(count: int, row_bytes: int) -> Bytes:
    """Memory of this thread for rows as they are stored; its next call overwrites them."""
    buffer: Bytes | None = getattr(_LOCAL, "buffer", None)
    if buffer is None or len(buffer) < count * row_bytes:
        buffer = _LOCAL.buffer = np.empty(count * row_bytes, np.uint8)
    return buffer[: count * row_bytes].reshape(count, row_bytes)


Steps = Sequence[Sequence[tuple[SegmentReader, TableEntry]]]
"""The steps of a chain from the oldest to the newest, each with what its segments say of one table."""


def strips(schema: TableSchema, column: ColumnSchema, steps: Steps, fill: Array, budget: Budget) -> list[Strip]:
    """The strips of a column; `budget` is asked before the lists of their layers are made."""
    cuts = {0, column.width(schema.dim)}
    parts = [(p, s, e) for step in steps for s, e in step for p in e.parts if p.column == column.name]
    cuts.update(x for part, _, _ in parts for x in part.elements)
    edges = sorted(cuts)
    place = {edge: number for number, edge in enumerate(edges)}
    # Each part is in the list of every strip that it covers, and tombstones are in every list.
    covered = sum(place[p.elements[1]] - place[p.elements[0]] for p, _, _ in parts)
    everywhere = sum(entry.deleted is not None for step in steps for _, entry in step)
    count = len(edges) - 1
    budget.take(8 * (covered + everywhere * count) + _LAYER * (len(parts) + count), f"table {schema.name!r}, parts")
    layers: list[list[Layer]] = [[] for _ in range(count)]
    for layer in _layers(column.name, steps):
        first, end = (0, count) if layer.part is None else (place[x] for x in layer.part.elements)
        for number in range(first, end):
            layers[number].append(layer)
    return [Strip(a, b, tuple(found), fill) for (a, b), found in zip(pairwise(edges), layers, strict=True)]


def _layers(column: str, steps: Steps) -> Iterator[Layer]:
    """All layers of a column, from the newest to the oldest."""
    limit = 1 << 63
    for step in reversed(steps):
        # An exception part overrides its main part; no other two parts of a step share an element.
        parts = [(s, e, part) for s, e in step for part in e.parts if part.column == column]
        parts.sort(key=lambda item: item[2].exceptions_of is None)
        for segment, entry, part in parts:
            yield Layer(segment, entry.row_sets[part.rows], part, limit)
        for segment, entry in step:
            if entry.deleted is not None:
                yield Layer(segment, entry.row_sets[entry.deleted], None, limit)
        for _, entry in step:
            if entry.rows is not None:
                limit = min(limit, entry.rows)
