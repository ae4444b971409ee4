"""Every layout's way back from bytes to rows, against the specification's arithmetic; and the rules for the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cnrfmt.encodings import Coder, Recipe, coder, encoder
from cnrfmt.format.encoding import CastLayout, CodebookLayout, Layout, LogLayout, RawLayout, RowwiseLayout
from cnrfmt.format.scheme import Scheme
from cnrfmt.kernels._jit import INTERPRETED
from tests.encodings.support import F32, TYPES, Array, decode, rowwise_layouts, used_bits

WIDTHS = (1, 5, 17) if INTERPRETED else (1, 2, 5, 8, 9, 31, 64, 67, 300)
LAYOUTS: list[Layout] = [
    CastLayout("float16"),
    CastLayout("bfloat16"),
    *rowwise_layouts((None, 16)),
    *(
        CodebookLayout(bits, values, block)
        for bits in (2, 3, 4)
        for values in ("float32", "float16")
        for block in (None, 3)
    ),
]
LOGS = [LogLayout(bits, 0x30000001, shift) for bits in (8, 12, 16) for shift in (0, 3, 28 - bits)]


def random_bytes(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def same(found: Array, want: Array) -> bool:
    """Whether numbers are equal, their signs too; one that isn't a number is as good as another."""
    return bool(
        np.array_equal(found, want, equal_nan=True) and (np.signbit(found) == np.signbit(want))[~np.isnan(want)].all()
    )


