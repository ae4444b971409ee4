"""What plain arrays can't say about the tables that they came from: a JSON document beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cnrfmt.errors import DamagedError, UnsupportedError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.encoding import DENSE_ITEM_SIZES
from cnrfmt.format.strict_json import Record

KEY = "cnrfmt"
"""The key of the notes in the metadata of a safetensors file."""
ARRAY = "__cnrfmt__"
"""The name of the array that holds the notes (UTF-8 text as uint8) in HDF5 and npz files."""

_FORMAT = 1
_KINDS = ("array", "json", "bytes")


@dataclass(frozen=True)
class TableNotes:
    """The arrays that hold a table: its values, keys (None for a dense table) and further columns.

    `fill` gives the fill values that aren't zero, as bytes, by column.
    """

    values: str
    keys: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    fill: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class DenseNotes:
    """The array that holds a dense entry, and whether its bytes are an array, JSON or just bytes."""

    array: str
    kind: str


@dataclass
class Notes:
    """All notes of a file. Tables and dense entries that need none are left out.

    Attributes
    ----------
    step
        The step of the version.
    metadata
        User metadata that the format has no place for.
    tables, dense
        By name.
    dtypes
        Data types of arrays that are stored as unsigned integers, for want of their own type, by array name.
    """

    step: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, TableNotes] = field(default_factory=dict)
    dense: dict[str, DenseNotes] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self != Notes()

    def dump(self) -> bytes:
        """The document."""
        tables = {
            name: {
                "values": t.values,
                "keys": t.keys,
                "columns": t.columns,
                "fill": {column: value.hex() for column, value in t.fill.items()},
            }
            for name, t in self.tables.items()
        }
        dense = {name: {"array": d.array, "kind": d.kind} for name, d in self.dense.items()}
        return strict_json.dump(
            {
                "format": _FORMAT,
                "step": self.step,
                "metadata": self.metadata,
                "tables": tables,
                "dense": dense,
                "dtypes": self.dtypes,
            }
        )


def parse_notes(text: bytes, place: str) -> Notes:
    """The notes that a document says; raises `DamagedError` or `UnsupportedError`."""
    if len(text) > limits.MAX_METADATA:
        raise DamagedError(
            "limit", place, expected=f"at most {limits.MAX_METADATA} bytes", found=len(text)
        )
    value = strict_json.parse(text, place)
    if isinstance(value, dict) and value.get("format", _FORMAT) != _FORMAT:
        raise UnsupportedError(place, f"notes of format {value['format']!r}")
    keys = ("format", "step", "metadata", "tables", "dense", "dtypes")
    record = Record(value, keys, place, lenient=False)
    step = None if record.is_null("step") else record.integer("step", low=-limits.MAX_INTEGER)
    return Notes(
        step,
        _object(record["metadata"], f"{place}, metadata"),
        {
            name: _table(entry, f"{place}, table {name!r}")
            for name, entry in _object(record["tables"], f"{place}, tables").items()
        },
        {
            name: _dense(entry, f"{place}, dense entry {name!r}")
            for name, entry in _object(record["dense"], f"{place}, dense").items()
        },
        {
            name: Record({"dtype": dtype}, ("dtype",), place, lenient=False).choice(
                "dtype", DENSE_ITEM_SIZES
            )
            for name, dtype in _object(record["dtypes"], f"{place}, dtypes").items()
        },
    )


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedError(
            "json-field", place, expected="an object", found=type(value).__name__
        )
    return value


def _table(value: Any, place: str) -> TableNotes:
    record = Record(value, ("values", "keys", "columns", "fill"), place, lenient=False)
    columns = _object(record["columns"], f"{place}, columns")
    texts = Record(columns, columns, f"{place}, columns", lenient=False)
    fill = _object(record["fill"], f"{place}, fill")
    hexes = Record(fill, fill, f"{place}, fill", lenient=False)
    return TableNotes(
        record.text("values", _LONGEST),
        None if record.is_null("keys") else record.text("keys", _LONGEST),
        {column: texts.text(column, _LONGEST) for column in columns},
        {column: hexes.hexadecimal(column) for column in fill},
    )


_LONGEST = 8 * limits.MAX_NAME
"""Bytes of an array's name: those of a table and a column and what stands between, perhaps escaped."""


def _dense(value: Any, place: str) -> DenseNotes:
    record = Record(value, ("array", "kind"), place, lenient=False)
    return DenseNotes(record.text("array", _LONGEST), record.choice("kind", _KINDS))
