"""The validator reads rows of every encoding, and looks at each of their bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.cnrcheck import builder as b
from tests.cnrcheck import encodings as e
from tools import cnrcheck

EVERY = list(e.every())
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, None: 0}


def name_of(encoding: e.Json) -> str:
    return "-".join(str(value).lower() for value in encoding.values())


@pytest.mark.parametrize("encoding", EVERY, ids=name_of)
def test_rows_read_as_laid_out(encoding: e.Json) -> None:
    log = encoding["name"] == "log"
    for count, n in ((1, 1), (2, 8), (5, 3), (7, 11), (3, 19)):
        n = 1 if log else n
        made = e.made(encoding, count, n)
        seg = b.Segment(31, None, 301)
        table = seg.table(7, count)
        rows = seg.row_set(table, "range", range(count))
        column = "state" if log else "weight"
        seg.part(table, column, rows, (0, n), made.raw, encoding, codebooks=made.codebooks)
        columns = [("weight", "float32", [n], "00000000"), ("state", "float32", [], "00000000")]
        version = b.Version([b.schema(7, "coded", count, n, *columns)], [seg])
        files = b.Container([version], single=False).files
        backwards = np.arange(count)[::-1]
        for ids, expected in ((None, made.values), (backwards, made.values[backwards])):
            found = cnrcheck.read_table(files, "coded", column=column, ids=ids)[1]
            assert found.dtype == np.float32
            assert found.reshape(count, n).tobytes() == np.ascontiguousarray(expected).tobytes()


def test_legal_row_wise_encodings_are_those_of_the_table() -> None:
    legal = {tuple(encoding.values()) for encoding in EVERY if encoding["name"] == "rowwise"}
    types = ["float32", "float16", "bfloat16", "float64", None, ""]
    groups = [*e.GROUPS, 0, 4, 12, -8, (1 << 20) + 8, "8", 8.0]
    tried = itertools.product(
        ["rowwise"], [*range(-1, 18), "8", 8.0], ["tail", "head", "packed", "x"], types, types, groups
    )
    keys = ("name", "bits", "layout", "scale", "bias", "group")
    # 8.0 is equal to 8, but it isn't an integer.
    found = {repr(values) for values in tried if cnrcheck.is_legal(dict(zip(keys, values, strict=True)))}
    assert found == {repr(values) for values in legal}


def test_legal_codebooks_and_casts() -> None:
    legal = {tuple(encoding.values()) for encoding in EVERY if encoding["name"] == "codebook"}
    blocks = [*e.BLOCKS, 0, 1, -2, (1 << 20) + 1, "2", 2.0, True]
    tried = itertools.product(["codebook"], range(-1, 10), ["float32", "float16", "bfloat16", None], blocks)
    keys = ("name", "bits", "values", "block")
    found = {repr(values) for values in tried if cnrcheck.is_legal(dict(zip(keys, values, strict=True)))}
    assert found == {repr(values) for values in legal}
    types = [*cnrcheck.ITEM, "bool", None, 2, ["float16"]]
    casts = [dtype for dtype in types if cnrcheck.is_legal({"name": "cast", "dtype": dtype})]
    assert casts == ["float16", "bfloat16"]
    raws = [dtype for dtype in types if cnrcheck.is_legal({"name": "raw", "dtype": dtype})]
    assert raws == list(cnrcheck.ITEM)


@pytest.mark.parametrize(("bits", "shift"), [(8, 0), (8, 23), (12, 0), (12, 18), (16, 0), (16, 14)])
def test_greatest_logarithmic_code_is_finite(bits: int, shift: int) -> None:
    def legal(base: Any) -> bool:
        return cnrcheck.is_legal(e.log(bits, base, shift))

    least, most = 1, 0x7F800000 - (((1 << bits) - 2) << shift) - 1
    assert legal(least)
    assert legal(most)
    assert not any(legal(base) for base in (least - 1, most + 1, -1, 1 << 53, 1.0, True, None, "1"))


def test_no_greater_shift_leaves_room_for_all_codes() -> None:
    def legal(bits: int, shift: int) -> bool:
        return cnrcheck.is_legal(e.log(bits, 1, shift))

    for bits, most in ((8, 23), (12, 18), (16, 14)):
        assert [shift for shift in range(-2, 40) if legal(bits, shift)] == list(range(most + 1))


def judged(encoding: e.Json, raw: bytes, codebooks: bytes | None, count: int, n: int, odd: int | None) -> set[str]:
    """Return what is found in the rows of a part, and in the exception of one of them."""
    books = None if codebooks is None else (len(raw), len(codebooks))
    end = len(raw) + len(codebooks or b"")
    rows = [
        cnrcheck.RowSet("range", last - first + 1, first, last, None, True, (np.array([first]), np.array([last])))
        for first, last in ((0, count - 1), (odd or 0, odd or 0))
    ]
    parts: list[cnrcheck.Part | None] = [
        cnrcheck.Part("main", "weight", 0, 0, n, encoding, None, (0, len(raw)), books, True)
    ]
    if odd is not None:
        exact = {"name": "raw", "dtype": "float32"}
        parts.append(cnrcheck.Part("exception", "weight", 1, 0, n, exact, 0, (end, 4 * n), None, True))
    table = cnrcheck.Table("table", "", count, list(rows), None, parts)
    seg = cnrcheck.Segment("segment", raw + (codebooks or b"") + bytes(4 * n), 0)
    checker = cnrcheck._Checker(data=b"")
    for part in parts:
        assert part is not None
        checker.check_part_rows(seg, table, part)
    return {finding.error for finding in checker.found}


def number_bits(encoding: e.Json, n: int) -> int:
    """Return how many bits of a row belong to parameters, or to a codebook."""
    if encoding["name"] == "codebook":
        return 0 if encoding["block"] else 8 * SIZES[encoding["values"]] << encoding["bits"]
    if encoding["name"] != "rowwise":
        return 0
    return 8 * (SIZES[encoding["scale"]] + SIZES[encoding["bias"]]) * -(-n // (encoding["group"] or n))


FEW = [x for x in EVERY if x.get("group") in (None, 8) and x.get("block") in (None, 3)]


@pytest.mark.parametrize("encoding", FEW, ids=name_of)
def test_bits_that_belong_to_nothing_are_zero(encoding: e.Json) -> None:
    n = 1 if encoding["name"] == "log" else 11
    count = 3
    made = e.made(encoding, count, n)
    assert judged(encoding, made.raw, made.codebooks, count, n, None) == set()
    bits = encoding.get("bits", 16)
    unused = 8 * len(made.raw) - count * (n * bits + number_bits(encoding, n))
    padding = 0
    for bit in range(8 * len(made.raw)):
        raw = bytearray(made.raw)
        raw[bit // 8] ^= 1 << bit % 8
        found = judged(encoding, bytes(raw), made.codebooks, count, n, None)
        assert found <= {"code-padding", "row-parameter"}
        padding += "code-padding" in found
    assert padding == unused


@pytest.mark.parametrize("encoding", FEW, ids=name_of)
def test_slots_of_exceptions_are_zero(encoding: e.Json) -> None:
    n = 1 if encoding["name"] == "log" else 11
    count, odd = 3, 1
    made = e.made(encoding, count, n)
    whole = int.from_bytes(made.raw, "little")
    size = encoding["bits"] if encoding["name"] == "log" else 8 * len(made.raw) // count
    whole &= ~(((1 << size) - 1) << (odd * size))
    clean = whole.to_bytes(len(made.raw), "little")
    assert judged(encoding, clean, made.codebooks, count, n, odd) == set()
    for bit in range(odd * size, (odd + 1) * size):
        raw = (whole | 1 << bit).to_bytes(len(made.raw), "little")
        assert "exception" in judged(encoding, raw, made.codebooks, count, n, odd)
    for bit in (odd * size - 1, (odd + 1) * size):
        raw = (whole ^ 1 << bit).to_bytes(len(made.raw), "little")
        assert "exception" not in judged(encoding, raw, made.codebooks, count, n, odd)


def places(encoding: e.Json, n: int) -> list[tuple[int, str]]:
    """Return where the numbers of a row begin, and their data types."""
    size = -(-n * encoding["bits"] // 8)
    if encoding["name"] == "codebook":
        return [(k * SIZES[encoding["values"]], encoding["values"]) for k in range(1 << encoding["bits"])]
    groups = -(-n // (encoding["group"] or n))
    at, found = 0 if encoding["layout"] == "head" else size, []
    for dtype in [encoding["scale"]] * groups + [encoding["bias"]] * groups:
        found.append((at, dtype))
        at += SIZES[dtype]
    return [(at, dtype) for at, dtype in found if dtype is not None]


INFINITE = {"float32": b"\0\0\x80\x7f", "float16": b"\0\xfc", "bfloat16": b"\xc1\x7f"}


@pytest.mark.parametrize("encoding", [x for x in FEW if x["name"] in ("rowwise", "codebook")], ids=name_of)
def test_every_parameter_must_be_finite(encoding: e.Json) -> None:
    count, n = 4, 11
    made = e.made(encoding, count, n)
    shared = made.codebooks is not None
    data = made.codebooks if made.codebooks is not None else made.raw
    own = len(data) // (2 if shared else count)
    for at, dtype in places(encoding, n):
        for start in (0, len(data) - own):
            spoilt = bytearray(data)
            spoilt[start + at : start + at + SIZES[dtype]] = INFINITE[dtype]
            raw, books = (made.raw, bytes(spoilt)) if shared else (bytes(spoilt), None)
            assert judged(encoding, raw, books, count, n, None) == {"row-parameter"}