def check_decoding(layout: Layout, width: int, count: int) -> None:
    """Decodes bytes of any kind from any place, in runs and one by one."""
    code = coder(layout)
    assert code.dtype == F32
    size = layout.section_bytes(count, width)
    data = random_bytes(size, width)
    section = random_bytes(layout.codebook_bytes(count), width + 1)
    books = code.codebooks(section) if len(section) else None
    want = decode(layout, data, count, width, section)
    random = np.random.default_rng(width)
    for before in (0, 3):
        stored = np.concatenate([np.full(before, 255, np.uint8), data, np.full(5, 255, np.uint8)])
        stored.flags.writeable = False
        for first, stop in {(0, count), (0, 1), (1, count), (2, 2), (count // 2, count - 1), (count - 1, count)}:
            if first <= stop <= count:
                start, _ = layout.span(first, stop - first, width)
                out = np.full((stop - first, width), 7, F32)
                code.decode_range(stored, before + start, out, first, books)
                assert same(out, want[first:stop]), (first, stop)
        picked = random.integers(0, count, 2 * count)
        targets = random.permutation(2 * count + 3)[: 2 * count]
        out = np.full((2 * count + 3, width), 7, F32)
        offsets = layout.offsets(picked, width) + before
        positions = None if layout.stands_alone and before == 0 else picked
        code.decode_rows(stored, offsets, out, targets, positions, books)
        assert same(out[targets], want[picked])
        assert (np.delete(out, targets, axis=0) == 7).all()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_any_bytes_decode_as_specified(layout: Layout) -> None:
    for width in WIDTHS:
        check_decoding(layout, width, 9)
    check_decoding(layout, 4096 if not INTERPRETED else 40, 4)


@pytest.mark.parametrize("layout", LOGS, ids=str)
def test_any_codes_of_one_value_decode_as_specified(layout: LogLayout) -> None:
    for count in (1, 2, 3, 10, 31 if INTERPRETED else 1001):
        check_decoding(layout, 1, count)


@pytest.mark.parametrize("layout", [*LAYOUTS, *LOGS, RawLayout("float32")], ids=str)
def test_no_rows_at_all(layout: Layout) -> None:
    code, empty = coder(layout), np.empty(0, np.uint8)
    none = np.empty(0, np.int64)
    width = 1 if isinstance(layout, LogLayout) else 6
    out = np.full((2, width), 7, F32)
    books = np.zeros((0, 1 << layout.bits), F32) if isinstance(layout, CodebookLayout) and layout.block else None
    code.decode_range(empty, 0, out[:0], 0, books)
    code.decode_rows(empty, none, out, none, none, books)
    assert (out == 7).all()
    assert code.find_padding(empty, 0, 0, width) == code.find_parameter(empty, 0, 0, width) == -1
    assert code.are_zero(empty, none, none, width).tolist() == []


@pytest.mark.parametrize("layout", [*LAYOUTS, LOGS[0], RawLayout("float32")], ids=str)
def test_shared_codebooks_are_asked_of_those_that_have_some(layout: Layout) -> None:
    if layout.codebook_bytes(1):
        assert isinstance(layout, CodebookLayout)
        numbers = np.arange(2 << layout.bits).astype(TYPES[layout.values])
        stored = np.concatenate([np.zeros(1, np.uint8), numbers.view(np.uint8)])[1:]
        assert coder(layout).codebooks(stored).tolist() == numbers.astype(F32).reshape(2, -1).tolist()
    elif not isinstance(layout, CodebookLayout):
        with pytest.raises(NotImplementedError):
            coder(layout).codebooks(np.zeros(64, np.uint8))


def found(code: Coder, data: Array, count: int, width: int) -> tuple[int, int]:
    """Which row breaks each of the two rules, of rows behind three other bytes."""
    stored = np.concatenate([np.full(3, 255, np.uint8), data.reshape(-1), np.full(3, 255, np.uint8)])
    stored.flags.writeable = False
    return code.find_padding(stored, 3, count, width), code.find_parameter(stored, 3, count, width)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_bits_that_belong_to_nothing_are_found(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few rows a step, so that some are found behind the first.
    monkeypatch.setattr("cnrfmt.encodings.checks._CHUNK", 100)
    code = coder(layout)
    for width in WIDTHS[:8]:
        count, size = 6, layout.row_bytes(width)
        # All code bits are set, and the parameters are 1.
        used = used_bits(layout, width)
        sound = np.tile(np.packbits(used, bitorder="little"), (count, 1))
        for at, kind in parameter_places(layout, width):
            sound[:, at : at + TYPES[kind].itemsize] = np.ones(1, TYPES[kind]).view(np.uint8)
        assert found(code, sound, count, width) == (-1, -1)
        assert found(code, sound, 0, width) == (-1, -1)
        free = np.flatnonzero(~used)
        for bit in np.unique(np.concatenate([free[:3], free[-3:], free[::7]])):
            broken = sound.copy()
            broken[[2, 4], bit // 8] |= np.uint8(1 << (bit % 8))
            assert found(code, broken, count, width) == (2, -1)
            assert found(code, broken, 2, width) == (-1, -1)
            assert code.find_padding(broken.reshape(-1), 3 * size, 3, width) == 1


def parameter_places(layout: Layout, width: int) -> list[tuple[int, str]]:
    """Where in a row each of its parameters begins, and its data type."""
    if isinstance(layout, CodebookLayout) and layout.block is None:
        return [(k * TYPES[layout.values].itemsize, layout.values) for k in range(1 << layout.bits)]
    if not isinstance(layout, RowwiseLayout):
        return []
    places, at = [], 0 if layout.placement == "head" else -(-width * layout.bits // 8)
    for kind in (layout.scale, layout.bias):
        for _ in range(1 if layout.group is None else -(-width // layout.group)):
            if kind is not None:
                places.append((at, kind))
                at += TYPES[kind].itemsize
    return places


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if not isinstance(x, CastLayout)], ids=str)
def test_parameters_that_are_not_finite_are_found(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few rows a step, so that the row is found behind the first.
    monkeypatch.setattr("cnrfmt.encodings.checks._CHUNK", 100)
    code = coder(layout)
    for width in (1, 5, 33):
        sound = np.zeros((9, layout.row_bytes(width)), np.uint8)
        for at, kind in parameter_places(layout, width):
            for value in (np.nan, -np.nan, np.inf, -np.inf):
                broken = sound.copy()
                broken[[7, 8], at : at + TYPES[kind].itemsize] = np.array([value], TYPES[kind]).view(np.uint8)
                assert found(code, broken, 9, width) == (-1, 7)
                assert found(code, broken, 7, width) == (-1, -1)
                assert code.find_parameter(broken.reshape(-1), 6 * layout.row_bytes(width), 3, width) == 1
        if layout.codebook_bytes(1):
            assert found(code, np.full_like(sound, 0) | 1, 9, width) == (-1, -1)


@pytest.mark.parametrize("layout", [*LAYOUTS, RawLayout("float32")], ids=str)
def test_slots_that_are_zero(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cnrfmt.encodings.checks._CHUNK", 64)
    code = coder(layout)
    for width in (1, 6, 40):
        size = layout.row_bytes(width)
        rows = np.zeros((20, size), np.uint8)
        lit = {3: 0, 4: 8 * size - 1, 7: 4 * size, 19: 8 * size - 8}
        for row, bit in lit.items():
            rows[row, bit // 8] = 1 << (bit % 8)
        stored = np.concatenate([np.full(1, 255, np.uint8), rows.reshape(-1)])
        positions = np.random.default_rng(width).permutation(np.arange(20).repeat(2))
        zero = code.are_zero(stored, 1 + positions * size, positions, width)
        assert zero.dtype == np.bool_
        assert zero.tolist() == [p not in lit for p in positions.tolist()]


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_slots_of_logarithmic_codes_that_are_zero(bits: int) -> None:
    layout = LogLayout(bits, 1, 0)
    count = 12
    for at in range(count):
        for bit in range(bits):
            whole = sum(
                ((1 << bits) - 1 if k in (0, 11) else 1 << bit if k == at else 0) << (k * bits) for k in range(count)
            )
            stored = np.frombuffer(b"\xff" + whole.to_bytes(layout.section_bytes(count, 1), "little"), np.uint8)
            positions = np.arange(count)[::-1].copy()
            offsets = 1 + layout.offsets(positions, 1)
            zero = coder(layout).are_zero(stored, offsets, positions, 1)
            assert np.flatnonzero(zero).tolist() == [count - 1 - k for k in range(count)[::-1] if k not in (0, 11, at)]


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_the_half_byte_behind_an_odd_number_of_codes(bits: int, count: int) -> None:
    layout = LogLayout(bits, 1, 0)
    used = count * bits
    whole = (1 << used) - 1
    for bit in range(used, 8 * layout.section_bytes(count, 1)):
        broken = (whole | 1 << bit).to_bytes(layout.section_bytes(count, 1), "little")
        assert found(coder(layout), np.frombuffer(broken, np.uint8), count, 1) == (count - 1, -1)
    sound = whole.to_bytes(layout.section_bytes(count, 1), "little")
    assert found(coder(layout), np.frombuffer(sound, np.uint8), count, 1) == (-1, -1)


def test_one_coder_for_a_layout() -> None:
    for layout in (*LAYOUTS, *LOGS, RawLayout("int8")):
        assert coder(layout) is coder(layout)
        assert coder(layout) != coder(RawLayout("float64"))


def test_layouts_of_a_long_run_do_not_pile_up() -> None:
    for base in range(1, 3000):
        layout = LogLayout(12, base, 0)
        coder(layout)
        encoder(Recipe(layout, Scheme("log")))
    assert coder.cache_info().currsize <= 1024
    assert encoder.cache_info().currsize <= 1024
