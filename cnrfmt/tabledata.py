"""What callers hand to `save` and `append`: whole tables, rows, deletions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class TableData:
    """A whole table.

    Parameters
    ----------
    values
        The column `weight`: anything array-like of `rows x dim`.
    columns
        Further columns by name, for example optimizer states: arrays of `rows x dim`, or 1-D arrays with one
        value per row.
    keys
        Distinct int64 keys, one per row in any order, for a keyed table; None for a dense one.
    fill
        The value of elements that are never written: one number for every column, or a number per column name
        (0 for those left out).
    """

    values: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    keys: Any = None
    fill: float | Mapping[str, Any] = 0.0


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a table, to be appended as a delta.

    Parameters
    ----------
    ids
        Row ids of a dense table or keys of a keyed one: integers in any order, without repeats.
    values
        New values of the column `weight`, one row per id; None to leave the weights as they are.
    columns
        New values of further columns, by name. A name that the table doesn't have yet adds a column, which reads
        as 0 in all other rows.
    rows
        The number of rows of a dense table from now on: more lets it grow, fewer removes the rest for good.
    """

    ids: Any
    values: Any = None
    columns: Mapping[str, Any] | None = None
    rows: int | None = None


@dataclass(frozen=True, eq=False)
class Deleted:
    """Rows of a keyed table to delete: all their columns. Keys that the table doesn't have are no error."""

    keys: Any


@dataclass(frozen=True)
class Dropped:
    """A table to drop. A table that is added under its name later is another table."""
