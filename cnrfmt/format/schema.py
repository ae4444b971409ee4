"""The schema: the live tables of a version and their columns (specification, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits
from cnrfmt.format.encoding import DENSE_ITEM_SIZES, ITEM_SIZES
from cnrfmt.format.strict_json import Json, Record

WEIGHT = "weight"

_TABLE_KEYS = frozenset(("id", "name", "kind", "rows", "dim", "columns"))
_COLUMN_KEYS = frozenset(("name", "dtype", "shape", "fill"))


@dataclass(frozen=True)
class ColumnSchema:
    """A column; `per_row` columns hold one value per row, the others `dim` values."""

    name: str
    dtype: str
    per_row: bool
    fill: bytes

    def width(self, dim: int) -> int:
        """Elements per row."""
        return 1 if self.per_row else dim


@dataclass(frozen=True)
class TableSchema:
    """A live table; `rows` is None for a keyed table."""

    table_id: bytes
    name: str
    rows: int | None
    dim: int
    columns: tuple[ColumnSchema, ...]

    @property
    def keyed(self) -> bool:
        """Whether the row ids are keys."""
        return self.rows is None

    def column(self, name: str) -> ColumnSchema | None:
        """The column of that name."""
        return next((c for c in self.columns if c.name == name), None)

    def to_json(self) -> Json:
        """The SCHEMA of a manifest."""
        return {
            "id": self.table_id.hex(),
            "name": self.name,
            "kind": "keyed" if self.keyed else "dense",
            "rows": self.rows,
            "dim": self.dim,
            "columns": [
                {
                    "name": c.name,
                    "dtype": c.dtype,
                    "shape": [] if c.per_row else [self.dim],
                    "fill": c.fill.hex(),
                }
                for c in self.columns
            ],
        }


def parse_schema(values: list[Json], place: str, *, lenient: bool) -> tuple[TableSchema, ...]:
    """The live tables that a manifest lists; raises `DamagedError`."""
    tables = tuple(
        _parse_table(value, f"{place}, table {number}", lenient)
        for number, value in enumerate(values)
    )
    for what, distinct in (
        ("names", {t.name for t in tables}),
        ("ids", {t.table_id for t in tables}),
    ):
        if len(distinct) < len(tables):
            _damaged(place, f"distinct table {what}", "one twice")
    return tables


def _damaged(place: str, expected: str, found: object) -> None:
    raise DamagedError("schema", place, expected=expected, found=found)


def _parse_table(value: Json, place: str, lenient: bool) -> TableSchema:
    record = Record(value, _TABLE_KEYS, place, lenient=lenient)
    name = record.name("name")
    record.place = place = f"{place} ({name!r})"
    kind = record.choice("kind", ("dense", "keyed"))
    rows = None if record.is_null("rows") else record.integer("rows", 0, limits.MAX_ROWS)
    if (rows is None) != (kind == "keyed"):
        _damaged(place, f"rows for a {kind} table", rows)
    dim = record.integer("dim", 0, limits.MAX_DIM)
    if dim < 1:
        _damaged(place, "a dim of at least 1", dim)
    columns = tuple(
        _parse_column(item, dim, f"{place}, column {number}", lenient)
        for number, item in enumerate(record.array("columns", limits.MAX_COLUMNS))
    )
    if not columns or columns[0].name != WEIGHT or columns[0].per_row:
        _damaged(place, f"{WEIGHT!r} of shape [dim] as the first column", "none")
    if len({c.name for c in columns}) < len(columns):
        _damaged(place, "distinct column names", "one twice")
    return TableSchema(record.identity("id"), name, rows, dim, columns)


def _parse_column(value: Json, dim: int, place: str, lenient: bool) -> ColumnSchema:
    record = Record(value, _COLUMN_KEYS, place, lenient=lenient)
    dtype = record.choice("dtype", DENSE_ITEM_SIZES)
    if dtype not in ITEM_SIZES:
        _damaged(place, "a data type for columns", dtype)
    shape = record.integers("shape")
    if shape not in ([], [dim]):
        raise DamagedError("json-field", place, expected=f"the shape [] or [{dim}]", found=shape)
    fill = record.hexadecimal("fill")
    if len(fill) != ITEM_SIZES[dtype]:
        _damaged(place, f"a fill of {ITEM_SIZES[dtype]} bytes", f"{len(fill)} bytes")
    return ColumnSchema(record.name("name"), dtype, not shape, fill)
