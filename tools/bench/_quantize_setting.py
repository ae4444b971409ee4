"""Which rows are quantised, and who else quantises them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.bench import _data
from tools.bench._figures import say

Values = npt.NDArray[np.float32]

ROWS = ("normal", "wordllama", "demo")
DIMS = (16, 64, 128, 256)
QUICK_DIMS = (16, 64)
_MANY = 128 << 20
"""Bytes of a large table: several times what the caches hold."""
_FEW = 4 << 20
"""Bytes of a small one, for what takes long."""
_DEMO_SEED = 0


@dataclass(frozen=True, eq=False)
class Setting:
    """Where files go, how often things are repeated, how large they are, and what they are done with."""

    folder: Path
    quick: bool
    repeat: int
    kinds: tuple[str, ...] = ROWS
    dims: tuple[int, ...] = DIMS

    @property
    def short_repeat(self) -> int:
        """Rounds of what takes some milliseconds."""
        return self.repeat if self.quick else 3 * self.repeat

    @property
    def sample_rows(self) -> int:
        """Rows of a sample, for what takes very long."""
        return 4 if self.quick else 64

    def cases(self) -> Iterator[tuple[str, int]]:
        """Each kind of rows with each width."""
        return ((rows, dim) for rows in self.kinds for dim in self.dims)

    def many(self, rows: str, dim: int) -> Values:
        """A table that no cache holds. Trained rows are tiled."""
        count = (64 << 10 if self.quick else _MANY) // (4 * dim)
        if rows == "normal":
            return normal_rows(count, dim)
        if rows == "wordllama":
            return _data.table(count, dim)
        return np.resize(self._trained(rows, dim), (count, dim))

    def few(self, rows: str, dim: int) -> Values:
        """A small table, of trained rows as they are."""
        count = (8 << 10 if self.quick else _FEW) // (4 * dim)
        return normal_rows(count, dim) if rows == "normal" else self._trained(rows, dim)[:count]

    def sample(self, rows: str, dim: int) -> Values:
        """Rows from all over the small table."""
        few = self.few(rows, dim)
        count = min(len(few), self.sample_rows)
        return few[np.linspace(0, len(few) - 1, count).astype(np.int64)]

    def _trained(self, rows: str, dim: int) -> Values:
        """Trained rows of this width.

        The first elements of wordllama's rows are an embedding in their own right. The demo's rows of 32 elements are
        cut in halves, or set side by side.
        """
        if rows == "wordllama":
            return np.ascontiguousarray(_data.trained_rows()[:, :dim])
        values = np.concatenate([table.reshape(-1) for table in demo_tables(quick=self.quick).values()])
        return values[: len(values) // dim * dim].reshape(-1, dim)


def normal_rows(count: int, dim: int) -> Values:
    """Independent, normally distributed elements."""
    return np.random.default_rng([_data.SEED, dim]).standard_normal((count, dim), np.float32)


@functools.cache
def demo_tables(*, quick: bool) -> dict[str, Values]:
    """The embeddings of users and of items that the demo trains, to the end of its orders."""
    say("training the demo's tables")
    from cnrfmt.demo.model import Model
    from cnrfmt.demo.orders import load_orders

    data = load_orders(users=10 if quick else None)
    model = Model(data, _DEMO_SEED)
    model.train(len(data.stream))
    return {"user": model.weights.user, "item": model.weights.product}


@functools.cache
def operators() -> Any:
    """torch, with its quantised operators and FBGEMM's, held to one thread."""
    try:
        import fbgemm_gpu  # noqa: F401  It registers the operators.
        import torch
    except ImportError as problem:
        raise SystemExit(f"{problem}: the operators come with pip install 'cnrfmt[test]'") from problem
    torch.set_num_threads(1)
    return torch.ops


def tensor(values: npt.NDArray[Any]) -> Any:
    """The same memory as a tensor."""
    import torch

    return torch.from_numpy(values)
