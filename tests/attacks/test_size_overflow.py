"""Offsets, lengths and shapes near 2^64: sums and products that wrap around in machine integers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.attacks.support import Store, accepted, cases, layout, refused

GREATEST = (1 << 64) - 1


@pytest.mark.parametrize(("offset", "length"), [(1 << 63, 1 << 63), (GREATEST - 4095, 8192), (12288, GREATEST - 12287)])
def test_a_slot_whose_end_wraps(tmp_path: Path, offset: int, length: int) -> None:
    end = layout.up(offset + length, layout.PAGE) % (1 << 64)
    spoil = cases.poke(40, struct.pack("<2Q8xQ", offset, length, end))
    refused(tmp_path, cases.one(hooks={"slot A": spoil, "slot B": spoil}), "slot", "limit")
    accepted(tmp_path, cases.one())


@pytest.mark.parametrize("length", [GREATEST, (1 << 64) - 136, 1 << 63])
def test_a_manifest_whose_lengths_wrap(tmp_path: Path, length: int) -> None:
    """J and A of which the sum, modulo 2^64, is right."""

    def wrapped(raw: bytearray) -> None:
        text, rest = struct.unpack_from("<2Q", raw, 64)
        struct.pack_into("<2Q", raw, 64, length, (text + rest - length) % (1 << 64))

    refused(tmp_path, cases.one_small(hooks={"manifest": wrapped}), "block-length")
    accepted(tmp_path, cases.one_small())


@pytest.mark.parametrize("place", [32, 40, 48])
def test_a_trailer_whose_places_wrap(tmp_path: Path, place: int) -> None:
    """Data end, offset and length of the table of contents, near 2^64."""
    spoil = cases.u64(place, lambda value: (value - (1 << 20)) % (1 << 64))
    refused(tmp_path, cases.one_small(hooks={"trailer": spoil}), "trailer-geometry", "limit")
    accepted(tmp_path, cases.one_small(hooks={"trailer": cases.u64(place, lambda value: value)}))


def _array(shape: list[int], data: bytes) -> Store:
    def content(segment: layout.Segment) -> None:
        segment.array("a", "float32", shape, data)

    return cases.one_small(content=content, tables=(), dense=True)


@pytest.mark.parametrize(
    "shape", [[1 << 32, 1 << 32], [1 << 31, 1 << 31, 4], [(1 << 53) - 1] * 8, [1 << 16] * 4, [3, 1 << 52]]
)
def test_a_shape_whose_product_wraps(tmp_path: Path, shape: list[int]) -> None:
    refused(tmp_path / "empty", _array(shape, b""), "dense-entry")
    refused(tmp_path / "full", _array(shape, bytes(12)), "dense-entry")
    accepted(tmp_path, _array([1, 3, 1], bytes(12)))


def test_an_empty_array_of_huge_extents(tmp_path: Path) -> None:
    """It holds nothing, and no library can have it."""
    refused(tmp_path, _array([(1 << 53) - 1, (1 << 53) - 1, 0], b""), "limit")
    accepted(tmp_path, _array([1 << 40, 0], b""))


@pytest.mark.parametrize("elements", [[0, 1 << 62], [(1 << 53) - 2, (1 << 53) - 1], [1 << 20, (1 << 20) + 3]])
def test_elements_beyond_every_width(tmp_path: Path, elements: list[int]) -> None:
    hostile = cases.one_small(hooks={"toc": cases.put("tables", 0, "parts", 0, "elements", elements)})
    first = "elements" if elements[1] < 1 << 53 else "json-syntax"
    refused(tmp_path, hostile, first, "chain-schema", "part-length", "baseline-tiling")
    accepted(tmp_path, cases.one_small())


def test_a_table_too_large_to_count(tmp_path: Path) -> None:
    rows = (1 << 48) + 1
    hooks = {"json": cases.put("tables", 0, "rows", rows), "toc": cases.put("tables", 0, "rows", rows)}
    refused(tmp_path, cases.one_small(hooks=hooks), "limit", "baseline-tiling")
    accepted(tmp_path, cases.one_small())
