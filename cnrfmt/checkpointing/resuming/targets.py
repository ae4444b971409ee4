"""What is restored into what: stored tables held against the arrays that are to take them, nothing filled yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from cnrfmt import dtypes, sorted_ids
from cnrfmt.arrays import Array, Ids
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format.schema import WEIGHT, ColumnSchema
from cnrfmt.inputs import as_ids, as_target
from cnrfmt.table import Table

KEYS = "keys"
"""What `remap` says for a target that takes the stored rows of its own keys."""
_WORDS = {"grow": "truncate", "truncate": "grow", "pad": "cut", "cut": "pad"}


@dataclass(frozen=True)
class Source:
    """Rows of a stored table, as `Table.read` takes them."""

    rows: slice | Ids
    by: Literal["id", "position"]
    count: int

    def piece(self, start: int, stop: int) -> slice | Ids:
        """Those from start to stop - 1."""
        if isinstance(self.rows, slice):
            return slice(self.rows.start + start, self.rows.start + stop)
        return self.rows[start:stop]


@dataclass(frozen=True)
class Fill:
    """The rows `source` of a stored column go to the rows `places` of `out`.

    `elements` are those that are taken of each stored row, and go to the first ones of a row of `out`; None for a
    column of one value per row.
    """

    table: Table
    column: str
    source: Source
    out: Array
    places: slice | Ids
    elements: tuple[int, int] | None


@dataclass
class Findings:
    """What was found when stored tables were held against their targets, as lines to be read.

    `faults` can't be allowed; `asks` are the differences that a strict restore refuses, each with what allows it.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """The arrays of one target by column, `weight` first, and what rectangle of a larger table it is."""

    columns: dict[str, Any]
    keys: Any = None
    rows: tuple[int, int] | None = None
    of_rows: int | None = None
    elements: tuple[int, int] | None = None
    of_dim: int | None = None

    @staticmethod
    def of(value: Any) -> Target:
        """From an array for the weights alone, a `TableData` or a `Shard`, or what has their attributes."""
        columns = getattr(value, "columns", None)
        if not hasattr(value, "columns") or not isinstance(columns, Mapping | None):
            return Target({WEIGHT: value})
        # A shard may hold a whole `TableData` of its rows.
        inner = Target.of(value.values)
        rectangle = (getattr(value, name, None) for name in ("rows", "of_rows", "elements", "of_dim"))
        # A run counts checkpoints itself; who loaded the table with all columns has that one too.
        own = {name: one for name, one in (columns or {}).items() if name != CHECKPOINTS}
        return Target({**inner.columns, **own}, getattr(value, "keys", inner.keys), *rectangle)


def select(table: Table, rows: Any, name: str) -> Source:
    """Rows that a caller chose: None for all, ids or keys, a slice, or a pair ``(first, end)``.

    Slices and pairs count rows, those of a keyed table in the order of its keys. A pair may go beyond the last row,
    where nothing is. Raises `MissingKeyError` for ids and keys that aren't there.
    """
    count = len(table)
    by: Literal["id", "position"] = "position" if table.keyed else "id"
    if isinstance(rows, tuple):
        whole = len(rows) == 2 and all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in rows)
        if not whole or not 0 <= rows[0] <= rows[1]:
            raise UsageError(f"rows[{name!r}]: a range of rows is (first, end), found {rows!r}")
        rows = slice(int(rows[0]), int(rows[1]))
    if rows is None or isinstance(rows, slice):
        found = range(count)[slice(None) if rows is None else rows]
        if found.step == 1:
            return Source(slice(found.start, found.start + len(found)), by, len(found))
        return Source(np.arange(found.start, found.stop, found.step, dtype=np.int64), by, len(found))
    ids = as_ids(rows, f"rows[{name!r}]")
    lost = ids[~_there(table, ids)]
    if len(lost):
        what = "key" if table.keyed else "row"
        raise MissingKeyError(f"rows[{name!r}]: table {table.name!r} has no {what} {lost[0]} ({len(lost)} in all)")
    return Source(ids, "id", len(ids))


def _there(table: Table, ids: Ids) -> Any:
    """Which of these ids or keys the table has."""
    from cnrfmt.kernels import rows as kernel

    if not table.keyed:
        return (ids >= 0) & (ids < len(table))
    assert table.keys is not None
    positions = np.empty(len(ids), np.int64)
    kernel.find(table.keys, ids, positions)
    return positions >= 0


