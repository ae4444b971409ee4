"""Tables, columns, entries and segments that occur twice: which of them counts would be anybody's guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import Store, accepted, cases, container, layout, refused

OTHER = container.schema("other", "other", 4, 3, cases.WEIGHT, cases.ACCUMULATOR)


def _both(segment: layout.Segment) -> None:
    cases.user(segment)
    table = layout.Table(segment, cases.table_id(OTHER), 4)
    span = table.span(0, 3)
    cases.floats(table, "weight", span, cases.weights(4))


def _two_tables(change: Any = None, where: str = "json") -> Store:
    hooks = {where: change} if change else {}
    return cases.one_small(hooks=hooks, content=_both, tables=[cases.USER, OTHER])


def test_two_tables_of_one_name(tmp_path: Path) -> None:
    refused(tmp_path, _two_tables(cases.put("tables", 1, "name", "user")), "schema")
    accepted(tmp_path, _two_tables(cases.put("tables", 1, "name", "User")))


def test_two_tables_of_one_id(tmp_path: Path) -> None:
    hostile = _two_tables(cases.put("tables", 1, "id", cases.USER["id"]))
    refused(tmp_path, hostile, "schema", "chain-schema")
    accepted(tmp_path, _two_tables())


def test_a_table_twice_in_a_segment(tmp_path: Path) -> None:
    hostile = _two_tables(cases.put("tables", 1, "id", cases.USER["id"]), "toc")
    refused(tmp_path, hostile, "table-repeated", "chain-schema", "part-overlap", "section-reference")
    accepted(tmp_path, _two_tables())


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    refused(
        tmp_path,
        cases.one_small(hooks={"json": cases.put("tables", 0, "columns", 1, "name", "weight")}),
        "schema",
        "chain-schema",
        "elements",
    )
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("name", ["a", "b"])
def test_two_dense_entries_of_one_name(tmp_path: Path, name: str) -> None:
    def content(segment: layout.Segment) -> None:
        segment.blob("a", "bytes", b"1")
        segment.blob(name, "bytes", b"2")

    store = cases.one_small(content=content, tables=(), dense=True)
    if name == "a":
        refused(tmp_path, store, "table-repeated")
    else:
        accepted(tmp_path, store)


def test_two_parts_of_one_element(tmp_path: Path) -> None:
    def content(segment: layout.Segment, first: int) -> None:
        table = layout.Table(segment, cases.table_id(cases.USER), 4)
        span = table.span(0, 3)
        cases.floats(table, "weight", span, cases.weights(4)[:, :2])
        cases.floats(table, "weight", span, cases.weights(4)[:, first:3], first)

    # Readers take one of them; a validator tells.
    refused(tmp_path, cases.one_small(content=lambda s: content(s, 1)), "part-overlap", read=False)
    accepted(tmp_path, cases.one_small(content=lambda s: content(s, 2)))
