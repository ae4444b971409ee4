"""The integers that a version has stored, where they are kept: what the rows of a delta are differences from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from cnrfmt.arrays import Array, Ids


class StoredIntegers(NamedTuple):
    """Integers of a column, not copied, and which of them are those of the rows that were asked for.

    Attributes
    ----------
    rows
        (n, w) of int16, uint16 or int32. They mustn't be changed, and may change with the next version.
    positions
        Where each row lies among them; -1 for one of which there are no integers.
    """

    rows: Array
    positions: Ids

    @staticmethod
    def nothing(count: int, width: int) -> StoredIntegers:
        """Of so many rows there are no integers."""
        return StoredIntegers(np.empty((0, width), np.int32), np.full(count, -1, np.int64))


class Stored(Protocol):
    """The integers that the version which a delta is put on has stored."""

    def integers(self, table: str, columns: Sequence[str], ids: Ids) -> dict[str, StoredIntegers]:
        """Those of some rows in each of these columns, on the grid that the column has."""
