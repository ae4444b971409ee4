"""The row indexes of one segment, each decoded when it is first asked for and kept."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.encodings import row_ids
from cnrfmt.format import limits
from cnrfmt.format.toc import RowSet

if TYPE_CHECKING:
    from cnrfmt.segment_reader import SegmentReader


class RowIndexes:
    """Row sets that have a row index. Safe to use from many threads: decoding one twice does no harm."""

    def __init__(self, segment: SegmentReader) -> None:
        # In a circle with its reader it would keep the file open until the collector of cycles comes.
        self._segment: SegmentReader = weakref.proxy(segment)
        self._ids: dict[RowSet, Ids] = {}
        self._runs: dict[RowSet, row_ids.Runs] = {}

    def ids(self, row_set: RowSet) -> Ids:
        """The row ids of a row set with a row index: private memory, checked, kept for the next call."""
        found = self._ids.get(row_set)
        if found is None:
            found = row_ids.decode(
                row_set.code,
                self._index(row_set),
                row_set.count,
                row_set.first,
                row_set.last,
                self._index_place(row_set),
                # Rows of a part take at least a byte each, and tombstones have a limit of their own.
                max_ids=max(self._segment.trailer.data_end, limits.MAX_TOMBSTONES),
            )
            self._ids[row_set] = found
        return found

    def holds(self, row_set: RowSet, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of these ids are in a row set with a row index; the runs of a few bytes are never written out."""
        if row_set.code != "runs":
            from cnrfmt.kernels import rows as kernel

            positions = np.empty(len(ids), np.int64)
            kernel.find(self.ids(row_set), ids, positions)
            return positions >= 0
        runs = self._runs.get(row_set)
        if runs is None:
            place = self._index_place(row_set)
            runs = row_ids.decode_as_runs(self._index(row_set), row_set.count, row_set.first, row_set.last, place)
            self._runs[row_set] = runs
        return runs.holds(ids)

    def cost(self, row_set: RowSet, *, whole: bool = True) -> int:
        """Bytes of memory that `ids` takes when it is next called, or `holds` where `whole` is False."""
        if row_set.section is None or row_set in self._ids or row_set in self._runs:
            return 0
        length = self._segment.toc.sections[row_set.section][1]
        return length + 8 * row_set.count if whole or row_set.code != "runs" else 5 * length

    def forget(self) -> None:
        """Lets go of the row ids that are kept."""
        self._ids, self._runs = {}, {}

    def _index(self, row_set: RowSet) -> Bytes:
        assert row_set.section is not None
        return self._segment.section(row_set.section)

    def _index_place(self, row_set: RowSet) -> str:
        return f"{self._segment.place}, section {row_set.section} (row index)"
