"""The table of contents of a segment (specification, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from cnrfmt.format import limits, strict_json
from cnrfmt.format.encoding import IntegerLayout, Layout
from cnrfmt.format.scheme import NO_ERRORS, Errors, Scheme, scheme_json
from cnrfmt.format.strict_json import Json


@dataclass(frozen=True)
class RowSet:
    """The row ids of parts: `count` distinct ids from `first` to `last`."""

    code: str
    count: int
    first: int
    last: int
    section: int | None = None


@dataclass(frozen=True)
class Part:
    """One rectangle of one column under one encoding.

    `codebooks` is the section of those that its rows share. `scheme` and `errors` say how the codes were chosen, and
    what that did to the rows; they are None and zero where the rows are raw.
    """

    column: str
    rows: int
    elements: tuple[int, int]
    layout: Layout
    section: int
    exceptions_of: int | None = None
    codebooks: int | None = None
    scheme: Scheme | None = None
    errors: Errors = NO_ERRORS

    @property
    def width(self) -> int:
        """Elements of each row of the part."""
        return self.elements[1] - self.elements[0]

    @property
    def row_bytes(self) -> int:
        """The most bytes that hold bits of a row of the part."""
        return self.layout.row_bytes(self.width)


ColumnGrid = tuple[str, tuple[str | int, ...]]
"""A column, and what parts of it that add up have in common (`grid` of a layout)."""


@dataclass(frozen=True)
class TableEntry:
    """What a segment says of one table."""

    table_id: bytes
    rows: int | None
    row_sets: tuple[RowSet, ...] = ()
    deleted: int | None = None
    parts: tuple[Part, ...] = ()

    @cached_property
    def grids(self) -> frozenset[ColumnGrid]:
        """Columns of which there are integers, with their grids."""
        return frozenset((p.column, p.layout.grid) for p in self.parts if isinstance(p.layout, IntegerLayout))

    @cached_property
    def residuals(self) -> frozenset[ColumnGrid]:
        """Those of them that have residual parts."""
        return frozenset(
            (p.column, p.layout.grid)
            for p in self.parts
            if isinstance(p.layout, IntegerLayout) and p.layout.is_residual
        )


@dataclass(frozen=True)
class DenseEntry:
    """One entry of the dense state; `dtype` and `shape` belong to the kind `array`."""

    name: str
    kind: str
    section: int | None
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Toc:
    """A table of contents. `sections` are pairs of offset and length."""

    sections: tuple[tuple[int, int], ...]
    nodes: tuple[int, ...]
    tables: tuple[TableEntry, ...]
    dense: tuple[DenseEntry, ...] | None = None
    by_table: dict[bytes, TableEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_table", {t.table_id: t for t in self.tables})


def place_section(end: int, length: int) -> int:
    """Where a section of `length` bytes goes behind one that ends at `end` (rule `section-geometry`)."""
    large = length >= limits.LARGE_SECTION
    return limits.round_up(
        max(end, limits.BLOCK), limits.PAGE if large else limits.SMALL_ALIGNMENT
    )


def data_end(sections: tuple[tuple[int, int], ...]) -> int:
    """D: where the digest section starts."""
    return limits.round_up(sum(sections[-1]), limits.SMALL_ALIGNMENT) if sections else limits.BLOCK


def pack_toc(toc: Toc) -> bytes:
    """The bytes of a table of contents."""
    return strict_json.dump(
        {
            "sections": toc.sections,
            "nodes": "".join(f"{node:016x}" for node in toc.nodes),
            "tables": [_table_json(t) for t in toc.tables],
            "dense": None if toc.dense is None else [_dense_json(d) for d in toc.dense],
        }
    )


def _table_json(table: TableEntry) -> Json:
    return {
        "id": table.table_id.hex(),
        "rows": table.rows,
        "row_sets": [
            {
                "code": r.code,
                "count": r.count,
                "min": str(r.first),
                "max": str(r.last),
                "section": r.section,
            }
            for r in table.row_sets
        ],
        "deleted": table.deleted,
        "parts": [
            {
                "column": p.column,
                "rows": p.rows,
                "elements": p.elements,
                "encoding": p.layout.to_json(),
                "section": p.section,
                "codebooks": p.codebooks,
                "exceptions_of": p.exceptions_of,
                "scheme": scheme_json(p.scheme, p.errors),
            }
            for p in table.parts
        ],
    }


def _dense_json(entry: DenseEntry) -> Json:
    shape = {"dtype": entry.dtype, "shape": entry.shape} if entry.kind == "array" else {}
    return {"name": entry.name, "kind": entry.kind, **shape, "section": entry.section}
