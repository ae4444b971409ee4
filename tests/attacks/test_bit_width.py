"""A packed row index with widths beyond 64 bits, or offsets beyond its payload: shifts and reads out of bounds."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused, rows

IDS = [0, 3, 4, 9]


def _index(data: bytes) -> Store:
    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
        index = table.row_set("packed", len(IDS), IDS[0], IDS[-1], segment.section(data))
        cases.floats(table, "weight", index, cases.weights(len(IDS)))

    return cases.one_small(content=content, tables=[cases.VISITOR])


@pytest.mark.parametrize("width", [65, 66, 127, 128, 255])
def test_a_width_beyond_64_bits(tmp_path: Path, width: int) -> None:
    payload = bytes(8 * -(-len(IDS) * width // 64))
    refused(tmp_path, _index(struct.pack("<qIB3x", 0, 0, width) + payload), "index-code")
    accepted(tmp_path, _index(rows.packed(IDS)))


@pytest.mark.parametrize("offset", [1, 2, 1 << 31, (1 << 32) - 1])
def test_a_payload_outside_the_section(tmp_path: Path, offset: int) -> None:
    data = bytearray(rows.packed(IDS))
    struct.pack_into("<I", data, 8, offset)
    refused(tmp_path, _index(bytes(data)), "index-code")
    accepted(tmp_path, _index(rows.packed(IDS)))


def test_the_widest_index_is_legal(tmp_path: Path) -> None:
    ids = [-(1 << 63), (1 << 63) - 1]

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(cases.VISITOR), None)
        index = table.index("packed", ids, rows.packed(ids))
        cases.floats(table, "weight", index, cases.weights(2))

    accepted(tmp_path, cases.one_small(content=content, tables=[cases.VISITOR]))
