"""Layouts of rows: the table of what is legal, the bytes that rows take, and what metadata says of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import (
    ITEM_SIZES,
    MAX_GROUP,
    CastLayout,
    CodebookLayout,
    GridLayout,
    Layout,
    LogLayout,
    RawLayout,
    RowwiseLayout,
    directory_bytes,
)
from cnrfmt.format.legality import is_legal, parse_layout

TYPES = (*ITEM_SIZES, "bool", None)
# The rows of the table in section 6.3, written out.
TAIL = {(8, "float32"), (4, "float16"), (2, "float16")}
HEAD = {(8, "float16"), (4, "float16"), (2, "float16")}
PACKED = {("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32")}

LAYOUTS: list[Layout] = [
    RawLayout("int16"),
    CastLayout("float16"),
    CastLayout("bfloat16"),
    RowwiseLayout(8),
    RowwiseLayout(4, "tail", "float16", "float16"),
    RowwiseLayout(2, "head", "float16", "float16"),
    RowwiseLayout(3, "packed", "bfloat16", "float32", 16),
    RowwiseLayout(7, "packed", "float16", None),
    CodebookLayout(3, "float16"),
    CodebookLayout(2, "float32", 5),
    LogLayout(8, 1, 0),
    LogLayout(12, 0x3F000000, 15),
    LogLayout(16, 0x00800000, 11),
    LogLayout(12, 0x3F000000, 15, "absolute", "rans", 65536),
    LogLayout(8, 1, 0, "residual", "rans", 1),
    GridLayout("absolute", -126, "fixed", 1),
    GridLayout("residual", 103, "fixed", 26),
    GridLayout("absolute", -10, "packed", None, 1),
    GridLayout("residual", 0, "packed", None, 65536),
    GridLayout("residual", -16, "rans", None, 512),
]


def said(layout: Layout) -> Any:
    return parse_layout(layout.to_json(), "here", lenient=False)


def refused(value: Any, rule: str = "part-encoding") -> None:
    with pytest.raises(DamagedError) as caught:
        parse_layout(value, "here", lenient=False)
    assert (caught.value.rule, caught.value.place) == (rule, "here")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_metadata_says_all_of_a_layout(layout: Layout) -> None:
    assert is_legal(layout)
    assert said(layout) == layout
    value: Any = layout.to_json()
    for key in value:
        rest = {k: v for k, v in value.items() if k != key}
        refused(rest, "part-encoding" if key == "name" else "json-field")
        # No value has two types: true isn't 1, nor 8.0 8.
        for other in (True, 8.0, [8], {"a": 1}, "x", -1):
            if (key, other) != ("floor", -1):
                refused({**value, key: other})
    refused({**value, "more": 1}, "json-field")
    assert parse_layout({**value, "more": 1}, "here", lenient=True) == layout


def test_what_is_no_encoding() -> None:
    for value in (None, [], "raw", 7):
        refused(value, "json-field")
    for name in ("Raw", "Grid", "", None, 5, ["raw"], {}):
        refused({"name": name, "dtype": "float32"})
    refused({})


@pytest.mark.parametrize("bits", [*range(10), 12, 16, "8", None])
def test_every_rowwise_combination(bits: Any) -> None:
    for placement, scale, bias, group in product(
        ("tail", "head", "packed", "Tail", None), TYPES, TYPES, (None, 0, 4, 8, 12, 64, MAX_GROUP, MAX_GROUP + 8, "8")
    ):
        if placement == "tail":
            legal = scale == bias and (bits, scale) in TAIL and group is None
        elif placement == "head":
            legal = scale == bias and (bits, scale) in HEAD and group is None
        else:
            legal = (
                placement == "packed"
                and bits in range(2, 9)
                and ((scale, bias) in PACKED or (bias is None and scale in ("float32", "float16", "bfloat16")))
                and group in (None, 8, 64, MAX_GROUP)
            )
        assert is_legal(RowwiseLayout(bits, placement, scale, bias, group)) == legal  # type: ignore[arg-type]


def test_every_other_combination() -> None:
    for dtype in TYPES:
        assert is_legal(RawLayout(dtype)) == (dtype in ITEM_SIZES)  # type: ignore[arg-type]
        assert is_legal(CastLayout(dtype)) == (dtype in ("float16", "bfloat16"))  # type: ignore[arg-type]
    for bits, dtype, block in product(
        (1, 2, 3, 4, 5, None, "2"), TYPES, (None, 0, 1, 2, 3, MAX_GROUP, MAX_GROUP + 1, "2")
    ):
        legal = bits in (2, 3, 4) and dtype in ("float32", "float16") and block in (None, 2, 3, MAX_GROUP)
        assert is_legal(CodebookLayout(bits, dtype, block)) == legal  # type: ignore[arg-type]


def test_logarithmic_codes_reach_no_infinity() -> None:
    infinite = 0x7F800000
    for bits in (8, 12, 16):
        steps = 2**bits - 2
        for shift in range(-1, 25):
            most = infinite - 1 - (steps << max(shift, 0))
            assert is_legal(LogLayout(bits, most, shift)) == (0 <= shift <= 23 and most >= 1)
            assert not is_legal(LogLayout(bits, most + 1, shift))
        assert is_legal(LogLayout(bits, 1, 0))
        for base in (0, -1, None, "1"):
            assert not is_legal(LogLayout(bits, base, 0))  # type: ignore[arg-type]
        for shift in (None, "0"):
            assert not is_legal(LogLayout(bits, 1, shift))  # type: ignore[arg-type]
    for other in (0, 4, 9, 24, None, "8"):
        assert not is_legal(LogLayout(other, 1, 0))  # type: ignore[arg-type]


KINDS, PAYLOADS = ("absolute", "residual", "Absolute", None), ("fixed", "packed", "rans", "zstd", None)
GROUPS = (None, 0, 1, 2, 65536, 65537, -1, "8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_combination_of_integers(kind: Any, payload: Any) -> None:
    for group in GROUPS:
        grouped = payload in ("packed", "rans") and group in (1, 2, 65536)
        for floor, bits in product((-127, -126, 0, 103, 104, None, "0"), (None, 0, 1, 8, 26, 27, "8")):
            fixed = payload == "fixed" and group is None and bits in (1, 8, 26)
            legal = kind in KINDS[:2] and floor in (-126, 0, 103) and (fixed or (grouped and bits is None))
            assert is_legal(GridLayout(kind, floor, payload, bits, group)) == legal  # type: ignore[arg-type]
        legal = (kind, payload, group) == ("absolute", "fixed", None) or (
            kind in KINDS[:2] and payload == "rans" and grouped
        )
        assert is_legal(LogLayout(12, 1, 0, kind, payload, group)) == legal


def test_what_a_layout_of_integers_says_of_itself() -> None:
    absolute, residual = GridLayout("absolute", -3, "fixed", 8), GridLayout("residual", -3, "rans", None, 8)
    assert (absolute.is_residual, residual.is_residual) == (False, True)
    assert (absolute.is_grouped, residual.is_grouped) == (False, True)
    assert (absolute.stands_alone, residual.stands_alone) == (True, False)
    assert absolute.grid == residual.grid == ("grid", -3)
    log, changes = LogLayout(8, 5, 2), LogLayout(8, 5, 2, "residual", "rans", 4)
    assert (log.is_residual, changes.is_residual) == (log.is_grouped, changes.is_grouped) == (False, True)
    assert (log.stands_alone, changes.stands_alone) == (True, False)
    assert log.grid == changes.grid == ("log", 8, 5, 2)
    assert not LogLayout(8, 5, 2, "absolute", "rans", 4).stands_alone
    for other in (RawLayout("int8"), CastLayout("float16"), RowwiseLayout(8), CodebookLayout(2)):
        assert not other.is_residual
        assert not other.is_grouped


@pytest.mark.parametrize(
    ("group", "width", "fits"),
    [(1, 1 << 20, True), (2, 32768, True), (2, 32769, False), (65536, 1, True), (65536, 2, False), (None, 9999, True)],
)
def test_how_wide_the_rows_of_a_group_may_be(group: int | None, width: int, fits: bool) -> None:
    payload, bits = ("packed", None) if group else ("fixed", 3)
    assert GridLayout("absolute", 0, payload, bits, group).fits(width) == fits
    assert RowwiseLayout(8).fits(width)
    if group:
        for kind in ("absolute", "residual"):
            assert LogLayout(8, 1, 0, kind, "rans", group).fits(width) == fits


def test_rows_of_logarithmic_codes_without_groups_are_of_one_value() -> None:
    for bits in (8, 12, 16):
        assert [LogLayout(bits, 1, 0).fits(width) for width in (1, 2, 64)] == [True, False, False]


def test_the_bytes_of_a_directory() -> None:
    want = {0: 0, 1: 16, 2: 16, 3: 24, 1023: 8 + 4096, 1024: 8 + 4096, 1025: 8 + 4096 + 16, 2048: 2 * (8 + 4096)}
    assert {groups: directory_bytes(groups) for groups in want} == want
    # Two bytes a row, packed; eight states a group and the smallest head, under rans; all bytes, where none may vary.
    assert GridLayout("absolute", 0, "packed", None, 3).least_bytes(7, 5) == 24 + 14
    assert GridLayout("residual", 0, "rans", None, 3).least_bytes(7, 5) == 24 + 24 + 3 * 32
    for width in (1, 5):
        assert LogLayout(8, 1, 0, "residual", "rans", 3).least_bytes(7, width) == 24 + 24 + 3 * 32
    assert GridLayout("absolute", 0, "fixed", 3).least_bytes(7, 5) == 7 * (1 + 2)
    assert LogLayout(12, 1, 0).least_bytes(7, 1) == 11
    assert RowwiseLayout(8).least_bytes(7, 5) == 7 * 13


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_the_bytes_of_a_raw_row(dtype: str) -> None:
    layout = RawLayout(dtype)
    assert layout.dtype == dtype
    assert [layout.row_bytes(width) for width in (1, 5)] == [ITEM_SIZES[dtype], 5 * ITEM_SIZES[dtype]]


@pytest.mark.parametrize(
    ("layout", "width", "want", "places"),
    [
        # Row bytes; where codes, scales and biases begin.
        (RowwiseLayout(8), 1, 9, (0, 1, 5)),
        (RowwiseLayout(8), 3, 11, (0, 3, 7)),
        (RowwiseLayout(4, "tail", "float16", "float16"), 3, 6, (0, 2, 4)),
        (RowwiseLayout(2, "tail", "float16", "float16"), 5, 6, (0, 2, 4)),
        (RowwiseLayout(8, "head", "float16", "float16"), 12, 16, (4, 0, 2)),
        (RowwiseLayout(8, "head", "float16", "float16"), 13, 32, (4, 0, 2)),
        (RowwiseLayout(2, "head", "float16", "float16"), 1, 16, (4, 0, 2)),
        (RowwiseLayout(3, "packed", "float16", "float16"), 5, 2 + 4, (0, 2, 4)),
        (RowwiseLayout(7, "packed", "float32", "float32"), 9, 8 + 8, (0, 8, 12)),
        (RowwiseLayout(5, "packed", "float32", "float32", 8), 17, 11 + 3 * 8, (0, 11, 23)),
        (RowwiseLayout(6, "packed", "bfloat16", "float32", 16), 33, 25 + 3 * 6, (0, 25, 31)),
        (RowwiseLayout(2, "packed", "float16", None, 8), 16, 4 + 4, (0, 4, 8)),
        (RowwiseLayout(4, "packed", "float32", "float32", MAX_GROUP), 7, 4 + 8, (0, 4, 8)),
    ],
)
def test_the_bytes_of_a_rowwise_row(layout: RowwiseLayout, width: int, want: int, places: Any) -> None:
    assert layout.row_bytes(width) == want
    assert layout.row_bits(width) == 8 * want
    assert layout.places(width) == places
    assert layout.section_bytes(3, width) == 3 * want
    assert layout.dtype == "float32"


def test_the_bytes_of_codebooks() -> None:
    own, shared = CodebookLayout(3, "float16"), CodebookLayout(4, "float32", 10)
    assert own.row_bytes(5) == 16 + 2
    assert shared.row_bytes(5) == 3
    assert [shared.codebook_bytes(count) for count in (0, 1, 10, 11, 20, 21)] == [0, 64, 64, 128, 128, 192]
    assert own.codebook_bytes(100) == 0
    assert (own.stands_alone, shared.stands_alone) == (True, False)


def test_codes_of_twelve_bits_share_bytes() -> None:
    layout = LogLayout(12, 1, 0)
    assert not layout.stands_alone
    assert [layout.section_bytes(count, 1) for count in range(5)] == [0, 2, 3, 5, 6]
    assert layout.row_bytes(1) == 2
    assert [layout.span(p, 1, 1) for p in range(4)] == [(0, 2), (1, 2), (3, 2), (4, 2)]
    assert [layout.span(p, 2, 1) for p in range(3)] == [(0, 3), (1, 4), (3, 3)]
    assert LogLayout(8, 1, 0).stands_alone
    assert LogLayout(16, 1, 0).section_bytes(3, 1) == 6


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if not layout.is_grouped], ids=str)
@given(position=st.integers(0, 1 << 40), count=st.integers(1, 5000), width=st.integers(1, 300))
def test_where_rows_lie(layout: Layout, position: int, count: int, width: int) -> None:
    if isinstance(layout, LogLayout):
        width = 1
    bits = layout.row_bits(width)
    first, last = position * bits, (position + count) * bits - 1
    start, length = layout.span(position, count, width)
    assert (start, start + length - 1) == (first // 8, last // 8)
    # A row lies wholly in its row bytes, from its offset on.
    offsets = layout.offsets(np.array([position, position + count - 1], np.int64), width)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [first // 8, (position + count - 1) * bits // 8]
    assert (offsets[1] + layout.row_bytes(width)) * 8 > last
    assert layout.section_bytes(position + count, width) == start + length
    assert layout.stands_alone == (bits % 8 == 0 and not layout.codebook_bytes(1) and not layout.is_residual)
