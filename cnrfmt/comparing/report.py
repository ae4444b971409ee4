"""What a comparison found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class RowError(NamedTuple):
    """A row's id or key, and its relative l2 error: infinite where there is no finite one."""

    row: int
    error: float


@dataclass(frozen=True)
class Side:
    """One of the two versions that are compared."""

    path: str
    container_id: str
    version: int
    step: int | None
    digest: str


@dataclass(frozen=True)
class SchemaDifference:
    """Something that a table's schema says in one version and not in the other.

    `what` is ``"kind"``, ``"dim"``, ``"column"`` (one that only one of the two has), ``"dtype"``,
    ``"values per row"`` or ``"fill"``; `column` is None where it is about the table. `a` and `b` say what stands
    there, None where nothing does.
    """

    what: str
    column: str | None
    a: str | int | None
    b: str | int | None


@dataclass(frozen=True)
class ColumnComparison:
    """The rows of a column that both versions have.

    Attributes
    ----------
    name
        The column's name.
    rows
        How many rows both versions have.
    changed
        In how many of them any bit differs; where the data types do, any value.
    infinite
        How many of those have no finite error: A's row is zero, or one of the two has a NaN or an infinity in it.
    mean, median, p99, largest
        Of the relative l2 errors of the other changed rows: the norm of B's row less A's, over the norm of A's.
        None where there is none. Mean and largest are exact, `median` and `p99` within 1 %.
    worst
        The rows with the greatest errors, infinite ones first.
    """

    name: str
    rows: int
    changed: int
    infinite: int
    mean: float | None
    median: float | None
    p99: float | None
    largest: float | None
    worst: tuple[RowError, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as JSON can say it: ids as decimal strings, as in the format, and "Infinity"."""
        worst = [{"row": str(row), "error": "Infinity" if math.isinf(error) else error} for row, error in self.worst]
        return {**vars(self), "worst": worst}


@dataclass(frozen=True)
class TableComparison:
    """A table that both versions have.

    Attributes
    ----------
    name, keyed
        The table's name, and whether it is keyed in B.
    rows_a, rows_b
        How many rows it has.
    only_a, only_b
        How many rows only one of the two has; `examples_a` and `examples_b` are the first of them.
    schema
        What differs in the schemas. A column whose rows can't be compared for that is left out of `columns`.
    columns
        The columns that both have.
    looked_at
        How many rows were read of each column. Fewer than `rows` where no segment between the two versions wrote
        the others.
    """

    name: str
    keyed: bool
    rows_a: int
    rows_b: int
    only_a: int
    only_b: int
    examples_a: tuple[int, ...]
    examples_b: tuple[int, ...]
    schema: tuple[SchemaDifference, ...]
    columns: tuple[ColumnComparison, ...]
    looked_at: int

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.schema or self.only_a or self.only_b or any(c.changed for c in self.columns))

    def to_json(self) -> dict[str, Any]:
        """The same as JSON can say it."""
        return {
            **vars(self),
            "same": self.same,
            "examples_a": [str(row) for row in self.examples_a],
            "examples_b": [str(row) for row in self.examples_b],
            "schema": [vars(d) for d in self.schema],
            "columns": [c.to_json() for c in self.columns],
        }


@dataclass(frozen=True)
class DenseDifference:
    """An entry of the dense state that differs, or that only one of the two versions has.

    `a` and `b` say what it is, as in ``"float32, 3 x 4"``; None where it isn't. `error` is the relative l2 error of
    B's array, None where there is no finite one.
    """

    name: str
    a: str | None
    b: str | None
    error: float | None = None


@dataclass
class Comparison:
    """What `cnrfmt.diff` found.

    Attributes
    ----------
    a, b
        The versions.
    tables
        Tables that both have, in A's order.
    only_a, only_b
        Names of tables that only one of them has.
    dense
        Entries of the dense state that differ; None where only some tables were asked for.
    metadata
        The keys of the user metadata whose values differ; None as for `dense`.
    """

    a: Side
    b: Side
    tables: list[TableComparison] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    dense: list[DenseDifference] | None = None
    metadata: list[str] | None = None

    @property
    def same(self) -> bool:
        """Whether both hold the same: tables, dense state and metadata, as far as they were compared.

        Version, step and how rows are stored don't count.
        """
        others = self.only_a or self.only_b or self.dense or self.metadata
        return not others and all(table.same for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON can say it."""
        return {
            "a": vars(self.a),
            "b": vars(self.b),
            "same": self.same,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "tables": [table.to_json() for table in self.tables],
            "dense": None if self.dense is None else [vars(entry) for entry in self.dense],
            "metadata": self.metadata,
        }
