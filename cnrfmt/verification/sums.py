"""The rules on rows that are sums of integers: each has a base, and stays in range (specification, section 8).

A column's chain is gone through once, from its oldest step to its newest, with the sums as each step leaves them: so
every version on the way is judged, and each part is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.encodings.integers import Integers, bounds
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import IntegerLayout
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.toc import TableEntry
from cnrfmt.layer import Elements, Layer
from cnrfmt.part_integers import Grid
from cnrfmt.resolve import Steps
from cnrfmt.segment_reader import SegmentReader

_CHUNK = 4 << 20
"""Bytes of sums that there are at a time."""
_NONE = -1
"""Stands for no grid."""
_NO_LIMIT = 1 << 63


def check_chains(
    manifests: Iterable[Manifest], segment_of: Callable[[ChainEntry], SegmentReader | None]
) -> Iterator[DamagedError]:
    """Every break of the rules `residual-base` and `grid-range`, once for each column and segment.

    Chains are left out of which a segment isn't there; so is what is wrong with the parts themselves.
    """
    judged: dict[tuple[bytes, str], list[list[ChainEntry]]] = {}
    for manifest in sorted(manifests, key=lambda m: len(m.chain), reverse=True):
        steps = [[segment_of(entry) for entry in step] for step in manifest.steps()]
        opened = [[reader for reader in step if reader is not None] for step in steps]
        if any(len(a) < len(b) for a, b in zip(opened, steps, strict=True)):
            continue
        for schema in manifest.tables:
            of_table = [[(r, e) for r in s if (e := r.toc.by_table.get(schema.table_id)) is not None] for s in opened]
            residual = {column for step in of_table for _, entry in step for column, _ in entry.residuals}
            for column in schema.columns:
                if column.name not in residual:
                    continue
                # What a longer chain goes on from is judged with it.
                longer = judged.setdefault((schema.table_id, column.name), [])
                if not any(_starts_with(chain, manifest.chain) for chain in longer):
                    longer.append(list(manifest.chain))
                    yield from _check_column(column.name, of_table, f"table {schema.name!r}, column {column.name!r}")
                    for reader, _ in (says for step in of_table for says in step):
                        reader.indexes.forget()


def _starts_with(chain: Sequence[ChainEntry], first: Sequence[ChainEntry]) -> bool:
    here = [(entry.segment, entry.offset) for entry in chain[: len(first)]]
    return here == [(entry.segment, entry.offset) for entry in first]


@dataclass(frozen=True)
class _Step:
    """What a step says of a strip: rows that end, then parts, exceptions behind the parts that they override."""

    deleted: tuple[Layer, ...]
    rows: int | None
    parts: tuple[Layer, ...]


def _check_column(column: str, steps: Steps, place: str) -> Iterator[DamagedError]:
    parts = [part for step in steps for _, entry in step for part in entry.parts if part.column == column]
    for elements in pairwise(sorted({edge for part in parts for edge in part.elements})):
        found = [_step_of(column, step, elements) for step in steps]
        try:
            yield from _Replay(found, elements, place).run()
        except DamagedError:
            # What is wrong with a segment by itself was found when it was looked at.
            continue


def _step_of(column: str, step: Sequence[tuple[SegmentReader, TableEntry]], elements: Elements) -> _Step:
    parts = [
        (segment, entry.row_sets[part.rows], part)
        for segment, entry in step
        for part in entry.parts
        if part.column == column and part.elements[0] <= elements[0] and elements[1] <= part.elements[1]
    ]
    parts.sort(key=lambda item: item[2].exceptions_of is not None)
    rows = [entry.rows for _, entry in step if entry.rows is not None]
    return _Step(
        tuple(Layer(s, e.row_sets[e.deleted], None, _NO_LIMIT) for s, e in step if e.deleted is not None),
        min(rows, default=None),
        tuple(Layer(*item, _NO_LIMIT) for item in parts),
    )


class _Replay:
    """The steps of a strip, applied to the rows that have a residual part, some at a time."""

    def __init__(self, steps: Sequence[_Step], elements: Elements, place: str) -> None:
        self._steps, self._elements, self._place = steps, elements, place
        self._layouts: dict[Grid, IntegerLayout] = {}
        for step in steps:
            for layer in step.parts:
                if layer.integers is not None:
                    self._layouts.setdefault(layer.integers.grid, layer.integers.layout)
        self._numbers = {grid: number for number, grid in enumerate(self._layouts)}
        self._found: set[tuple[str, int]] = set()

    def run(self) -> Iterator[DamagedError]:
        width = self._elements[1] - self._elements[0]
        residual = [x for step in self._steps for x in step.parts if x.integers is not None and x.integers.is_residual]
        for ids in _windows(residual, max(1, _CHUNK // (4 * width))):
            yield from self._rows(ids)

    def _rows(self, ids: Ids) -> Iterator[DamagedError]:
        sums = np.zeros((len(ids), self._elements[1] - self._elements[0]), np.int32)
        grid_of = np.full(len(ids), _NONE, np.int32)
        for step in self._steps:
            for layer in step.deleted:
                grid_of[layer.segment.indexes.holds(layer.row_set, ids)] = _NONE
            if step.rows is not None:
                grid_of[np.searchsorted(ids, step.rows) :] = _NONE
            without = [place for layer in step.parts for place in self._apply(layer, ids, sums, grid_of)]
            yield from self._judge(step, ids, sums, grid_of, without)

    def _apply(self, layer: Layer, ids: Ids, sums: Integers, grid_of: npt.NDArray[np.int32]) -> Iterator[Ids]:
        """Adds what a layer says; gives the places of residual rows that aren't on its grid yet."""
        from cnrfmt.kernels import integers as kernel

        positions, places = _common(layer, ids)
        if not len(places):
            return
        part = layer.integers
        if part is None:
            grid_of[places] = _NONE
            return
        number = self._numbers[part.grid]
        if part.is_residual:
            yield places[grid_of[places] != number]
        else:
            sums[places] = 0
        grid_of[places] = number
        for some, rows in part.rows_at(positions, places, self._elements):
            kernel.add_at(sums, some, rows)

    def _judge(
        self, step: _Step, ids: Ids, sums: Integers, grid_of: npt.NDArray[np.int32], without: Sequence[Ids]
    ) -> Iterator[DamagedError]:
        """What is wrong with the rows of a step, once its exceptions are known."""
        from cnrfmt.kernels import integers as kernel

        broken = np.zeros(len(ids), np.bool_)
        for places in without:
            broken[places] = True
        broken &= grid_of != _NONE
        for layer in step.parts:
            if layer.integers is None:
                continue
            _, places = _common(layer, ids)
            mine = places[grid_of[places] == self._numbers[layer.integers.grid]]
            if (wrong := broken[mine]).any():
                row = int(ids[mine[np.argmax(wrong)]])
                expected = "integers on the same grid in an older part"
                yield from self._once("residual-base", layer, row, expected, "others")
            sound = mine[~broken[mine]]
            least, greatest = bounds(layer.integers.layout)
            if len(sound) and (at := int(kernel.out_of_range(sums[sound], least, greatest))) >= 0:
                row = int(ids[sound[at]])
                yield from self._once("grid-range", layer, row, f"sums from {least} to {greatest}", "another")

    def _once(self, rule: str, layer: Layer, row: int, expected: str, found: str) -> Iterator[DamagedError]:
        key = rule, id(layer)
        if key not in self._found:
            self._found.add(key)
            place = f"{layer.place}, {self._place}, row {row}"
            yield DamagedError(rule, place, expected=expected, found=found)


