"""Which bytes give each row, and which rows can't be told: section 8 of the specification on damaged segments.

As in `cnrfmt.resolve`, a column is cut into strips, and a strip's layers go from the newest to the oldest. A layer
may have lost rows, it may have ids that aren't known, or be a *gap*: a segment of which nothing is known, so that
all rows that no newer layer gives are in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings import Recipe, coder
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import CodebookLayout
from cnrfmt.format.manifest import Manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.scheme import Errors
from cnrfmt.format.toc import Part, TableEntry
from cnrfmt.salvaging.indexes import KnownRows, known_rows
from cnrfmt.salvaging.runs import EVERY, NONE, Runs, common, inside, merged, minus, run, runs_of
from cnrfmt.salvaging.segments import SalvagedSegment

FILL, LOST = -1, -2
"""What `Strip.find` says of rows that read as the fill value; LOST - n says that they are lost in layer n."""
_BATCH = 4096
_ZERO_STEP = 4 << 20
_FEW_RUNS = 1 << 10

Opened = SalvagedSegment | DamagedError
"""A segment of the chain, or what is wrong with it."""


@dataclass(frozen=True)
class Layer:
    """One part, one set of tombstones, or a gap.

    Rows at positions in `lost` can't be had, rows in `doubts` may or may not be this layer's, and rows from `limit`
    on don't count. `rule` and `place` say why rows are lost here.
    """

    segment: SalvagedSegment | None
    part: Part | None
    rows: KnownRows | None
    limit: int | None
    lost: Runs
    doubts: Runs
    rule: str
    place: str

    @property
    def is_damaged(self) -> bool:
        """Whether rows are lost here."""
        return bool(len(self.lost) or len(self.doubts))

    def find(self, ids: Ids) -> tuple[Array, Ids]:
        """Which of the ids (in any order) are this layer's, and their positions."""
        if self.rows is None:
            return np.zeros(len(ids), np.bool_), ids
        if self.rows.ids is None:
            row_set = self.rows.row_set
            hit = (ids >= row_set.first) & (ids <= row_set.last)
            positions = ids - row_set.first
        elif not len(self.rows.ids):
            return np.zeros(len(ids), np.bool_), ids
        else:
            at = np.minimum(np.searchsorted(self.rows.ids, ids), len(self.rows.ids) - 1)
            hit = self.rows.ids[at] == ids
            positions = at if self.rows.positions is None else self.rows.positions[at]
        return hit & self._counted(ids), positions

    def doubtful(self, ids: Ids) -> Array:
        """Which of the ids may be this layer's."""
        return inside(ids, self.doubts) & self._counted(ids)

    def _counted(self, ids: Ids) -> Array:
        return np.ones(len(ids), np.bool_) if self.limit is None else ids < self.limit

    def known(self, within: Runs) -> Runs:
        """The ids known to be this layer's, as far as they lie within some runs."""
        if self.rows is None:
            return NONE
        if self.rows.ids is None:
            found = common(run(self.rows.row_set.first, self.rows.row_set.last), within)
        else:
            found = runs_of(_within(self.rows.ids, within))
        return self._below_limit(found)

    def lost_ids(self) -> Runs:
        """The ids known to be this layer's whose rows are lost."""
        if self.rows is None or not len(self.lost):
            return NONE
        if self.rows.ids is None:
            return self._below_limit(self.lost + self.rows.row_set.first)
        if self.rows.positions is not None:
            return self._below_limit(runs_of(self.rows.ids[inside(self.rows.positions, self.lost)]))
        some = [self.rows.ids[p : q + 1] for p, q in self.lost.tolist()]
        return self._below_limit(runs_of(np.concatenate(some)))

    def doubtful_ids(self) -> Runs:
        """The ids that may be this layer's."""
        return self._below_limit(self.doubts)

    def _below_limit(self, runs: Runs) -> Runs:
        return runs if self.limit is None else common(runs, run(EVERY[0, 0], self.limit - 1))

    def decode(self, positions: Ids, out: Array, targets: Ids, first: int, end: int) -> None:
        """Decodes the elements first .. end - 1 of sound rows into `out[targets]`."""
        assert self.part is not None
        code, whole = coder(self.part.layout), self.part.width
        for batch in self._batches(positions):
            books, shared_at = self._codebooks(positions[batch])
            data, offsets = self._fetch(positions[batch])
            rows = np.empty((len(offsets), whole), out.dtype)
            slots = np.arange(len(offsets), dtype=np.int64)
            code.decode_rows(data, offsets, rows, slots, positions[batch] - shared_at, books)
            begin = self.part.elements[0]
            out[targets[batch]] = rows[:, first - begin : end - begin]

    def _codebooks(self, positions: Ids) -> tuple[Array | None, int]:
        """What these rows share, and the position of the first row that shares the first of it."""
        assert self.part is not None
        layout = self.part.layout
        if self.part.codebooks is None or not isinstance(layout, CodebookLayout) or layout.block is None:
            return None, 0
        assert self.segment is not None
        first, last = int(positions.min()) // layout.block, int(positions.max()) // layout.block
        size = layout.book_bytes
        data = self.segment.proven(self.part.codebooks, first * size, (last + 1 - first) * size)
        return coder(layout).codebooks(data), first * layout.block

    def copy(self, positions: Ids, out: Array, targets: Ids) -> None:
        """Copies the stored bytes of sound rows that stand alone into the rows `targets` of `out`, (n, row bytes)."""
        from cnrfmt.kernels import rows as kernel

        assert self.part is not None
        for batch in self._batches(positions):
            data, offsets = self._fetch(positions[batch])
            kernel.gather_rows(data, offsets, self.part.row_bytes, out, targets[batch])

    def are_zero(self, positions: Ids) -> Array:
        """Which of these rows, all sound, have a slot that is zero."""
        assert self.part is not None
        code, zero = coder(self.part.layout), np.zeros(len(positions), np.bool_)
        for batch in self._batches(positions):
            data, offsets = self._fetch(positions[batch])
            zero[batch] = code.are_zero(data, offsets, positions[batch], self.part.width)
        return zero

    def _batches(self, positions: Ids) -> Iterable[slice]:
        # A run is read in one go.
        if len(positions) and int(positions[-1]) - int(positions[0]) == len(positions) - 1:
            return [slice(0, len(positions))]
        return [slice(start, start + _BATCH) for start in range(0, len(positions), _BATCH)]

    def _fetch(self, positions: Ids) -> tuple[Array, Ids]:
        assert self.part is not None
        assert self.segment is not None
        layout, width = self.part.layout, self.part.width
        offset = self.segment.toc.sections[self.part.section][0]
        first, count = int(positions[0]), len(positions)
        if int(positions[-1]) - first == count - 1:
            begin, length = layout.span(first, count, width)
            data, start = self.segment.fetch_range(offset + begin, length)
            return data, layout.offsets(positions, width) + (offset - start)
        return self.segment.fetch_rows(offset + layout.offsets(positions, width), self.part.row_bytes)


