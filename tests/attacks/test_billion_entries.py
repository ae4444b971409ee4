"""Counts of billions tied to a few bytes: whoever takes memory for what a count says runs out of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused, rows

BILLIONS = 1 << 40
KEYS = [-7, 0, 5, 12]
BROKEN = ("index-code", "index-bounds", "part-length", "limit")
"""What a validator may say besides, once it looks into the index."""


def _visitor(code: str, count: int, low: int, high: int, data: bytes) -> Store:
    """Rows of a keyed table whose row index says what it likes of itself."""

    def content(segment: layout.Segment) -> None:
        table = cases.visitor(segment, KEYS, code)
        segment.sections[0] = data
        table.json["row_sets"][0] |= {"count": count, "min": str(low), "max": str(high)}

    return cases.one_small(content=content, tables=[cases.VISITOR])


@pytest.mark.parametrize("code", rows.CODES)
def test_a_row_index_of_billions(tmp_path: Path, code: str) -> None:
    """The parts that use it would have to be as long."""
    hostile = _visitor(code, BILLIONS, 0, 2 * BILLIONS, rows.index(code, KEYS))
    refused(tmp_path, hostile, "part-length" if code in ("packed", "runs") else "row-set", *BROKEN)
    accepted(tmp_path, _visitor(code, 4, -7, 12, rows.index(code, KEYS)))


@pytest.mark.parametrize("code", rows.CODES)
def test_tombstones_by_the_billion(tmp_path: Path, code: str) -> None:
    """No part says how many there are; the limit does."""
    few = rows.index(code, KEYS)
    hostile = _deleted(code, BILLIONS, 0, 2 * BILLIONS, few)
    refused(tmp_path, hostile, "limit" if code in ("packed", "runs") else "row-set", *BROKEN)
    accepted(tmp_path, _deleted(code, 4, -7, 12, few))


def _deleted(code: str, count: int, low: int, high: int, data: bytes) -> Store:
    def content(segment: layout.Segment) -> None:
        table = cases.visitor(segment, [1_000_001, 1_000_003])
        number = segment.section(data)
        table.json["deleted"] = table.row_set(code, count, low, high, number)

    return cases.one_small(content=content, tables=[cases.VISITOR])


def test_runs_that_lie_about_their_number(tmp_path: Path) -> None:
    """A count that the limit allows, and a run of 2^62 ids."""
    run = struct.Struct("<qQ").pack
    hostile = _deleted("runs", 3, 0, 1 << 62, run(0, 1 << 62) + run((1 << 62) + 5, 1 << 61))
    refused(tmp_path, hostile, "index-bounds")
    accepted(tmp_path, _deleted("runs", 3, 0, 9, run(0, 2) + run(9, 1)))


def test_more_tables_than_there_may_be(tmp_path: Path) -> None:
    def many(value: layout.Json) -> None:
        value["tables"] = [value["tables"][0]] * 65537

    # 16 MB of JSON become 32 times as much at the most, in each validator.
    refused(tmp_path, cases.one_small(hooks={"json": many}), "limit", "schema", memory=1 << 30)
    accepted(tmp_path, cases.one_small())


def test_more_segments_than_a_chain_may_have(tmp_path: Path) -> None:
    def many(value: layout.Json) -> None:
        value["chain"] *= 257

    refused(tmp_path, cases.one_small(hooks={"json": many}), "limit", "chain-path")
    accepted(tmp_path, cases.one_small())