def _windows(layers: Sequence[Layer], count: int) -> Iterator[Ids]:
    """All rows that the layers have, ascending and once each, about `count` of them at a time."""
    per_layer = max(1, count // max(1, len(layers)))
    left = [(layer, 0) for layer in layers]
    while left:
        last = min(_id_at(layer, min(at + per_layer, layer.row_set.count) - 1) for layer, at in left)
        some, rest = [], []
        for layer, at in left:
            stop = _behind(layer, last)
            some.append(_ids(layer, at, stop))
            if stop < layer.row_set.count:
                rest.append((layer, stop))
        yield sorted_ids.union(*some)
        left = rest


def _id_at(layer: Layer, position: int) -> int:
    return layer.row_set.first + position if layer.is_range else int(layer.ids[position])


def _behind(layer: Layer, last: int) -> int:
    """The position behind the rows up to `last`."""
    if layer.is_range:
        return min(max(0, last + 1 - layer.row_set.first), layer.row_set.count)
    return int(np.searchsorted(layer.ids, last, "right"))


def _ids(layer: Layer, start: int, stop: int) -> Ids:
    """The rows at positions start .. stop - 1."""
    if layer.is_range:
        return np.arange(start, stop, dtype=np.int64) + layer.row_set.first
    return layer.ids[start:stop]


def _common(layer: Layer, ids: Ids) -> tuple[Ids, Ids]:
    """Which of ascending ids a layer has: their positions there, and their places among them."""
    from cnrfmt.kernels import rows as kernel

    a, b = np.searchsorted(ids, layer.row_set.first), np.searchsorted(ids, layer.row_set.last, "right")
    places = np.arange(a, b, dtype=np.int64)
    if layer.is_range or a == b:
        return ids[a:b] - layer.row_set.first, places
    positions = np.empty(b - a, np.int64)
    kernel.find(layer.ids, ids[a:b], positions)
    found = positions >= 0
    return positions[found], places[found]
