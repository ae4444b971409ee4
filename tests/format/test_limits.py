"""The limits and sizes of the code are those of the specification's text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cnrfmt.format import blocks, digests, limits
from cnrfmt.format.encoding import DENSE_ITEM_SIZES, ITEM_SIZES

SPECIFICATION = (Path(__file__).resolve().parents[2] / "spec" / "format.md").read_text("utf-8")

# By the words of section 2.4.
NAMES = {
    "rows of a dense table": ("MAX_ROWS",),
    "dim": ("MAX_DIM",),
    "tables of a version; columns of a table": ("MAX_TABLES", "MAX_COLUMNS"),
    "row sets, parts of one table in one segment": ("MAX_ROW_SETS", "MAX_PARTS"),
    "tombstones of one table in one segment": ("MAX_TOMBSTONES",),
    "sections of a segment": ("MAX_SECTIONS",),
    "bytes of a segment, of a container": ("MAX_BYTES",),
    "bytes of a table of contents; of a manifest's JSON; of its attachments": ("MAX_METADATA",) * 3,
    "segments of a chain": ("MAX_CHAIN",),
    "retained versions named by a manifest": ("MAX_VERSIONS",),
    "the number of a version": ("MAX_INTEGER",),
    "entries of dense state": ("MAX_DENSE",),
    "dimensions of a dense array; its bytes, an extent of 0 counted as 1": ("MAX_DIMENSIONS", "MAX_BYTES"),
}


def number(text: str) -> int:
    """A number as the specification writes it: `65536`, `2^48`, `2^53 - 1` or `64 MiB`."""
    match = re.fullmatch(r"(\d+)(\^(\d+))?( - 1)?( MiB)?(?: each)?", text.strip())
    assert match, text
    value = int(match[1]) ** int(match[3] or 1)
    return (value << 20 if match[5] else value) - bool(match[4])


def table() -> dict[str, list[int]]:
    section = SPECIFICATION.split("### 2.4 Limits")[1].split("###")[0]
    rows = re.findall(r"^\| ([a-z][^|]*) \| ([0-9][^|]*) \|$", section, re.MULTILINE)
    return {what: [number(text) for text in limit.split(";")] for what, limit in rows}


def test_each_limit_is_that_of_the_table() -> None:
    found = table()
    assert found.keys() == NAMES.keys()
    for what, values in found.items():
        names = NAMES[what]
        expected = values if len(values) == len(names) else values * len(names)
        assert [getattr(limits, name) for name in names] == expected, what


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MAX_NAME", r"MUST be 1 to (\d+) bytes of UTF-8"),
        ("MAX_DEPTH", r"nested at most (\d+) deep"),
        ("MAX_INTEGER", r"Integers MUST lie within \+-\((2\^53 - 1)\)"),
        ("NODE", r"\| node \| a run of (\d+) bytes"),
        ("BLOCK", r"\| block \| (\d+) bytes of fixed fields"),
        ("MIN_PIECE", r"a power of two from (\d+) to"),
        ("MAX_PIECE", r"a power of two from \d+ to (\d+);"),
        ("PAGE", r"file header page \((\d+) bytes\)"),
        ("LARGE_SECTION", r"if the section is (\d+) bytes or longer"),
        ("SMALL_ALIGNMENT", r"bytes or longer, of (\d+) otherwise"),
    ],
)
def test_each_size_is_that_of_the_text(name: str, text: str) -> None:
    found = re.search(text, SPECIFICATION)
    assert found
    assert getattr(limits, name) == number(found[1])


def test_the_writers_piece_size_is_one_that_the_format_has() -> None:
    assert limits.MIN_PIECE <= limits.PIECE <= limits.MAX_PIECE
    # A piece is a page of a map: what is verified is what a fault brings in.
    assert limits.PIECE == limits.PAGE


def test_spans_start_behind_header_and_slots() -> None:
    first = re.search(r"^(\d+)  segments and manifests", SPECIFICATION, re.MULTILINE)
    assert first
    assert int(first[1]) == blocks.FIRST_SPAN


def test_the_version_is_1_0_without_features() -> None:
    assert SPECIFICATION.startswith("# The cnr format, version 1.0\n")
    assert (blocks.MAJOR, blocks.MINOR) == (1, 0)
    assert "Version 1.0 defines no bit." in SPECIFICATION
    assert (blocks.KNOWN_COMPAT, blocks.KNOWN_RO_COMPAT, blocks.KNOWN_INCOMPAT) == (0, 0, 0)


def test_the_data_types_are_those_of_the_text() -> None:
    section = SPECIFICATION.split("### 2.5 Data types")[1].split("## 3")[0]
    listed, further = re.findall(r"`([a-z0-9_ ]+)`", section)[0], re.findall(r"`([a-z0-9]+)`", section)
    assert list(ITEM_SIZES) == listed.split()
    assert set(DENSE_ITEM_SIZES) - set(ITEM_SIZES) == set(further)
    for name, size in DENSE_ITEM_SIZES.items():
        bits = re.search(r"(?:float|int|complex)(\d+)", name)
        assert size == (int(bits[1]) // 8 if bits else 1), name
        assert DENSE_ITEM_SIZES[name] == ITEM_SIZES.get(name, size)


@pytest.mark.parametrize(
    ("level", "factor"),
    [
        (digests.NODE_LEVEL, 1),
        (digests.TOC_LEVEL, 2),
        (digests.TRAILER_LEVEL, 3),
        (digests.HEADER_LEVEL, 4),
    ],
)
def test_the_seeds_are_those_of_the_text(level: int, factor: int) -> None:
    identity = (0xFEDCBA9876543210).to_bytes(8, "little") + bytes(range(8))
    assert digests.seed_of(identity, level) == (0xFEDCBA9876543210 + factor * 2**56) % 2**64
    assert digests.seed_of(identity, level, 5) == (0xFEDCBA9876543210 + factor * 2**56 + 5) % 2**64
    assert digests.seed_of(identity) == 0xFEDCBA9876543210


def test_sums_of_seeds_wrap_around() -> None:
    identity = b"\xff" * 16
    assert digests.seed_of(identity, index=3) == 2
    assert digests.seed_of(identity, digests.NODE_LEVEL) == 2**56 - 1


def test_a_digest_is_xxh3_with_its_seed() -> None:
    # The values that the hash's reference implementation gives for no bytes.
    assert digests.digest_hex(digests.digest(b"")) == "2d06800538d394c2"
    assert digests.digest(b"") == digests.digest(b"", 0) != digests.digest(b"", 1)
    assert digests.digest_hex(0xABC) == "0000000000000abc"


def test_an_id_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [bytes(16), bytes(16), bytes(15) + b"\x01"]
    monkeypatch.setattr("os.urandom", lambda size: drawn.pop(0) if size == 16 else b"")
    assert digests.new_id() == bytes(15) + b"\x01"
    assert drawn == []


@pytest.mark.parametrize(
    ("n", "alignment", "expected"),
    [(0, 64, 0), (1, 64, 64), (63, 64, 64), (64, 64, 64), (65, 64, 128), (4097, 4096, 8192)],
)
def test_rounding_up(n: int, alignment: int, expected: int) -> None:
    assert limits.round_up(n, alignment) == expected
