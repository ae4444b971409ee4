"""A row index that goes backwards, repeats a row or leaves int64: a binary search in it would answer anything."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused, rows


def _visitor(code: str, ids: Sequence[int], data: bytes, low: int, high: int) -> Store:
    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
        index = table.row_set(code, len(ids), low, high, segment.section(data))
        cases.floats(table, "weight", index, cases.weights(len(ids)))

    return cases.one_small(content=content, tables=[cases.VISITOR])


@pytest.mark.parametrize("ids", [[0, 7, 5, 9], [0, 5, 5, 9], [9, 7, 5, 0], [0, -1, 5, 9]])
def test_raw_ids_out_of_order(tmp_path: Path, ids: list[int]) -> None:
    refused(tmp_path, _visitor("raw", ids, rows.raw(ids), 0, 9), "index-order", "index-bounds")
    accepted(tmp_path, _visitor("raw", sorted({*ids, 3, 4}), rows.raw(sorted({*ids, 3, 4})), min(ids), 9))


def test_packed_groups_out_of_order(tmp_path: Path) -> None:
    ids = list(range(0, 520, 4))
    data = bytearray(rows.packed(ids))
    accepted(tmp_path, _visitor("packed", ids, bytes(data), 0, ids[-1]))
    struct.pack_into("<q", data, 16, 100)
    refused(tmp_path, _visitor("packed", ids, bytes(data), 0, ids[-1]), "index-order", "index-bounds")


@pytest.mark.parametrize("runs", [[(8, 2), (0, 2)], [(0, 4), (3, 2)], [((1 << 63) - 2, 4)], [(0, 2), (2, 2)]])
def test_runs_out_of_order(tmp_path: Path, runs: list[tuple[int, int]]) -> None:
    data = b"".join(struct.pack("<qQ", *run) for run in runs)
    count = sum(length for _, length in runs)
    hostile = _visitor("runs", range(count), data, 0, (1 << 63) - 1)
    refused(tmp_path, hostile, "index-code" if runs[0] == (0, 2) else "index-order", "index-bounds", "index-code")
    accepted(tmp_path, _visitor("runs", range(4), struct.pack("<qQqQ", 0, 2, 8, 2), 0, 9))
