"""The choice of scale and bias: idempotent, exact where it says so, and as the operators choose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fbgemm_gpu  # noqa: F401  It registers the operators.
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import layouts, uniform
from cnrfmt.kernels._jit import INTERPRETED
from tests.kernels.geometries import KINDS, Rows, Table, groups_of, packed

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
BITS = range(2, 9)
DIMS = [1, 2, 7, 16, 33] if INTERPRETED else [*range(1, 41), 64, 100, 257]
# Scale and bias of the choices that are idempotent: float32 or bfloat16 with a float32 bias, any without.
STABLE = [(0, 0), (2, 0), (0, -1), (1, -1), (2, -1)]
GREATEST = float(np.finfo(np.float32).max)


def choose(rows: Rows, bits: int, group: int, kinds: tuple[int, int]) -> tuple[Rows, Rows, Table]:
    shape = len(rows), groups_of(rows.shape[1], group)
    scales, biases = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    bad = np.full(len(rows), 7, np.uint8)
    scale_kind, bias_kind = kinds
    if bias_kind < 0:
        count = uniform.choose_symmetric(rows, group, bits, scale_kind, scales, bad)
        biases[:] = 0
    else:
        count = uniform.choose_asymmetric(rows, group, bits, scale_kind, bias_kind, scales, biases, bad)
    assert count == bad.sum()
    for parameters, kind in ((scales, scale_kind), (biases, max(bias_kind, 0))):
        assert np.array_equal(parameters.astype(KINDS[kind]).astype(np.float32), parameters)
    return scales, biases, bad


def coded(rows: Rows, bits: int, group: int, kinds: tuple[int, int]) -> tuple[Table, Rows, Table]:
    """Bytes of rows, what they decode to, and which can't be held."""
    scales, biases, bad = choose(rows, bits, group, kinds)
    geometry = packed(bits, rows.shape[1], group, *kinds)
    table = np.empty((len(rows), geometry.row_bytes), np.uint8)
    layouts.encode_codes(rows, scales, biases, bad, *geometry, table)
    values = np.empty(rows.shape, np.float32)
    layouts.decode_range(table.reshape(-1), 0, *geometry, values)
    return table, values, bad


def peculiar(dim: int) -> Rows:
    """Rows that have tripped an encoder: constant, zero, tiny, huge, far from zero, around powers of two."""
    rng = np.random.default_rng(dim)
    usual = rng.normal(0, 1, (6, dim))
    one = rng.normal(0, 1, (6, 1))
    power = 2.0 ** rng.integers(-100, 100, (6, 1))
    anything = rng.integers(0, 2**32, (6, dim), dtype=np.uint32).view(np.float32)
    near = rng.integers(0, 0x7F000000, (6, 1)) + rng.integers(0, 700, (6, dim))
    start = rng.integers(1, 254, (6, 1)) << 23
    around = np.maximum(start + rng.integers(-300, 300, (6, dim)), 0)
    zeros = np.where(rng.random((6, dim)) < 0.5, 0.0, -0.0)
    with np.errstate(all="ignore"):
        found = [
            usual,
            zeros,
            np.full((1, dim), -0.0),
            np.maximum(usual, zeros),
            np.minimum(usual, zeros),
            np.repeat(one, dim, axis=1),
            np.repeat(one * 1e-41, dim, axis=1),
            np.linspace(-1, 1, dim)[np.newaxis],
            usual * 10.0 ** rng.integers(-44, 38, (6, 1)),
            usual * 1e38,
            one * 10.0 ** rng.integers(-3, 9, (6, 1)) + usual,
            power + usual,
            power * (1 + usual * 1e-6),
            np.where(np.isfinite(anything), anything, 1),
            np.where(rng.random((6, dim)) < 0.5, 1e-30, 1e30) * usual,
            *(sign * bits.astype(np.uint32).view(np.float32) for bits in (near, around) for sign in (1, -1)),
        ]
        rows = np.concatenate([part.astype(np.float32) for part in found])
    rows[~np.isfinite(rows)] = 1
    return rows


# References: one group at a time, in Python's numbers.


def power_below(x: float) -> float:
    return 0.0 if x == 0 else 2.0 ** (math.frexp(x)[1] - 1)


def level(x: np.float32, low: np.float32, inverse: np.float32, top: int) -> int:
    with np.errstate(all="ignore"):
        return int(np.rint(min(max((x - low) * inverse, np.float32(0)), np.float32(top))))


def inverse_of(scale: float) -> np.float32:
    return np.float32(0) if scale == 0 else np.float32(1) / np.float32(scale)


