"""Schemas: what is packed, what is read back, and what is refused under which rule."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits
from cnrfmt.format.schema import ColumnSchema, TableSchema, parse_schema

IDS = [bytes([n]) * 16 for n in (1, 2, 3)]
WEIGHT = {"name": "weight", "dtype": "float32", "shape": [3], "fill": "0000c03f"}
SUM = {"name": "g", "dtype": "int16", "shape": [], "fill": "ff01"}
DENSE = {"id": IDS[0].hex(), "name": "d", "kind": "dense", "rows": 10, "dim": 3, "columns": [WEIGHT, SUM]}
KEYED = {**DENSE, "id": IDS[1].hex(), "name": "k", "kind": "keyed", "rows": None, "dim": 1}
KEYED["columns"] = [{**WEIGHT, "shape": [1]}]
TABLES = (
    TableSchema(
        IDS[0],
        "d",
        10,
        3,
        (ColumnSchema("weight", "float32", False, b"\0\0\xc0\x3f"), ColumnSchema("g", "int16", True, b"\xff\x01")),
    ),
    TableSchema(IDS[1], "k", None, 1, (ColumnSchema("weight", "float32", False, b"\0\0\xc0\x3f"),)),
)


def parse(*tables: Any) -> tuple[TableSchema, ...]:
    return parse_schema(list(tables), "here", lenient=False)


def refused(rule: str, *tables: Any) -> str:
    with pytest.raises(DamagedError) as caught:
        parse(*tables)
    assert caught.value.rule == rule, caught.value
    assert caught.value.place.startswith("here")
    return caught.value.place


def dense(**change: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DENSE), **change}


def column(number: int, **change: Any) -> dict[str, Any]:
    columns = copy.deepcopy([WEIGHT, SUM])
    columns[number].update(change)
    return dense(columns=columns)


def test_a_schema_is_read_and_packed_as_by_hand() -> None:
    assert parse(DENSE, KEYED) == TABLES
    assert [table.to_json() for table in TABLES] == [DENSE, KEYED]
    assert parse() == ()


def test_what_a_schema_tells() -> None:
    keyed = [table.keyed for table in TABLES]
    assert keyed == [False, True]
    weight, per_row = TABLES[0].columns
    assert (weight.width(3), per_row.width(3)) == (3, 1)
    assert TABLES[0].column("g") is per_row
    assert TABLES[0].column("h") is None


@pytest.mark.parametrize(
    "table",
    [
        dense(rows=None),
        dense(kind="keyed"),
        {**KEYED, "rows": 0},
        {**KEYED, "kind": "dense"},
        dense(dim=0, columns=[{**WEIGHT, "shape": [0]}]),
        dense(columns=[]),
        dense(columns=[SUM]),
        dense(columns=[SUM, WEIGHT]),
        dense(columns=[WEIGHT, WEIGHT]),
        dense(columns=[WEIGHT, SUM, SUM]),
        column(0, shape=[]),
        column(0, name="weights"),
        column(1, dtype="bool", fill="00"),
        column(1, dtype="complex64", fill="00" * 8),
        column(1, fill=""),
        column(1, fill="00"),
        column(1, fill="000000"),
    ],
)
def test_what_a_schema_may_not_say(table: Any) -> None:
    assert refused("schema", table).startswith("here, table 0")


def test_tables_are_distinct() -> None:
    assert refused("schema", DENSE, {**KEYED, "name": "d"}) == "here"
    assert refused("schema", DENSE, {**KEYED, "id": IDS[0].hex()}) == "here"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("id", [None, 5, "00" * 16, "AB" * 16]),
        ("name", [None, 5]),
        ("kind", [None, "Dense", ["dense"], 5]),
        ("rows", ["10", -1, 1.0, False]),
        ("dim", [None, "3", -1, 3.0, True]),
        ("columns", [None, {}, [5]]),
    ],
)
def test_tables_of_other_types_are_refused(key: str, values: list[Any]) -> None:
    for value in values:
        refused("json-field", dense(**{key: value}))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("name", [None, 5]),
        ("dtype", [None, "float", 5, ["int16"]]),
        ("shape", [None, [1], [3, 3], [4], ["3"], 3]),
        ("fill", [None, 5, "0", "FF01", "ff0"]),
    ],
)
def test_columns_of_other_types_are_refused(key: str, values: list[Any]) -> None:
    for value in values:
        assert refused("json-field", column(1, **{key: value})).startswith("here, table 0 ('d'), column 1")


@pytest.mark.parametrize("of", ["table", "column"])
def test_every_key_is_needed_and_no_other(of: str) -> None:
    for key in DENSE if of == "table" else SUM:
        table = dense()
        (table if of == "table" else table["columns"][1]).pop(key)
        refused("json-field", table)
    table = dense()
    (table if of == "table" else table["columns"][1])["new"] = 1
    refused("json-field", table)
    assert parse_schema([table, KEYED], "here", lenient=True) == TABLES


@pytest.mark.parametrize("name", ["", "\x1f", "\x7f", "x" * 1025])
def test_names(name: str) -> None:
    refused("json-name", dense(name=name))
    refused("json-name", column(1, name=name))


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in (("MAX_ROWS", 10), ("MAX_DIM", 3), ("MAX_COLUMNS", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, most)
            assert parse(DENSE, KEYED) == TABLES
            patch.setattr(limits, limit, most - 1)
            assert refused("limit", DENSE).startswith("here, table 0 ('d'), ")
    assert parse(dense(rows=0))[0].rows == 0