@dataclass(frozen=True)
class Strip:
    """A range of elements that no part of the column divides, and its layers from the newest to the oldest."""

    first: int
    end: int
    layers: tuple[Layer, ...]

    def find(self, ids: Ids) -> tuple[Array, Ids]:
        """For each of the ids the number of the layer that gives it, FILL, or LOST - layer; and its position there."""
        choice = np.full(len(ids), FILL, np.int64)
        positions = np.zeros(len(ids), np.int64)
        left = np.arange(len(ids), dtype=np.int64)
        for number, layer in enumerate(self.layers):
            if not len(left):
                break
            wanted = ids[left]
            hit, at = layer.find(wanted)
            doubt = ~hit & layer.doubtful(wanted) if len(layer.doubts) else np.zeros_like(hit)
            mine = left[hit]
            positions[mine] = at[hit]
            if layer.part is not None:
                choice[mine] = number
            lost = inside(at[hit], layer.lost) if len(layer.lost) else np.zeros(len(mine), np.bool_)
            choice[mine[lost]] = LOST - number
            choice[left[doubt]] = LOST - number
            left = left[~(hit | doubt)]
        return choice, positions

    @property
    def is_damaged(self) -> bool:
        """Whether rows are lost in some layer."""
        return any(layer.is_damaged for layer in self.layers)

    def losses(self, among: Runs) -> list[tuple[Runs, Layer]]:
        """Which ids among these are lost, and in which layer; no id twice."""
        if not self.is_damaged:
            return []
        suspects = common(merged([r for x in self.layers for r in (x.lost_ids(), x.doubtful_ids())]), among)
        claimed: Runs = NONE
        found = []
        for layer in self.layers:
            if not len(suspects):
                break
            for lost, taken in ((layer.lost_ids(), layer.known(suspects)), (layer.doubtful_ids(),) * 2):
                mine = common(minus(lost, claimed), suspects)
                if len(mine):
                    found.append((mine, layer))
                if len(taken):
                    claimed = merged([claimed, common(taken, suspects)])
        return found

    def stored(self) -> Runs:
        """The ids of which some layer has a row."""
        return merged([layer.known(EVERY) for layer in self.layers if layer.part is not None])

    def recipe(self, otherwise: Recipe) -> tuple[Recipe, Errors]:
        """How most of the stored rows were encoded, and what that did to them."""
        counts: dict[Recipe, list[tuple[int, Errors]]] = {}
        for layer in self.layers:
            part = layer.part
            if part is not None and layer.rows is not None and part.elements == (self.first, self.end):
                known = counts.setdefault(Recipe(part.layout, part.scheme), [])
                known.append((layer.rows.row_set.count, part.errors))
        if not counts:
            return otherwise, Errors()
        recipe = max(counts, key=lambda one: sum(number for number, _ in counts[one]))
        total = sum(number for number, _ in counts[recipe])
        worst = max(errors.worst for _, errors in counts[recipe])
        mean = sum(number * errors.mean for number, errors in counts[recipe]) / total
        return recipe, Errors(min(mean, worst), worst)


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
        return [Strip(a, b, tuple(self._layers(column.name, a, b))) for a, b in pairwise(sorted(cuts))]

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
        lost = segment.lost_rows(part)
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


