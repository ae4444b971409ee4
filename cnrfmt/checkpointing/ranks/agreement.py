"""How ranks that each hold a part of the tables agree on the whole: one schema, and rectangles that fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt.encodings.quantize import Choices, check_patterns
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.schema import ColumnSchema, TableSchema, parse_schema

Range = tuple[int, int]
"""The first of something, and the end behind the last."""


@dataclass(frozen=True)
class Agreement:
    """The schema of the next version, and whether any rank changes anything of the one before."""

    tables: tuple[TableSchema, ...]
    content: bool


@dataclass(frozen=True)
class _Rectangle:
    """What a rank writes of a column: rows first .. last, all of them or some, and a range of elements."""

    rank: int
    first: int
    last: int
    count: int
    elements: Range

    @property
    def whole(self) -> bool:
        """Whether the rows have no gaps."""
        return self.last - self.first + 1 == self.count

    def __str__(self) -> str:
        a, b = self.elements
        return f"rank {self.rank} (rows {self.first} to {self.last}, elements {a} to {b - 1})"


@dataclass(frozen=True)
class _Told:
    """What a rank says of a table."""

    rank: int
    schema: TableSchema
    goes_on: bool
    parts: tuple[tuple[str, _Rectangle], ...]


def agree(descriptions: Sequence[bytes], base: tuple[TableSchema, ...] | None = None) -> Agreement:
    """The schema that all ranks write under, from the descriptions of all, in the order of the ranks.

    It depends on the arguments alone, so that every rank comes to the same, errors included. Tables that are new get
    the id that the first rank which has them chose. `base` is the schema that a delta goes on from; None for a
    baseline, in which the ranks together have to give every element of every row of a dense table.

    Whether *some* rows of two ranks are the same ones can't be told from their bounds; that is checked at the commit.

    Raises
    ------
    UsageError
        Ranks say different things of a table, give the same element of a row, or leave one out of a baseline.
    """
    live = {table.name: table for table in base or ()}
    told: dict[str, list[_Told]] = {}
    dropped: dict[str, int] = {}
    for rank, description in enumerate(descriptions):
        said = strict_json.parse(description, f"rank {rank}, description")
        for one in _parse(rank, said):
            told.setdefault(one.schema.name, []).append(one)
        dropped.update((name, rank) for name in said["dropped"])
    for name, rank in dropped.items():
        if name in told:
            raise UsageError(f"table {name!r}: rank {told[name][0].rank} writes it, and rank {rank} drops it")
        if live.pop(name, None) is None:
            raise MissingKeyError(f"table {name!r} can't be dropped: there is no such table")
    for name, ones in told.items():
        live[name] = _table(name, ones, live.get(name))
        _check_parts(live[name], ones, baseline=not ones[0].goes_on)
    return Agreement(tuple(live.values()), bool(told or dropped))


def _parse(rank: int, said: Any) -> Iterator[_Told]:
    schemas = parse_schema([one["schema"] for one in said["tables"]], f"rank {rank}", lenient=False)
    for schema, one in zip(schemas, said["tables"], strict=True):
        parts = tuple(
            (column, _Rectangle(rank, int(first), int(last), count, (a, b)))
            for column, first, last, count, a, b in one["parts"]
        )
        yield _Told(rank, schema, one["goes_on"], parts)


def _table(name: str, ones: list[_Told], before: TableSchema | None) -> TableSchema:
    """The schema of one table, of what the ranks say that write it."""
    first = ones[0]
    for one in ones[1:]:
        for what, a, b in (
            ("is new", not first.goes_on, not one.goes_on),
            ("is keyed", first.schema.keyed, one.schema.keyed),
            ("dim", first.schema.dim, one.schema.dim),
        ):
            if a != b:
                raise _differ(f"table {name!r}: {what}", first.rank, a, one.rank, b)
    columns: dict[str, tuple[int, ColumnSchema]] = {}
    for one in ones:
        for column in one.schema.columns:
            rank, known = columns.setdefault(column.name, (one.rank, column))
            for what in ("dtype", "per_row", "fill"):
                a, b = getattr(known, what), getattr(column, what)
                if a != b:
                    raise _differ(f"table {name!r}, column {column.name!r}: {what}", rank, a, one.rank, b)
    if len(columns) > limits.MAX_COLUMNS:
        raise UsageError(f"table {name!r}: at most {limits.MAX_COLUMNS} columns")
    rows = _rows(name, ones, before if first.goes_on else None)
    return replace(first.schema, rows=rows, columns=tuple(column for _, column in columns.values()))


def _rows(name: str, ones: list[_Told], before: TableSchema | None) -> int | None:
    """How many rows a table has from now on: all say the same, those aside that leave it as it was."""
    old = None if before is None else before.rows
    say = [one for one in ones if before is None or one.schema.rows != old]
    for one in say[1:]:
        if one.schema.rows != say[0].schema.rows:
            raise _differ(f"table {name!r}: rows", say[0].rank, say[0].schema.rows, one.rank, one.schema.rows)
    return say[0].schema.rows if say else old


def _check_parts(table: TableSchema, ones: list[_Told], *, baseline: bool) -> None:
    by_column: dict[str, list[_Rectangle]] = {}
    for one in ones:
        for column, rectangle in one.parts:
            by_column.setdefault(column, []).append(rectangle)
    for column, parts in by_column.items():
        what = f"table {table.name!r}, column {column!r}"
        for part in parts if table.rows is not None else ():
            if part.last >= (table.rows or 0):
                raise UsageError(f"{what}: {part} reaches beyond the {table.rows} rows that there are from now on")
        # Where some rows of a range are written, whose they are can't be told from here.
        _check_disjoint(what, [part for part in parts if part.whole])
    if table.rows is None or not baseline:
        return
    for schema in table.columns:
        parts = by_column.get(schema.name, [])
        want = table.rows * schema.width(table.dim)
        have = sum(part.count * (part.elements[1] - part.elements[0]) for part in parts)
        if have != want:
            shown = "; ".join(map(str, parts[:20])) or "nothing"
            raise UsageError(
                f"table {table.name!r}, column {schema.name!r}: the ranks together give {have} of "
                f"{table.rows} rows x {schema.width(table.dim)} elements: {shown}"
            )


def _check_disjoint(what: str, parts: list[_Rectangle]) -> None:
    """Raises `UsageError` for two rectangles that share an element."""
    bounds = np.array([(p.first, p.last + 1, *p.elements) for p in parts], np.int64).reshape(-1, 4)
    for number, (first, end, a, b) in enumerate(bounds.tolist()):
        others = bounds[number + 1 :]
        shared = (others[:, 0] < end) & (first < others[:, 1]) & (others[:, 2] < b) & (a < others[:, 3])
        if shared.any():
            other = parts[number + 1 + int(np.argmax(shared))]
            raise UsageError(f"{what}: {parts[number]} and {other} give the same elements; one has to give each")


def _differ(what: str, rank: int, a: object, other: int, b: object) -> UsageError:
    return UsageError(f"{what}: rank {rank} says {a!r}, and rank {other} says {b!r}; all ranks have to say the same")


def check_quantize(quantize: Choices, *schemas: tuple[TableSchema, ...]) -> None:
    """Raises `UsageError` for a pattern that matches no table of any rank."""
    check_patterns(quantize, {t.name: tuple(c.name for c in t.columns) for schema in schemas for t in schema})
