"""Locators that point into each other: one section for two parts, one span for two segments, a part for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused, rows


def test_one_section_for_two_parts(tmp_path: Path) -> None:
    hostile = cases.one_small(hooks={"toc": cases.put("tables", 0, "parts", 2, "section", 0)}, content=_three)
    refused(tmp_path, hostile, "section-reference", "baseline-tiling")
    accepted(tmp_path, cases.one_small(content=_three))


def _three(segment: layout.Segment) -> None:
    """Three parts, of which the first and the last are of one length."""
    table = layout.Table(segment, cases.table_id(cases.USER), 4)
    span = table.span(0, 3)
    cases.floats(table, "weight", span, cases.weights(4)[:, :1])
    cases.floats(table, "weight", span, cases.weights(4)[:, 1:], 1)
    cases.floats(table, "accumulator", span, cases.sums(4))


def test_a_row_index_that_is_its_own_part(tmp_path: Path) -> None:
    """The section of row ids stands as rows, too."""
    hooks = {"toc": cases.put("tables", 0, "parts", 0, "section", 0)}
    hostile = cases.one_small(hooks=hooks, content=_index, tables=[cases.VISITOR])
    refused(tmp_path, hostile, "section-reference")
    accepted(tmp_path, cases.one_small(content=_index, tables=[cases.VISITOR]))


def _index(segment: layout.Segment) -> None:
    """A row index and a part of one length."""
    table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
    index = table.index("raw", cases.KEYS, rows.raw(cases.KEYS))
    cases.floats(table, "weight", index, cases.weights(4)[:, :2])


def test_one_span_for_two_segments(tmp_path: Path) -> None:
    def same(value: Any) -> None:
        for key in ("offset", "length", "trailer"):
            value["chain"][1][key] = value["chain"][0][key]

    hostile = cases.two(cases.user, hooks={"json": same})
    refused(tmp_path, hostile, "segment-identity", "trailer-digest", "file-gap")
    accepted(tmp_path, cases.two(cases.user))


def _exceptions(of: int, position: int = 1) -> Store:
    """A row-wise part and the exceptions to it; `position` is where these stand in the list."""

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(cases.USER), 4)
        span = table.span(0, 3)
        data = bytearray(rows.fused([[0] * 3] * 4, [1.0] * 4, [0.0] * 4, 8))
        data[: len(data) // 4] = bytes(len(data) // 4)
        table.part("weight", span, (0, 3), rows.rowwise_encoding(8), bytes(data))
        table.part("weight", table.span(0, 0), (0, 3), cases.FLOAT, cases.weights(1).tobytes(), of)
        if position == 0:
            table.json["parts"].reverse()

    return cases.one_small(content=content)


@pytest.mark.parametrize(("of", "position"), [(1, 1), (0, 0), (1, 0)])
def test_exceptions_to_themselves(tmp_path: Path, of: int, position: int) -> None:
    """Of itself, of one that comes later, in circles."""
    refused(tmp_path, _exceptions(of, position), "exception", "part-overlap")
    accepted(tmp_path, _exceptions(0))


@pytest.mark.parametrize("of", [2, 1 << 20, (1 << 53) - 1])
def test_exceptions_to_what_isnt_there(tmp_path: Path, of: int) -> None:
    refused(tmp_path, _exceptions(of), "section-reference")
    accepted(tmp_path, _exceptions(0))