LAST_PLACE = [2.0**-15, 2.0**-10, 2.0**-7]
LEAST_NORMAL = [2.0**-126, 2.0**-14, 2.0**-126]
LEAST = [2.0**-126, 2.0**-24, 2.0**-126]
MOST = [GREATEST, 65504.0, GREATEST]


def unit_of(scale: float, kind: int) -> float:
    return max(power_below(scale), LEAST_NORMAL[kind]) * LAST_PLACE[kind]


def fit(low: float, high: float, top: int, kind: int, coarser: int = 1) -> tuple[float, float, float]:
    """Bias, a scale that isn't rounded yet, and what it is to be a multiple of."""
    grid = coarser * max(power_below(max(abs(low), abs(high))) * 2.0**-22, 2.0**-149)
    bias = low if low == high and coarser == 1 else round(low / grid) * grid
    scale = abs(high - bias) / top
    return bias, scale, max(unit_of(scale, kind), grid)


def reference_asymmetric(group: Rows, bits: int, kind: int) -> tuple[float, float] | None:
    top = (1 << bits) - 1
    low, high = group.min(), group.max()

    def parameters(low: float, high: float) -> tuple[float, float]:
        bias, scale, unit = fit(low, high, top, kind)
        return max(math.ceil(scale / unit) * unit, LEAST[kind]) if scale else 0.0, bias

    scale, bias = parameters(float(low), float(high))
    for _ in range(4):
        if scale > MOST[kind] or scale * top > GREATEST or abs(scale * top + bias) > GREATEST:
            return None
        codes = (level(x, np.float32(bias), inverse_of(scale), top) for x in (low, high))
        again = parameters(*(code * scale + bias for code in codes))
        if again == (scale, bias):
            return scale, bias
        scale, bias = again
    bias, scale, unit = fit(float(low), float(high), top, kind, coarser=2)
    return math.floor(scale / unit) * unit, bias


def reference_symmetric(group: Rows, bits: int, kind: int) -> float | None:
    top = (1 << bits) - 1

    def parameter(reach: float) -> float:
        if reach < LEAST[kind]:
            return 0.0
        unit = unit_of(reach / top, kind)
        return max(math.ceil(reach / top / unit) * unit, LEAST[kind])

    extremes = group.min(), group.max()
    scale = parameter(float(abs(group).max()))
    for _ in range(4):
        if scale > MOST[kind] or 2 * scale * top > GREATEST:
            return None
        codes = (level(x, np.float32(-scale * top), inverse_of(scale) * np.float32(0.5), top) for x in extremes)
        again = parameter(max(abs(2 * code - top) * scale for code in codes))
        if again == scale:
            return scale
        scale = again
    return 0.0


def check_against_references(rows: Rows, bits: int, group: int, kinds: tuple[int, int]) -> None:
    scales, biases, bad = choose(rows, bits, group, kinds)
    for i, row in enumerate(rows):
        failed = 0
        for k in range(scales.shape[1]):
            part = row[k * group : (k + 1) * group]
            if kinds[1] < 0:
                scale = reference_symmetric(part, bits, kinds[0])
                want = None if scale is None else (scale, 0.0)
            else:
                want = reference_asymmetric(part, bits, kinds[0])
            failed |= want is None
            assert (scales[i, k], biases[i, k]) == (want or (0, 0)), (row, bits, group, kinds)
        assert bad[i] == failed


@pytest.mark.parametrize("kinds", STABLE)
def test_as_the_references(kinds: tuple[int, int]) -> None:
    for dim in DIMS:
        rows = peculiar(dim)
        for bits in (2, 4, 8) if dim % 2 else (3, 5, 6, 7):
            for group in {dim, min(dim, 8)}:
                check_against_references(rows[:: 5 if INTERPRETED else 1], bits, group, kinds)


wild = arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 20)),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
)


@st.composite
def far_from_zero(draw: st.DrawFn) -> Rows:
    """Rows of a narrow range around some number, which may be a power of two."""
    count, dim = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    start = draw(st.integers(0, 0x7F000000) | st.integers(0, 253).map(lambda exponent: exponent << 23))
    reach = draw(st.sampled_from([1, 2, 10, 300, 5000, 10**6]))
    places = draw(arrays(np.int64, (count, dim), elements=st.integers(-reach, reach)))
    sign = draw(st.sampled_from([np.float32(-1), np.float32(1)]))
    return sign * np.clip(start + places, 0, 0x7F7FFFFF).astype(np.uint32).view(np.float32)


