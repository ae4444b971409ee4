"""Where rows are in the memory of who holds some of a table's: from ids or keys to positions 0, 1, 2, ..."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.serving.key_index import KeyIndex

_MANY = 8
"""Where one key in so many or more came later than the index was built, it is built anew."""


class Positions(ABC):
    """Immutable: rows that are added make another one. Safe to use from many threads."""

    count: int
    """Positions that were given out."""

    @property
    @abstractmethod
    def ids(self) -> range | Ids:
        """Whose each position is."""

    @abstractmethod
    def of(self, ids: Ids) -> Ids:
        """The position of each row, -1 where it isn't held."""

    @abstractmethod
    def extended(self, ids: Ids) -> Positions:
        """With the positions behind the last for these ids, none of which has one; they ascend."""


class RangePositions(Positions):
    """Consecutive rows of a dense table."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    @property
    def ids(self) -> range:
        """As `Positions.ids`."""
        return range(self.first, self.first + self.count)

    def of(self, ids: Ids) -> Ids:
        """As `Positions.of`."""
        found = ids - self.first if self.first else ids
        if len(ids) and not (int(found.min()) >= 0 and int(found.max()) < self.count):
            found = np.where((found >= 0) & (found < self.count), found, -1)
        return found

    def extended(self, ids: Ids) -> RangePositions:
        """As `Positions.extended`."""
        end = self.first + self.count
        assert not len(ids) or (int(ids[0]), int(ids[-1])) == (end, end + len(ids) - 1)
        return RangePositions(self.first, self.count + len(ids))


class ListedPositions(Positions):
    """Rows of any ids or keys: an index of most of them, and a small one of those that came later."""

    def __init__(self, ids: Ids, *, known: tuple[KeyIndex, Ids] | None = None) -> None:
        self._ids, self.count = ids, len(ids)
        if known is None or (len(ids) - len(known[1])) * _MANY > len(ids):
            self._index, self._indexed, self._recent = KeyIndex.build(ids), ids, None
        else:
            self._index, self._indexed = known
            self._recent = KeyIndex.build(ids[len(self._indexed) :])

    @property
    def ids(self) -> Ids:
        """As `Positions.ids`."""
        return self._ids

    def of(self, ids: Ids) -> Ids:
        """As `Positions.of`."""
        found = self._index.find(ids)
        if self._recent is not None and len(lost := np.flatnonzero(found < 0)):
            later = self._recent.find(ids[lost])
            found[lost] = np.where(later >= 0, later + len(self._indexed), -1)
        return found

    def extended(self, ids: Ids) -> ListedPositions:
        """As `Positions.extended`."""
        if not len(ids):
            return self
        return ListedPositions(np.concatenate([self._ids, ids]), known=(self._index, self._indexed))


def positions_of(ids: range | Ids) -> Positions:
    """The positions of rows in the order in which they are listed."""
    return RangePositions(ids.start, len(ids)) if isinstance(ids, range) else ListedPositions(ids)
