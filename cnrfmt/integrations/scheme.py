"""How the content of a container is laid out as named arrays, and how it comes back.

A table NAME of a container becomes

- an array `NAME` of `rows x dim`: its weights;
- for each further column, an array `NAME.columns/COLUMN`;
- for a keyed table, an array `NAME.keys`: one int64 key per row, ascending.

A dense entry NAME becomes an array `NAME`; JSON and bytes become their bytes as uint8. A name that the format can't
have is percent-encoded, and one that is taken is lengthened by ``~`` until it is free. What arrays can't say (which of
them make up a keyed table, fill values, the step, user metadata that the format has no place for) stands in a JSON
document beside them: `notes.Notes`. It is left out where it would say nothing.

Back into a container, tables and dense entries come back as the document says. Of the other arrays, those of two
dimensions and a data type that columns can have become tables; the rest becomes dense state. So it goes with a file
of any other origin, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.errors import UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.schema import WEIGHT, ColumnSchema
from cnrfmt.inputs import as_source
from cnrfmt.integrations.content import (
    Export,
    Format,
    Incoming,
    Outgoing,
    Spool,
    check_booleans,
    check_shape,
    damaged,
    row_step,
    slices,
)
from cnrfmt.integrations.notes import DenseNotes, Notes, TableNotes
from cnrfmt.patterns import Patterns
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData

NO_TABLES = "none of the arrays is a table (of numbers, in two dimensions)"
"""What is said of a file that holds dense state alone."""
_MAPPED = 64 << 20
"""Bytes from which on a dense array isn't held in memory."""


@dataclass(frozen=True)
class Content:
    """What `save` is to be given."""

    tables: dict[str, TableData]
    dense: dict[str, Any]
    metadata: dict[str, Any]
    step: int | None


def to_container(found: Incoming, patterns: Patterns, spool: Spool, path: str) -> Content:
    """What a foreign file holds, as tables and dense state.

    Raises `UsageError` where a container can't hold it, and `DamagedError` where its notes contradict it.
    """
    arrays = dict(found.arrays)
    tables = take_tables(found.notes, arrays, patterns, path)
    dense: dict[str, Any] = {}
    for name, entry in found.notes.dense.items():
        dense[name] = _noted_dense(entry, arrays, spool, f"{path}, dense entry {name!r}")
    for name, array in arrays.items():
        # An array of a table that isn't wanted may be named as a dense entry is.
        while name in dense:
            name += "~"
        dense[name] = _as_dense(array, spool, f"{path}, array {name!r}")
    for name, value in found.values.items():
        if name in dense:
            raise damaged(path, expected=f"one dense entry named {name!r}", found="two")
        dense[name] = value
    return Content(tables, dense, found.metadata | found.notes.metadata, found.notes.step)


def take_tables(notes: Notes, arrays: dict[str, Any], patterns: Patterns, path: str) -> dict[str, TableData]:
    """The tables of a foreign file that are wanted, taken out of its arrays.

    Raises `UsageError` where a pattern matches nothing, and `DamagedError` where the notes contradict the arrays.
    """
    plain = [name for name, array in arrays.items() if _could_be_table(array)]
    if patterns.are_given and not plain and not notes.tables:
        raise UsageError(f"{path}: {NO_TABLES}; leave tables out")
    patterns.check([*notes.tables, *plain], path)
    tables = {
        name: _noted_table(noted, arrays, f"{path}, table {name!r}")
        for name, noted in notes.tables.items()
        if name in patterns
    }
    of_dense = {entry.array for entry in notes.dense.values()}
    for name in plain:
        if name in arrays and name in patterns and name not in of_dense:
            if name in tables:
                raise damaged(path, expected=f"one table named {name!r}", found="two")
            tables[name] = TableData(arrays.pop(name))
    return tables


def _could_be_table(array: Any) -> bool:
    shape = array.shape
    if len(shape) != 2 or not 1 <= shape[1] <= limits.MAX_DIM or shape[0] > limits.MAX_ROWS:
        return False
    try:
        dtypes.name_of(array.dtype, column=True)
    except UsageError:
        return False
    return True


def _take(arrays: dict[str, Any], name: str, place: str) -> Any:
    try:
        return arrays.pop(name)
    except KeyError:
        raise damaged(
            place, expected=f"the array {name!r}, which the notes name", found="no such array"
        ) from None


def _noted_table(notes: TableNotes, arrays: dict[str, Any], place: str) -> TableData:
    values = _take(arrays, notes.values, place)
    columns = {column: _take(arrays, name, place) for column, name in notes.columns.items()}
    keys = None if notes.keys is None else _take(arrays, notes.keys, place)
    fill = {}
    for column, data in notes.fill.items():
        array = values if column == WEIGHT else columns.get(column)
        if array is None or len(data) != array.dtype.itemsize:
            raise damaged(place, expected="fill values of its columns", found=f"{column!r}")
        fill[column] = np.frombuffer(data, array.dtype.newbyteorder("<")).reshape(())
    return TableData(values, columns=columns, keys=keys, fill=fill)


