"""Rows that are sums: what the layers of a strip say in integers, added up, from the newest to the oldest.

A residual part adds to what older parts say of a row, down to an absolute part of the same grid, which ends it
(specification, section 8). Each row set is gone through once, and each group that holds wanted rows is decoded once;
only what has been added up becomes floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Ids
from cnrfmt.encodings.integers import Integers, bounds, make_values
from cnrfmt.encodings.rans import RunningSums
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import IntegerLayout, LogLayout
from cnrfmt.format.toc import Part
from cnrfmt.layer import Elements, Layer
from cnrfmt.part_integers import Grid, PartIntegers, is_run

_NONE = -1
"""Stands for no grid."""
_NOBODY = np.empty(0, np.int64)
"""No rows."""


def are_summed(layers: Iterable[SummedLayer]) -> bool:
    """Whether rows are read as integers, and added up; logarithmic codes alone are read as other rows are."""
    layouts = [layer.part.layout for layer in layers if layer.part is not None and layer.integers is not None]
    return any(not isinstance(x, LogLayout) or x.is_residual or x.is_grouped for x in layouts)


class SummedLayer(Protocol):
    """What of a layer matters here; `place` is where errors say that it is."""

    @property
    def part(self) -> Part | None:
        """None for tombstones."""

    @property
    def integers(self) -> PartIntegers | None:
        """None where the part isn't under an integer encoding."""

    @property
    def place(self) -> str:
        """Its segment."""


L = TypeVar("L", bound=SummedLayer)


class WantedRows(ABC, Generic[L]):
    """The rows of one call, and which of them are *settled*: no older layer has a say in them."""

    def __init__(self, count: int) -> None:
        self.count = self.left = count
        self._settled = np.zeros(count, np.uint8)

    @abstractmethod
    def find(self, layer: L) -> tuple[Ids, Ids]:
        """The rows that aren't settled of those that a layer has: their positions there, and their places here."""

    @abstractmethod
    def alone(self, place: int) -> WantedRows[L]:
        """The row at a place by itself, not settled."""

    @abstractmethod
    def id_of(self, place: int) -> int:
        """The id of the row at a place."""

    def settle(self, places: Ids) -> None:
        """No older layer has a say in these rows, none of which is settled."""
        self._settled[places] = 1
        self.left -= len(places)

    def rest(self) -> Ids:
        """The places of the rows that aren't settled."""
        return np.flatnonzero(self._settled == 0).astype(np.int64, copy=False)


class RangeRows(WantedRows[Layer]):
    """Consecutive rows of a dense table."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__(count)
        self._first = first

    def find(self, layer: Layer) -> tuple[Ids, Ids]:
        """Both ascend."""
        from cnrfmt.kernels import sums as kernel

        first, stop = self._first, self._first + self.count
        # Most layers of a table in many parts have nothing to do with a chunk of it.
        if layer.row_set.last < first or stop <= layer.row_set.first:
            return _NOBODY, _NOBODY
        if layer.is_range:
            a, b = max(first, layer.row_set.first), min(stop, layer.stop)
            places = np.arange(a - first, max(a, b) - first, dtype=np.int64)
            if self.left < self.count:
                places = places[self._settled[places] == 0]
            return places + (first - layer.row_set.first), places
        a, b = (int(at) for at in np.searchsorted(layer.ids, (first, stop)))
        if self.left == self.count:
            return np.arange(a, b, dtype=np.int64), layer.ids[a:b] - first
        positions, places = np.empty(b - a, np.int64), np.empty(b - a, np.int64)
        count = int(kernel.unsettled(layer.ids[a:b], first, self._settled, positions, places))
        return positions[:count] + a, places[:count]

    def alone(self, place: int) -> RangeRows:
        """A range of one row."""
        return RangeRows(self._first + place, 1)

    def id_of(self, place: int) -> int:
        """Counted from the first."""
        return self._first + place


class ListedRows(WantedRows[Layer]):
    """Rows of any ids, in any order and with repeats."""

    def __init__(self, ids: Ids) -> None:
        super().__init__(len(ids))
        self._ids = ids
        self._low, self._high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
        self._left = np.arange(len(ids), dtype=np.int64)

    def find(self, layer: Layer) -> tuple[Ids, Ids]:
        """The places ascend. Of tombstones the positions mean nothing."""
        from cnrfmt.kernels import rows as kernel

        # Most layers of a long chain, or of a table in very many parts, have nothing to do with a few rows.
        if self._high < layer.row_set.first or layer.row_set.last < self._low:
            return self._left[:0], self._left[:0]
        wanted = self._ids if self.left == self.count else self._ids[self._left]
        if layer.part is None:
            positions, found = wanted, layer.segment.indexes.holds(layer.row_set, wanted)
        elif layer.is_range:
            positions = wanted - layer.row_set.first
            found = (positions >= 0) & (wanted < layer.stop)
        else:
            a = int(np.searchsorted(layer.ids, wanted[0]))
            if np.array_equal(layer.ids[a : a + len(wanted)], wanted):
                # The rows of a keyed table in the order of their keys are often one part's.
                return np.arange(a, a + len(wanted), dtype=np.int64), self._left
            positions = np.empty(len(wanted), np.int64)
            kernel.find(layer.ids, wanted, positions)
            found = positions >= 0
        return positions[found], self._left[found]

    def alone(self, place: int) -> ListedRows:
        """A list of one id."""
        return ListedRows(self._ids[place : place + 1])

    def id_of(self, place: int) -> int:
        """As it was asked for."""
        return int(self._ids[place])

    def settle(self, places: Ids) -> None:
        """Looks for them no more."""
        super().settle(places)
        self._left = self._left[self._settled[self._left] == 0]


@dataclass(frozen=True)
class Given(Generic[L]):
    """Rows that aren't integers: those of a layer, or, without one, rows that read as the fill value."""

    layer: L | None
    positions: Ids
    places: Ids


