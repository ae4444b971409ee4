"""What a manifest and the tables of contents of its chain must agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cnrfmt.format.chain import check_chain
from cnrfmt.format.encoding import CastLayout, CodebookLayout, Layout, LogLayout, RawLayout, RowwiseLayout
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


@pytest.mark.parametrize("layout", [CastLayout("bfloat16"), RowwiseLayout(8), CodebookLayout(2), LogLayout(12, 1, 0)])
def test_float32_columns_have_every_encoding(layout: Layout) -> None:
    one_valued = part("s", (0, 1), layout)
    parts = [one_valued] if isinstance(layout, LogLayout) else [one_valued, part(layout=layout)]
    assert findings([toc(user(5, *parts), ITEMS)]) == []


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
        # Logarithmic codes are for columns of one value per row, even where a part of another is as narrow.
        (part(elements=(1, 2), layout=LogLayout(12, 1, 0)), "part-encoding"),
        (part("s", (0, 1), RawLayout("float16")), "part-encoding"),
    ],
)
def test_parts_are_those_of_the_schemas_columns(found: Part, rule: str) -> None:
    assert findings([toc(user(5, part(), found), ITEMS)]) == [(rule, "here, chain entry 0, table 'u', part 1")]


def test_the_dense_state_is_that_of_a_segment_that_has_some() -> None:
    with_state = toc(user(5), ITEMS, dense=(DenseEntry("b", "bytes", None),))
    for dense, expected in ((b"0" * 16, []), (b"1" * 16, [("dense-reference", "here")])):
        assert findings([with_state, toc(user(5))], dense=dense) == expected
    # Dense state without entries is dense state.
    assert findings([toc(user(5), ITEMS, dense=())], dense=b"0" * 16) == []
