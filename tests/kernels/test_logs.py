"""Logarithmic codes, against a slow twin in whole numbers and against the bound that is stated for them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import logs
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
BITS = [8, 12, 16]
WIDEST = {8: 20, 12: 16, 16: 12}
LEAST_NORMAL, INFINITE = 0x00800000, 0x7F800000
SIZE = 100 if INTERPRETED else 5000
SPECIAL = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, 1.1754944e-38, 1.1754942e-38, -1.0, 3.4028235e38]
patterns = st.integers(0, 2**32 - 1)
any_values = arrays(
    np.float32,
    st.integers(0, 60),
    elements=st.floats(width=32)
    | st.sampled_from(np.array(SPECIAL, np.float32).tolist())
    | st.floats(0, 100, width=32),
)


def encode(values: Values, bits: int, base: int, shift: int) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    out = np.full((len(values) * bits + 7) // 8, 0xAA, np.uint8)
    bad = np.full(len(values), 7, np.uint8)
    assert logs.encode(values, bits, base, shift, out, bad) == bad.sum()
    return out, bad.astype(np.bool_)


def decode(data: Bytes, bits: int, base: int, shift: int, count: int) -> Values:
    out = np.full(count, np.nan, np.float32)
    logs.decode_range(data, 0, 0, bits, base, shift, out)
    return out


# The twin.


def greatest(bits: int, base: int, shift: int) -> int:
    return base + ((2**bits - 2) << shift)


def reference_code(value: np.float32, bits: int, base: int, shift: int) -> int | None:
    pattern = int(value.view(np.uint32))
    if pattern == 0:
        return 0
    if not 0 < pattern < INFINITE:
        return None
    step = round(Fraction(pattern - base, 2**shift))  # Ties to even.
    if not 0 <= step <= 2**bits - 2:
        return None
    if pattern < LEAST_NORMAL and base + (step << shift) != pattern:
        return None
    return step + 1


def reference_bytes(codes: list[int], bits: int) -> Bytes:
    stream = np.array([[code >> k & 1 for k in range(bits)] for code in codes], np.uint8).reshape(-1)
    return np.packbits(stream, bitorder="little")


def reference_value(code: int, base: int, shift: int) -> np.float32:
    return np.uint32(base + ((code - 1) << shift) if code else 0).view(np.float32)


def check(values: Values, bits: int, base: int, shift: int) -> None:
    data, bad = encode(values, bits, base, shift)
    codes = [reference_code(value, bits, base, shift) for value in values]
    assert bad.tolist() == [code is None for code in codes]
    held = [code or 0 for code in codes]
    assert np.array_equal(data, reference_bytes(held, bits))
    decoded = decode(data, bits, base, shift, len(values))
    want = [reference_value(code, base, shift) for code in held]
    assert np.array_equal(decoded.view(np.uint32), np.array(want, np.float32).view(np.uint32))
    # Numbers that are held are off by the fraction that is stated, at most.
    given, found = values[~bad].astype(np.float64), decoded[~bad].astype(np.float64)
    assert (np.abs(given - found) <= 2.0 ** (shift - 24) * given).all()
    # What was decoded has the same codes.
    again, none_bad = encode(decoded, bits, base, shift)
    assert not none_bad.any()
    assert np.array_equal(again, data)


@examples(any_values, st.sampled_from(BITS), st.integers(1, INFINITE - 1), st.integers(0, 23))
def test_any_numbers(values: Values, bits: int, base: int, shift: int) -> None:
    assume(greatest(bits, base, shift) < INFINITE)
    check(values, bits, base, shift)


@pytest.mark.parametrize(
    ("bits", "shift"),
    [(bits, shift) for bits in BITS for shift in (0, 1, 5, 12, 18, 23) if greatest(bits, 1, shift) < INFINITE],
)
@pytest.mark.parametrize("base", [1, LEAST_NORMAL - 5, LEAST_NORMAL, 0x3F800000, INFINITE])
def test_around_all_ends_and_ties(bits: int, shift: int, base: int) -> None:
    base = min(base, INFINITE - 1 - ((2**bits - 2) << shift))
    rng = np.random.default_rng(shift)
    steps = np.concatenate([[0, 1, 2, 2**bits - 3, 2**bits - 2], rng.integers(0, 2**bits - 1, SIZE // 100)])
    half = (1 << shift) // 2
    near = [base + (steps << shift) + sign * half + by for sign in (-1, 0, 1) for by in (-1, 0, 1)]
    found = np.clip(np.concatenate(near), 0, 2**31 - 1).astype(np.uint32).view(np.float32)
    check(np.concatenate([found, -found, np.array(SPECIAL, np.float32)]), bits, base, shift)


@pytest.mark.parametrize("bits", BITS)
def test_a_chunk_stands_alone(bits: int) -> None:
    values = np.random.default_rng(bits).lognormal(-6, 3, SIZE).astype(np.float32)
    base, shift = logs.plan(values, bits)
    whole, _ = encode(values, bits, base, shift)
    for count in [0, 1, 2, 15, 16, 17, 32, 33, 50, SIZE]:
        for start in range(0, min(count, 40), 2):
            part, _ = encode(values[start:count], bits, base, shift)
            expected = whole[start * bits // 8 : (count * bits + 7) // 8].copy()
            if bits == 12 and count % 2:
                expected[-1] &= 0xF
            assert np.array_equal(part, expected)


@pytest.mark.parametrize("bits", BITS)
def test_numbers_from_anywhere(bits: int, given: Give) -> None:
    rng = np.random.default_rng(bits)
    base, shift = LEAST_NORMAL + 12345, WIDEST[bits]
    codes = rng.integers(0, 2**bits, SIZE)
    codes[::7] = 0
    values = np.array([reference_value(int(code), base, shift) for code in codes])
    for skip in (0, 1, 3):
        data = np.concatenate([np.full(skip, 0xEE, np.uint8), reference_bytes(codes.tolist(), bits)])
        for first in [0, 1, 2, 3, 17, SIZE - 1, SIZE]:
            for count in [0, 1, 2, 15, 16, 17, 31, 32, 33, SIZE]:
                out = np.full(min(count, SIZE - first), np.nan, np.float32)
                logs.decode_range(given(data), skip + first * bits // 8, first, bits, base, shift, out)
                assert np.array_equal(out, values[first : first + count])
        positions, targets = rng.integers(0, SIZE, 45), rng.permutation(70)[:45]
        offsets = skip + positions * bits // 8
        out = np.full(70, 5, np.float32)
        logs.decode_rows(given(data), given(offsets), given(positions), bits, base, shift, out, given(targets))
        want = np.full(70, 5, np.float32)
        want[targets] = values[positions]
        assert np.array_equal(out, want)


# The choice of base and shift.


def normal_patterns(values: Values) -> npt.NDArray[np.int64]:
    found = values.view(np.uint32).astype(np.int64)
    return found[(found >= LEAST_NORMAL) & (found < INFINITE)]


@examples(any_values, st.sampled_from(BITS))
def test_the_plan_is_legal_and_the_finest_that_holds_all(values: Values, bits: int) -> None:
    base, shift = logs.plan(values, bits)
    assert base >= LEAST_NORMAL
    assert 0 <= shift <= WIDEST[bits]
    assert greatest(bits, base, shift) < INFINITE
    normal = normal_patterns(values)
    if not len(normal):
        return
    reach = int(normal.max() - normal.min())
    if reach <= (2**bits - 2) << WIDEST[bits]:
        assert shift == next(s for s in range(24) if reach <= (2**bits - 2) << s)
        held = (normal >= base) & (normal <= greatest(bits, base, shift))
        assert held.all()
    else:
        assert shift == WIDEST[bits]


@pytest.mark.parametrize("bits", BITS)
def test_beyond_32_octaves_most_numbers_are_held(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for few_from, many_from in [(-120, 20), (60, -100), (-126, 95), (95, -126)]:
        few = 2.0 ** rng.uniform(few_from, few_from + 31, SIZE // 4)
        many = 2.0 ** rng.uniform(many_from, many_from + 31, SIZE)
        values = np.concatenate([few, many]).astype(np.float32)
        base, shift = logs.plan(values, bits)
        assert greatest(bits, base, shift) < INFINITE
        _, bad = encode(values, bits, base, shift)
        assert bad[: len(few)].all()
        assert not bad[len(few) :].any()
    # Of two that hold as many, the greater numbers.
    values = np.array([1e-30, 1e-30, 1e30, 1e30], np.float32)
    assert encode(values, bits, *logs.plan(values, bits))[1].tolist() == [True, True, False, False]


@pytest.mark.parametrize("bits", BITS)
def test_accumulators_keep_the_stated_precision(bits: int, given: Give) -> None:
    # From 1e-8 to 10: 30 octaves.
    values = (10.0 ** np.random.default_rng(bits).uniform(-8, 1, SIZE)).astype(np.float32)
    values[0], values[1] = 1e-8, 10
    values[::9] = 0
    base, shift = logs.plan(given(values), bits)
    assert shift == WIDEST[bits]
    data, bad = encode(given(values), bits, base, shift)
    assert not bad.any()
    decoded = decode(given(data), bits, base, shift, SIZE)
    bound = {8: 2**-4, 12: 2**-8, 16: 2**-12}[bits]
    assert (np.abs(decoded - values.astype(np.float64)) <= bound * values).all()


def test_nothing_to_plan_for() -> None:
    for values in ([], [0.0], [-0.0, -1.0, np.nan, np.inf, 1e-45]):
        base, shift = logs.plan(np.array(values, np.float32), 12)
        assert base >= LEAST_NORMAL
        assert greatest(12, base, shift) < INFINITE


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_dithered_codes_are_a_neighbour_of_the_number(bits: int) -> None:
    rng = np.random.default_rng(bits)
    values = rng.lognormal(0, 2, 4000).astype(np.float32)
    values[:4] = 0.0, -1.0, np.nan, np.inf
    base, shift = logs.plan(values[4:], bits)
    codes, bad = np.empty(len(values), np.int32), np.empty(len(values), np.uint8)
    sums = np.zeros(len(values) - 4)
    for salt in range(50):
        assert logs.dithered(values, bits, base, shift, salt, codes, bad) == np.count_nonzero(bad)
        assert bad[:4].tolist() == [0, 1, 1, 1]
        assert codes[:4].tolist() == [0, 0, 0, 0]
        held = bad[4:] == 0
        place = (values[4:].view(np.int32).astype(np.int64) - base) / (1 << shift) + 1
        assert (abs(codes[4:] - place)[held] < 1).all()
        # Only the greatest may be rounded to a code that isn't there.
        assert (place[~held] > (1 << bits) - 2).all()
        sums += codes[4:]
    assert (sums[held] / 50 - place[held]).mean() == pytest.approx(0, abs=0.02)


def test_what_a_code_stands_for_keeps_it() -> None:
    codes, bad = np.empty(4095, np.int32), np.empty(4095, np.uint8)
    every = (0x30000000 + (np.arange(4095) << 15)).astype(np.int32).view(np.float32)
    for salt in (0, 1, 0xFFFFFFFF):
        assert logs.dithered(every, 12, 0x30000000, 15, salt, codes, bad) == 0
        assert codes.tolist() == list(range(1, 4096))
