"""A table of a server: whatever version it has taken in last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.pooling import Pooled
from cnrfmt.serving.live_rows import LiveRows

if TYPE_CHECKING:
    from cnrfmt.serving.live import LiveTables


class LiveTable:
    """A table as the newest version has it that was taken in: each call goes to that version's rows."""

    def __init__(self, live: LiveTables, name: str) -> None:
        self._live, self.name = live, name

    @property
    def rows(self) -> LiveRows:
        """Those of the newest version; they stay as they are."""
        return self._live.snapshot()[self.name]

    def lookup(self, ids: Any, *, out: Array | None = None) -> Array:
        """As `LiveRows.lookup`."""
        return self.rows.lookup(ids, out=out)

    def pool(self, ids: Any, offsets: Any, weights: Any = None, mode: str = "sum") -> Pooled:
        """As `LiveRows.pool`."""
        return self.rows.pool(ids, offsets, weights, mode)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that are held, and dim."""
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of rows."""
        return self.rows.dtype

    @property
    def keyed(self) -> bool:
        """Whether rows are found by key rather than by number."""
        return self.rows.keyed

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<cnrfmt.LiveTable {self.name!r} of {self._live!r}>"