def resize_words(resize: Mapping[str, str | Collection[str]] | None) -> dict[str, set[str]]:
    """What may change of each table's shape; raises `UsageError`."""
    found = {}
    for name, words in (resize or {}).items():
        found[name] = {words} if isinstance(words, str) else set(words)
        if unknown := found[name] - _WORDS.keys():
            raise UsageError(f"resize[{name!r}]: one or more of {', '.join(_WORDS)}, found {min(unknown)!r}")
    return found


def own_columns(table: Table) -> list[str]:
    """The columns that are the trainer's: without the one that a run counts checkpoints in."""
    return [name for name in table.columns if name != CHECKPOINTS]


def match(
    name: str,
    table: Table,
    target: Target,
    *,
    rows: Any,
    remap: Any,
    resize: set[str],
    columns: bool,
    convert: bool,
    found: Findings,
) -> list[Fill]:
    """What fills the arrays of one target. Differences go to `found`; what doesn't fit can't be among the result."""
    what = f"table {name!r}"
    stored = {c.name: c for c in table.schema.columns if c.name != CHECKPOINTS}
    arrays: dict[str, Array] = {}
    faults = len(found.faults)
    for column, value in target.columns.items():
        if column != WEIGHT and not columns:
            continue
        if column not in stored:
            found.missing.append(f"{what}, column {column!r}")
            found.asks.append(
                f"{what}: the target's column {column!r} isn't stored; leave it out of the target, or columns=False "
                "for weights alone"
            )
            continue
        try:
            arrays[column] = as_target(value, what=f"{what}, column {column!r}")
            _check_array(arrays[column], stored[column], convert, f"{what}, column {column!r}")
        except UsageError as error:
            found.faults.append(str(error))
    for column in stored if columns else ():
        # Of the ranks that share the elements of a row, just one has its columns of one value per row.
        elsewhere = target.elements is not None and stored[column].per_row
        if column not in target.columns and not elsewhere:
            found.unexpected.append(f"{what}, column {column!r}")
            found.asks.append(
                f"{what}: column {column!r} is stored and the target lacks it; give a TableData that has it, or "
                "columns=False for weights alone"
            )
    if len(found.faults) > faults:
        return []
    count, dim = arrays[WEIGHT].shape
    try:
        for column, array in arrays.items():
            shape = (count,) if stored[column].per_row else (count, dim)
            if array.shape != shape:
                raise UsageError(f"{what}, column {column!r}: shape {array.shape} where its weights need {shape}")
        source, places = _rows(table, target, count, rows, remap, resize, what, name, found)
        elements = _elements(table.schema.dim, target, dim, resize, what, name, found)
    except UsageError as error:
        found.faults.append(str(error))
        return []
    return [
        Fill(table, column, source, array, places, None if stored[column].per_row else elements)
        for column, array in arrays.items()
    ]


def _check_array(array: Array, column: ColumnSchema, convert: bool, what: str) -> None:
    """That values of a stored column can go into an array; raises `UsageError`."""
    if array.ndim != (1 if column.per_row else 2):
        shown = "one value per row (1-D)" if column.per_row else "rows x dim (2-D)"
        raise UsageError(f"{what}: {shown} is stored, found an array of shape {array.shape}")
    dtype = dtypes.name_of(array.dtype, column=True, what=what)
    if dtype == column.dtype:
        return
    whole = "int" in dtype and "int" not in column.dtype
    if whole or not convert:
        advice = "read it into an array of its own type" if whole else "convert=True lets it be converted"
        raise UsageError(f"{what}: {column.dtype} is stored and the array is {dtype}; {advice}")


def _rows(
    table: Table,
    target: Target,
    count: int,
    rows: Any,
    remap: Any,
    resize: set[str],
    what: str,
    name: str,
    found: Findings,
) -> tuple[Source, slice | Ids]:
    """Which stored rows go to which rows of a target."""
    if remap is not None:
        if rows is not None or target.rows is not None:
            raise UsageError(f"{what}: remap says which rows are taken; leave out rows")
        return _remapped(table, target, count, remap, resize, what, name, found)
    if table.keyed and rows is None:
        raise UsageError(
            f"{what} is keyed, and an array doesn't say whose rows it takes: remap={{{name!r}: 'keys'}} fills a "
            f"TableData by its keys, into={{{name!r}: None}} gives new arrays"
        )
    if rows is not None and target.rows is not None:
        raise UsageError(f"{what}: the target says which rows it is; leave out rows")
    chosen = target.rows if rows is None else rows
    source = select(table, chosen, name)
    if isinstance(chosen, tuple) and chosen[1] - chosen[0] != count:
        raise UsageError(f"{what}: rows {chosen[0]} to {chosen[1] - 1} don't go into an array of {count} rows")
    taken = min(source.count, count)
    left = source.count - taken
    if target.of_rows is not None and not table.keyed:
        left += max(0, len(table) - target.of_rows)
    _say_rows(count - taken, left, resize, what, name, found)
    return Source(source.piece(0, taken), source.by, taken), slice(0, taken)