class Sums:
    """Integers of rows while they are added up.

    `values` (rows, elements) are the sums so far; what is in it of rows that nothing was added to means nothing.
    """

    def __init__(self, values: Integers) -> None:
        self.values = values
        self._layouts: dict[Grid, IntegerLayout] = {}
        self._grid_of = np.full(len(values), _NONE, np.int32)

    def on(self, grid: Grid) -> npt.NDArray[np.bool_]:
        """Which rows are on a grid."""
        found: npt.NDArray[np.bool_] = self._grid_of == self._number(grid)
        return found

    def any_of(self, places: Ids) -> int:
        """One of these places where something was added; -1 if there is none."""
        found = self._grid_of[places] != _NONE
        return int(places[np.argmax(found)]) if found.any() else -1

    def _number(self, grid: Grid) -> int:
        """What stands for a grid in `_grid_of`."""
        return next((number for number, known in enumerate(self._layouts) if known == grid), len(self._layouts))

    def add(self, part: PartIntegers, positions: Ids, places: Ids, elements: Elements) -> int:
        """Adds what a part says of rows: those at some positions there, at these places here.

        Gives the place of one that is on another grid, -1 if none is.
        """
        self._layouts.setdefault(part.grid, part.layout)
        number = self._number(part.grid)
        first, count = int(places[0]), len(places)
        # Of a row alone the group is decoded, and nothing else is to be looked at.
        if count > 1 and is_run(places) and is_run(positions):
            grids = self._grid_of[first : first + count]
            if (grids == _NONE).all():
                grids[:] = number
                part.set_range(int(positions[0]), self.values[first : first + count], elements)
                return -1
        return part.add(positions, places, elements, RunningSums(self.values, self._grid_of, number))

    def finish(self, *, as_values: bool) -> int:
        """Gives the place of a row whose sum isn't in range, -1 if all are.

        With `as_values`, it makes the sums the float32 values that they stand for, in their own memory. What that
        holds of rows that nothing was added to means nothing.
        """
        from cnrfmt.kernels import integers as kernel

        for rows, sums, layout in self._by_grid():
            bad = make_values(layout, sums) if as_values else int(kernel.out_of_range(sums, *bounds(layout)))
            if bad >= 0:
                return bad if rows is None else int(rows[bad])
            if as_values and rows is not None:
                self.values[rows] = sums
        return -1

    def _by_grid(self) -> Iterator[tuple[Ids | None, Integers, IntegerLayout]]:
        """The rows of each grid, None for all, and their sums."""
        for number, layout in enumerate(self._layouts.values()):
            mine = self._grid_of == number
            if len(self._layouts) == 1:
                # Rows that aren't on it become zeros, which do no harm: to leave them out would copy all others.
                if not mine.all():
                    self.values[~mine] = 0
                yield None, self.values, layout
            else:
                rows = np.flatnonzero(mine).astype(np.int64, copy=False)
                yield rows, self.values[rows], layout


def add_up(
    layers: Sequence[L], rows: WantedRows[L], sums: Sums, elements: Elements, place: str, *, as_values: bool
) -> list[Given[L]]:
    """Adds up the integers of the rows that are asked for; gives the others, each in one of the results.

    Parameters
    ----------
    layers
        From the newest to the oldest.
    place
        The table and the column, as errors name them.
    as_values
        Makes the sums float32 values, in their own memory.

    Raises
    ------
    DamagedError
        Residual rows without integers of the same grid below them (rule `residual-base`), sums that aren't in range
        (rule `grid-range`), and what is wrong with the parts themselves.
    """
    others = []
    for number, layer in enumerate(layers):
        if not rows.left:
            break
        positions, places = rows.find(layer)
        if not len(places):
            continue
        part = layer.integers
        at = sums.any_of(places) if part is None else sums.add(part, positions, places, elements)
        if at >= 0:
            raise _without_base(layers[:number], layer, rows.alone(at), place)
        if part is None:
            others.append(Given(None if layer.part is None else layer, positions, places))
        if part is None or not part.is_residual:
            rows.settle(places)
    if rows.left:
        rest = rows.rest()
        if (at := sums.any_of(rest)) >= 0:
            raise _without_base(layers, None, rows.alone(at), place)
        others.append(Given(None, rest, rest))
    if (at := sums.finish(as_values=as_values)) >= 0:
        raise _out_of_range(layers, rows.alone(at), place)
    return others


def _without_base(layers: Sequence[L], end: L | None, row: WantedRows[L], place: str) -> DamagedError:
    """What is wrong with a row that is residual in these layers, where the search goes on with `end`, or ends."""
    oldest = next(layer for layer in reversed(layers) if len(row.find(layer)[0]))
    if end is None:
        found = "none"
    elif end.part is None:
        found = "a tombstone"
    else:
        found = "an exception" if end.part.exceptions_of is not None else str(end.part.layout.to_json())
    return DamagedError(
        "residual-base",
        f"{oldest.place}, {place}, row {row.id_of(0)}",
        expected="integers on the same grid in an older part",
        found=found,
    )


def _out_of_range(layers: Sequence[L], row: WantedRows[L], place: str) -> DamagedError:
    """What is wrong with a row whose sum, over the layers that have it, isn't in range."""
    newest = next(layer for layer in layers if len(row.find(layer)[0]))
    assert newest.integers is not None
    least, greatest = bounds(newest.integers.layout)
    return DamagedError(
        "grid-range",
        f"{newest.place}, {place}, row {row.id_of(0)}",
        expected=f"sums from {least} to {greatest}",
        found="another",
    )
