"""The tables that are measured: real token embeddings, tiled to the size of a recommendation model's.

Speed hardly depends on the values, but encoders do branch on them, and nobody should have to wonder: so values,
ranges and norms are those of trained rows. wordllama's table has 32,000 rows of 256 elements, trained so that the
first 64, 128, ... elements are an embedding in their own right. Each copy of it is scaled by a factor of its own
and gets noise of 2 % of the table's spread, so that no two rows of a tiled table are equal.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]

SEED = 20_220_404
_NOISE = np.float32(0.02)
_FILE = "weights/l2_supercat_256.safetensors"

FULL = {"item": (2_400_000, 16), "user": (800_000, 64), "token": (400_000, 128)}
"""Rows and dim of each table: 563 MB of float32."""
QUICK = {"item": (6_000, 16), "user": (4_000, 64), "token": (1_000, 128)}
"""The same shape of a model, for a test of the benchmark itself."""


@functools.cache
def trained_rows() -> Values:
    """The table of wordllama as float32, 32,000 x 256, from the installed package."""
    from safetensors import safe_open

    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise SystemExit("the benchmark needs real embeddings: pip install wordllama")
    with safe_open(Path(spec.origin).parent / _FILE, "np") as file:
        found: Values = file.get_tensor("embedding.weight").astype(np.float32)
    return found


def tiles(rows: int, dim: int, seed: int) -> Iterator[Values]:
    """The rows of a tiled table, one copy of the trained table behind the other."""
    base = np.ascontiguousarray(trained_rows()[:, :dim])
    spread = _NOISE * base.std()
    random = np.random.default_rng([SEED, dim, seed])
    for start in range(0, rows, len(base)):
        part = base[: rows - start]
        noise = random.standard_normal(part.shape, np.float32)
        yield part * np.float32(random.uniform(0.5, 1.5)) + spread * noise


def table(rows: int, dim: int, seed: int = 0) -> Values:
    """A tiled table in memory."""
    out = np.empty((rows, dim), np.float32)
    done = 0
    for part in tiles(rows, dim, seed):
        out[done : done + len(part)] = part
        done += len(part)
    return out


def model(*, quick: bool) -> dict[str, Values]:
    """Three tables of different widths."""
    shapes = QUICK if quick else FULL
    return {name: table(rows, dim) for name, (rows, dim) in shapes.items()}


def write_table(path: Path, rows: int, dim: int) -> None:
    """Writes a tiled table as bare float32, without holding it in memory."""
    with path.open("wb") as out:
        for part in tiles(rows, dim, 1):
            out.write(part.data)


def touched_rows(rows: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Sorted ids of `count` distinct rows, drawn as skewed as traffic is: Zipf's law with exponent 1.05.

    The popularity of a row has nothing to do with its place in the table, and it is the same for every seed.
    Drawing without replacement by weight is taking the greatest of log(weight) + Gumbel noise.
    """
    ranks = np.random.default_rng([SEED, rows]).permutation(rows) + 1
    noise = np.random.default_rng([SEED, rows, seed]).gumbel(size=rows)
    score = noise - 1.05 * np.log(ranks)
    return np.sort(np.argpartition(score, rows - count)[rows - count :]).astype(np.int64)


def random_rows(rows: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Ids of `count` distinct rows, evenly spread, in random order."""
    return np.random.default_rng([SEED, seed]).choice(rows, count, replace=False).astype(np.int64)


def described(*, quick: bool) -> dict[str, Any]:
    """What was measured on, for the results."""
    shapes = QUICK if quick else FULL
    return {
        "source": "wordllama l2_supercat_256, tiled; each copy scaled by 0.5..1.5, noise of 2 % of the spread",
        "seed": SEED,
        "tables": {name: list(shape) for name, shape in shapes.items()},
        "bytes": 4 * sum(rows * dim for rows, dim in shapes.values()),
    }
