"""One layer of a damaged chain: which rows of a part, or of tombstones, are sound, and their values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.encodings import coder
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import CodebookLayout, IntegerLayout
from cnrfmt.format.toc import Part
from cnrfmt.part_integers import PartIntegers
from cnrfmt.salvaging.indexes import KnownRows
from cnrfmt.salvaging.runs import EVERY, NONE, Runs, common, inside, run, runs_of
from cnrfmt.salvaging.segments import SalvagedSegment

_BATCH = 4096
_FEW_RUNS = 1 << 10

Opened = SalvagedSegment | DamagedError
"""A segment of the chain, or what is wrong with it."""


class _SoundIntegers(PartIntegers):
    """A part of which only sound rows are asked for, though bytes between them may be lost."""

    spans_gaps = False

    def __init__(self, segment: SalvagedSegment, part: Part, count: int) -> None:
        super().__init__(segment, part, count)
        self._salvaged, self._section = segment, part.section

    def fetch(self, start: int, length: int) -> tuple[Bytes, int]:
        """Lost bytes are zero; no row that is asked for has any."""
        return self._salvaged.proven(self._section, start, length), 0

    def _fetch_run(self, start: int, length: int) -> tuple[Bytes, int]:
        return self.fetch(start, length)

    def _fetch_apart(self, starts: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        """Neighbours are proven together."""
        stops = starts + lengths
        cuts = np.flatnonzero(starts[1:] > stops[:-1]) + 1
        edges = [0, *cuts.tolist(), len(starts)]
        runs = [(int(starts[a]), int(stops[b - 1])) for a, b in pairwise(edges)]
        data = np.concatenate([self.fetch(start, stop - start)[0] for start, stop in runs])
        # What lies between the runs is left out.
        gaps = np.zeros(len(starts), np.int64)
        gaps[cuts] = starts[cuts] - stops[cuts - 1]
        return data, starts - starts[0] - gaps.cumsum()


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

    @cached_property
    def integers(self) -> PartIntegers | None:
        """What the part says if it is under an integer encoding."""
        if self.segment is None or self.part is None or not isinstance(self.part.layout, IntegerLayout):
            return None
        assert self.rows is not None
        return _SoundIntegers(self.segment, self.part, self.rows.row_set.count)

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
        if self.integers is not None:
            return self.integers.are_zero(positions)
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


def gap(error: DamagedError, limit: int | None) -> Layer:
    """The layer that a segment is of which nothing is known."""
    return Layer(None, None, None, limit, NONE, EVERY, error.rule, error.place)


def _within(ids: Ids, runs: Runs) -> Ids:
    """Those of ascending ids that lie in some runs; quick where the runs are few."""
    if len(runs) > _FEW_RUNS:
        return ids[inside(ids, runs)]
    low, high = np.searchsorted(ids, runs[:, 0]), np.searchsorted(ids, runs[:, 1], "right")
    return np.concatenate([ids[:0], *(ids[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True))])
