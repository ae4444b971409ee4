"""Groups of integers whose directory, models or codes say what can't be, and sums that leave their range."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.attacks.support import accepted, cases, encodings, in_child, integers, lay, layout, outcome, parts, refused

PACKED, RANS = (encodings.grid("absolute", 0, payload, None, 2) for payload in ("packed", "rans"))
CODES = [[1, -2, 300], [40, 0, -41], [0, 0, 0], [7, 7, -8]]
TOP = 2**24 - 1


@pytest.mark.parametrize("base", [1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 16])
def test_directories_that_overflow(tmp_path: Path, base: int) -> None:
    """Bases that wrap around, or would be negative, and groups far beyond their section."""
    for encoding in (PACKED, RANS):
        data = bytearray(integers.section(encoding, CODES))
        at = 0 if encoding is PACKED else 16 + struct.unpack_from("<I", data, 4)[0]
        struct.pack_into("<Q", data, at, base)
        refused(tmp_path / str(at), parts.single(encoding, bytes(data)), "grid-directory", "grid-codes")
        accepted(tmp_path / f"{at} twin", parts.single(encoding, integers.section(encoding, CODES)))


@pytest.mark.parametrize("begin", [1, 10**9, 2**31, 2**32 - 1])
def test_groups_beyond_their_section(tmp_path: Path, begin: int) -> None:
    data = bytearray(integers.section(PACKED, CODES))
    struct.pack_into("<I", data, 12, begin)
    refused(tmp_path, parts.single(PACKED, bytes(data)), "grid-codes" if begin == 1 else "grid-directory")


@pytest.mark.parametrize(("field", "value"), [("H", 65535), ("H", 0), ("I", 2**32 - 1), ("I", 0)])
def test_models_of_other_sizes(tmp_path: Path, field: str, value: int) -> None:
    """Counts of row kinds, of classes, of bytes: what they promise isn't there."""
    for at in (0, 2) if field == "H" else (4,):
        data = bytearray(integers.section(RANS, CODES))
        struct.pack_into(f"<{field}", data, at, value)
        rules = ("grid-directory", "grid-models") if value == 2**32 - 1 else ("grid-models", "grid-directory")
        hostile = parts.single(RANS, bytes(data))
        found = refused_by_one(tmp_path / str(at), hostile, *rules)
        assert found


def refused_by_one(where: Path, content: parts.Store, *rules: str) -> bool:
    """Both validators name one of the rules, not the same perhaps."""
    found = in_child(outcome, lay(where, content))
    assert (found.verify, found.cnrcheck) == ("damaged", "damaged"), found
    return bool(found.rules | found.cnrcheck_rules <= set(rules))


def test_frequencies_that_overflow(tmp_path: Path) -> None:
    """Sums of 4096 modulo 65536."""
    for models in (
        integers.Models([(0, 0, 65535), (1, 0, 4097)], [[4096]]),
        integers.Models([(0, 0, 4096)], [[65535, 4097]]),
    ):
        states = [struct.pack("<8I", *[65536] * 8)] * 2
        hostile = parts.single(RANS, integers.assembled(states, models.head()))
        refused(tmp_path / str(len(models.kinds)), hostile, "grid-models")


@pytest.mark.parametrize("width", [27, 63, 64, 255])
def test_widths_beyond_all_codes(tmp_path: Path, width: int) -> None:
    group = bytes([0, 0, 0, width]) + bytes(-(-3 * width // 8))
    data = integers.assembled([group, integers.packed_group(CODES[2:], [0, 0])])
    refused(tmp_path, parts.single(PACKED, data), "grid-codes")


@pytest.mark.parametrize("exponent", [25, 31, 32, 63, 255])
def test_exponents_that_shift_everything_out(tmp_path: Path, exponent: int) -> None:
    fixed = encodings.grid("absolute", 0, "fixed", 2)
    data = integers.section(fixed, [[1, 0, 0]] * 4, [exponent, 0, 0, 0])
    refused(tmp_path, parts.single(fixed, data), "grid-codes")
    accepted(tmp_path, parts.single(fixed, integers.section(fixed, [[1, 0, 0]] * 4, [23, 0, 0, 0])))


def chain(changes: list[int]) -> parts.Store:
    """An absolute part of the greatest integers, and residual ones."""
    schema = cases.schema("sums", "item", 4, 3)

    def content(kind: str, value: int) -> cases.Content:
        def write(segment: layout.Segment) -> None:
            table = layout.Table(segment, cases.table_id(schema), 4)
            encoding = encodings.grid(kind, 0, "fixed", 26)
            data = integers.section(encoding, [[value] * 3] * 4)
            table.part("weight", table.span(0, 3), (0, 3), encoding, data)

        return write

    return cases.history(schema, content("absolute", TOP), *(content("residual", change) for change in changes))


def test_sums_that_leave_their_range(tmp_path: Path) -> None:
    refused(tmp_path / "one", chain([1]), "grid-range")
    # The sum of all is TOP again, modulo 2^32.
    refused(tmp_path / "wraps", chain([2**25 - 1] * 128 + [128]), "grid-range", read=False)
    accepted(tmp_path, chain([-2 * TOP, 2 * TOP, -1]))


def test_differences_of_nothing(tmp_path: Path) -> None:
    schema = cases.schema("nothing", "item", 4, 3)

    def content(segment: layout.Segment) -> None:
        table = layout.Table(segment, cases.table_id(schema), 4)
        encoding = encodings.grid("residual", 0, "fixed", 2)
        table.part("weight", table.span(0, 3), (0, 3), encoding, integers.section(encoding, [[1, 0, -1]] * 4))

    refused(tmp_path, cases.one_small(content=content, tables=[schema]), "residual-base")
