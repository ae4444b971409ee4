"""Alternating least squares: step by step as in numpy, and against the greedy and an exhaustive search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.kernels.lsq import choose_lsq
from cnrfmt.kernels.search import choose_adaptive
from tests.kernels.exhaustive import least_error
from tests.kernels.groups import ONE, ZERO, Group, choose, errors, greedy, inverse_of, samples

Array = npt.NDArray[Any]
Give = Callable[[Array], Array]
Rows = npt.NDArray[np.float32]
DIMS = [1, 3, 16, 21] if INTERPRETED else [1, 2, 3, 8, 15, 16, 17, 31, 32, 50, 64, 100, 256]
COUNT = 3 if INTERPRETED else 20
KINDS = [(0, 0), (1, 1), (2, 0)]


def search(
    rows: Rows, size: int, bits: int, kinds: tuple[int, int], starts: int, num_bins: int = 0, ratio: float = 0.5
) -> tuple[Rows, Rows, Array]:
    shape = len(rows), -(-rows.shape[1] // size)
    scales, biases = np.full(shape, 7, np.float32), np.full(shape, 7, np.float32)
    bad = np.full(len(rows), 7, np.uint8)
    assert choose_lsq(rows, size, bits, *kinds, starts, num_bins, ratio, scales, biases, bad) == bad.sum()
    return scales, biases, bad


def greedy_search(rows: Rows, size: int, bits: int, kinds: tuple[int, int], num_bins: int) -> tuple[Rows, Rows, Array]:
    shape = len(rows), -(-rows.shape[1] // size)
    scales, biases = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    bad = np.zeros(len(rows), np.uint8)
    choose_adaptive(rows, size, bits, *kinds, num_bins, 0.5, scales, biases, bad)
    return scales, biases, bad


# The reference in numpy.


def solve(group: Group, sums: list[Rows], scale: Rows, bias: Rows, mean: Rows) -> tuple[Rows, ...]:
    levels, squares, products = sums
    size = np.float32(group.x.shape[1])
    spread = squares * size - levels * levels
    common = (products - levels * (mean - bias)) * size
    sound = (spread > 0) & (common > 0)
    slope = common / spread
    level = levels * np.float32(1 / group.x.shape[1])
    fitted = np.where(sound, slope, scale), np.where(sound, mean - slope * level, bias)
    return *fitted, level, np.where(sound, common * slope, -ONE)


def sums_of(group: Group, columns: Rows, bias: Rows, inverse: Rows) -> list[Rows]:
    """Of codes, their squares, and their products with what they stand for."""
    sums = [np.zeros(len(group.x), np.float32)] * 3
    for x in columns:
        level = group.levels(x, bias, inverse)
        sums = [sums[0] + level, sums[1] + level * level, sums[2] + level * (x - bias)]
    return sums


def refit(group: Group, scale: Rows, bias: Rows, mean: Rows) -> tuple[Rows, ...]:
    parts = [sums_of(group, group.x.T[k::2], bias, inverse_of(scale)) for k in (0, 1)]
    return solve(group, [a + b for a, b in zip(*parts, strict=True)], scale, bias, mean)


def best_of(fits: list[tuple[Rows, ...]]) -> tuple[Rows, ...]:
    """The first of the fits, on each row, that explain the most."""
    best = fits[0]
    for fit in fits[1:]:
        best = tuple(np.where(fit[3] > best[3], a, b) for a, b in zip(fit, best, strict=True))
    return best


def least_squares(group: Group, starts: int, num_bins: int, ratio: float) -> tuple[Rows, Rows, Rows]:
    low, high, top, count = group.low, group.high, group.top, np.float32(group.x.shape[1])
    pair = group.spanning(low, high)
    best = greedy(group, num_bins, ratio) if num_bins else (*pair, group.errors(*pair))
    total = np.zeros(len(group.x), np.float32)
    for x in group.x.T:
        total = total + (x - low)
    mean = low + total / count
    total = np.zeros(len(group.x), np.float32)
    for x in group.x.T:
        total = total + (x - mean) * (x - mean)
    deviation = np.sqrt(total / count)
    ranges = [(low, high)]
    for factor in (1, 1.25, 1.5):
        width = deviation * np.float32((0.65 + 0.35 * group.bits) * factor)
        ranges.append((np.maximum(low, mean - width), np.minimum(high, mean + width)))
    anchor = best_of([refit(group, (b - a) / top, a, mean) for a, b in ranges])
    trials = {2: 8, 3: 12}.get(group.bits, 24) * starts
    half = 0.5 * ((1 << group.bits) - 1)
    for start in range(starts):
        fits = [anchor if start == 0 else (*anchor[:3], np.full_like(mean, -1))]
        for k in range(start, trials, starts):
            by = 0.8 + 0.4 * (k + 0.5) / trials
            off = half - by * (half - 1.75 * ((k + 1) * 0.6180339887498949 % 1.0 - 0.5))
            scale, bias = anchor[0] * np.float32(by), anchor[1] + anchor[0] * np.float32(off)
            sums = sums_of(group, group.x.T, bias, inverse_of(anchor[0]) * np.float32(1 / by))
            fits.append(solve(group, sums, scale, bias, mean))
        fit = best_of(fits)
        for _ in range(3):
            fit = refit(group, *fit[:2], mean)
        scale = group.scale(fit[0])
        bias = group.bias(mean - scale * fit[2])
        bias = group.bias(mean - scale * refit(group, scale, bias, mean)[2])
        error = group.errors(scale, bias)
        better = (error < best[2]) & group.sound(scale, bias)
        best = tuple(np.where(better, a, b) for a, b in zip((scale, bias, error), best, strict=True))
    return best


def reference(
    rows: Rows, size: int, bits: int, kinds: tuple[int, int], starts: int, num_bins: int = 0, ratio: float = 0.5
) -> tuple[Rows, Rows, Array]:
    return choose(rows, size, bits, *kinds, lambda group: least_squares(group, starts, num_bins, ratio))


def assert_same(found: tuple[Rows, Rows, Array], want: tuple[Rows, Rows, Array], note: object = None) -> None:
    assert np.array_equal(found[2] == 1, want[2]), note
    assert np.array_equal(found[0], want[0]), note
    assert np.array_equal(found[1], want[1]), note


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_dim(bits: int, kinds: tuple[int, int]) -> None:
    for dim in DIMS:
        rows = samples(dim, COUNT)
        for starts, num_bins in [(1, 7)] if INTERPRETED else [(1, 0), (2, 9)]:
            found = search(rows, dim, bits, kinds, starts, num_bins)
            assert_same(found, reference(rows, dim, bits, kinds, starts, num_bins), (dim, starts))


def test_a_trained_table(trained: Rows, given: Give) -> None:
    rows = np.ascontiguousarray(trained[::40])
    for bits in [2] if INTERPRETED else [2, 4]:
        assert_same(search(given(rows), 256, bits, (1, 1), 2), reference(rows, 256, bits, (1, 1), 2))


@examples(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 20), st.integers(1, 20)),
        elements=st.floats(width=32) | st.sampled_from([0.0, -0.0, np.nan, np.inf, 1.0, 2.0, 65504.0, 65520.0]),
    ),
    st.sampled_from([8, 16, 32]),
    st.integers(2, 8),
    st.sampled_from([*KINDS, (1, 0)]),
    st.integers(1, 3),
    st.sampled_from([0, 1, 5]),
)
def test_any_rows(rows: Rows, size: int, bits: int, kinds: tuple[int, int], starts: int, num_bins: int) -> None:
    size = min(size, rows.shape[1])
    found = search(rows, size, bits, kinds, starts, num_bins)
    assert_same(found, reference(rows, size, bits, kinds, starts, num_bins))


def test_groups_are_searched_like_rows() -> None:
    rows = samples(40, COUNT)
    sound = search(rows, 40, 3, (0, 0), 2)[2] == 0
    scales, biases, _ = search(rows, 16, 3, (0, 0), 2)
    for g in range(3):
        part = np.ascontiguousarray(rows[:, 16 * g : 16 * g + 16])
        scale, bias, _ = search(part, part.shape[1], 3, (0, 0), 2)
        assert np.array_equal(scales[sound, g], scale[sound, 0])
        assert np.array_equal(biases[sound, g], bias[sound, 0])


def test_rows_are_independent_of_how_they_are_cut() -> None:
    rows = samples(20, 14)
    rows[5, 3] = np.nan
    want = search(rows, 20, 4, (1, 1), 2, 9)
    for cut in [17] if INTERPRETED else [1, 15, 16, 17, 33]:
        parts = [search(rows[k : k + cut], 20, 4, (1, 1), 2, 9) for k in range(0, len(rows), cut)]
        for array, *pieces in zip(want, *parts, strict=True):
            assert np.array_equal(np.concatenate(pieces), array)
    assert search(rows[:0], 20, 4, (1, 1), 2)[0].shape == (0, 1)


@pytest.mark.parametrize("kinds", KINDS)
def test_no_row_errs_more_than_in_the_search_that_it_is_held_against(kinds: tuple[int, int]) -> None:
    rows = samples(48, COUNT)
    for bits in (2, 3, 4, 8):
        before = greedy_search(rows, 16, bits, kinds, 25)
        found = search(rows, 16, bits, kinds, 1, 25)
        assert np.array_equal(before[2], found[2])
        for g in range(3):
            part = np.ascontiguousarray(rows[:, 16 * g : 16 * g + 16])
            old, new = (
                errors(part, 16, bits, scale[:, g : g + 1], bias[:, g : g + 1])[found[2] == 0]
                for scale, bias, _ in (before, found)
            )
            # The sums that were compared are of float32.
            assert (new <= old * (1 + 1e-5)).all()
            same = (before[0] == found[0]) & (before[1] == found[1])
            assert (new < old * (1 + 1e-6))[~same[found[2] == 0, g]].all()


def usual(kind: str, dim: int, count: int, trained: Rows) -> Rows:
    if kind == "trained":
        pieces = trained.reshape(-1, dim)
        return np.ascontiguousarray(pieces[:: max(1, len(pieces) // count)][:count])
    return np.random.default_rng(dim).normal(0, 0.05, (count, dim)).astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "trained"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_two_starts_come_near_an_exhaustive_search(bits: int, kind: str, trained: Rows) -> None:
    for dim, count in [(16, 250)] if INTERPRETED else [(16, 250), (64, 80), (256, 24)]:
        rows = usual(kind, dim, count, trained)
        least = np.mean([least_error(row, bits, 100 if dim < 100 else 80) for row in rows])
        for kinds in KINDS:
            found = search(rows, dim, bits, kinds, 2)
            assert errors(rows, dim, bits, *found[:2]).mean() <= 1.005 * least, (dim, kinds)


@pytest.mark.parametrize("kind", ["normal", "trained"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_it_errs_less_than_the_greedy_search(bits: int, kind: str, trained: Rows) -> None:
    for dim in [16] if INTERPRETED else [16, 32, 64, 128, 256]:
        rows = usual(kind, dim, 100 if INTERPRETED else 1000, trained)
        for kinds in KINDS[:1] if INTERPRETED else KINDS:
            before = errors(rows, dim, bits, *greedy_search(rows, dim, bits, kinds, 25 if bits < 4 else 45)[:2])
            means = [errors(rows, dim, bits, *search(rows, dim, bits, kinds, k)[:2]).mean() for k in (1, 2, 4)]
            assert before.mean() > means[0] > means[1] > means[2], (dim, kinds)


@pytest.mark.parametrize("exponent", [-90, -30, 30, 90])
def test_powers_of_two_change_nothing(exponent: int) -> None:
    rows = samples(24, COUNT)[: 3 * COUNT]
    scales, biases, _ = search(rows, 24, 3, (0, 0), 2)
    factor = np.float32(2.0**exponent)
    scaled = search(rows * factor, 24, 3, (0, 0), 2)
    assert np.array_equal(scaled[0], scales * factor)
    assert np.array_equal(scaled[1], biases * factor)


@pytest.mark.parametrize("kinds", KINDS)
def test_constant_rows(kinds: tuple[int, int]) -> None:
    values = np.array([0.3, -1e-40, 0, -0.0, 1e-3, 5], np.float32)
    scales, biases, bad = search(np.repeat(values[:, np.newaxis], 20, axis=1), 20, 2, kinds, 2)
    assert not bad.any()
    assert not scales.any()
    kept = values.astype(np.float16).astype(np.float32) if kinds[1] == 1 else values
    assert np.array_equal(biases[:, 0], kept)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_that_is_not_finite_anywhere(value: float) -> None:
    for dim in (1, 7, 16, 33):
        for at in range(0, dim, 5):
            rows = np.linspace(-1, 1, 3 * dim, dtype=np.float32).reshape(3, dim)
            rows[1, at] = value
            scales, biases, bad = search(rows, min(dim, 8), 4, (0, 0), 1)
            assert bad.tolist() == [0, 1, 0]
            assert scales[1].tolist() == biases[1].tolist() == [ZERO] * scales.shape[1]


def test_no_code_stands_for_an_infinity() -> None:
    # The least squares for rows that reach the greatest float32 go beyond it.
    rng = np.random.default_rng(0)
    rows = (rng.random((40, 24)) * np.finfo(np.float32).max).astype(np.float32)
    for kinds in KINDS[::2]:
        scales, biases, bad = search(rows, 24, 2, kinds, 2)
        assert bad.sum() < 40
        with np.errstate(over="ignore"):
            assert np.isfinite(np.float32(3) * scales + biases).all()
