"""What rows take by their encoding: groups wider than a row, blocks longer than a part, bits that are left over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.support import Store, accepted, cases, encodings, parts, refused

MOST = 1 << 20
HUGE = 1 << 40


def _grouped(group: int, groups: int) -> Store:
    """Rows of 3 elements with so many scales and biases."""
    encoding = encodings.rowwise(4, "packed", "float16", "float16", group)
    return parts.single(encoding, bytes(parts.COUNT * (2 + 4 * groups)))


@pytest.mark.parametrize("group", [8, MOST])
@pytest.mark.parametrize("groups", [0, 2, MOST // 8])
def test_groups_beyond_the_row(tmp_path: Path, group: int, groups: int) -> None:
    """A row shorter than a group has one of them; its parameters follow its own codes, not those of a whole group."""
    refused(tmp_path, _grouped(group, groups), "part-length")
    accepted(tmp_path, _grouped(group, 1))


@pytest.mark.parametrize("group", [0, -8, 12, MOST + 8, 1 << 52])
def test_groups_that_no_row_can_have(tmp_path: Path, group: int) -> None:
    refused(tmp_path, _grouped(group, 1), "part-encoding")
    accepted(tmp_path, _grouped(24, 1))


def test_a_group_for_every_eight_elements_of_the_widest_row(tmp_path: Path) -> None:
    encoding = encodings.rowwise(2, "packed", "float32", "float32", 8)
    size = MOST // 4 + MOST // 8 * 8
    refused(tmp_path, parts.single(encoding, bytes(size - 4), count=1, width=MOST), "part-length")
    accepted(tmp_path, parts.single(encoding, bytes(size), count=1, width=MOST))


def _blocks(block: int, books: int) -> Store:
    encoding = encodings.codebook(4, "float32", block)
    return parts.single(encoding, bytes(parts.COUNT * 2), codebooks=bytes(64 * books))


@pytest.mark.parametrize("books", [2, parts.COUNT, MOST // 64])
def test_a_block_beyond_the_part(tmp_path: Path, books: int) -> None:
    """Four rows in blocks of a million have one codebook."""
    refused(tmp_path, _blocks(MOST, books), "part-length")
    accepted(tmp_path, _blocks(MOST, 1))


@pytest.mark.parametrize("block", [0, 1, -2, MOST + 1, (1 << 53) - 1])
def test_blocks_that_no_part_can_have(tmp_path: Path, block: int) -> None:
    refused(tmp_path, _blocks(block, 1), "part-encoding")
    accepted(tmp_path, _blocks(2, 2))


@pytest.mark.parametrize("kind", parts.KINDS)
def test_rows_by_the_billion(tmp_path: Path, kind: str) -> None:
    """However few bits a row takes, the section has them all."""

    def many(toc: Any) -> None:
        table = toc["tables"][0]
        table["rows"] = HUGE
        table["row_sets"][0] |= {"count": HUGE, "max": str(HUGE - 1)}

    hostile = parts.single(parts.KINDS[kind], hook=many)
    refused(tmp_path, hostile, "part-length", "chain-schema", "baseline-tiling")
    accepted(tmp_path, parts.single(parts.KINDS[kind]))


@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 3), (5, 7), (5, 9), (4, 5)])
def test_half_bytes_that_arent_there(tmp_path: Path, count: int, length: int) -> None:
    """Codes of 12 bits: the last of an odd number begins a byte that it doesn't fill."""
    refused(tmp_path, parts.single(parts.LOG, bytes(length), count=count), "part-length")
    accepted(tmp_path, parts.single(parts.LOG, bytes(-(-count * 3 // 2)), count=count))


def test_a_half_byte_left_over(tmp_path: Path) -> None:
    hidden = bytes(7) + b"\x10"
    refused(tmp_path, parts.single(parts.LOG, hidden, count=5), "code-padding", read=False)
    accepted(tmp_path, parts.single(parts.LOG, bytes(7) + b"\x0f", count=5))


@pytest.mark.parametrize(
    ("kind", "at"), [("head", 6), ("head", 15), ("packed", 1), ("biasless", 1), ("codebook", 17), ("blocks", 0)]
)
def test_bits_that_belong_to_no_code(tmp_path: Path, kind: str, at: int) -> None:
    encoding = parts.KINDS[kind]
    data = parts.zeros(encoding)
    spoilt = data[:at] + b"\x80" + data[at + 1 :]
    books = parts.shared_zeros(encoding)
    refused(tmp_path, parts.single(encoding, spoilt, codebooks=books), "code-padding", read=False)
    legal = data[:at] + (b"\0" if kind == "head" else b"\1") + data[at + 1 :]
    accepted(tmp_path, parts.single(encoding, legal, codebooks=books))


@pytest.mark.parametrize("elements", [[0, 2], [1, 2], [0, MOST]])
def test_codes_of_one_value_for_several_elements(tmp_path: Path, elements: list[int]) -> None:
    hook = cases.put(*parts.PART, "elements", elements)
    rules = ("elements", "part-encoding") if elements[1] - elements[0] == 1 else ("part-encoding", "elements")
    refused(tmp_path, parts.single(parts.LOG, hook=hook), *rules, "chain-schema", "baseline-tiling")
    accepted(tmp_path, parts.single(parts.LOG))
