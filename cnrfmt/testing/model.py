"""What a container should say, kept as plain dictionaries: row id to column to values."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData

ON_GRID, STEP = "grid", 2.0**-10
"""The name of the table that is stored on a grid, and its steps."""


@dataclass
class ModelTable:
    """One table: `cells` maps a row id to the columns that were written there.

    A table on a grid has a `step`. Its rows `given` are as they were handed over, until somebody has read how they are
    stored (`learn`).
    """

    dim: int
    rows: int | None
    dtypes: dict[str, tuple[np.dtype[Any], bool]]
    fills: dict[str, Any]
    cells: dict[int, dict[str, Array]] = field(default_factory=dict)
    step: float | None = None
    given: set[int] = field(default_factory=set)

    @property
    def ids(self) -> list[int]:
        """The row ids that exist, ascending."""
        return sorted(self.cells) if self.rows is None else list(range(self.rows))

    def array(self, column: str, ids: list[int] | None = None) -> Array:
        """The values of a column at these ids."""
        dtype, per_row = self.dtypes[column]
        ids = self.ids if ids is None else ids
        shape = (len(ids),) if per_row else (len(ids), self.dim)
        out = np.empty(shape, dtype)
        out[...] = np.asarray(self.fills.get(column, 0)).astype(dtype)
        for number, row in enumerate(ids):
            if column in self.cells.get(row, {}):
                out[number] = self.cells[row][column]
        return out


class Model:
    """The tables of every version, as dictionaries. All but the one on a grid are raw, so that values are exact."""

    def __init__(self) -> None:
        self.versions: dict[int, dict[str, ModelTable]] = {}

    @property
    def head(self) -> int:
        """The newest version."""
        return max(self.versions)

    def save(self, version: int, tables: dict[str, Any]) -> None:
        """A baseline."""
        self.versions[version] = {name: _named(name, value) for name, value in tables.items()}

    def append(self, version: int, changes: dict[str, Any]) -> None:
        """A delta on the newest version."""
        tables = copy.deepcopy(self.versions[self.head])
        for name, value in changes.items():
            if isinstance(value, Dropped):
                del tables[name]
            elif isinstance(value, Rows | Deleted | tuple):
                for change in value if isinstance(value, tuple) else (value,):
                    _change(tables[name], change)
            else:
                tables[name] = _named(name, value)
        self.versions[version] = tables


def _named(name: str, value: Any) -> ModelTable:
    table = _whole(value)
    if name == ON_GRID:
        table.step, table.given = STEP, set(table.cells)
    return table


def _column_type(values: Array) -> tuple[np.dtype[Any], bool]:
    return values.dtype, values.ndim == 1


def _whole(value: Any) -> ModelTable:
    data = value if isinstance(value, TableData) else TableData(value)
    columns = {"weight": np.asarray(data.values)}
    columns |= {name: np.asarray(values) for name, values in data.columns.items()}
    rows, dim = columns["weight"].shape
    ids = range(rows) if data.keys is None else np.asarray(data.keys).tolist()
    fill = data.fill
    fills = dict(fill) if isinstance(fill, dict) else dict.fromkeys(columns, fill)
    table = ModelTable(
        dim,
        rows if data.keys is None else None,
        {name: _column_type(values) for name, values in columns.items()},
        fills,
    )
    for number, row in enumerate(ids):
        table.cells[row] = {name: values[number] for name, values in columns.items()}
    return table


def _change(table: ModelTable, change: Rows | Deleted) -> None:
    if isinstance(change, Deleted):
        for key in np.asarray(change.keys).tolist():
            table.cells.pop(key, None)
            table.given.discard(key)
        return
    if change.rows is not None:
        table.rows = change.rows
        table.cells = {row: cells for row, cells in table.cells.items() if row < change.rows}
        table.given = {row for row in table.given if row < change.rows}
    columns = {} if change.values is None else {"weight": np.asarray(change.values)}
    columns |= {name: np.asarray(values) for name, values in (change.columns or {}).items()}
    for name, values in columns.items():
        table.dtypes.setdefault(name, _column_type(values))
    for number, row in enumerate(np.asarray(change.ids).tolist()):
        cells = table.cells.setdefault(row, {})
        cells.update({name: values[number] for name, values in columns.items()})
        if table.step is not None:
            table.given.add(row)
