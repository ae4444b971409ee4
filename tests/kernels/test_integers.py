"""Codes of some bits, groups of them, and sums of integers, against plain Python and numpy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import integers as kernel
from cnrfmt.kernels import logs
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int32]
WIDTHS = [1, 3, 8, 17] if INTERPRETED else [*range(1, 41), 63, 64, 65, 100, 128, 129, 300]
MOST = 25
bits_of_rows = st.lists(st.integers(0, 26), min_size=1, max_size=6)
row_widths = st.integers(1, 20 if INTERPRETED else 300)


def bits_for(row: Integers) -> int:
    """The least width in two's complement."""
    if not row.any():
        return 0
    return next(w for w in range(1, 33) if all(-(1 << (w - 1)) <= int(c) < 1 << (w - 1) for c in row))


def some_codes(widths: list[int], width: int, seed: int) -> Integers:
    """Rows whose codes need so many bits each, the widest anywhere."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((len(widths), width), np.int32)
    for row, bits in zip(rows, widths, strict=True):
        if bits:
            half = 1 << (bits - 1)
            row[:] = rng.integers(-half, half, width)
            row[rng.integers(width)] = rng.choice([-half, half - 1]) if bits > 1 else -1
    return rows


def packed(row: Integers, bits: int) -> bytes:
    """Code k in the bits bits * k and on, from the lowest bit of the first byte."""
    number = sum((int(c) & ((1 << bits) - 1)) << (bits * k) for k, c in enumerate(row))
    return number.to_bytes(-(-len(row) * bits // 8), "little")


def grouped(codes: Integers, exponents: Bytes, group: int) -> list[bytes]:
    """Groups by the letter of the specification."""
    found = []
    for first in range(0, len(codes), group):
        rows = range(first, min(first + group, len(codes)))
        widths = [bits_for(codes[i]) for i in rows]
        head = bytes(int(exponents[i]) if w else 0 for i, w in zip(rows, widths, strict=True)) + bytes(widths)
        found.append(head + b"".join(packed(codes[i], w) for i, w in zip(rows, widths, strict=True)))
    return found


def as_array(data: bytes) -> Bytes:
    return np.array(bytearray(data), np.uint8)


@pytest.mark.parametrize("bits", range(1, 27))
def test_rows_of_any_width(bits: int, given: Give) -> None:
    for width in WIDTHS:
        codes = some_codes([bits, 0, bits, max(1, bits - 1)], width, width)
        widths = np.full(4, 7, np.uint8)
        kernel.code_widths(given(codes), widths)
        assert widths.tolist() == [bits_for(row) for row in codes] == [bits, 0, bits, max(1, bits - 1)]
        want = b"".join(packed(row, int(w)) for row, w in zip(codes, widths, strict=True))
        for skip in (0, 3):
            out = np.full(skip + len(want) + 5, 0xAA, np.uint8)
            # No more is written than the array that is given.
            end = kernel.pack_rows(given(codes), given(widths), out[: skip + len(want)], skip)
            assert end == skip + len(want)
            assert out[skip:end].tobytes() == want
            assert (out[:skip] == 0xAA).all()
            assert (out[end:] == 0xAA).all()
            back = np.full_like(codes, 7)
            exponents = np.array([0, 5, 2, 1], np.uint8)
            assert kernel.unpack_rows(given(out[:end]), skip, given(widths), given(exponents), back) == end
            assert np.array_equal(back, codes << exponents[:, None].astype(np.int32))


@examples(bits_of_rows, row_widths, st.integers(1, 4), st.integers(0, 2**32), st.data())
def test_groups_by_the_letter(bits: list[int], width: int, group: int, seed: int, data: st.DataObject) -> None:
    # Several times as many rows as bits were drawn for.
    codes = some_codes(bits * 3, width, seed)
    count, rng = len(codes), np.random.default_rng(seed)
    exponents = np.array([rng.integers(0, min(24, max(0, 26 - bits_for(row))) + 1) for row in codes], np.uint8)
    # With as many bits as the exponent leaves, the least code is one too low.
    codes = np.maximum(codes, -(1 << (MOST - exponents.astype(np.int32)))[:, None] + 1).astype(np.int32)
    widths = np.empty(count, np.uint8)
    kernel.code_widths(codes, widths)
    want = grouped(codes, exponents, group)
    out, ends = np.empty(sum(map(len, want)), np.uint8), np.empty(len(want), np.int64)
    kernel.pack_groups(codes, exponents, widths, group, out, ends)
    assert out.tobytes() == b"".join(want)
    assert ends.tolist() == np.cumsum([len(g) for g in want]).tolist()
    # Any run of rows, from the groups that hold them.
    first = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(first + 1, count))
    low, high = first // group, -(-stop // group)
    bounds = np.concatenate([[0], ends])[low : high + 1]
    stored = np.concatenate([np.full(3, 255, np.uint8), out[bounds[0] : bounds[-1]]])
    rows, found = np.full((stop - first, width), 7, np.int32), np.full(stop - first, 7, np.uint8)
    last = min(group, count - (high - 1) * group)
    wrong = kernel.unpack_groups(
        stored, 3 - int(bounds[0]), bounds, group, last, first - low * group, MOST, rows, found
    )
    assert wrong == (kernel.SOUND, 0)
    assert np.array_equal(rows, (codes << exponents[:, None].astype(np.int32))[first:stop])
    assert np.array_equal(found, np.where(widths, exponents, 0)[first:stop])


def unpack(group: bytes, rows: int, width: int, most: int = MOST) -> tuple[int, int]:
    """What is wrong with one group."""
    out, exponents = np.empty((rows, width), np.int32), np.empty(rows, np.uint8)
    bounds = np.array([0, len(group)])
    wrong, row = kernel.unpack_groups(as_array(group), 0, bounds, rows, rows, 0, most, out, exponents)
    return int(wrong), int(row)


def test_what_is_wrong_with_a_group() -> None:
    codes = np.array([[1, -2, 3], [0, 0, 0], [5, 6, 7]], np.int32)
    (group,) = grouped(codes, np.array([1, 0, 2], np.uint8), 3)
    assert group[:6] == bytes([1, 0, 2, 3, 0, 4])
    assert unpack(group, 3, 3) == (kernel.SOUND, 0)

    def changed(at: int, value: int) -> bytes:
        return group[:at] + bytes([value]) + group[at + 1 :]

    for size in range(len(group)):
        assert unpack(group[:size], 3, 3)[0] != kernel.SOUND
    assert unpack(group + b"\0", 3, 3) == (kernel.LENGTH, 0)
    assert unpack(changed(0, 25), 3, 3) == (kernel.EXPONENT, 0)
    assert unpack(changed(2, 255), 3, 3) == (kernel.EXPONENT, 2)
    assert unpack(changed(4, 27), 3, 3) == (kernel.WIDTH, 1)
    # No exponent where there are no codes.
    assert unpack(changed(1, 1), 3, 3) == (kernel.WIDTH, 1)
    # A bit beyond the codes of the last row: 12 bits of 16.
    assert unpack(changed(len(group) - 1, group[-1] | 0x10), 3, 3) == (kernel.PADDING, 2)


def test_codes_beyond_the_bounds_of_their_exponent(given: Give) -> None:
    for exponent in range(25):
        for most in (24, 25):
            bound = 1 << (most - exponent)
            for code, sound in ((bound - 1, True), (1 - bound, True), (bound, False), (-bound, False)):
                # 26 bits don't hold 2^25.
                if 0 < bits_for(np.array([code])) <= 26:
                    row = np.array([[0, code, 0]], np.int32)
                    (group,) = grouped(row, np.array([exponent], np.uint8), 1)
                    assert unpack(group, 1, 3, most) == ((kernel.SOUND if sound else kernel.RANGE), 0)
                    fixed = as_array(bytes([exponent]) + packed(row[0], 26))
                    out, exponents = np.empty((1, 3), np.int32), np.empty(1, np.uint8)
                    wrong, _ = kernel.unpack_fixed(given(fixed), 0, 26, most, out, exponents)
                    assert (wrong == kernel.SOUND) == sound
                    assert not sound or (out.tolist() == (row << exponent).tolist() and exponents[0] == exponent)


def test_widths_that_are_not_the_smallest() -> None:
    for width in (1, 3, 8, 20):
        for bits in range(1, 26):
            row = some_codes([bits], width, bits)[0]
            exact, wider = (bytes([0, w]) + packed(row, w) for w in (bits, bits + 1))
            assert unpack(exact, 1, width) == (kernel.SOUND, 0)
            assert unpack(wider, 1, width) == (kernel.WIDTH, 0)
        assert unpack(bytes([0, 1]) + bytes(-(-width // 8)), 1, width) == (kernel.WIDTH, 0)


@examples(st.binary(max_size=60), st.integers(1, 5), st.integers(1, 20), st.integers(0, 3))
def test_any_bytes_are_a_group_or_wrong(data: bytes, rows: int, width: int, cut: int) -> None:
    # What decodes is what its codes encode to.
    out, exponents = np.empty((rows, width), np.int32), np.empty(rows, np.uint8)
    stored = as_array(bytes(cut) + data)
    bounds = np.array([cut, cut + len(data)])
    wrong, row = kernel.unpack_groups(stored, 0, bounds, rows, rows, 0, MOST, out, exponents)
    if wrong == kernel.SOUND:
        assert grouped(out >> exponents[:, None], exponents, rows) == [data]
    else:
        assert 0 <= row < rows


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 8, 11, 16, 17, 25, 26])
def test_fixed_rows(bits: int, given: Give) -> None:
    rng = np.random.default_rng(bits)
    for width in WIDTHS:
        codes = some_codes([bits, 0, bits, bits, bits], width, width)
        codes = np.clip(codes, 1 - (1 << 25), None).astype(np.int32)
        exponents = rng.integers(0, min(24, MOST - bits) + 1 if bits < 26 else 1, 5).astype(np.uint8)
        want = b"".join(bytes([e]) + packed(row, bits) for row, e in zip(codes, exponents, strict=True))
        out = np.full(len(want), 0xAA, np.uint8)
        kernel.pack_fixed(given(codes), given(exponents), bits, out)
        assert out.tobytes() == want
        whole = codes << exponents[:, None].astype(np.int32)
        stored = np.concatenate([np.full(3, 255, np.uint8), out])
        row_bytes = len(want) // 5
        for first in (0, 1, 4):
            back, found = np.full((5 - first, width), 7, np.int32), np.empty(5 - first, np.uint8)
            wrong = kernel.unpack_fixed(given(stored), 3 + first * row_bytes, bits, MOST, back, found)
            assert wrong == (kernel.SOUND, 0)
            assert np.array_equal(back, whole[first:])
            assert np.array_equal(found, exponents[first:])
        picked, targets = rng.integers(0, 5, 8), rng.permutation(12)[:8]
        back = np.full((12, width), 7, np.int32)
        wrong = kernel.unpack_fixed_at(given(stored), 3 + picked * row_bytes, bits, MOST, back, targets)
        assert wrong == (kernel.SOUND, 0)
        assert np.array_equal(back[targets], whole[picked])
        assert (np.delete(back, targets, axis=0) == 7).all()


def test_what_is_wrong_with_fixed_rows() -> None:
    sound = bytes([2]) + packed(np.array([1, -1, 0], np.int32), 5)
    for at, value, want in ((0, 25, kernel.EXPONENT), (2, sound[2] | 0x80, kernel.PADDING)):
        bad = as_array(sound + sound[:at] + bytes([value]) + sound[at + 1 :])
        out, exponents = np.empty((2, 3), np.int32), np.empty(2, np.uint8)
        assert kernel.unpack_fixed(bad, 0, 5, MOST, out, exponents) == (want, 1)
        both = np.array([3, 0])
        assert kernel.unpack_fixed_at(bad, both, 5, MOST, out, np.array([0, 1])) == (want, 0)


def test_sums_wrap_around(given: Give) -> None:
    rng = np.random.default_rng(1)
    for width in WIDTHS[::3]:
        total, rows = (rng.integers(-(2**31), 2**31, (9, width)).astype(np.int32) for _ in range(2))
        want = (total.astype(np.int64) + rows).astype(np.int32)
        found = total.copy()
        kernel.add(found, given(rows))
        assert np.array_equal(found, want)
        targets = rng.permutation(9)[:7]
        found = total.copy()
        kernel.add_at(found, given(targets), given(rows[:7]))
        want = total.copy()
        want[targets] = (total[targets].astype(np.int64) + rows[:7]).astype(np.int32)
        assert np.array_equal(found, want)


def test_integers_out_of_range(given: Give) -> None:
    for width in WIDTHS[::3]:
        rows = np.zeros((6, width), np.int32)
        rows[0], rows[1] = -5, 9
        assert kernel.out_of_range(given(rows), -5, 9) == -1
        for row, value in ((4, 10), (3, -6), (2, 2**31 - 1), (1, -(2**31))):
            rows[row, width // 2] = value
            assert kernel.out_of_range(given(rows), -5, 9) == row
    assert kernel.out_of_range(np.empty((0, 3), np.int32), 0, 0) == -1


@pytest.mark.parametrize("width", [1, 3, 64, 3000])
def test_integers_become_values_where_all_are_in_range(width: int) -> None:
    rng, least, greatest = np.random.default_rng(width), 1 - (1 << 24), (1 << 24) - 1
    count = 7 if width > 1000 else 5000 // width
    rows = rng.integers(least, greatest, (count, width), np.int32, endpoint=True)
    rows[0, 0], rows[-1, -1] = least, greatest
    found = rows.copy()
    assert kernel.checked_values(found, least, greatest, -30) == -1
    assert np.array_equal(found.view(np.float32).astype(np.float64), rows * 2.0**-30)
    for row, value in ((count - 1, greatest + 1), (count // 2, least - 1), (0, 2**31 - 1), (1, -(2**31))):
        found = rows.copy()
        found[row, width // 2] = value
        assert kernel.checked_values(found, least, greatest, -30) == row
    assert kernel.checked_values(rows[:0], least, greatest, -30) == -1


def test_groups_of_rows(given: Give) -> None:
    rng = np.random.default_rng(0)
    for group, count in ((1, 30), (7, 30), (64, 200), (5, 0)):
        positions = np.sort(rng.integers(0, 300, count))
        numbers = np.full(count, -7, np.int64)
        found = kernel.groups_of(given(positions), group, numbers)
        assert numbers[:found].tolist() == sorted({p // group for p in positions.tolist()})


@pytest.mark.parametrize("floor", [-126, -125, -24, -1, 0, 1, 60, 103])
def test_values_are_exact(floor: int, given: Give) -> None:
    rows = np.array([[0, 1, -1], [2**24 - 1, 1 - 2**24, 12345]], np.int32)
    out = np.empty((2, 3), np.float32)
    kernel.values(given(rows), floor, out)
    assert np.array_equal(out.astype(np.float64), rows * 2.0**floor)
    assert not np.signbit(out[0, 0])
    # In the place of the integers.
    kernel.values(rows, floor, rows.view(np.float32))
    assert np.array_equal(rows.view(np.float32), out)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_logarithmic_codes(bits: int, given: Give) -> None:
    rng = np.random.default_rng(bits)
    base, shift, count = 0x30000001, 28 - bits, 45
    codes = rng.integers(0, 1 << bits, (count, 1)).astype(np.int32)
    codes[::5] = 0
    data = np.empty(-(-count * bits // 8), np.uint8)
    kernel.pack_rows(codes.reshape(1, -1), np.array([bits], np.uint8), data, 0)
    values = np.empty(count, np.float32)
    logs.decode_range(data, 0, 0, bits, base, shift, values)
    out = np.empty((count, 1), np.float32)
    kernel.log_values(given(codes), base, shift, out)
    assert np.array_equal(out[:, 0].view(np.uint32), values.view(np.uint32))
    for first in (0, 1, 2, 44):
        found = np.full(count - first, -7, np.int32)
        logs.codes_in_range(given(data), first * bits // 8, first, bits, found)
        assert np.array_equal(found, codes[first:, 0])
    picked, targets = rng.integers(0, count, 20), rng.permutation(30)[:20]
    found = np.full(30, -7, np.int32)
    logs.codes_of_rows(given(data), given(picked * bits // 8), given(picked), bits, found, given(targets))
    assert np.array_equal(found[targets], codes[picked, 0])
    assert (np.delete(found, targets) == -7).all()


# Packs and unpacks rows that lie at the end of memory that can be touched, or at its start.
AT_THE_EDGE = """
import ctypes, mmap
import numpy as np
from cnrfmt.kernels import integers as kernel

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * page)
everything = np.frombuffer(memory, np.uint8)
protect = ctypes.CDLL(None, use_errno=True).mprotect
for closed in (0, 2 * page):
    assert protect(ctypes.c_void_p(everything.ctypes.data + closed), ctypes.c_size_t(page), 0) == 0
none = np.zeros(2, np.uint8)
for bits in range(1, 27):
    for width in (1, 2, 5, 8, 9, 15, 16, 17, 24, 29, 31, 48, 50):
        codes = np.full((2, width), -1 << bits - 1, np.int32)
        widths, size = np.full(2, bits, np.uint8), 2 * (-(-width * bits // 8))
        for first in (page, 2 * page - size):
            edge, out = everything[first : first + size], np.empty_like(codes)
            assert kernel.pack_rows(codes, widths, edge, 0) == size
            assert kernel.unpack_rows(edge, 0, widths, none, out) == size
            assert np.array_equal(out, codes), (bits, width)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages by mprotect")
def test_nothing_outside_of_the_array_is_touched() -> None:
    # A mapped file ends with its last row, and so may memory.
    subprocess.run([sys.executable, "-c", AT_THE_EDGE], check=True, timeout=600)
