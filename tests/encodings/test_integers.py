"""Parts whose rows are integers: sections by the letter of the specification, rows from anywhere in them, damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.arrays import Ids
from cnrfmt.encodings import Recipe, coder, encoder
from cnrfmt.encodings.groups import build, directory_bytes
from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.encodings.integers import IntegerCoder, OpenPart, bounds, integer_coder, values
from cnrfmt.encodings.rans import RunningSums
from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout
from cnrfmt.format.scheme import Scheme
from cnrfmt.kernels._jit import INTERPRETED

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]
LOG = (0x30000001, 10)
GRIDS = [
    GridLayout(kind, -20, payload, 1 if payload == "fixed" else None, group)
    for kind, (payload, group) in product(
        ("absolute", "residual"),
        (("fixed", None), ("packed", 1), ("packed", 7), ("packed", 64), ("rans", 1), ("rans", 7), ("rans", 64)),
    )
]
LOGS = [
    LogLayout(bits, *LOG, kind, payload, group)
    for bits in (8, 12, 16)
    for kind, payload, group in (
        ("absolute", "fixed", None),
        ("absolute", "rans", 7),
        ("residual", "rans", 64),
    )
]
CASES: list[tuple[IntegerLayout, int]] = [
    *product(GRIDS, (1, 5, 16) if INTERPRETED else (1, 2, 5, 16, 33, 64, 300)),
    *((layout, 1) for layout in LOGS),
    *product((layout for layout in LOGS if layout.is_grouped), (5,) if INTERPRETED else (5, 64)),
]
COUNT = 20 if INTERPRETED else 200


def some_rows(layout: IntegerLayout, count: int, width: int, seed: int = 0) -> tuple[Integers, Bytes]:
    """Codes and exponents that the layout holds: many small ones, some of all widths, some rows of zeros."""
    rng = np.random.default_rng(seed)
    if isinstance(layout, LogLayout):
        top = (1 << layout.bits) - 1
        codes = rng.integers(-5 if layout.is_residual else 0, 6, (count, width))
        codes[::9] = rng.integers(-top if layout.is_residual else 0, top + 1, codes[::9].shape)
        return codes.astype(np.int32), np.zeros(count, np.uint8)
    exponents = np.minimum(rng.geometric(0.3, count) - 1, 24).astype(np.uint8)
    codes = np.rint(rng.normal(size=(count, width)) * 3).astype(np.int64)
    codes[::9] <<= rng.integers(0, 23, codes[::9].shape)
    codes[4::11] = 0
    limit = (1 << (24 + layout.is_residual - exponents.astype(np.int64))) - 1
    return np.clip(codes, -limit[:, None], limit[:, None]).astype(np.int32), exponents


def section_of(layout: IntegerLayout, codes: Integers, exponents: Bytes) -> tuple[IntegerLayout, Bytes]:
    return encode_section(layout, GivenCodes(codes, exponents), *codes.shape)


def prefix_of(code: IntegerCoder, section: Bytes) -> Bytes:
    return section[: code.prefix_bytes(section[:16])]


def opened(layout: IntegerLayout, section: Bytes, count: int, width: int) -> OpenPart:
    code = integer_coder(layout, count, width, "here")
    return code.opened(prefix_of(code, section), len(section))


class Section:
    """Bytes behind others, which may not be written to; counts what is fetched."""

    def __init__(self, data: Bytes) -> None:
        self.stored = np.concatenate([np.full(3, 255, np.uint8), data])
        self.stored.flags.writeable = False
        self.fetched: list[tuple[int, int]] = []

    def fetch(self, start: int, length: int) -> tuple[Bytes, int]:
        assert length > 0
        assert 3 + start + length <= len(self.stored)
        self.fetched.append((start, length))
        # No more than what was asked for.
        return self.stored[1 + start : 3 + start + length], 2

    def fetch_ranges(self, starts: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        assert (lengths > 0).all()
        assert (starts[1:] >= starts[:-1]).all()
        assert 3 + starts[-1] + lengths[-1] <= len(self.stored)
        self.fetched += zip(starts.tolist(), lengths.tolist(), strict=True)
        return self.stored[1 + starts[0] : 3 + starts[-1] + lengths[-1]], starts - starts[0] + 2


@pytest.mark.parametrize(("layout", "width"), CASES, ids=str)
def test_rows_come_back(layout: IntegerLayout, width: int) -> None:
    codes, exponents = some_rows(layout, COUNT, width)
    layout, data = section_of(layout, codes, exponents)
    code = integer_coder(layout, COUNT, width, "here")
    assert len(data) >= code.least_bytes
    assert layout.is_grouped or len(data) == code.least_bytes
    part, section = opened(layout, data, COUNT, width), Section(data)
    want = codes << exponents[:, None].astype(np.int32)
    group = layout.group or 3
    firsts = {0, 1, group - 1, group, group + 1, COUNT // 2, COUNT - 1}
    for first, count in product(firsts, (1, 2, group, group + 1, 2 * group, COUNT)):
        if 0 <= first < first + count <= COUNT:
            start, length = part.span(first, count)
            out, found = np.full((count, width), 7, np.int32), np.full(count, 77, np.uint8)
            part.decode(*section.fetch(start, length), first, out, found)
            assert np.array_equal(out, want[first : first + count])
            used = (codes[first : first + count] != 0).any(axis=1)
            assert np.array_equal(found[used], exponents[first : first + count][used])
            again = np.full_like(out, 7)
            part.decode(*section.fetch(start, length), first, again)
            assert np.array_equal(again, out)
    part.decode(section.stored, 0, 0, np.empty((0, width), np.int32))


@pytest.mark.parametrize(("layout", "width"), CASES, ids=str)
def test_rows_from_anywhere(layout: IntegerLayout, width: int) -> None:
    rng = np.random.default_rng(width)
    codes, exponents = some_rows(layout, COUNT, width)
    layout, data = section_of(layout, codes, exponents)
    part, want = opened(layout, data, COUNT, width), codes << exponents[:, None].astype(np.int32)
    for positions in (
        rng.integers(0, COUNT, 15),
        np.arange(COUNT)[::-1].copy(),
        np.array([COUNT - 1, 0, COUNT - 1]),
        np.empty(0, np.int64),
    ):
        targets = rng.permutation(len(positions) + 5)[: len(positions)]
        out, section = np.full((len(positions) + 5, width), 7, np.int32), Section(data)
        part.decode_rows(section.fetch_ranges, positions, out, targets)
        assert np.array_equal(out[targets], want[positions])
        assert (np.delete(out, targets, axis=0) == 7).all()
        # No group is fetched twice.
        assert not layout.is_grouped or all(a + b <= c for (a, b), (c, _) in pairwise(section.fetched))
        if not layout.is_grouped:
            offsets = layout.offsets(positions, width) + 3
            again = np.full_like(out, 7)
            part.decode_at(section.stored, offsets, positions, again, targets)
            assert np.array_equal(again, out)


@pytest.mark.parametrize("payload", ["packed", "rans"])
def test_groups_are_fetched_in_bounded_steps(payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = GridLayout("residual", 0, payload, None, 4)
    codes, exponents = some_rows(layout, 100, 3)
    _, data = section_of(layout, codes, exponents)
    part, positions = opened(layout, data, 100, 3), np.array([0, 3, 5, 7, 8, 40, 41, 43, 99])
    out, section, steps = np.empty((9, 3), np.int32), Section(data), []

    def fetch(starts: Ids, lengths: Ids) -> tuple[Bytes, Ids]:
        steps.append([part.span(4 * number, 4)[0] for number in range(25)].index(int(starts[0])))
        return section.fetch_ranges(starts, lengths)

    for most, firsts in ((1 << 20, [0]), (128, [0, 2, 24]), (1, [0, 1, 2, 10, 24])):
        monkeypatch.setattr("cnrfmt.encodings.integers._MOST_VALUES", most)
        section.fetched.clear()
        steps.clear()
        part.decode_rows(fetch, positions, out, np.arange(9))
        assert section.fetched == [part.span(4 * number, 4) for number in (0, 1, 2, 10, 24)]
        assert steps == firsts
        np.testing.assert_array_equal(out, codes[positions] << exponents[positions, None].astype(np.int32))


@pytest.mark.parametrize("group", [4, 16])
def test_rows_are_added_as_they_are_decoded(group: int) -> None:
    rng, count, width = np.random.default_rng(group), 400, 6
    layout = GridLayout("residual", 0, "rans", None, group)
    codes, exponents = some_rows(layout, count, width)
    _, data = section_of(layout, codes, exponents)
    part, section = opened(layout, data, count, width), Section(data)
    rows = codes << exponents[:, None].astype(np.int32)
    # All, those of some groups and of few, in any order, the last one, none.
    for positions in (np.arange(count), rng.permutation(count)[:90], np.array([399, 3, 3]), np.empty(0, np.int64)):
        for element, wide in ((0, 6), (2, 3), (5, 1)):
            targets = rng.permutation(count + 5)[: len(positions)]
            values = rng.integers(-(1 << 31), 1 << 31, (count + 5, wide)).astype(np.int32)
            grids = rng.choice(np.array([-1, 3], np.int32), count + 5)
            want = values.astype(np.int64)
            want[grids == -1] = 0
            want[targets] += rows[positions, element : element + wide]
            sums = RunningSums(values.copy(), grids.copy(), 3)
            assert part.add_rows(section.fetch_ranges, positions, sums, targets, element) == -1
            assert (sums.grids[targets] == 3).all()
            assert np.array_equal(sums.values[targets], want[targets].astype(np.int32))
            others = np.setdiff1d(np.arange(count + 5), targets)
            assert np.array_equal(sums.values[others], values[others])
            assert np.array_equal(sums.grids[others], grids[others])


def test_rows_on_another_grid_are_told() -> None:
    layout = GridLayout("residual", 0, "rans", None, 4)
    codes, exponents = some_rows(layout, 30, 2)
    _, data = section_of(layout, codes, exponents)
    part, section = opened(layout, data, 30, 2), Section(data)
    for place in (0, 13, 29):
        sums = RunningSums(np.zeros((30, 2), np.int32), np.full(30, -1, np.int32), 0)
        sums.grids[place] = 1
        assert part.add_rows(section.fetch_ranges, np.arange(30), sums, np.arange(30)) == place
        assert not sums.values[place].any()


@pytest.mark.parametrize("bad", [0, 5, 11])
def test_a_damaged_group_is_named(bad: int) -> None:
    layout = GridLayout("residual", 0, "rans", None, 4)
    codes, exponents = some_rows(layout, 48, 5)
    _, data = section_of(layout, codes, exponents)
    part, data = opened(layout, data, 48, 5), data.copy()
    start = part.span(4 * bad, 4)[0]
    data[start : start + 32] = 0
    section = Section(data)
    sums = RunningSums(np.zeros((48, 5), np.int32), np.full(48, -1, np.int32), 0)
    places = np.arange(48)
    found = damage("grid-codes", lambda: part.add_rows(section.fetch_ranges, places, sums, places))
    assert found.place == f"here, group {bad}"


@given(st.data())
def test_any_rows(data: st.DataObject) -> None:
    layout: IntegerLayout = data.draw(st.sampled_from([*GRIDS, *LOGS]))
    one_valued = isinstance(layout, LogLayout) and not layout.is_grouped
    width = 1 if one_valued else data.draw(st.integers(1, 10 if INTERPRETED else 80))
    count, seed = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 2**32))
    if layout.is_grouped:
        layout = replace(layout, group=data.draw(st.integers(1, 40)))
    codes, exponents = some_rows(layout, count, width, seed)
    layout, section = section_of(layout, codes, exponents)
    out = np.empty_like(codes)
    part = opened(layout, section, count, width)
    part.decode(section, part.span(0, count)[0], 0, out)
    assert np.array_equal(out, codes << exponents[:, None].astype(np.int32))


def packed(codes: npt.NDArray[Any], bits: int) -> bytes:
    number = sum((int(c) & ((1 << bits) - 1)) << (bits * k) for k, c in enumerate(codes))
    return number.to_bytes(-(-len(codes) * bits // 8), "little")


def test_sections_by_the_letter() -> None:
    codes = np.array([[1, -2, 3], [0, 0, 0], [5, 6, 7], [-1, 0, 0]], np.int32)
    exponents = np.array([2, 3, 0, 1], np.uint8)
    layout, data = section_of(GridLayout("residual", 0, "fixed", 26), codes, exponents)
    # The fewest bits that hold all codes.
    assert layout == GridLayout("residual", 0, "fixed", 4)
    assert data.tobytes() == b"".join(bytes([e]) + packed(row, 4) for row, e in zip(codes, exponents, strict=True))
    layout = GridLayout("residual", 0, "packed", None, 3)
    found, data = section_of(layout, codes, exponents)
    assert found == layout
    first = bytes([2, 0, 0, 3, 0, 4]) + packed(codes[0], 3) + packed(codes[2], 4)
    second = bytes([1, 1]) + packed(codes[3], 1)
    assert data.tobytes() == build(np.array([0, len(first)])).tobytes() + first + second
    for bits in (8, 12, 16):
        layout = LogLayout(bits, *LOG)
        logs = np.array([[0], [1], [200]], np.int32)
        found, data = section_of(layout, logs, np.zeros(3, np.uint8))
        assert found == layout
        assert data.tobytes() == packed(logs[:, 0], bits)


def test_zeros_alone() -> None:
    zeros, none = np.zeros((5, 3), np.int32), np.full(5, 3, np.uint8)
    layout, data = section_of(GridLayout("absolute", 0, "fixed", 9), zeros, none * 0)
    assert layout == GridLayout("absolute", 0, "fixed", 1)
    assert not data.any()
    _, data = section_of(GridLayout("residual", 0, "packed", None, 5), zeros, none)
    assert not data.any()
    assert len(data) == 16 + 10


def test_steps_of_a_section_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for layout, width in CASES[:: 5 if INTERPRETED else 1]:
        codes, exponents = some_rows(layout, 30, width)
        whole = section_of(layout, codes, exponents)
        with monkeypatch.context() as patch:
            patch.setattr("cnrfmt.encodings.integer_sections._CHUNK", 14 * width)
            again = section_of(layout, codes, exponents)
        assert whole[0] == again[0]
        assert np.array_equal(whole[1], again[1])


def test_codes_that_no_part_holds() -> None:
    one = np.zeros(1, np.uint8)
    for payload, bits, group in (("fixed", 26, None), ("packed", None, 1), ("rans", None, 1)):
        layout = GridLayout("residual", 0, payload, bits, group)
        with pytest.raises(UsageError):
            section_of(layout, np.array([[1 << 25]], np.int32), one)
    for size, code in ((8, 256), (12, -1), (16, 65536)):
        with pytest.raises(UsageError):
            section_of(LogLayout(size, *LOG), np.array([[code]], np.int32), one)


# Damage


def damage(rule: str, call: Callable[[], object]) -> DamagedError:
    with pytest.raises(DamagedError) as caught:
        call()
    assert caught.value.rule == rule
    assert caught.value.place.startswith("here")
    return caught.value


def everything(layout: IntegerLayout, section: Bytes, count: int, width: int) -> Integers:
    out = np.empty((count, width), np.int32)
    part = opened(layout, section, count, width)
    start, length = part.span(0, count)
    assert start + length == len(section)
    part.decode(section, start, 0, out)
    return out


@pytest.mark.parametrize("payload", ["packed", "rans"])
def test_sections_that_end_early(payload: str) -> None:
    layout = GridLayout("residual", 0, payload, None, 4)
    codes, exponents = some_rows(layout, 30, 3)
    _, data = section_of(layout, codes, exponents)
    for size in range(len(data)):
        with pytest.raises(DamagedError) as caught:
            everything(layout, data[:size], 30, 3)
        assert caught.value.rule in ("grid-directory", "grid-models", "grid-codes")
    longer = np.append(data, np.uint8(0))
    assert damage("grid-codes", lambda: everything(layout, longer, 30, 3))


def test_what_is_wrong_is_named() -> None:
    layout = GridLayout("residual", 0, "packed", None, 2)
    codes, exponents = np.array([[1, 2, 3], [-4, 5, 6], [7, 7, 8]], np.int32), np.array([1, 0, 2], np.uint8)
    _, data = section_of(layout, codes, exponents)
    second = directory_bytes(2) + 2 + 2 + 2 + 2
    for at, value, rule in (
        (second, 25, "grid-codes"),  # An exponent.
        (second + 1, 27, "grid-codes"),  # A width, then one by which the group ends too early.
        (second + 1, 8, "grid-codes"),
        (second + 3, data[second + 3] | 0x80, "code-padding"),
    ):
        bad = data.copy()
        bad[at] = value
        assert damage(rule, lambda bad=bad: everything(layout, bad, 3, 3)).place == "here, slot 2"
        # The rows of the other group are as sound as before.
        out = np.empty((2, 3), np.int32)
        opened(layout, bad, 3, 3).decode(bad, directory_bytes(2), 0, out)
        assert np.array_equal(out, (codes << exponents[:, None].astype(np.int32))[:2])
    # Codes in more bits than they need, and codes out of range.
    for group in (bytes([0, 6]) + packed(codes[0], 6), bytes([23, 4]) + packed(codes[0] + 1, 4)):
        one = np.concatenate([build(np.zeros(1, np.int64)), np.frombuffer(group, np.uint8)])
        damage("grid-codes", lambda one=one: everything(replace(layout, group=1), one, 1, 3))
    # A directory whose second group begins before the first.
    bad = data.copy()
    bad[12] = 255
    damage("grid-directory", lambda: everything(layout, bad, 3, 3))


def test_what_is_wrong_with_fixed_rows_is_named() -> None:
    codes, exponents = np.array([[1, 2, 3], [-4, 5, 6]], np.int32), np.array([1, 20], np.uint8)
    layout, data = section_of(GridLayout("absolute", 0, "fixed", 1), codes, exponents)
    damage("grid-codes", lambda: everything(layout, data + np.uint8([0, 0, 0, 5, 0, 0]), 2, 3))
    assert damage("code-padding", lambda: everything(layout, data + np.uint8([0, 0, 0, 0, 0, 64]), 2, 3)).place == (
        "here, slot 1"
    )
    # -8 times 2^21 is -2^24.
    residual = replace(layout, kind="residual")
    for exponent, sound in ((20, (layout, residual)), (21, (residual,)), (22, ())):
        row = np.array([0, 0, 0, exponent, 8, 0], np.uint8)
        for one in (layout, residual):
            if one in sound:
                assert everything(one, row, 2, 3).tolist() == [[0, 0, 0], [-8 << exponent, 0, 0]]
            else:
                damage("grid-codes", lambda one=one, row=row: everything(one, row, 2, 3))
    part, out = opened(layout, data, 2, 3), np.empty((2, 3), np.int32)
    bad = data + np.uint8([0, 0, 0, 5, 0, 0])
    at, positions = np.array([3, 0]), np.array([1, 0])
    assert damage("grid-codes", lambda: part.decode_at(bad, at, positions, out, positions)).place == "here, slot 1"
    logs, section = section_of(LogLayout(12, *LOG), np.array([[1], [2], [3]], np.int32), np.zeros(3, np.uint8))
    section[-1] |= 0x80
    assert damage("code-padding", lambda: everything(logs, section, 3, 1)).place == "here, slot 2"


@pytest.mark.parametrize(
    ("layout", "width"),
    [(GRIDS[2], 5), (GRIDS[5], 5), (GRIDS[9], 5), (GRIDS[12], 5), (LOGS[4], 1), (LOGS[4], 5), (LOGS[5], 5)],
    ids=str,
)
@given(data=st.data())
def test_any_change_is_damage_or_other_rows(layout: IntegerLayout, width: int, data: st.DataObject) -> None:
    codes, exponents = some_rows(layout, 20, width)
    _, section = section_of(layout, codes, exponents)
    bad = section.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    rule = None
    try:
        out = everything(layout, bad, 20, width)
    except DamagedError as error:
        rule = error.rule
    if rule is None:
        assert np.abs(out).max() < 1 << 25
    else:
        assert rule in ("grid-directory", "grid-models", "grid-codes", "code-padding")
        assert not np.array_equal(bad, section)


# What else is asked of layouts


def test_memory_that_an_open_part_takes() -> None:
    for layout, width in CASES:
        codes, exponents = some_rows(layout, COUNT, width)
        layout, data = section_of(layout, codes, exponents)
        code = integer_coder(layout, COUNT, width, "here")
        prefix = prefix_of(code, data)
        part = code.opened(prefix, len(data))
        taken = 0 if part.directory is None else part.directory.words.nbytes
        if part.models is not None:
            taken += sum(array.nbytes for array in vars(part.models).values())
        assert taken <= code.cost(len(prefix))
        assert code.cost(len(prefix)) > 0 or not layout.is_grouped


def test_bounds_and_values() -> None:
    grid, log = GridLayout("residual", -3, "rans", None, 8), LogLayout(12, *LOG, "residual", "rans", 8)
    assert bounds(grid) == (1 - 2**24, 2**24 - 1)
    assert bounds(log) == (0, 4095)
    out = np.empty((1, 2), np.float32)
    values(grid, np.array([[5, -8]], np.int32), out)
    assert out.tolist() == [[0.625, -1.0]]
    values(log, np.array([[0, 3]], np.int32), out)
    assert out.view(np.uint32).tolist() == [[0, LOG[0] + (2 << LOG[1])]]


@pytest.mark.parametrize("width", [1, 5, 16, 67])
def test_values_of_absolute_fixed_parts(width: int) -> None:
    codes, exponents = some_rows(GRIDS[0], 30, width)
    layout, data = section_of(GRIDS[0], codes, exponents)
    want = (codes * 2.0 ** (exponents.astype(float) - 20)[:, None]).astype(np.float32)
    stored = np.concatenate([np.full(3, 255, np.uint8), data])
    stored.flags.writeable = False
    out = np.empty((25, width), np.float32)
    coder(layout).decode_range(stored, 3 + 5 * layout.row_bytes(width), out, 5)
    assert np.array_equal(out, want[5:])
    positions, targets = np.array([7, 0, 29, 7]), np.array([3, 0, 1, 5])
    for given_positions in (positions, None):
        out = np.full((6, width), 7, np.float32)
        coder(layout).decode_rows(stored, 3 + layout.offsets(positions, width), out, targets, given_positions)
        assert np.array_equal(out[targets], want[positions])
        assert (np.delete(out, targets, axis=0) == 7).all()
    code, at = coder(layout), np.array([3 + 4 * layout.row_bytes(width)])
    assert code.find_padding(stored, 3, 30, width) == code.find_parameter(stored, 3, 30, width) == -1
    assert code.are_zero(stored, at, np.array([4]), width).tolist() == [not stored[at[0]]]
    bad = data.copy()
    used = width * layout.row_bits(1) // 8 and width * (layout.bits or 0) % 8
    if used:
        bad[8 * layout.row_bytes(width) - 1] |= 0x80
        assert code.find_padding(bad, 0, 30, width) == 7
        with pytest.raises(DamagedError, match="slot 7"):
            code.decode_range(bad, 0, np.empty((30, width), np.float32))


@pytest.mark.parametrize("layout", [*GRIDS[1:], *LOGS], ids=str)
def test_other_layouts_have_no_values_of_their_own(layout: IntegerLayout) -> None:
    if layout == replace(layout, payload="fixed", group=None) and not layout.is_residual:
        assert coder(layout).dtype == np.float32
    else:
        with pytest.raises(UsageError):
            coder(layout)
    if isinstance(layout, GridLayout) or layout.is_grouped:
        with pytest.raises(UsageError):
            encoder(Recipe(layout, Scheme("log")))
