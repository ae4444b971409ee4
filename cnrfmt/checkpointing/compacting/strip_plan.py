"""How the rows of a strip are spread over the parts of a merged segment: planned from row sets and layouts alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cnrfmt import sorted_ids
from cnrfmt.arrays import Array, Ids
from cnrfmt.checkpointing.compacting.integer_columns import IntegerColumn, integer_of_fill
from cnrfmt.checkpointing.compacting.merged_rows import (
    Count,
    KeptBlocks,
    MergedHalfBytes,
    MergedRows,
    fill_slot,
    own_codebook,
)
from cnrfmt.checkpointing.compacting.windows import Window, claims, without_base
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.grid import GROUP_VALUES
from cnrfmt.format.encoding import CodebookLayout, GridLayout, IntegerLayout, Layout, LogLayout, RawLayout
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.layer import Layer
from cnrfmt.resolve import Strip
from cnrfmt.table_writes import ColumnWrite, RowIds

_WINDOW = 1 << 18
"""Rows of which the owners are found at a time."""
_FEW = 4
"""Raw rows that are no more than one in so many of another part's rows become its exceptions."""
_NONE = np.empty(0, np.int64)


class Span:
    """The rows first .. stop - 1 of a dense table."""

    def __init__(self, first: int, stop: int) -> None:
        self.first, self.stop = first, max(first, stop)

    def __len__(self) -> int:
        return self.stop - self.first


Ended = Span | Ids
"""Rows that read as the fill value unless a part of the run has them: of a keyed table, keys."""


@dataclass(frozen=True)
class Sums:
    """Stands for the rows that are sums of integers of one grid, from an absolute part on or residual ones alone."""

    grid: tuple[str | int, ...]
    is_residual: bool


_Place = tuple[str, int]
_Own = Layout | Sums
Key = _Own | _Place
"""What the rows of one part have in common: their layout, their grid, or the layer with whose other rows alone they can
be."""
_UNWRITTEN: _Place = ("unwritten", -1)