def _remapped(
    table: Table, target: Target, count: int, remap: Any, resize: set[str], what: str, name: str, found: Findings
) -> tuple[Source, Ids]:
    by_keys = isinstance(remap, str)
    if by_keys and (remap != KEYS or target.keys is None or not table.keyed):
        raise UsageError(f"remap[{name!r}]: ids, or 'keys' for a keyed table and a target with keys, found {remap!r}")
    ids = as_ids(target.keys if by_keys else remap, f"remap[{name!r}]")
    if len(ids) != count:
        raise UsageError(f"remap[{name!r}]: {len(ids)} ids for a target of {count} rows; give one for each row")
    there = _there(table, ids)
    if table.keyed:
        left = len(table) - len(sorted_ids.union(ids[there]))
        _say_rows(count - int(there.sum()), left, resize, what, name, found)
    else:
        wrong = ids[~there & (ids != -1)]
        if len(wrong):
            raise MissingKeyError(
                f"remap[{name!r}]: rows are 0 to {len(table) - 1}, and -1 keeps what the target has, found {wrong[0]}"
            )
        if kept := count - int(there.sum()):
            found.grown.append(f"{what}: rows that kept their own values, as remap asks: {kept}")
    places = np.flatnonzero(there).astype(np.int64, copy=False)
    return Source(ids[places], "id", len(places)), places


def _say_rows(kept: int, left: int, resize: set[str], what: str, name: str, found: Findings) -> None:
    if kept:
        found.grown.append(f"{what}: rows that aren't stored and kept their own values: {kept}")
        if "grow" not in resize:
            found.asks.append(
                f"{what}: rows of the target that aren't stored: {kept}; resize={{{name!r}: 'grow'}} lets them keep "
                "their values"
            )
    if left:
        found.cut.append(f"{what}: stored rows without a place in the target: {left}")
        if "truncate" not in resize:
            found.asks.append(
                f"{what}: stored rows without a place in the target: {left}; resize={{{name!r}: 'truncate'}} leaves "
                "them out"
            )


def _elements(
    stored: int, target: Target, dim: int, resize: set[str], what: str, name: str, found: Findings
) -> tuple[int, int]:
    """Which elements of stored rows are taken. A `dim` that changed is never taken for granted."""
    first, end = target.elements or (0, stored if target.of_dim is None else target.of_dim)
    if target.elements is not None and end - first != dim:
        raise UsageError(f"{what}: elements {first} to {end - 1} don't go into rows of {dim}")
    end = min(end, stored)
    first = min(first, end)
    taken = min(end - first, dim)
    left = end - first - taken
    if target.of_dim is not None:
        left += max(0, stored - target.of_dim)
    if dim > taken:
        found.grown.append(f"{what}: elements of {dim} that aren't stored and kept their own values: {dim - taken}")
    if left:
        found.cut.append(f"{what}: elements of {stored} stored ones without a place in the target: {left}")
    needed = [word for word, is_needed in (("pad", dim > taken), ("cut", left > 0)) if is_needed]
    for word in set(needed) - resize:
        found.faults.append(
            f"{what}: dim {stored} is stored and the target's is {target.of_dim or dim}; "
            f"resize={{{name!r}: {word!r}}} allows it"
        )
    return first, first + taken


def check_apart(fills: list[Fill]) -> None:
    """That no two arrays to be filled share memory; raises `UsageError`."""
    spans = []
    for fill in fills:
        low, high = np.lib.array_utils.byte_bounds(fill.out)
        if fill.out.size:
            spans.append((low, high, fill))
    spans.sort(key=lambda span: span[:2])
    for number, (_, high, fill) in enumerate(spans):
        for low, _, other in spans[number + 1 :]:
            if low >= high:
                break
            if _share(fill.out, other.out):
                raise UsageError(
                    f"table {fill.table.name!r}, column {fill.column!r} and table {other.table.name!r}, column "
                    f"{other.column!r} are to be filled into the same memory; give each its own"
                )


def _share(a: Array, b: Array) -> bool:
    # What is more work has strides that nobody slices by: better refused than filled twice.
    work: Any = 1_000_000
    try:
        return np.shares_memory(a, b, max_work=work)
    except np.exceptions.TooHardError:
        return True
