"""What one segment writes in the place of several: planned from row sets and layouts alone, before any row is read.

Each row of a column belongs to the newest part of the run that has it, as section 8 of the specification says. The
rows that are left of all parts with one layout become one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cnrfmt import dtypes
from cnrfmt.arrays import Array, Ids
from cnrfmt.checkpointing.compacting.merged_rows import (
    Count,
    KeptBlocks,
    MergedHalfBytes,
    MergedRows,
    Window,
    fill_slot,
    own_codebook,
)
from cnrfmt.encodings import Recipe
from cnrfmt.errors import UsageError
from cnrfmt.format import limits
from cnrfmt.format.encoding import CodebookLayout, Layout, RawLayout
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.memory import Budget
from cnrfmt.resolve import Layer, Steps, Strip, strips
from cnrfmt.segment_writer import ColumnWrite, RowIds, TableWrite
from cnrfmt.step_rows import written

_WINDOW = 1 << 18
"""Rows of which the owners are found at a time."""
_FEW = 4
"""Raw rows that are no more than one in so many of another part's rows become its exceptions."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Older:
    """What the segments before the run say of a table, which a merged delta has to override."""

    exists: bool = False
    rows: int = 0
    columns: frozenset[str] = frozenset()

    @staticmethod
    def of(steps: Steps) -> Older:
        """What these steps say."""
        entries = [entry for step in steps for _, entry in step]
        rows = (entries[-1].rows or 0) if entries else 0
        return Older(bool(entries), rows, frozenset(p.column for e in entries for p in e.parts))


def merged_table(schema: TableSchema, steps: Steps, older: Older, *, baseline: bool, count: Count) -> TableWrite:
    """What a segment writes of a table that says the same as all of these steps, oldest first, at least one.

    `baseline` says that nothing comes before the segment: then the parts of a dense table cover all rows. `count` is
    called with the bytes that were made whenever rows are written. Raises `DamagedError` for a damaged row index, and
    `UsageError` where more keys were deleted than a segment may name.
    """
    if not schema.keyed:
        rows = [entry.rows or 0 for step in steps for _, entry in step]
        schema = replace(schema, rows=rows[-1])
        # Rows that were cut off and are back, and that no part of the run has, mustn't show what they were before.
        ended = Span(0, rows[-1]) if baseline else Span(min(rows), min(older.rows, rows[-1]))
        columns = _columns(schema, steps, older, ended, baseline, count)
        return TableWrite(schema, columns=_shared(columns))
    deleted, back = _deleted(steps)
    if len(deleted) > limits.MAX_TOMBSTONES and older.exists:
        raise UsageError(
            f"table {schema.name!r}: the segments delete {len(deleted)} keys together, and one may name "
            f"{limits.MAX_TOMBSTONES}; merge fewer of them, or all into a baseline"
        )
    columns = _columns(schema, steps, older, back, baseline, count)
    return TableWrite(schema, columns=_shared(columns), deleted=deleted if older.exists else None)


class Span:
    """The rows first .. stop - 1 of a dense table."""

    def __init__(self, first: int, stop: int) -> None:
        self.first, self.stop = first, max(first, stop)

    def __len__(self) -> int:
        return self.stop - self.first


Ended = Span | Ids
"""Rows that read as the fill value unless a part of the run has them: of a keyed table, keys."""


def _deleted(steps: Steps) -> tuple[Ids, Ids]:
    """The keys that the steps leave deleted, and those that were deleted and are back."""
    gone, back = _NONE, _NONE
    for step in steps:
        new = [s.indexes.ids(e.row_sets[e.deleted]) for s, e in step if e.deleted is not None]
        if new:
            gone, back = np.unique(np.concatenate([gone, *new])), np.setdiff1d(back, np.concatenate(new))
        if len(gone):
            for segment, entry in step:
                for row_set in written(entry):
                    here = segment.indexes.holds(row_set, gone)
                    back, gone = np.union1d(back, gone[here]), gone[~here]
    return gone, back