@examples(wild | far_from_zero(), st.sampled_from(BITS), st.sampled_from(STABLE), st.booleans())
@settings(max_examples=100 if INTERPRETED else 1000)
def test_encoding_what_was_decoded_gives_the_same_bytes(
    rows: Rows, bits: int, kinds: tuple[int, int], grouped: bool
) -> None:
    group = 8 if grouped and rows.shape[1] > 8 else rows.shape[1]
    table, values, bad = coded(rows, bits, group, kinds)
    assert np.isfinite(values).all()
    again, values_again, bad_again = coded(values, bits, group, kinds)
    good = bad == 0
    assert not bad_again[good].any()
    assert np.array_equal(again[good], table[good])
    assert np.array_equal(values_again[good].view(np.uint32), values[good].view(np.uint32))


@pytest.mark.parametrize("kinds", STABLE)
def test_peculiar_rows_are_idempotent(kinds: tuple[int, int]) -> None:
    for dim in DIMS:
        rows = peculiar(dim)
        for bits in BITS:
            table, values, bad = coded(rows, bits, dim, kinds)
            again, _, bad_again = coded(values, bits, dim, kinds)
            good = bad == 0
            assert good.mean() > (0.4 if kinds[0] == 1 else 0.8)
            assert not bad_again[good].any()
            assert np.array_equal(again[good], table[good])


@pytest.mark.parametrize(
    ("bits", "low", "high"), [(3, 0.9999979, 0.9999998), (5, 8387794, 8388618), (8, 0.9996804, 1.0000001)]
)
def test_extremes_that_lead_nowhere(bits: int, low: float, high: float) -> None:
    # Parameters go in circles: what the greater decodes to lies now below a power of two, now above.
    # The scale that ends it is rounded down, and its codes span all but a little.
    rows, top, seen = np.array([[low, high]], np.float32), (1 << bits) - 1, []
    extremes = [float(x) for x in rows[0]]
    for _ in range(20):
        bias, scale, unit = fit(*extremes, top, 0)
        scale = math.ceil(scale / unit) * unit
        seen.append((scale, bias))
        codes = [level(x, np.float32(bias), inverse_of(scale), top) for x in rows[0]]
        extremes = [code * scale + bias for code in codes]
    assert len(set(seen[10:])) > 1
    for kinds in STABLE[:2]:
        check_against_references(rows, bits, 2, kinds)
        table, values, _ = coded(rows, bits, 2, kinds)
        assert np.array_equal(coded(values, bits, 2, kinds)[0], table)
        assert np.abs(values - rows).max() <= top * 2.0**-21 * high


@examples(wild | far_from_zero(), st.sampled_from(BITS), st.sampled_from(STABLE))
@example(np.array([[0.9999979, 0.9999998]], np.float32), 3, (0, 0))
def test_values_are_exact(rows: Rows, bits: int, kinds: tuple[int, int]) -> None:
    # No code stands for a number that float32 would have to round: all of them, not those in use alone.
    scales, biases, bad = choose(rows, bits, rows.shape[1], kinds)
    top = (1 << bits) - 1
    codes = np.arange(top + 1.0)
    for scale, bias in zip(scales[bad == 0, 0].astype(np.float64), biases[bad == 0, 0].astype(np.float64), strict=True):
        products = codes * scale if kinds[1] >= 0 else (2 * codes - top) * scale
        for exact in (products, products + bias):
            assert np.array_equal(exact.astype(np.float32).astype(np.float64), exact)
            assert np.isfinite(exact.astype(np.float32)).all()


@pytest.mark.parametrize("kinds", [*STABLE, (1, 1)])
@pytest.mark.parametrize("bits", BITS)
def test_what_is_held_is_near(bits: int, kinds: tuple[int, int]) -> None:
    top = (1 << bits) - 1
    for dim in DIMS:
        rows = peculiar(dim)
        if kinds == (1, 1):
            # Within the range and the precision of half precision.
            rows = rows[np.abs(rows).max(axis=1) < 3e4]
        _, values, bad = coded(rows, bits, dim, kinds)
        exact = rows.astype(np.float64)
        error, size = np.abs(values - exact).max(axis=1), np.abs(exact).max(axis=1)
        span = 2 * size if kinds[1] < 0 else np.ptp(exact, axis=1)
        if kinds == (1, 1):
            bad |= span / top < 2.0**-14  # The scale has few digits, and is rounded to the nearest.
        # A step, the precision of the bias, and the least step there is.
        precise = 2.0**-11 if kinds[1] == 1 else 2.0**-13
        assert (error <= span / top * 1.02 + size * precise + LEAST[kinds[0]])[bad == 0].all()
        usual = (span > size / 4) & (size > 0.1)
        half_step = {0: 0.502, 1: 0.6, 2: 0.515}[kinds[0]]
        assert (error <= half_step * span / top + size * (precise if kinds[1] == 1 else 0))[(bad == 0) & usual].all()


