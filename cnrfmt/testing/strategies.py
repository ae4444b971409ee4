"""Strategies: tables of any kind and data type, and sequences of operations on a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData
from cnrfmt.testing.model import Model, ModelTable

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.sampled_from(["user", "item", "a/b", "../up", "café", "x" * 40])
COLUMNS = ("momentum", "accumulator")
_SMALL_KEYS = st.integers(-40, 40)


@dataclass(frozen=True)
class Operation:
    """One commit: `tables` is what `save` or `append` takes."""

    kind: Literal["save", "append"]
    tables: dict[str, Any]


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Array:
    """An array of any bit patterns: NaN payloads, -0.0 and denormals among them."""
    kind = dtypes.dtype_of(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    seed = draw(st.integers(0, 1 << 32))
    data = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    return data.view(kind).reshape(shape)


@st.composite
def tables(draw: st.DrawFn, *, keyed: bool | None = None, max_rows: int = 40) -> TableData:
    """A whole table with up to two further columns."""
    rows = draw(st.integers(0, max_rows))
    dim = draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(dtypes.COLUMN_TYPES))
    columns = {}
    for name in draw(st.sets(st.sampled_from(COLUMNS))):
        shape = (rows,) if name == "accumulator" else (rows, dim)
        columns[name] = draw(arrays(shape, draw(st.sampled_from(dtypes.COLUMN_TYPES))))
    keys = None
    if draw(st.booleans()) if keyed is None else keyed:
        some = st.one_of(_SMALL_KEYS, INT64)
        some_keys = draw(st.lists(some, min_size=rows, max_size=rows, unique=True))
        keys = np.array(some_keys, np.int64)
    return TableData(draw(arrays((rows, dim), dtype)), columns=columns, keys=keys, fill=1)


@st.composite
def _rows_of(draw: st.DrawFn, table: ModelTable) -> Any:
    """A change of one table: rows, growth or shrinkage, deletions."""
    rows = table.rows
    ids: list[int]
    if rows is None:
        known = st.sampled_from(table.ids) if table.ids else _SMALL_KEYS
        ids = draw(st.lists(st.one_of(known, _SMALL_KEYS), unique=True, max_size=20))
    else:
        rows = draw(st.one_of(st.just(rows), st.integers(0, rows + 12)))
        ids = draw(st.lists(st.integers(0, rows - 1), unique=True, max_size=20)) if rows else []
    names = draw(st.sets(st.sampled_from(["weight", *COLUMNS]), min_size=1))
    if rows is None:
        names |= {"weight"}
    columns = {}
    for name in sorted(names):
        dtype, per_row = table.dtypes.get(name, (np.dtype(np.float32), name == "accumulator"))
        shape = (len(ids),) if per_row else (len(ids), table.dim)
        columns[name] = draw(arrays(shape, dtypes.name_of(dtype)))
    weight = columns.pop("weight", None)
    change = Rows(np.array(ids, np.int64), weight, columns=columns, rows=rows)
    if rows is not None or not draw(st.booleans()):
        return change
    gone = draw(st.lists(st.one_of(_SMALL_KEYS, known), unique=True, max_size=10))
    return change, Deleted(np.array([k for k in gone if k not in ids], np.int64))


@st.composite
def changes(draw: st.DrawFn, head: dict[str, ModelTable]) -> dict[str, Any]:
    """What an append could be given on a version with these tables."""
    found: dict[str, Any] = {}
    for name, table in head.items():
        kind = draw(st.sampled_from(["keep", "rows", "rows", "rows", "drop", "replace"]))
        if kind == "rows":
            found[name] = draw(_rows_of(table))
        elif kind == "drop":
            found[name] = Dropped()
        elif kind == "replace":
            found[name] = draw(tables())
    for name in draw(st.sets(NAMES, max_size=1)):
        if name not in head:
            found[name] = draw(tables())
    return found


@st.composite
def operations(draw: st.DrawFn, max_commits: int = 6) -> list[Operation]:
    """A sequence of commits that begins with a baseline."""
    model = Model()
    found = []
    for version in range(draw(st.integers(1, max_commits))):
        if version == 0 or draw(st.integers(0, 5)) == 0:
            names = draw(st.sets(NAMES, min_size=1, max_size=3))
            operation = Operation("save", {name: draw(tables()) for name in sorted(names)})
            model.save(version, operation.tables)
        else:
            operation = Operation("append", draw(changes(model.versions[version - 1])))
            model.append(version, operation.tables)
        found.append(operation)
    return found