class StripPlan:
    """How the rows of a strip are spread over parts.

    `ended` are rows that read as the fill value unless a part of the run has them, `based` is the end of those of which
    older segments may have integers that residual rows add to.
    """

    def __init__(
        self, schema: TableSchema, column: ColumnSchema, strip: Strip, ended: Ended, based: int, count: Count
    ) -> None:
        self._schema, self._column, self._strip, self._ended, self._count = schema, column, strip, ended, count
        self._based, self._raw = based, RawLayout(column.dtype)
        self._layers = [x for x in strip.layers if x.part is None or x.row_set.first < x.limit]
        self._summed = _summed(self._layers)
        self._keys = [self._key(number) for number in range(len(self._layers))]

    def _key(self, number: int) -> Key | None:
        layer = self._layers[number]
        part = layer.part
        if part is None:
            return None
        if isinstance(part.layout, IntegerLayout) and part.layout.grid in self._summed:
            return Sums(part.layout.grid, part.layout.is_residual)
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

    def writes(self, *, whole: bool) -> Iterator[ColumnWrite | IntegerColumn]:
        """The parts; `whole` says that they have to cover all rows of a dense table, if there are any."""
        keys: set[Key | None] = {key for key in self._keys if key not in (None, self._raw)} or {self._raw}
        if whole:
            # Where nothing is older, all sums have to begin with an absolute part: that is seen when they are made.
            keys = {replace(key, is_residual=False) if isinstance(key, Sums) else key for key in keys}
        if whole and isinstance(self._ended, Span) and len(self._ended) and len(keys) == 1:
            (key,) = keys
            if key is not None and not isinstance(key, tuple) and self._is_mostly(key, len(self._ended)):
                yield self._part(key, RowIds(len(self._ended)), ended=True)
                return
        rows, unwritten, blocks = self._owners()
        yield from blocks
        raw = rows.pop(self._raw, _NONE)
        main: _Own = max(rows, key=lambda own: len(rows[own]), default=self._raw)
        into = main if self._holds_fill(main) else self._raw
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

    def _is_mostly(self, layout: _Own, rows: int) -> bool:
        """Whether all rows may stand in one part of a layout, the few that are stored in another way as exceptions."""
        if layout == self._raw:
            return True
        layers = list(zip(self._keys, self._layers, strict=True))
        other = sum(x.row_set.count for key, x in layers if key == self._raw)
        if not self._holds_fill(layout):
            ranges = [x.stop - x.row_set.first for key, x in layers if key == layout and x.is_range]
            other += rows - max(ranges, default=0)
        return other * _FEW <= rows

    def _owners(self) -> tuple[dict[_Own, Ids], Ids, list[ColumnWrite]]:
        """The rows by layout, those that no part of the run has, and the parts of whole blocks that share codebooks."""
        distinct = list(dict.fromkeys(key for key in self._keys if key is not None))
        numbers = [-1 if key is None else distinct.index(key) for key in self._keys]
        found: dict[Key, list[Ids]] = {key: [] for key in (*distinct, _UNWRITTEN)}
        for window, ids in self._windows():
            # Rows that are deleted, or that no layer has, are nobody's. Sums end with an absolute part that they reach.
            group = np.full(len(ids), -1, np.int32)
            for number, _, targets in claims(window, self._layers):
                group[targets] = numbers[number]
            for number, key in enumerate(distinct):
                found[key].append(ids[group == number])
            if len(self._ended):
                found[_UNWRITTEN].append(ids[(group < 0) & self._have_ended(ids)])
        rows = {key: np.concatenate([_NONE, *parts]) for key, parts in found.items()}
        unwritten = rows.pop(_UNWRITTEN)
        self._check_bases(rows)
        writes = self._take_blocks(rows)
        return {key: ids for key, ids in rows.items() if not isinstance(key, tuple)}, unwritten, writes

    def _check_bases(self, rows: dict[Key, Ids]) -> None:
        for key, ids in rows.items():
            if isinstance(key, Sums) and key.is_residual and len(ids) and ids[-1] >= self._based:
                layer = next(x for own, x in zip(self._keys, self._layers, strict=True) if own == key)
                raise without_base(layer, f"an absolute part that has row {ids[-1]}")

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
        return kept, broken, sorted_ids.intersection(kept, others)

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

    def _part(self, own: _Own, rows: RowIds, *, ended: bool) -> ColumnWrite | IntegerColumn:
        """A part; `ended` says whether rows are among its own that no part of the run has."""
        # Exceptions may come from any layer that is raw, or that becomes so.
        layers = [
            layer
            for key, layer in zip(self._keys, self._layers, strict=True)
            if key in (own, self._raw)
            or isinstance(key, tuple)
            or (key is None and ended)
            or (isinstance(key, Sums) and isinstance(own, Sums) and key.grid == own.grid)
        ]
        recipe = self._recipe(own)
        if isinstance(own, Sums):
            return IntegerColumn(self._column, self._strip, recipe, rows, layers, self._integer(own))
        kind = MergedRows if recipe.layout.stands_alone else MergedHalfBytes
        source = kind(self._column, self._strip, recipe, rows, layers, self._slot(own), self._count)
        return ColumnWrite(self._column, source, recipe, rows, self._strip.elements)

    def _recipe(self, own: _Own) -> Recipe:
        """A layout, with the scheme of most of its rows; sums are entropy-coded."""
        if own == self._raw:
            return Recipe(self._raw)
        like = [x for x in self._layers if x.part and self._is_like(x, own)]
        part = max(like, key=lambda x: x.row_set.count).part
        assert part is not None
        if not isinstance(own, Sums):
            return Recipe(own, part.scheme)
        layout = part.layout
        assert isinstance(layout, IntegerLayout)
        kind = "residual" if own.is_residual else "absolute"
        group = layout.group or max(1, GROUP_VALUES // (self._strip.end - self._strip.first))
        if isinstance(layout, GridLayout):
            return Recipe(replace(layout, kind=kind, payload="rans", bits=None, group=group), part.scheme)
        return Recipe(replace(layout, kind=kind, payload="rans", group=group), part.scheme)

    def _is_like(self, layer: Layer, own: _Own) -> bool:
        assert layer.part is not None
        layout = layer.part.layout
        if isinstance(own, Sums):
            return isinstance(layout, IntegerLayout) and layout.grid == own.grid
        return own in (layout, own_codebook(layer, self._strip))

    def _holds_fill(self, own: _Own) -> bool:
        """Whether rows that no part of the run has can stand in a part."""
        return (self._integer(own) if isinstance(own, Sums) else self._slot(own)) is not None

    def _slot(self, layout: Layout) -> Array | None:
        return fill_slot(self._recipe(layout), self._strip.end - self._strip.first, self._strip.fill)

    def _integer(self, own: Sums) -> int | None:
        return None if own.is_residual else integer_of_fill(self._recipe(own), self._strip.fill)

    def _row_ids(self, ids: Ids) -> RowIds:
        first, count = int(ids[0]), len(ids)
        if not self._schema.keyed and int(ids[-1]) - first == count - 1:
            return RowIds(count, first=first)
        return RowIds(count, ids)


def _summed(layers: Sequence[Layer]) -> frozenset[tuple[str | int, ...]]:
    """The grids whose rows are added up. Logarithmic codes that are all absolute, and of one length, are copied."""
    layouts = [layer.part.layout for layer in layers if layer.part is not None]
    return frozenset(
        layout.grid
        for layout in layouts
        if isinstance(layout, GridLayout)
        or (isinstance(layout, LogLayout) and (layout.is_residual or layout.is_grouped))
    )


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


