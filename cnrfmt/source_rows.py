"""The rows of a source that are written, in the order of their ids: where they are, or copied from there."""

from __future__ import annotations

import numpy as np

from cnrfmt.arrays import Array, Ids
from cnrfmt.inputs import Picked, Source2D


class SourceRows:
    """Rows of a source at some positions; None for all in their order, the first of them being number `first`."""

    def __init__(self, source: Source2D, positions: Ids | None, *, first: int = 0) -> None:
        self._source, self._positions, self._first = source, positions, first
        self._whole = source.rows(0, source.shape[0]) if source.is_contiguous else None

    @classmethod
    def of(cls, source: Source2D, order: Ids | None) -> SourceRows:
        """The rows of a source in this order, picked from what the source picks them from."""
        if not isinstance(source, Picked):
            return cls(source, order)
        return cls(source.base, source.positions if order is None else source.positions[order])

    def _positions_of(self, start: int, stop: int) -> tuple[int, int] | Ids:
        """Where the rows are in the source: from one position up to another, or anywhere."""
        if self._positions is None:
            return start - self._first, stop - self._first
        some = self._positions[start:stop]
        first, last = int(some[0]), int(some[-1])
        if last - first == len(some) - 1 and (some[1:] > some[:-1]).all():
            return first, last + 1
        return some

    def direct(self, start: int, stop: int) -> tuple[Array, Ids | None] | None:
        """An array in memory, and which of its rows are meant unless all are; None if there is no such array."""
        if self._whole is None:
            return None
        where = self._positions_of(start, stop)
        return (self._whole[slice(*where)], None) if isinstance(where, tuple) else (self._whole, where)

    def found(self, start: int, stop: int) -> tuple[Array, Ids]:
        """An array of rows, (rows, elements), and which of its rows are meant."""
        direct = self.direct(start, stop)
        rows, positions = (self.read(start, stop), None) if direct is None else direct
        return rows.reshape(len(rows), -1), np.arange(stop - start) if positions is None else positions

    def read(self, start: int, stop: int) -> Array:
        """The rows, which may be a view of those that change."""
        where = self._positions_of(start, stop)
        if isinstance(where, tuple):
            return self._source.rows(*where)
        if self._whole is None:
            return self._source.take(where)
        out = np.empty((stop - start, *self._whole.shape[1:]), self._whole.dtype)
        _gather(self._whole, where, out)
        return out

    def copy(self, start: int, stop: int, out: Array) -> None:
        """Copies the rows."""
        where = self._positions_of(start, stop)
        if self._whole is None or isinstance(where, tuple):
            out[:] = self.read(start, stop).reshape(out.shape)
        else:
            _gather(self._whole, where, out)


def _gather(rows: Array, positions: Ids, out: Array) -> None:
    from cnrfmt.kernels import gather

    flat, target = (array.reshape(-1).view(np.uint8) for array in (rows, out))
    gather.gather(flat, positions, 0, target.size // len(positions), target)
