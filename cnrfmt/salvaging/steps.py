"""What the steps of a damaged chain say of one table, as layers: parts, tombstones, and what is in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import ITEM_SIZES
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import Part, TableEntry
from cnrfmt.integer_rows import are_summed
from cnrfmt.salvaging.indexes import KnownRows, known_rows
from cnrfmt.salvaging.layers import Layer, Opened, gap
from cnrfmt.salvaging.runs import EVERY, NONE, Runs, inside, merged
from cnrfmt.salvaging.segments import SalvagedSegment
from cnrfmt.salvaging.strips import Strip

_ZERO_STEP = 4 << 20


class TableSteps:
    """What the chain says of one table, from the newest step to the oldest, as far as it is known."""

    def __init__(self, manifest: Manifest, segments: Sequence[Opened], schema: TableSchema) -> None:
        self.schema = schema
        self._known: dict[tuple[int, int], KnownRows] = {}
        self._zeros: dict[tuple[int, int], Runs] = {}
        self.steps: list[list[tuple[SalvagedSegment, TableEntry] | DamagedError]] = []
        opened = iter(segments)
        for step in manifest.steps():
            found: list[tuple[SalvagedSegment, TableEntry] | DamagedError] = []
            for _ in step:
                segment = next(opened)
                if isinstance(segment, DamagedError):
                    found.append(segment)
                elif schema.table_id in segment.toc.by_table:
                    found.append((segment, segment.toc.by_table[schema.table_id]))
            if found:
                self.steps.insert(0, found)

    def rows(self, segment: SalvagedSegment, entry: TableEntry, number: int) -> KnownRows:
        """What is known of a row set."""
        key = (id(segment), number)
        if key not in self._known:
            self._known[key] = known_rows(segment, entry.row_sets[number])
        return self._known[key]

    def strips(self, column: ColumnSchema) -> list[Strip]:
        """The strips of a column."""
        cuts = {0, column.width(self.schema.dim)}
        for _, entry in self._entries():
            cuts.update(x for p in entry.parts if p.column == column.name for x in p.elements)
        place = f"table {self.schema.name!r}, column {column.name!r}"
        found = [(a, b, tuple(self._layers(column.name, a, b))) for a, b in pairwise(sorted(cuts))]
        return [Strip(a, b, layers, place, are_summed(layers)) for a, b, layers in found]

    def _entries(self) -> list[tuple[SalvagedSegment, TableEntry]]:
        return [item for step in self.steps for item in step if not isinstance(item, DamagedError)]

    def _layers(self, column: str, first: int, end: int) -> list[Layer]:
        found: list[Layer] = []
        limit: int | None = None
        for step in self.steps:
            whole = [item for item in step if not isinstance(item, DamagedError)]
            parts = [
                (segment, entry, number)
                for segment, entry in whole
                for number, part in enumerate(entry.parts)
                if part.column == column and part.elements[0] <= first and end <= part.elements[1]
            ]
            parts.sort(key=lambda item: item[1].parts[item[2]].exceptions_of is None)
            known = [self._part_layer(*item, limit) for item in parts] + self._tombstones(whole, limit)
            # Parts of one step share no row, so what is known of one casts out doubts about another.
            found += known
            found += [doubt for layer in known if (doubt := self._doubt(layer)) is not None]
            found += [gap(item, limit) for item in step if isinstance(item, DamagedError)]
            rows = [entry.rows for _, entry in whole if entry.rows is not None]
            limit = min([*rows, *([] if limit is None else [limit])], default=None)
        return found

    def existence(self) -> Strip:
        """Layers of a keyed table that say which keys are there: parts where they are, tombstones where they aren't.

        Ids of a row index that aren't known cast no doubt on those known to be there: they only add some.
        """
        found: list[Layer] = []
        for step in self.steps:
            whole = [item for item in step if not isinstance(item, DamagedError)]
            for segment, entry in whole:
                for number, part in _written(entry).items():
                    rows = self.rows(segment, entry, number)
                    found.append(Layer(segment, part, rows, None, NONE, NONE, "", segment.place))
            gone = self._tombstones(whole, None)
            found += gone
            found += [doubt for layer in gone if (doubt := self._doubt(layer)) is not None]
            found += [gap(item, None) for item in step if isinstance(item, DamagedError)]
        return Strip(0, 1, tuple(found))

    def doubts(self) -> list[tuple[Runs, int | None, str, str]]:
        """Where keys may be that aren't known: runs, how many (None: nobody knows), rule and place."""
        found: list[tuple[Runs, int | None, str, str]] = []
        for step in self.steps:
            for item in step:
                if isinstance(item, DamagedError):
                    found.append((EVERY, None, item.rule, item.place))
                    continue
                segment, entry = item
                for number in _written(entry):
                    rows = self.rows(segment, entry, number)
                    if len(rows.doubts):
                        found.append((rows.doubts, rows.unknown, "row-index", _index_place(segment, rows)))
        return found

    def _tombstones(self, whole: list[tuple[SalvagedSegment, TableEntry]], limit: int | None) -> list[Layer]:
        found = []
        for segment, entry in whole:
            if entry.deleted is not None:
                rows = self.rows(segment, entry, entry.deleted)
                found.append(Layer(segment, None, rows, limit, NONE, NONE, "", segment.place))
        return found

    def _doubt(self, layer: Layer) -> Layer | None:
        """The layer of the ids that may be in another layer's row set, if its row index is damaged."""
        if layer.rows is None or layer.segment is None or not len(layer.rows.doubts):
            return None
        if layer.part is not None and layer.part.exceptions_of is not None:
            # The main part tells which rows may be exceptions: its slots of those are zero.
            return None
        place = _index_place(layer.segment, layer.rows)
        return Layer(None, None, None, layer.limit, NONE, layer.rows.doubts, "row-index", place)

    def _part_layer(self, segment: SalvagedSegment, entry: TableEntry, number: int, limit: int | None) -> Layer:
        part = entry.parts[number]
        rows = self.rows(segment, entry, part.rows)
        lost = segment.lost_rows(part, rows.row_set.count)
        if part.exceptions_of is None:
            lost = merged([lost, self._hidden(segment, entry, number, rows)])
        place = f"{segment.where(part.section)} (column {part.column!r})"
        return Layer(segment, part, rows, limit, lost, NONE, "piece-digest", place)

    def _hidden(self, segment: SalvagedSegment, entry: TableEntry, number: int, rows: KnownRows) -> Runs:
        """The positions of rows of a part that are exceptions for all that is known: their slots are zero."""
        sub = next((p for p in entry.parts if p.exceptions_of == number), None)
        doubts = NONE if sub is None else self.rows(segment, entry, sub.rows).doubts
        if not len(doubts):
            return NONE
        key = (id(segment), number)
        if key not in self._zeros:
            self._zeros[key] = _zero_slots(segment, entry.parts[number], rows, doubts)
        return self._zeros[key]