def _within(ids: Ids, runs: Runs) -> Ids:
    """Those of ascending ids that lie in some runs; quick where the runs are few."""
    if len(runs) > _FEW_RUNS:
        return ids[inside(ids, runs)]
    low, high = np.searchsorted(ids, runs[:, 0]), np.searchsorted(ids, runs[:, 1], "right")
    return np.concatenate([ids[:0], *(ids[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True))])


def gap(error: DamagedError, limit: int | None) -> Layer:
    """The layer that a segment is of which nothing is known."""
    return Layer(None, None, None, limit, NONE, EVERY, error.rule, error.place)


def _written(entry: TableEntry) -> dict[int, Part]:
    """The row sets that a segment writes, each with a part; those of exception parts add nothing."""
    return {p.rows: p for p in entry.parts if p.exceptions_of is None}


def _index_place(segment: SalvagedSegment, rows: KnownRows) -> str:
    section = rows.row_set.section
    return segment.place if section is None else f"{segment.where(section)} (row index)"


def _zero_slots(segment: SalvagedSegment, part: Part, rows: KnownRows, doubts: Runs) -> Runs:
    lost = segment.lost_rows(part)
    count = rows.row_set.count
    layer = Layer(segment, part, rows, None, lost, NONE, "", "")
    found = []
    step = max(1, _ZERO_STEP // part.row_bytes)
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
