"""Which rows each layer of a strip gives: the newest part that has a row, and the older ones that it adds to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import IntegerLayout
from cnrfmt.layer import Layer
from cnrfmt.table_writes import RowIds

_NONE = -1
"""Stands for no grid."""


class Window:
    """Some rows of a table, in the order of their ids, and which of them a layer gave already.

    They are `count` consecutive rows of a dense table, from `first` on, or those of the ids given.
    """

    def __init__(self, first: int, count: int, ids: Ids | None = None) -> None:
        self.first, self.count, self.left = first, count, count
        self._ids = ids
        self._claimed = np.zeros(count, np.uint8)
        self._positions, self._targets = np.empty(count, np.int64), np.empty(count, np.int64)

    @staticmethod
    def of(rows: RowIds, start: int, stop: int) -> Window:
        """The rows start .. stop - 1 of a part."""
        if rows.ids is None:
            return Window(rows.first + start, stop - start)
        return Window(0, stop - start, rows.ids[start:stop])

    def open(self, targets: Ids) -> None:
        """Has the next layer give these rows again."""
        self._claimed[targets] = 0
        self.left += len(targets)

    def is_within(self, layer: Layer) -> bool:
        """Whether the rows are consecutive, and all in a layer that is a range."""
        inside = layer.row_set.first <= self.first and self.first + self.count <= layer.stop
        return self._ids is None and layer.is_range and inside

    def take(self, layer: Layer) -> tuple[Ids, Ids]:
        """The rows that a layer gives of those that no layer gave before: positions there, and places here."""
        if layer.part is None:
            count = self._take_deleted(layer)
        elif self._ids is None:
            count = self._take_range(layer) if layer.is_range else self._take_ids(layer)
        elif layer.is_range:
            count = self._take_listed_range(layer, self._ids)
        else:
            count = self._take_listed(layer, self._ids)
        self.left -= count
        return self._positions[:count].copy(), self._targets[:count].copy()

    def rest(self) -> Ids:
        """The places of the rows that no layer gave."""
        from cnrfmt.kernels import rows as kernel

        return self._targets[: kernel.unclaimed(self._claimed, self._targets)].copy()

    def _take_range(self, layer: Layer) -> int:
        from cnrfmt.kernels import rows as kernel

        start, stop = max(self.first, layer.row_set.first), min(self.first + self.count, layer.stop)
        if start >= stop:
            return 0
        claimed = self._claimed[start - self.first : stop - self.first]
        count = int(kernel.unclaimed(claimed, self._targets))
        claimed[:] = 1
        self._targets[:count] += start - self.first
        np.add(self._targets[:count], self.first - layer.row_set.first, out=self._positions[:count])
        return count

    def _take_ids(self, layer: Layer) -> int:
        from cnrfmt.kernels import rows as kernel

        a, b = np.searchsorted(layer.ids, (self.first, self.first + self.count))
        if a == b:
            return 0
        count = int(kernel.claim(layer.ids[a:b], self.first, self._claimed, self._positions, self._targets))
        self._positions[:count] += a
        return count

    def _take_listed_range(self, layer: Layer, ids: Ids) -> int:
        a, b = np.searchsorted(ids, (layer.row_set.first, layer.stop))
        found = np.flatnonzero(self._claimed[a:b] == 0) + a
        self._claimed[a:b] = 1
        self._targets[: len(found)] = found
        self._positions[: len(found)] = ids[found] - layer.row_set.first
        return len(found)

    def _take_listed(self, layer: Layer, ids: Ids) -> int:
        from cnrfmt.kernels import merges as kernel

        a, b = np.searchsorted(layer.ids, ids[0]), np.searchsorted(layer.ids, ids[-1], "right")
        if a == b:
            return 0
        count = int(kernel.claim_listed(layer.ids[a:b], ids, self._claimed, self._positions, self._targets))
        self._positions[:count] += a
        return count

    def _take_deleted(self, layer: Layer) -> int:
        assert self._ids is not None
        found = np.flatnonzero(layer.segment.indexes.holds(layer.row_set, self._ids) & (self._claimed == 0))
        self._claimed[found] = 1
        # Tombstones have no positions that anybody would ask for.
        self._targets[: len(found)] = self._positions[: len(found)] = found
        return len(found)


class Claim(NamedTuple):
    """Rows of a window that the layer `number` has a say in: positions in its part, and places in the window."""

    number: int
    positions: Ids
    targets: Ids


def claims(window: Window, layers: Sequence[Layer]) -> Iterator[Claim]:
    """What each layer gives of a window, the newest first.

    A row is given by the newest layer that has it; where that one is residual, by older ones as well, down to an
    absolute one, or to the last.

    Raises
    ------
    DamagedError
        A residual row is followed by anything but integers of the same grid (rule `residual-base`).
    """
    layouts = [None if layer.part is None else layer.part.layout for layer in layers]
    grids = list(dict.fromkeys(layout.grid for layout in layouts if isinstance(layout, IntegerLayout)))
    grid_of = np.full(window.count, _NONE, np.int32)
    for number, (layer, layout) in enumerate(zip(layers, layouts, strict=True)):
        if not window.left:
            return
        positions, targets = window.take(layer)
        if not len(targets):
            continue
        grid = grids.index(layout.grid) if isinstance(layout, IntegerLayout) else _NONE
        newer = grid_of[targets]
        if ((newer != _NONE) & (newer != grid)).any():
            raise without_base(layer, "integers of the grid that newer parts are residual to")
        if layout is not None and layout.is_residual:
            grid_of[targets] = grid
            window.open(targets)
        yield Claim(number, positions, targets)


def without_base(layer: Layer, expected: str) -> DamagedError:
    """What is wrong where residual rows go on with a layer, or end with it."""
    found = "deleted rows" if layer.part is None else f"{layer.part.layout.to_json()}"
    what = "tombstones" if layer.part is None else f"column {layer.part.column!r}"
    return DamagedError("residual-base", f"{layer.segment.place}, {what}", expected=expected, found=found)
