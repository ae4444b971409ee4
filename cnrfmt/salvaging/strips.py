"""Which layer gives each row of a strip of a damaged chain, and which rows can't be told (specification, section 8).

As in `cnrfmt.resolve`, a column is cut into strips, and a strip's layers go from the newest to the oldest. A layer
may have lost rows, it may have ids that aren't known, or be a *gap*: a segment of which nothing is known, so that
all rows that no newer layer gives are in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings import Recipe
from cnrfmt.format.scheme import Errors
from cnrfmt.integer_rows import Sums, WantedRows, add_up
from cnrfmt.salvaging.layers import Layer
from cnrfmt.salvaging.runs import EVERY, NONE, Runs, common, inside, merged, minus

FILL, LOST = -1, -2
"""What `Strip.find` says of rows that read as the fill value; LOST - n says that they are lost in layer n."""


class _SoundRows(WantedRows[Layer]):
    """Rows that are lost in no layer."""

    def __init__(self, ids: Ids) -> None:
        super().__init__(len(ids))
        self._ids = ids

    def find(self, layer: Layer) -> tuple[Ids, Ids]:
        """The places ascend."""
        places = self.rest()
        hit, positions = layer.find(self._ids[places])
        return positions[hit], places[hit]

    def alone(self, place: int) -> _SoundRows:
        """One id."""
        return _SoundRows(self._ids[place : place + 1])

    def id_of(self, place: int) -> int:
        """As it was asked for."""
        return int(self._ids[place])


@dataclass(frozen=True)
class Strip:
    """A range of elements that no part of the column divides, and its layers from the newest to the oldest.

    Where it is `summed`, rows of residual parts are lost with any of those that they add to.
    """

    first: int
    end: int
    layers: tuple[Layer, ...]
    place: str = ""
    summed: bool = False

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
            # A row that newer, residual parts have stays with the newest of them.
            new = choice[mine] == FILL
            positions[mine[new]] = at[hit][new]
            if layer.part is not None:
                choice[mine[new]] = number
            lost = inside(at[hit], layer.lost) if len(layer.lost) else np.zeros(len(mine), np.bool_)
            choice[mine[lost]] = LOST - number
            choice[left[doubt]] = LOST - number
            ended = hit | doubt
            if self.goes_on(layer):
                ended[hit] = lost
            left = left[~ended]
        return choice, positions

    def goes_on(self, layer: Layer) -> bool:
        """Whether older layers have a say in the rows of one."""
        return self.summed and layer.integers is not None and layer.integers.is_residual

    def read(self, ids: Ids, fill: Array) -> Array:
        """The values of sound rows of a strip that is summed."""
        out = np.empty((len(ids), self.end - self.first), np.float32)
        sums, elements = Sums(out.view(np.int32)), (self.first, self.end)
        for given in add_up(self.layers, _SoundRows(ids), sums, elements, self.place, as_values=True):
            if given.layer is None:
                out[given.places] = fill
            else:
                given.layer.decode(given.positions, out, given.places, self.first, self.end)
        return out

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
                taken = mine if self.goes_on(layer) else taken
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