def _columns(
    schema: TableSchema, steps: Steps, older: Older, ended: Ended, baseline: bool, count: Count
) -> Iterator[ColumnWrite]:
    for column in schema.columns:
        fill = np.frombuffer(column.fill, dtypes.dtype_of(column.dtype)).reshape(())
        found = strips(schema, column, steps, fill, Budget(None))
        has_rows = any(x.part is not None and x.row_set.first < x.limit for strip in found for x in strip.layers)
        # What nobody reads any more needn't be overridden; and a baseline has all rows of a column or none.
        needed = (has_rows and not schema.keyed) if baseline else column.name in older.columns
        for strip in found:
            plan = _StripPlan(schema, column, strip, ended if needed else _NONE, count)
            yield from plan.writes(whole=baseline and not schema.keyed)


_Place = tuple[str, int]
Key = Layout | _Place
"""What the rows of one part have in common: their layout, or the layer with whose other rows alone they can be."""
_UNWRITTEN: _Place = ("unwritten", -1)


class _StripPlan:
    """How the rows of a strip are spread over parts."""

    def __init__(self, schema: TableSchema, column: ColumnSchema, strip: Strip, ended: Ended, count: Count) -> None:
        self._schema, self._column, self._strip, self._ended, self._count = schema, column, strip, ended, count
        self._raw = RawLayout(column.dtype)
        self._layers = [x for x in strip.layers if x.part is None or x.row_set.first < x.limit]
        self._keys = [self._key(number) for number in range(len(self._layers))]

    def _key(self, number: int) -> Key | None:
        layer = self._layers[number]
        part = layer.part
        if part is None:
            return None
        if part.elements != self._strip.elements:
            return self._raw
        if part.exceptions_of is not None:
            main = self._main_of(number)
            return self._raw if main is None else ("exceptions", main)
        return ("blocks", number) if own_codebook(layer, self._strip) else part.layout

    def _main_of(self, number: int) -> int | None:
        """The number of the layer that these are exceptions of, if its rows share codebooks."""
        layer = self._layers[number]
        assert layer.part is not None
        for other, main in enumerate(self._layers):
            if main.segment is layer.segment and main.part is not None and own_codebook(main, self._strip):
                entry = layer.segment.toc.by_table[self._schema.table_id]
                if entry.parts[layer.part.exceptions_of or 0] is main.part:
                    return other
        return None

    def writes(self, *, whole: bool) -> Iterator[ColumnWrite]:
        """The parts; `whole` says that they have to cover all rows of a dense table, if there are any."""
        keys = {key for key in self._keys if key not in (None, self._raw)} or {self._raw}
        if whole and isinstance(self._ended, Span) and len(self._ended) and len(keys) == 1:
            (key,) = keys
            if key is not None and not isinstance(key, tuple) and self._is_mostly(key, len(self._ended)):
                yield self._part(key, RowIds(len(self._ended)), ended=True)
                return
        rows, unwritten, blocks = self._owners()
        yield from blocks
        raw = rows.pop(self._raw, _NONE)
        main: Layout = max(rows, key=lambda layout: len(rows[layout]), default=self._raw)
        into = main if self._slot(main) is not None else self._raw
        if into == self._raw:
            raw = _merged([raw, unwritten])
        else:
            rows[main] = _merged([rows[main], unwritten])
        if main != self._raw and len(raw) * _FEW <= len(rows[main]):
            rows[main], raw = _merged([rows[main], raw]), _NONE
            into = main
        rows[self._raw] = raw
        for layout, ids in rows.items():
            if len(ids):
                yield self._part(layout, self._row_ids(ids), ended=layout == into and len(unwritten) > 0)

    def _is_mostly(self, layout: Layout, rows: int) -> bool:
        """Whether all rows may stand in one part of a layout, the few that are stored in another way as exceptions."""
        if layout == self._raw:
            return True
        layers = list(zip(self._keys, self._layers, strict=True))
        other = sum(x.row_set.count for key, x in layers if key == self._raw)
        if self._slot(layout) is None:
            ranges = [x.stop - x.row_set.first for key, x in layers if key == layout and x.is_range]
            other += rows - max(ranges, default=0)
        return other * _FEW <= rows

    def _owners(self) -> tuple[dict[Layout, Ids], Ids, list[ColumnWrite]]:
        """The rows by layout, those that no part of the run has, and the parts of whole blocks that share codebooks."""
        distinct = list(dict.fromkeys(key for key in self._keys if key is not None))
        # Keys of layers, then deleted rows, then rows that no layer has.
        numbers = np.array([distinct.index(key) if key is not None else -1 for key in self._keys] + [-1], np.int32)
        found: dict[Key, list[Ids]] = {key: [] for key in (*distinct, _UNWRITTEN)}
        for window, ids in self._windows():
            owner = np.full(len(ids), len(self._layers), np.int32)
            for number, layer in enumerate(self._layers):
                if not window.left:
                    break
                owner[window.take(layer)[1]] = number
            group = numbers[owner]
            for number, key in enumerate(distinct):
                found[key].append(ids[group == number])
            if len(self._ended):
                found[_UNWRITTEN].append(ids[(group < 0) & self._have_ended(ids)])
        rows = {key: np.concatenate([_NONE, *parts]) for key, parts in found.items()}
        unwritten = rows.pop(_UNWRITTEN)
        writes = self._take_blocks(rows)
        return {key: ids for key, ids in rows.items() if not isinstance(key, tuple)}, unwritten, writes

    def _windows(self) -> Iterator[tuple[Window, Ids]]:
        """All rows that a part could have, in ascending order."""
        sets = [x.row_set for x in self._layers if x.part is not None]
        if not self._schema.keyed:
            assert isinstance(self._ended, Span) or not len(self._ended)
            ended = [self._ended] if isinstance(self._ended, Span) and len(self._ended) else []
            first = min([*(s.first for s in sets), *(s.first for s in ended)], default=0)
            stop = max([*(s.last + 1 for s in sets), *(s.stop for s in ended)], default=0)
            for start in range(first, stop, _WINDOW):
                count = min(_WINDOW, stop - start)
                yield Window(start, count), np.arange(start, start + count, dtype=np.int64)
            return
        assert not isinstance(self._ended, Span)
        every = _merged([self._ended, *(x.ids for x in self._layers if x.part is not None)])
        for start in range(0, len(every), _WINDOW):
            ids = every[start : start + _WINDOW]
            yield Window(0, len(ids), ids), ids

    def _have_ended(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if isinstance(self._ended, Span):
            return (self._ended.first <= ids) & (ids < self._ended.stop)
        return np.isin(ids, self._ended, assume_unique=True)

    def _take_blocks(self, rows: dict[Key, Ids]) -> list[ColumnWrite]:
        """Takes whole blocks out of `rows`; the rows of broken ones get codebooks of their own, or become raw."""
        writes: list[ColumnWrite] = []
        for number, layer in enumerate(self._layers):
            own = own_codebook(layer, self._strip)
            if own is None or ("blocks", number) not in rows:
                continue
            ids, others = rows.pop(("blocks", number)), rows.pop(("exceptions", number), _NONE)
            kept, broken, exceptions = self._whole_blocks(layer, ids, others)
            if len(kept):
                writes.append(self._blocks(layer, kept, exceptions))
            key = self._without_sharing(own)
            rows[key] = _merged([rows.get(key, _NONE), broken])
            left = np.setdiff1d(others, exceptions, assume_unique=True)
            rows[self._raw] = _merged([rows.get(self._raw, _NONE), left])
        return writes

    def _whole_blocks(self, layer: Layer, ids: Ids, others: Ids) -> tuple[Ids, Ids, Ids]:
        """The rows of blocks of which all are left, what is left of other blocks, and the exceptions among the first.

        `ids` are the rows that are left of a layer whose rows share codebooks, `others` those left of its exceptions.
        """
        assert layer.part is not None
        assert isinstance(layer.part.layout, CodebookLayout)
        assert layer.part.layout.block is not None
        block, count = layer.part.layout.block, layer.row_set.count
        every = _merged([ids, others])
        numbers = _positions(layer, every) // block
        sizes = np.bincount(numbers, minlength=-(-count // block))
        wanted = np.full(len(sizes), block, np.int64)
        wanted[-1] = count - (len(sizes) - 1) * block
        whole = (sizes == wanted)[numbers]
        kept = every[whole]
        broken = np.setdiff1d(every[~whole], others, assume_unique=True)
        return kept, broken, np.intersect1d(kept, others, assume_unique=True)

    def _blocks(self, layer: Layer, kept: Ids, exceptions: Ids) -> ColumnWrite:
        assert layer.part is not None
        rows = self._row_ids(kept)
        source = KeptBlocks(
            self._column, self._strip, layer, rows, _positions(layer, kept), _positions(layer, exceptions), self._count
        )
        recipe = Recipe(layer.part.layout, layer.part.scheme)
        return ColumnWrite(self._column, source, recipe, rows, self._strip.elements)

    def _without_sharing(self, own: Layout) -> Layout:
        """The smaller layout for rows whose codebooks they can't share any more."""
        width = self._strip.end - self._strip.first
        return own if own.row_bits(width) < self._raw.row_bits(width) else self._raw

    def _part(self, layout: Layout, rows: RowIds, *, ended: bool) -> ColumnWrite:
        """A part; `ended` says whether rows are among its own that no part of the run has."""
        recipe = self._recipe(layout)
        # Exceptions may come from any layer that is raw, or that becomes so.
        layers = [
            layer
            for own, layer in zip(self._keys, self._layers, strict=True)
            if own in (layout, self._raw) or isinstance(own, tuple) or (own is None and ended)
        ]
        kind = MergedRows if layout.stands_alone else MergedHalfBytes
        source = kind(self._column, self._strip, recipe, rows, layers, self._slot(layout), self._count)
        return ColumnWrite(self._column, source, recipe, rows, self._strip.elements)

    def _recipe(self, layout: Layout) -> Recipe:
        """A layout, with the scheme of most of its rows."""
        if layout == self._raw:
            return Recipe(layout)
        like = [x for x in self._layers if x.part and layout in (x.part.layout, own_codebook(x, self._strip))]
        part = max(like, key=lambda x: x.row_set.count).part
        assert part is not None
        return Recipe(layout, part.scheme)

    def _slot(self, layout: Layout) -> Array | None:
        return fill_slot(self._recipe(layout), self._strip.end - self._strip.first, self._strip.fill)

    def _row_ids(self, ids: Ids) -> RowIds:
        first, count = int(ids[0]), len(ids)
        if not self._schema.keyed and int(ids[-1]) - first == count - 1:
            return RowIds(count, first=first)
        return RowIds(count, ids)


def _merged(parts: Sequence[Ids]) -> Ids:
    """The distinct ids of ascending lists, in their order."""
    every = np.concatenate([_NONE, *parts])
    # A stable sort merges the runs that it finds.
    every.sort(kind="stable")
    return every[np.append(True, every[1:] != every[:-1])] if len(every) else every


def _positions(layer: Layer, ids: Ids) -> Ids:
    """Where these rows of a layer stand in its part."""
    if layer.is_range:
        return ids - layer.row_set.first
    return np.searchsorted(layer.ids, ids).astype(np.int64, copy=False)


def _shared(writes: Iterable[ColumnWrite]) -> tuple[ColumnWrite, ...]:
    """The same, with one object for equal rows, so that one row index serves them all."""
    known: list[RowIds] = []
    found = []
    for write in writes:
        rows = write.rows
        assert rows is not None
        same = next((other for other in known if _are_equal(rows, other)), None)
        if same is None:
            known.append(rows)
        found.append(replace(write, rows=same or rows))
    return tuple(found)


def _are_equal(a: RowIds, b: RowIds) -> bool:
    if a.ids is None or b.ids is None:
        return a.ids is b.ids and (a.first, a.count) == (b.first, b.count)
    return a.count == b.count and np.array_equal(a.ids, b.ids)