def _written(entry: TableEntry) -> dict[int, Part]:
    """The row sets that a segment writes, each with a part; those of exception parts add nothing."""
    return {p.rows: p for p in entry.parts if p.exceptions_of is None}


def _index_place(segment: SalvagedSegment, rows: KnownRows) -> str:
    section = rows.row_set.section
    return segment.place if section is None else f"{segment.where(section)} (row index)"


def _zero_slots(segment: SalvagedSegment, part: Part, rows: KnownRows, doubts: Runs) -> Runs:
    count = rows.row_set.count
    lost = segment.lost_rows(part, count)
    layer = Layer(segment, part, rows, None, lost, NONE, "", "")
    found = []
    step = max(1, _ZERO_STEP // (ITEM_SIZES[part.layout.dtype] * part.width))
    for start in range(0, count, step):
        positions = np.arange(start, min(start + step, count), dtype=np.int64)
        if rows.ids is None:
            mine = positions[inside(positions + rows.row_set.first, doubts)]
        elif rows.positions is None:
            mine = positions[inside(rows.ids[positions], doubts)]
        else:
            known = rows.positions[inside(rows.ids, doubts)]
            mine = known[(known >= start) & (known < start + step)]
        mine = mine[~inside(mine, lost)]
        if len(mine):
            found.append(np.repeat(mine[layer.are_zero(mine)], 2).reshape(-1, 2))
    return merged(found)
