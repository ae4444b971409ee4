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

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import coder
from cnrfmt.encodings.checks import Flags
from cnrfmt.encodings.integers import Integers
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import TableEntry
from cnrfmt.integer_rows import ListedRows, RangeRows, Sums, WantedRows, add_up, are_summed
from cnrfmt.layer import Elements, Layer
from cnrfmt.memory import Budget
from cnrfmt.part_integers import Grid
from cnrfmt.segment_reader import SegmentReader

_LAYER = 800
"""Bytes of memory that a layer or a strip takes, about."""
_MANY = 8
"""Where one row in so many or more is newer than the others, all are mixed as they are stored, and decoded at once."""

_LOCAL = threading.local()


@dataclass(frozen=True)
class Strip:
    """A range of elements of a column, and its layers from the newest to the oldest.

    `place` is the table and the column, as errors name them.
    """

    first: int
    end: int
    layers: tuple[Layer, ...]
    fill: Array
    place: str

    @property
    def elements(self) -> Elements:
        """The range."""
        return self.first, self.end

    @cached_property
    def is_summed(self) -> bool:
        """Whether rows are read as integers, and added up."""
        return are_summed(self.layers)

    def read_range(self, start: int, out: Array) -> None:
        """Decodes the rows start .. start + len(out) - 1 of a dense table into `out` (rows x elements)."""
        if self.is_summed:
            self._read_sums(RangeRows(start, len(out)), out)
            return
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
        if self.is_summed:
            self._read_sums(ListedRows(ids), out)
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
            elif len(hits) == 1:
                target = int(hit_targets[0])
                layer.decode_range(int(hits[0]), out[target : target + 1], self.elements)
            else:
                layer.decode_rows(hits, out, hit_targets, self.elements)
        if len(wanted):
            out[targets] = self.fill

    def _read_sums(self, rows: WantedRows[Layer], out: Array) -> None:
        """The rows of a strip that has integers: added up in the memory of the values that they become."""
        sums = Sums(out.view(np.int32))
        for given in add_up(self.layers, rows, sums, self.elements, self.place, as_values=True):
            if given.layer is None:
                out[given.places] = self.fill
            else:
                given.layer.decode_any(given.positions, out, given.places, self.elements)

    def read_integers(self, ids: range | Ids, grid: Grid, out: Integers) -> Flags:
        """Of rows of these ids, in any order and with repeats, the integers on a grid; gives which rows are on it.

        A range is of rows of a dense table.

        The integers of others, whatever they are, and of those that aren't there, are zero.
        """
        if not any(x.integers is not None and x.integers.grid == grid for x in self.layers):
            out[:] = 0
            return np.zeros(len(ids), np.bool_)
        sums = Sums(out)
        rows = RangeRows(ids.start, len(ids)) if isinstance(ids, range) else ListedRows(ids)
        add_up(self.layers, rows, sums, self.elements, self.place, as_values=False)
        known = sums.on(grid)
        out[~known] = 0
        return known


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
    where = f"table {schema.name!r}, column {column.name!r}"
    return [Strip(a, b, tuple(found), fill, where) for (a, b), found in zip(pairwise(edges), layers, strict=True)]


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
