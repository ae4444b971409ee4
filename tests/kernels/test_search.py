"""The greedy search, pair for pair as a plain one in numpy makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels._jit import INTERPRETED, jit
from cnrfmt.kernels.search import choose_adaptive, steps_of
from tests.kernels.groups import choose, errors, greedy, samples

Array = npt.NDArray[Any]
Give = Callable[[Array], Array]
Rows = npt.NDArray[np.float32]
DIMS = [1, 3, 16, 20] if INTERPRETED else [1, 2, 3, 8, 15, 16, 17, 31, 32, 50, 64, 100, 256]
COUNT = 3 if INTERPRETED else 20
KINDS = [(0, 0), (1, 1), (2, 0)]


def search(
    rows: Rows, size: int, bits: int, kinds: tuple[int, int], num_bins: int, ratio: float
) -> tuple[Rows, Rows, Array]:
    shape = len(rows), -(-rows.shape[1] // size)
    scales, biases = np.full(shape, 7, np.float32), np.full(shape, 7, np.float32)
    bad = np.full(len(rows), 7, np.uint8)
    assert choose_adaptive(rows, size, bits, *kinds, num_bins, ratio, scales, biases, bad) == bad.sum()
    return scales, biases, bad


def reference(
    rows: Rows, size: int, bits: int, kinds: tuple[int, int], num_bins: int, ratio: float
) -> tuple[Rows, Rows, Array]:
    return choose(rows, size, bits, *kinds, lambda group: greedy(group, num_bins, ratio))


def assert_same(found: tuple[Rows, Rows, Array], want: tuple[Rows, Rows, Array], note: object = None) -> None:
    assert np.array_equal(found[2] == 1, want[2]), note
    assert np.array_equal(found[0], want[0]), note
    assert np.array_equal(found[1], want[1]), note


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_dim(bits: int, kinds: tuple[int, int]) -> None:
    for dim in DIMS:
        rows = samples(dim, COUNT)
        for num_bins, ratio in [(25, 0.5)] if INTERPRETED else [(25, 0.5), (7, 1.0)]:
            found = search(rows, dim, bits, kinds, num_bins, ratio)
            assert_same(found, reference(rows, dim, bits, kinds, num_bins, ratio), (dim, num_bins))


def test_a_trained_table(trained: Rows, given: Give) -> None:
    rows = np.ascontiguousarray(trained[::40])
    for bits, num_bins in ((2, 25), (4, 45)):
        for kinds in KINDS[:1] if INTERPRETED else KINDS:
            found = search(given(rows), 256, bits, kinds, num_bins, 0.5)
            assert_same(found, reference(rows, 256, bits, kinds, num_bins, 0.5))


@examples(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 20), st.integers(1, 20)),
        elements=st.floats(width=32) | st.sampled_from([0.0, -0.0, np.nan, np.inf, 1.0, 2.0, 65504.0, 65520.0]),
    ),
    st.sampled_from([8, 16, 32]),
    st.integers(2, 8),
    st.sampled_from([*KINDS, (1, 0)]),
    st.sampled_from([1, 2, 5, 10, 12]),
    st.sampled_from([0.05, 0.3, 0.31, 0.5, 1.0]),
)
def test_any_rows(rows: Rows, size: int, bits: int, kinds: tuple[int, int], num_bins: int, ratio: float) -> None:
    size = min(size, rows.shape[1])
    found = search(rows, size, bits, kinds, num_bins, ratio)
    assert_same(found, reference(rows, size, bits, kinds, num_bins, ratio))


def test_groups_are_searched_like_rows() -> None:
    rows = samples(40, COUNT)
    sound = search(rows, 40, 3, (0, 0), 9, 0.5)[2] == 0
    scales, biases, _ = search(rows, 16, 3, (0, 0), 9, 0.5)
    for g in range(3):
        part = np.ascontiguousarray(rows[:, 16 * g : 16 * g + 16])
        scale, bias, _ = search(part, part.shape[1], 3, (0, 0), 9, 0.5)
        assert np.array_equal(scales[sound, g], scale[sound, 0])
        assert np.array_equal(biases[sound, g], bias[sound, 0])


def test_rows_are_independent_of_how_they_are_cut() -> None:
    rows = samples(20, 14)
    rows[5, 3] = np.nan
    want = search(rows, 20, 4, (1, 1), 25, 0.5)
    for cut in (1, 15, 16, 17, 33):
        parts = [search(rows[k : k + cut], 20, 4, (1, 1), 25, 0.5) for k in range(0, len(rows), cut)]
        for array, *pieces in zip(want, *parts, strict=True):
            assert np.array_equal(np.concatenate(pieces), array)
    assert search(rows[:0], 20, 4, (1, 1), 25, 0.5)[0].shape == (0, 1)


def test_no_row_errs_more_than_over_its_whole_range() -> None:
    rows = samples(48, COUNT)
    for bits in (2, 3, 4, 8):
        plain = search(rows, 48, bits, (0, 0), 1, 0.0)
        found = search(rows, 48, bits, (0, 0), 25, 0.5)
        sound = found[2] == 0
        before, after = (errors(rows, 48, bits, *pair[:2])[sound] for pair in (plain, found))
        # The sums that were compared are of float32.
        assert (after <= before * (1 + 1e-5)).all()
        assert after[:COUNT].sum() < before[:COUNT].sum() or bits == 8


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(("num_bins", "ratio"), [(25, 0.5), (45, 0.5), (200, 0.16)])
def test_it_errs_no_more_than_the_operators(bits: int, num_bins: int, ratio: float, trained: Rows) -> None:
    rng = np.random.default_rng(0)
    usual = rng.normal(0, 0.05, (100 if INTERPRETED else 4000, 64)).astype(np.float32)
    prepack = getattr(torch.ops.quantized, f"embedding_bag_{bits}bit_prepack")
    for rows in [usual] if INTERPRETED else [usual, np.ascontiguousarray(trained[::8])]:
        dim = rows.shape[1]
        fused = prepack(torch.from_numpy(rows), True, num_bins, ratio).numpy()
        pair = np.ascontiguousarray(fused[:, -4:]).view(np.float16).astype(np.float32)
        # A scale of zero is one of 1 there, with which nothing is rounded to another code than 0.
        theirs = errors(rows, dim, bits, pair[:, :1], pair[:, 1:]).mean()
        ours = errors(rows, dim, bits, *search(rows, dim, bits, (1, 1), num_bins, ratio)[:2]).mean()
        assert ours <= theirs * 1.0001


@pytest.mark.parametrize("exponent", [-90, -30, 30, 90])
def test_powers_of_two_change_nothing(exponent: int) -> None:
    rows = samples(24, COUNT)[: 3 * COUNT]
    scales, biases, _ = search(rows, 24, 3, (0, 0), 25, 0.5)
    factor = np.float32(2.0**exponent)
    scaled = search(rows * factor, 24, 3, (0, 0), 25, 0.5)
    assert np.array_equal(scaled[0], scales * factor)
    assert np.array_equal(scaled[1], biases * factor)


@pytest.mark.parametrize("kinds", KINDS)
def test_constant_rows(kinds: tuple[int, int]) -> None:
    values = np.array([0.3, -1e-40, 0, -0.0, 1e-3, 5], np.float32)
    scales, biases, bad = search(np.repeat(values[:, np.newaxis], 20, axis=1), 20, 2, kinds, 25, 0.5)
    assert not bad.any()
    assert not scales.any()
    kept = values.astype(np.float16).astype(np.float32) if kinds[1] == 1 else values
    assert np.array_equal(biases[:, 0], kept)
    assert not np.signbit(biases[2:4]).any()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_that_is_not_finite_anywhere(value: float) -> None:
    for dim in (1, 7, 16, 33):
        for at in range(0, dim, 5):
            rows = np.linspace(-1, 1, 3 * dim, dtype=np.float32).reshape(3, dim)
            rows[1, at] = value
            scales, biases, bad = search(rows, min(dim, 8), 4, (0, 0), 5, 0.5)
            assert bad.tolist() == [0, 1, 0]
            assert not scales[1].any()
            assert not biases[1].any()


def test_what_no_parameter_can_hold() -> None:
    greatest = np.finfo(np.float32).max
    below = np.nextafter(np.float32(65520), np.float32(0))
    for least, most, kinds, bad in [
        (-below, 0, (1, 1), 0),
        (-65520, 0, (1, 1), 1),
        (-65520, 0, (2, 0), 0),
        (0, below * 3, (1, 1), 0),
        (0, 65520 * 3, (1, 1), 1),
        (0, 65520 * 3, (1, 0), 1),
        (0, 65520 * 3, (2, 0), 0),
        (0, greatest, (0, 0), 0),
        (-greatest, 0, (0, 0), 0),
        (-greatest, greatest, (0, 0), 1),
        # Rounded up, a third of it is too much.
        (0, greatest, (2, 0), 1),
    ]:
        rows = np.array([[least, most]], np.float32)
        assert search(rows, 2, 2, kinds, 25, 0.5)[2].tolist() == [bad], (least, most, kinds)


def test_ranges_whose_lower_end_leaves_half_precision_are_passed_over() -> None:
    rows = np.array([[0] + [130000] * 15], np.float32)
    found = search(rows, 16, 2, (1, 1), 10, 1.0)
    assert_same(found, reference(rows, 16, 2, (1, 1), 10, 1.0))
    assert np.isfinite(found[1]).all()


@jit
def steps(num_bins: int, ratio: float) -> int:
    return steps_of(num_bins, ratio)


def test_whole_bins_are_taken_away() -> None:
    for num_bins, ratio, want in [(10, 0.3, 3), (100, 0.07, 7), (10, 0.31, 4), (25, 0.5, 13), (45, 0.5, 23)]:
        assert steps(num_bins, ratio) == want
    assert steps(200, 0.16) == 32
    assert steps(65536, 1.0) == 65536
    assert steps(7, 1e-3) == 1