@pytest.mark.parametrize("bits", BITS)
def test_constant_rows_are_exact(bits: int) -> None:
    numbers = np.array([0, -0.0, 1, -0.3, 1e-45, -1e-40, 1e30, GREATEST, -GREATEST, np.pi], np.float32)
    rows = np.repeat(numbers[:, np.newaxis], 19, axis=1)
    for kinds in ((0, 0), (2, 0)):
        table, values, bad = coded(rows, bits, 8, kinds)
        assert not bad.any()
        assert np.array_equal(values, rows)
        assert not np.signbit(values[:2]).any()
        scales, _, _ = choose(rows, bits, 8, kinds)
        assert not scales.any()
        assert np.array_equal(table[0], table[1])


@pytest.mark.parametrize("kinds", [*STABLE, (1, 1)])
def test_zeros_stay_zeros(kinds: tuple[int, int]) -> None:
    rows = np.zeros((3, 21), np.float32)
    rows[1], rows[2, ::2] = -0.0, -0.0
    for bits in BITS:
        for group in (21, 8):
            table, values, bad = coded(rows, bits, group, kinds)
            assert not bad.any()
            assert not values.view(np.uint32).any()
            assert np.array_equal(table[0], table[1])
            assert np.array_equal(table[0], table[2])


@pytest.mark.parametrize("kinds", [*STABLE, (1, 1)])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_that_is_not_finite_anywhere(kinds: tuple[int, int], value: float, given: Give) -> None:
    for dim in (1, 4, 7, 16, 20, 33):
        for group in {dim, min(dim, 8)}:
            rows = np.tile(np.linspace(-1, 1, dim, dtype=np.float32), (dim, 1))
            np.fill_diagonal(rows, np.float32(value))
            sound = np.linspace(-1, 1, 2 * dim, dtype=np.float32).reshape(2, dim)
            rows = np.concatenate([sound[:1], rows, sound[1:]])
            scales, biases, bad = choose(given(rows), 4, group, kinds)
            assert bad.tolist() == [0, *[1] * dim, 0]
            assert np.isfinite(scales).all()
            assert np.isfinite(biases).all()


def test_ranges_that_overflow() -> None:
    far = np.float32(GREATEST)
    for greatest, least, kinds, want in [
        (far, -far, (0, 0), 1),
        (far / 2, -far / 2, (0, 0), 1),  # The scale is rounded up.
        (far * np.float32(0.49), -far * np.float32(0.49), (0, 0), 0),
        (far, 0, (0, 0), 1),
        (far * np.float32(0.999), 0, (0, 0), 0),
        (far * np.float32(0.98), 0, (2, 0), 0),
        (far, far * np.float32(0.9), (0, 0), 1),
        (far * np.float32(0.49), 0, (0, -1), 0),
        (far * np.float32(0.51), 0, (0, -1), 1),
        (far * np.float32(0.49), 0, (2, -1), 0),
        (65504 * 3, 0, (1, -1), 0),
        (65536 * 3, 0, (1, -1), 1),
        (65504 * 3, 0, (1, 1), 0),
        (65536 * 3, 0, (1, 1), 1),
        (1, -65536, (1, 1), 1),
    ]:
        rows = np.array([[least, greatest]], np.float32)
        assert choose(rows, 2, 2, kinds)[2].tolist() == [want], (least, greatest, kinds)


