"""What a manifest and the tables of contents of its chain must agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cnrfmt.format.chain import check_chain, check_table
from cnrfmt.format.encoding import (
    CastLayout,
    CodebookLayout,
    GridLayout,
    Layout,
    LogLayout,
    RawLayout,
    RowwiseLayout,
)
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import DenseEntry, Part, RowSet, TableEntry, Toc

USER, ITEM, GONE = (bytes([n]) * 16 for n in (1, 2, 3))
STATES = [bytes([n]) * 16 for n in (0xA0, 0xA1)]
ENTRIES = [
    ChainEntry(b"0" * 16, None, STATES[0], None, 1, 1),
    ChainEntry(b"1" * 16, STATES[0], STATES[1], None, 1, 1),
    ChainEntry(b"2" * 16, STATES[0], STATES[1], None, 1, 1),
]
FLOAT = RawLayout("float32")
ABSOLUTE, RESIDUAL = GridLayout("absolute", -9, "fixed", 7), GridLayout("residual", -9, "rans", None, 2)
OTHER = GridLayout("residual", -8, "packed", None, 2)
LOG, CHANGES = LogLayout(12, 1, 0, "absolute", "rans", 4), LogLayout(12, 1, 0, "residual", "rans", 4)


def columns() -> tuple[ColumnSchema, ...]:
    return (
        ColumnSchema("weight", "float32", False, bytes(4)),
        ColumnSchema("g", "int16", True, bytes(2)),
        ColumnSchema("s", "float32", True, bytes(4)),
    )


def part(column: str = "weight", elements: tuple[int, int] = (0, 3), layout: Layout = FLOAT) -> Part:
    return Part(column, 0, elements, layout, 0)


def user(rows: int | None, *parts: Part) -> TableEntry:
    return TableEntry(USER, rows, (RowSet("range", 1, 0, 0),), None, parts)


ITEMS = TableEntry(ITEM, None)


def toc(*tables: TableEntry, dense: Any = None) -> Toc:
    return Toc((), (), tables, dense)


def findings(tocs: list[Toc], **change: Any) -> list[tuple[str, str]]:
    schema = (TableSchema(USER, "u", 5, 3, columns()), TableSchema(ITEM, "i", None, 3, columns()))
    manifest = Manifest(
        container_id=bytes(16),
        version=1,
        state=STATES[1],
        commit_id=bytes(16),
        step=None,
        created="",
        created_by="",
        parent=None,
        tables=schema,
        chain=tuple(ENTRIES[: len(tocs)]),
    )
    manifest = replace(manifest, **change)
    found = check_chain(manifest, list(zip(manifest.chain, tocs, strict=True)), "here")
    return [(error.rule, error.place) for error in found]


def test_a_chain_that_agrees() -> None:
    rowwise = part(layout=RowwiseLayout(8))
    tocs = [
        toc(user(3, part("g", (0, 1), RawLayout("int16")), rowwise), ITEMS),
        toc(user(5, part(elements=(1, 2)))),
        toc(user(5)),
    ]
    assert findings(tocs) == []
    # What is told of a table that was dropped doesn't count.
    dropped = TableEntry(GONE, 7, (RowSet("range", 1, 0, 0),), None, (part("nothing", (0, 9)),))
    assert findings([toc(*tocs[0].tables, dropped), *tocs[1:]]) == []


@pytest.mark.parametrize(
    "layout", [CastLayout("bfloat16"), RowwiseLayout(8), CodebookLayout(2), LOG, ABSOLUTE]
)
def test_float32_columns_have_every_encoding(layout: Layout) -> None:
    assert findings([toc(user(5, part("s", (0, 1), layout), part(layout=layout)), ITEMS)]) == []
    # A part of some of the elements as well.
    assert findings([toc(user(5, part(elements=(1, 2), layout=layout)), ITEMS)]) == []


def test_codes_of_one_value_per_row() -> None:
    fixed = LogLayout(12, 1, 0)
    assert findings([toc(user(5, part("s", (0, 1), fixed)), ITEMS)]) == []
    (error,) = check_table(TableSchema(USER, "u", 5, 3, columns()), user(5, part(layout=fixed)), "here")
    assert error.expected == "log under the payload rans, for a column of dim values per row"


@pytest.mark.parametrize("rows", [4, 6])
def test_the_newest_rows_are_those_of_the_schema(rows: int) -> None:
    assert findings([toc(user(5), ITEMS), toc(user(rows))]) == [("chain-schema", "here, table 'u'")]
    assert findings([toc(user(rows), ITEMS), toc(user(5))]) == []


def test_a_step_gives_one_number_of_rows() -> None:
    tocs = [toc(user(5), ITEMS), toc(user(4)), toc(user(5))]
    assert findings(tocs) == [("chain-schema", "here, chain entry 2, table 'u'")]
    # Another step may give another.
    assert findings([tocs[1], tocs[0]]) == []


def test_every_table_occurs_in_the_chain() -> None:
    assert findings([toc(user(5))]) == [("chain-schema", "here, table 'i'")]
    assert findings([toc(ITEMS)]) == [("chain-schema", "here, table 'u'")]


def test_rows_are_null_exactly_for_a_keyed_table() -> None:
    assert ("chain-schema", "here, chain entry 0, table 'u'") in findings([toc(user(None), ITEMS), toc(user(5))])
    assert findings([toc(user(5), TableEntry(ITEM, 5))]) == [("chain-schema", "here, chain entry 0, table 'i'")]


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        (part("h"), "chain-schema"),
        (part(elements=(0, 4)), "elements"),
        (part("g", (0, 2), RawLayout("int16")), "elements"),
        (part(layout=RawLayout("int32")), "part-encoding"),
        (part("g", (0, 1), RowwiseLayout(8)), "part-encoding"),
        (part("g", (0, 1), RawLayout("uint16")), "part-encoding"),
        (part("g", (0, 1), CastLayout("float16")), "part-encoding"),
        (part("g", (0, 1), LogLayout(12, 1, 0)), "part-encoding"),
        (part("g", (0, 1), ABSOLUTE), "part-encoding"),
        (part("g", (0, 1), LOG), "part-encoding"),
        # Codes without groups are for columns of one value per row, even where a part of another is as narrow.
        (part(elements=(1, 2), layout=LogLayout(12, 1, 0)), "part-encoding"),
        (part("s", (0, 1), RawLayout("float16")), "part-encoding"),
    ],
)
def test_parts_are_those_of_the_schemas_columns(found: Part, rule: str) -> None:
    assert findings([toc(user(5, part(), found), ITEMS)]) == [(rule, "here, chain entry 0, table 'u', part 1")]


@pytest.mark.parametrize(
    ("steps", "broken"),
    [
        ([[("weight", ABSOLUTE)], [("weight", RESIDUAL)], [("weight", RESIDUAL)]], []),
        ([[("s", LOG)], [("s", CHANGES)], [("s", CHANGES)]], []),
        ([[("s", LogLayout(12, 1, 0))], [("s", CHANGES)]], []),
        # Nothing under it: in the baseline, in a delta, in its own step alone.
        ([[("weight", RESIDUAL)]], ["0"]),
        ([[("weight", FLOAT)], [("weight", RESIDUAL)]], ["1"]),
        ([[("weight", FLOAT)], [("weight", ABSOLUTE), ("weight", RESIDUAL)]], ["1"]),
        # On another grid, in another column.
        ([[("weight", ABSOLUTE)], [("weight", OTHER)]], ["1"]),
        ([[("s", ABSOLUTE)], [("weight", RESIDUAL)]], ["1"]),
        ([[("s", LOG)], [("s", LogLayout(12, 2, 0, "residual", "rans", 4))]], ["1"]),
        ([[("s", LOG)], [("s", RESIDUAL)]], ["1"]),
        # A raw part between them may be of other rows.
        ([[("weight", ABSOLUTE)], [("weight", FLOAT)], [("weight", RESIDUAL)]], []),
    ],
)
def test_residuals_need_integers_in_an_older_step(steps: list[list[tuple[str, Layout]]], broken: list[str]) -> None:
    tocs = []
    for parts in steps:
        found = [part(name, (0, 1) if name == "s" else (0, 3), layout) for name, layout in parts]
        tocs.append(toc(user(5, *found), ITEMS))
    states = [bytes([0xA0 + n]) * 16 for n in range(3)]
    chain = tuple(ChainEntry(bytes([n]) * 16, states[n - 1] if n else None, states[n], None, 1, 1) for n in range(3))
    found = findings(tocs, chain=chain[: len(tocs)])
    column = next((name for name, layout in steps[-1] if layout.is_residual), "weight")
    assert found == [("residual-base", f"here, chain entry {n}, table 'u', column '{column}'") for n in broken]


def test_residuals_of_a_step_have_no_base_in_it() -> None:
    base, residual = toc(user(5, part(layout=ABSOLUTE)), ITEMS), toc(user(5, part(layout=RESIDUAL)), ITEMS)
    # The second and the third segment make one step.
    assert findings([base, residual, residual]) == []
    place = "here, chain entry {}, table 'u', column 'weight'"
    found = findings([toc(user(5), ITEMS), base, residual])
    assert found == [("residual-base", place.format(2))]


def test_the_dense_state_is_that_of_a_segment_that_has_some() -> None:
    with_state = toc(user(5), ITEMS, dense=(DenseEntry("b", "bytes", None),))
    for dense, expected in ((b"0" * 16, []), (b"1" * 16, [("dense-reference", "here")])):
        assert findings([with_state, toc(user(5))], dense=dense) == expected
    # Dense state without entries is dense state.
    assert findings([toc(user(5), ITEMS, dense=())], dense=b"0" * 16) == []