def _noted_dense(entry: DenseNotes, arrays: dict[str, Any], spool: Spool, place: str) -> Any:
    array = _take(arrays, entry.array, place)
    if entry.kind == "array":
        return _as_dense(array, spool, place)
    if array.dtype != np.uint8 or len(array.shape) != 1:
        raise damaged(
            place, expected="bytes as uint8", found=f"{array.dtype} of shape {array.shape}"
        )
    data = array[()].tobytes()
    return data if entry.kind == "bytes" else strict_json.parse(data, place)


def _as_dense(array: Any, spool: Spool, place: str) -> Any:
    dtypes.name_of(array.dtype, what=place)
    in_rows = not getattr(array, "fortran", False)
    if in_rows and check_shape(array.shape, array.dtype.itemsize, place) >= _MAPPED:
        return spool.mapped(array, place)
    # A 0-dim array would give a scalar, which dense state takes for JSON.
    return check_booleans(np.asarray(array[()]), place)


class Names:
    """The names of arrays that are given out so far."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._taken: set[str] = set(form.reserved)
        self._folders: set[str] = set()

    def claim(self, wanted: str) -> str:
        """A free name, as much as can be the one that is wanted."""
        name = wanted
        if not self._form.legal(name) or any(parent in self._taken for parent in self._parents(name)):
            name = name.replace("%", "%25").replace("/", "%2F").replace(".", "%2E")
            name = name.replace("\\", "%5C")
        while name in self._taken or name in self._folders:
            name += "~"
        self._taken.add(name)
        self._folders.update(self._parents(name))
        return name

    def _parents(self, name: str) -> Iterator[str]:
        if self._form.nested:
            parts = name.split("/")
            for count in range(1, len(parts)):
                yield "/".join(parts[:count])


def from_container(ck: Checkpoint, patterns: Patterns, form: Format) -> Export:
    """An open version as named arrays; of the tables those that match. Raises `UsageError`."""
    patterns.check(list(ck), ck.path)
    native, metadata = form.native(ck.metadata)
    strings = form.strings(native)
    notes = Notes(step=ck.step, metadata=metadata)
    names = Names(form)
    # In the order of their names, so that the same content gives the same file.
    tables = {name: (names.claim(name), ck[name]) for name in sorted(ck) if name in patterns}
    dense = {name: (names.claim(name), value) for name, value in sorted(ck.dense.items())}
    arrays: list[Outgoing] = []
    for array_name, table in tables.values():
        arrays += _table_arrays(table, array_name, names, notes)
    values: dict[str, Any] = {}
    for name, (array_name, value) in dense.items():
        if array_name == name and name in strings and not isinstance(value, np.ndarray):
            values[name] = value
        else:
            arrays.append(_dense_array(name, array_name, value, notes))
    for out in arrays:
        form.check_dtype(out.dtype, f"{ck.path}, {out.name!r}")
    return Export(arrays, values, native, notes)


def _table_arrays(table: Table, name: str, names: Names, notes: Notes) -> Iterator[Outgoing]:
    keys = None if table.keys is None else names.claim(f"{table.name}.keys")
    others = {c: names.claim(f"{table.name}.columns/{c}") for c in table.columns[1:]}
    fill = {c: table.fill(c).tobytes() for c in table.columns}
    fill = {c: value for c, value in fill.items() if any(value)}
    if keys is not None or others or fill or name != table.name:
        notes.tables[table.name] = TableNotes(name, keys, others, fill)
    yield _column_array(table, WEIGHT, name)
    for column, array_name in others.items():
        yield _column_array(table, column, array_name)
    if keys is not None:
        assert table.keys is not None
        yield Outgoing.of(keys, table.keys)


def _column_array(table: Table, column: str, name: str) -> Outgoing:
    schema = table.schema.column(column)
    assert schema is not None
    shape: tuple[int, ...] = table.shape[:1] if schema.per_row else table.shape
    dtype = dtypes.dtype_of(schema.dtype)
    step = row_step(shape, dtype.itemsize)

    def chunks() -> Iterator[Array]:
        for part in slices(len(table), step):
            yield table.read(part, column=column, by="position")

    return Outgoing(name, dtype, shape, chunks, table.name if column == WEIGHT else None)


def _dense_array(name: str, array_name: str, value: Any, notes: Notes) -> Outgoing:
    if isinstance(value, np.ndarray):
        kind, array = "array", value
    else:
        kind = "bytes" if isinstance(value, bytes) else "json"
        data = value if isinstance(value, bytes) else strict_json.dump(value)
        array = np.frombuffer(data, np.uint8)
    if kind != "array" or array_name != name or _could_be_table(array):
        notes.dense[name] = DenseNotes(array_name, kind)
    return Outgoing.of(array_name, array, name)


def table_bytes(tables: dict[str, TableData], quantize: Any) -> int:
    """About how many bytes the columns of these tables take in a container."""
    from cnrfmt.encodings.recipes import recipe_for

    total = 0
    for name, data in tables.items():
        for column, array in {WEIGHT: data.values, **data.columns}.items():
            dtype = dtypes.name_of(array.dtype, column=True, what=f"table {name!r}, {column!r}")
            source = as_source(array, what=f"table {name!r}, {column!r}")
            rows, *width = array.shape
            schema = ColumnSchema(column, dtype, not width, b"")
            layout = recipe_for(name, schema, source, quantize).layout
            total += layout.section_bytes(rows, width[0] if width else 1) + layout.codebook_bytes(rows)
    return total


