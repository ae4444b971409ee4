"""What operations are given: tables and changes of them, from what a container says and a source of chance."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np

from cnrfmt import Deleted, Quantize, Rows, TableData
from tools.crash.expected import Expected

F32 = np.float32
QUANTIZE = {"item": Quantize(2, method="kmeans", params="float32", block=2, max_error=0, one_valued="log12")}
"""Rows share codebooks, codes share bytes; with an error of 0, what isn't held exactly becomes an exception."""
STEP = 2.0**-20
"""All values are multiples of it, so that a grid of such steps holds them exactly."""


def _values(random: Random, rows: int, dim: int) -> np.ndarray:
    """Rows that no other call gives: a row of another version is never taken for this one's."""
    most = int(1 / STEP)
    found = [[random.randint(-most, most) * STEP for _ in range(dim)] for _ in range(rows)]
    return np.array(found, F32).reshape(rows, dim)


def _weights(random: Random, rows: int) -> np.ndarray:
    """The same of 3 elements, most of which a codebook of 4 numbers for two rows holds."""
    values = _values(random, rows, 3)
    for row in values:
        row[2] = row[0] if random.randrange(4) else row[2]
    return values


def _sums(random: Random, ids: Iterable[int]) -> dict[str, np.ndarray]:
    """A column of one value per row: logarithmic codes of 12 bits hold those that aren't negative.

    Row 0 has one that isn't. It and its like, of 8 bits and 3 octaves, are held exactly wherever its codes begin.
    """
    signs = [1 if row == 0 else random.choice([1, 1, 1, -1]) for row in ids]
    some = [sign * random.randrange(128, 256) * 2.0 ** random.randrange(3) for sign in signs]
    return {"accumulator": np.array(some, F32)}


def baseline(model: Expected, random: Random) -> dict[str, Any]:
    """Whole tables, a dense and a keyed one."""
    keys = np.array(random.sample(range(-9, 40), 4), np.int64)
    item = TableData(_weights(random, 6), columns=_sums(random, range(6)))
    return {"item": item, "visitor": TableData(_values(random, 4, 2), keys=keys)}


def some_rows(model: Expected, random: Random) -> dict[str, Any]:
    """New rows of both tables."""
    count = model.versions[model.head]["item"].rows or 0
    ids = np.array(sorted(random.sample(range(count), 2)), np.int64)
    return {
        "item": Rows(ids, _weights(random, 2), columns=_sums(random, ids)),
        "visitor": Rows(np.array([random.randrange(40, 60)], np.int64), _values(random, 1, 2)),
    }


def deletion(model: Expected, random: Random) -> dict[str, Any]:
    """Keys that go; none where there are none left."""
    known = model.versions[model.head]["visitor"].ids
    return {"visitor": Deleted(np.array(random.sample(known, min(2, len(known))), np.int64))}


def growth(model: Expected, random: Random) -> dict[str, Any]:
    """A row behind the end of the dense table, whose rows before it are filled."""
    count = model.versions[model.head]["item"].rows or 0
    last = np.array([count + 2], np.int64)
    return {"item": Rows(last, _weights(random, 1), columns=_sums(random, last), rows=count + 3)}


def _changes(model: Expected, random: Random) -> dict[str, Any]:
    """Rows of every kind, and keys that go."""
    changes = some_rows(model, random)
    known = [key for key in model.versions[model.head]["visitor"].ids if key not in changes["visitor"].ids]
    gone = Deleted(np.array(random.sample(known, min(1, len(known))), np.int64))
    return {**changes, "visitor": (changes["visitor"], gone)}


def two_changes(model: Expected, random: Random) -> tuple[dict[str, Any], ...]:
    """The changes of two checkpoints, one after the other."""
    first = _changes(model, random)
    return first, _changes(model.appended(first), random)


def changes_on_grid(model: Expected, random: Random) -> tuple[bool, tuple[dict[str, Any], ...]]:
    """Whether a run on a grid begins with a baseline, and the changes of two checkpoints."""
    return not model.on_grid, two_changes(model, random)


def part_of_chain(model: Expected, random: Random) -> tuple[int, int]:
    """Two segments or more that come one after the other: the first, and the end behind the last."""
    first = random.randrange(model.chain - 1)
    return first, random.randint(first + 2, model.chain)


def name_for_version(model: Expected, random: Random) -> tuple[str, int | None]:
    """A version for a tag, another than the one that has it; None to take it away."""
    others = sorted(set(model.versions) - set(model.tags.values()))
    return "prod", random.choice([*others, *([None] if model.tags else [])])
