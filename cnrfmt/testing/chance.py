"""Tables and changes from a source of chance, made quickly: one seed is all that a step has to draw for them.

The strategies in `strategies.py` shrink to smaller tables; these don't, and take a tenth of their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData
from cnrfmt.testing.model import ON_GRID, STEP, ModelTable

NAMES = ("user", "item", "a/b", "../up", "café", "x" * 40)
COLUMNS = ("momentum", "accumulator")
"""Two further columns; the second has one value per row."""
_MAX_ROWS = 12
_EXTREME_KEYS = (-(1 << 63), (1 << 63) - 1, 1 << 40, -(1 << 33))


def some_values(random: Random, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of any bit patterns: NaN payloads, -0.0 and denormals among them."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(bytearray(random.randbytes(count)), dtype).reshape(shape)


def _on_grid(random: Random, shape: tuple[int, ...]) -> Array:
    """Values for the table on a grid: now and then a row has one that no grid holds. Sums of one value are 1 to 8."""
    if len(shape) == 1:
        return np.array([random.uniform(1, 8) for _ in range(shape[0])], np.float32)
    values = np.array([random.uniform(-4, 4) for _ in range(shape[0] * shape[1])], np.float32).reshape(shape)
    for row in values:
        if random.random() < 0.1:
            row[random.randrange(shape[1])] = random.choice([np.nan, np.inf, -1e30, 3e7])
    return values


def values_for(random: Random, table: ModelTable, column: str, ids: list[int]) -> Array:
    """Values of a column for these rows of a table."""
    dtype, per_row = table.dtypes.get(column, (np.dtype(np.float32), column == "accumulator"))
    shape = (len(ids),) if per_row else (len(ids), table.dim)
    is_grid = table.step is not None and column != "momentum"
    return _on_grid(random, shape) if is_grid else some_values(random, shape, dtype)


def trained(random: Random, table: ModelTable, column: str, ids: list[int]) -> Array:
    """The same after some training: on a grid, each value is some steps from where it was, if that is a number."""
    values = values_for(random, table, column, ids)
    if table.step is not None and column == "weight":
        before = table.array(column, ids)
        moved = [random.choice([-1, 1]) * random.uniform(1.5, 900) * STEP for _ in range(before.size)]
        near = np.isfinite(before).all(axis=1, keepdims=True) & (np.abs(before) < 8).all(axis=1, keepdims=True)
        values = np.where(near, before + np.array(moved).reshape(before.shape), values).astype(np.float32)
    return values


def _some_dtype(random: Random) -> np.dtype[Any]:
    return dtypes.dtype_of(random.choice(dtypes.COLUMN_TYPES))


def _some_keys(random: Random, count: int) -> list[int]:
    keys = random.sample([*range(-40, 40), *_EXTREME_KEYS], count)
    random.shuffle(keys)
    return keys


def some_table(random: Random) -> TableData:
    """A whole table, dense or keyed, with up to two further columns."""
    rows, dim = random.randint(0, _MAX_ROWS), random.randint(1, 9)
    columns = {}
    for name in COLUMNS:
        if random.random() < 0.5:
            shape = (rows,) if name == "accumulator" else (rows, dim)
            columns[name] = some_values(random, shape, _some_dtype(random))
    keys = np.array(_some_keys(random, rows), np.int64) if random.random() < 0.5 else None
    return TableData(some_values(random, (rows, dim), _some_dtype(random)), columns=columns, keys=keys, fill=1)


def some_grid_table(random: Random) -> TableData:
    """A whole table of numbers for a grid, dense or keyed."""
    rows, dim = random.randint(0, _MAX_ROWS), random.randint(1, 9)
    columns = {"accumulator": _on_grid(random, (rows,))} if random.random() < 0.7 else {}
    keys = np.array(_some_keys(random, rows), np.int64) if random.random() < 0.5 else None
    return TableData(_on_grid(random, (rows, dim)), columns=columns, keys=keys, fill=1)


def _some_rows(random: Random, table: ModelTable) -> Any:
    """A change of one table: rows, growth or shrinkage, deletions."""
    rows = table.rows
    if rows is None:
        known = [*table.ids, *_some_keys(random, 3)]
        ids = sorted(set(random.choices(known, k=random.randint(0, 8))))
        random.shuffle(ids)
    else:
        rows = rows if random.random() < 0.5 else random.randint(0, rows + 12)
        ids = random.sample(range(rows), random.randint(0, min(rows, 8)))
    names = {name for name in ("weight", *COLUMNS) if random.random() < 0.5} or {"weight"}
    if rows is None:
        names.add("weight")
    columns = {}
    for name in sorted(names):
        columns[name] = values_for(random, table, name, ids)
    change = Rows(np.array(ids, np.int64), columns.pop("weight", None), columns=columns, rows=rows)
    if rows is not None or random.random() < 0.5:
        return change
    gone = {key for key in (*table.ids, *_some_keys(random, 2)) if random.random() < 0.3}
    return change, Deleted(np.array(sorted(gone - set(ids)), np.int64))


def some_tables(random: Random) -> dict[str, Any]:
    """What `save` could be given."""
    found = {name: some_table(random) for name in random.sample(NAMES, random.randint(1, 3))}
    return found | ({ON_GRID: some_grid_table(random)} if random.random() < 0.5 else {})


def some_changes(random: Random, head: Mapping[str, ModelTable]) -> dict[str, Any]:
    """What `append` could be given on a version with these tables."""
    found: dict[str, Any] = {}
    for name, table in head.items():
        kind = random.choice(["keep", "keep", "rows", "rows", "rows", "rows", "drop", "replace"])
        if kind == "rows":
            found[name] = _some_rows(random, table)
        elif kind == "drop":
            found[name] = Dropped()
        elif kind == "replace":
            found[name] = some_table(random) if table.step is None else some_grid_table(random)
    if random.random() < 0.3 or not head:
        name = random.choice(NAMES)
        if name not in head:
            found[name] = some_table(random)
    return found


def some_dense(random: Random) -> dict[str, Any] | None:
    """What `dense` could be given: an array, bytes, JSON; most times nothing."""
    if random.random() < 0.6:
        return None
    values = {
        "array": some_values(random, random.choice([(), (3,), (2, 2), (0, 5)]), np.dtype(np.float32)),
        "bytes": random.randbytes(random.randint(0, 9)),
        "json": random.choice([None, True, [1, "a"], {"b": {"c": 0.5}}]),
    }
    return {f"dense {kind}": value for kind, value in values.items() if random.random() < 0.6}


def some_metadata(random: Random) -> dict[str, Any] | None:
    """What `metadata` could be given; most times nothing."""
    if random.random() < 0.6:
        return None
    return {"run": random.randint(-9, 9), "note": random.choice(["", "é", "\0", "a" * 30])}