@pytest.mark.parametrize("bits", [4, 2])
def test_half_precision_is_chosen_as_the_operators_do(bits: int) -> None:
    # They want an even number of bytes of codes. The sign of a bias that is zero is theirs alone.
    for dim in [16 // bits * n for n in DIMS if n < 20]:
        rows = peculiar(dim)
        table, _, bad = coded(rows, bits, dim, (1, 1))
        want = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(torch.from_numpy(rows), bits).numpy()
        parameters = np.ascontiguousarray(want[:, -4:]).view(np.float16)
        assert np.array_equal(bad == 0, np.isfinite(parameters).all(axis=1))
        want[parameters[:, 1] == 0, -1] &= 0x7F
        assert np.array_equal(table[bad == 0], want[bad == 0])


@pytest.mark.parametrize("bits", BITS)
def test_half_precision_in_groups(bits: int) -> None:
    rows, top = peculiar(20), np.float32((1 << bits) - 1)
    scales, biases, bad = choose(rows, bits, 8, (1, 1))
    with np.errstate(all="ignore"):
        parts = [rows[:, start : start + 8] for start in (0, 8, 16)]
        low, high = (np.stack([f(part, axis=1) for part in parts], axis=1) for f in (np.min, np.max))
        bias = low.astype(np.float16).astype(np.float32)
        scale = ((high - bias) / top).astype(np.float16).astype(np.float32)
        usable = np.isfinite(np.float32(1) / scale)
    failed = ~(np.isfinite(scale) & np.isfinite(bias))
    assert np.array_equal(bad == 1, failed.any(axis=1))
    assert np.array_equal(scales, np.where(failed, 0, np.where(usable, scale, 1)))
    assert np.array_equal(biases, np.where(failed, 0, bias))
    assert not np.signbit(biases[biases == 0]).any()


@pytest.mark.parametrize("kinds", [(0, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("bits", BITS)
def test_symmetric_with_a_bias(bits: int, kinds: tuple[int, int], given: Give) -> None:
    for dim, group in ((1, 1), (16, 16), (21, 8), (33, 33)):
        rows, top = peculiar(dim), np.float32((1 << bits) - 1)
        rows[3, 0], rows[5, -1] = np.nan, -np.inf
        shape = len(rows), groups_of(dim, group)
        scales, biases = np.empty(shape, np.float32), np.empty(shape, np.float32)
        bad = np.full(len(rows), 7, np.uint8)
        count = uniform.choose_symmetric_biased(given(rows), group, bits, *kinds, scales, biases, bad)
        assert count == bad.sum()
        starts = np.arange(0, dim, group)
        reach = np.maximum.reduceat(np.where(np.isfinite(rows), np.abs(rows), np.float32(np.inf)), starts, axis=1)
        with np.errstate(all="ignore"):
            scale = (reach / top * 2).astype(KINDS[kinds[0]]).astype(np.float32)
            scale = np.where(reach > 0, np.maximum(scale, np.float32(LEAST[kinds[0]])), scale)
            bias = (0 - reach).astype(KINDS[kinds[1]]).astype(np.float32)
            failed = ~(np.isfinite(scale * top) & np.isfinite(bias))
        assert np.array_equal(bad == 1, failed.any(axis=1))
        assert bad[3] == bad[5] == 1
        assert np.array_equal(scales, np.where(failed, 0, scale))
        assert np.array_equal(biases, np.where(failed, 0, bias))


@examples(wild, st.sampled_from(BITS), st.sampled_from([*STABLE, (1, 1)]), st.integers(0, 6))
def test_cut_anywhere(rows: Rows, bits: int, kinds: tuple[int, int], cut: int) -> None:
    # A row's parameters are the same whichever call it is in.
    whole = choose(rows, bits, rows.shape[1], kinds)
    parts = [choose(rows[i], bits, rows.shape[1], kinds) for i in (slice(0, cut), slice(cut, None))]
    for k in range(3):
        assert np.array_equal(np.concatenate([part[k] for part in parts]), whole[k])


@pytest.mark.parametrize("kinds", [*STABLE, (1, 1)])
def test_more_rows_than_a_block(kinds: tuple[int, int], given: Give) -> None:
    # Parameters are worked out in blocks of groups, and what a block can't hold is gone through apart.
    rng = np.random.default_rng(0)
    for count, dim, group in [(0, 8, 8), (63, 8, 8), (64, 8, 8), (65, 8, 8), (150, 40, 8), (3, 1000, 8)]:
        rows = rng.normal(0, 1, (count, dim)).astype(np.float32)
        rows[rng.random(count) < 0.3, 3] = np.nan
        rows[rng.random(count) < 0.3] = 1
        found = choose(given(rows), 4, group, kinds)
        assert np.array_equal(found[2] == 1, np.isnan(rows[:, 3]))
        for i in range(0, count, 7):
            for k, one in enumerate(choose(rows[i : i + 1], 4, group, kinds)):
                assert np.array_equal(one[0], found[k][i])


def test_trained_rows(trained: Rows, given: Give) -> None:
    for kinds in STABLE:
        for bits in (8, 4, 3):
            table, values, bad = coded(given(trained), bits, 64, kinds)
            assert not bad.any()
            assert np.array_equal(coded(values, bits, 64, kinds)[0], table)
