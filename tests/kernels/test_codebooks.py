"""Codebooks, against the best that a slow search finds and against scikit-learn's k-means."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans

from cnrfmt.kernels import codebooks
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Rows = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Table = npt.NDArray[np.uint8]
BITS = [2, 3, 4]
KINDS = [0, 1]
DIMS = [1, 5, 8, 17, 24] if INTERPRETED else [*range(1, 70), 100, 127, 129, 200]
any_rows = arrays(
    np.float32,
    st.tuples(st.integers(0, 6), st.integers(1, 40)),
    elements=st.floats(width=32)
    | st.floats(-1, 1, width=32)
    | st.sampled_from([0.0, -0.0, 1.0, -65504.0, 65519.0, 65520.0, float(np.finfo(np.float32).max)]),
)
finite_rows = arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=st.floats(-1000, 1000, width=32)
)


def size_of(bits: int, kind: int) -> int:
    return (4, 2)[kind] << bits


def choose(rows: Rows, bits: int, kind: int, block: int | None = None) -> tuple[Rows, Flags]:
    bad = np.full(len(rows), 7, np.uint8)
    books = np.full((-(-len(rows) // (block or 1)), 1 << bits), np.nan, np.float32)
    if block is None:
        found = codebooks.choose_codebooks(rows, bits, kind, books, bad)
    else:
        found = codebooks.choose_shared(rows, bits, kind, block, books, bad)
    assert found == bad.sum()
    return books, bad.astype(np.bool_)


def encode(rows: Rows, books: Rows, bad: Flags, bits: int, codes_at: int, block: int = 1, first: int = 0) -> Table:
    out = np.full((len(rows), codes_at + -(-rows.shape[1] * bits // 8)), 0xAA, np.uint8)
    codebooks.encode_codes(rows, books, bad.view(np.uint8), bits, block, first, codes_at, out)
    return out


def fused(rows: Rows, bits: int, kind: int) -> tuple[Table, Rows, Flags]:
    """Rows with their own codebooks."""
    books, bad = choose(rows, bits, kind)
    out = encode(rows, books, bad, bits, size_of(bits, kind))
    codebooks.write_codebooks(books, kind, out)
    return out, books, bad


def decode(table: Table, bits: int, kind: int, dim: int) -> Rows:
    out = np.full((len(table), dim), np.nan, np.float32)
    codebooks.decode_range(table.reshape(-1), 0, bits, kind, out)
    return out


def squared_error(row: Rows, decoded: Rows) -> float:
    return float(((row.astype(np.float64) - decoded.astype(np.float64)) ** 2).sum())


# The twins.


def least_error(row: Rows, clusters: int) -> float:
    """The least squared error of so many clusters: for every end, every start of the last one is tried."""
    x = np.sort(row.astype(np.float64))
    x -= x[len(x) // 2]
    sums, squares = (np.concatenate([[0], np.cumsum(y)]) for y in (x, x * x))
    # errors[j, c] is that of the first j numbers in up to c clusters.
    errors = np.full((len(x) + 1, clusters + 1), np.inf)
    errors[0] = 0
    for j in range(1, len(x) + 1):
        total = sums[j] - sums[:j]
        cost = squares[j] - squares[:j] - total * total / np.arange(j, 0, -1)
        errors[j, 1:] = (errors[:j, :-1] + np.maximum(cost, 0)[:, np.newaxis]).min(axis=0)
    return float(errors[-1, -1])


def rounding(row: Rows) -> float:
    """What it may add to the squared error that a codebook is rounded to float32."""
    return len(row) * (2.0**-24 * float(np.abs(row).max())) ** 2


def of_kind(values: Rows, kind: int) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        return values.astype(np.float16) if kind else values


def reference_codes(row: Rows, book: Rows) -> list[int]:
    """The place of the nearest number, of two the lower, in exact arithmetic."""
    exact = [Fraction(float(value)) for value in book]
    return [min(range(len(book)), key=lambda k: (abs(Fraction(float(x)) - exact[k]), k)) for x in row]


def packed(codes: Table, bits: int) -> Table:
    each = np.unpackbits(codes[..., np.newaxis], axis=-1, count=bits, bitorder="little")
    return np.packbits(each.reshape(len(codes), -1), axis=1, bitorder="little")


def check_codebook(row: Rows, book: Rows, kind: int, codes: list[int]) -> None:
    """What is promised of every codebook, however it was chosen."""
    assert np.isfinite(book).all()
    assert np.array_equal(of_kind(book, kind).astype(np.float32), book)
    assert not np.signbit(book[book == 0]).any()
    used = max(codes) + 1
    assert sorted(set(codes)) == list(range(used))
    assert (np.diff(book[:used]) > 0).all()
    assert (book[used:] == book[used - 1]).all()


def check(rows: Rows, bits: int, kind: int) -> None:
    dim, size = rows.shape[1], size_of(bits, kind)
    table, books, bad = fused(rows, bits, kind)
    assert not table[bad].any()
    decoded = decode(table, bits, kind, dim)
    for row, book, is_bad, row_bytes, values in zip(rows, books, bad, table, decoded, strict=True):
        if is_bad:
            biggest = np.float32(65520) if kind else np.float32(np.inf)
            assert not (np.abs(row) < biggest).all()
            continue
        codes = reference_codes(row, book)
        check_codebook(row, book, kind, codes)
        assert row_bytes[:size].tobytes() == of_kind(book, kind).tobytes()
        assert np.array_equal(row_bytes[size:], packed(np.array([codes], np.uint8), bits)[0])
        assert np.array_equal(values, book[codes])
        if len(np.unique(row)) <= 1 << bits:
            assert np.array_equal(values, of_kind(row, kind).astype(np.float32))
    # What was decoded has the same codebook and codes.
    assert np.array_equal(fused(decoded, bits, kind)[0][~bad], table[~bad])


def peculiar(dim: int) -> Rows:
    rng = np.random.default_rng(dim)
    usual = rng.normal(0, 0.05, (3, dim)).astype(np.float32)
    return np.concatenate(
        [
            usual,
            np.where(rng.random((2, dim)) < 0.5, np.float32(0), np.float32(-0.0)),
            np.full((1, dim), 0.3, np.float32),
            np.linspace(-1, 1, dim, dtype=np.float32)[np.newaxis],
            np.sort(usual, axis=1)[:, ::-1],
            np.round(usual, 1),
            np.round(usual, 2),
            usual * np.float32(1e-38),
            usual * np.float32(1e-7),
            usual * np.float32(1e38),
            usual * np.float32(3e5),  # Around the greatest half.
            (rng.normal(0, 1, (6, dim)) * 10.0 ** rng.integers(-30, 30, (6, dim))).astype(np.float32),
            (1000 + rng.normal(0, 1e-3, (3, dim))).astype(np.float32),
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", BITS)
def test_every_dim(bits: int, kind: int) -> None:
    # All dims with one kind, since the exact arithmetic of the twin takes its time.
    for dim in DIMS if bits == 3 and kind == 0 else DIMS[::4]:
        check(peculiar(dim), bits, kind)


@examples(any_rows, st.sampled_from(BITS), st.sampled_from(KINDS))
def test_any_rows(rows: Rows, bits: int, kind: int) -> None:
    check(rows, bits, kind)


@examples(finite_rows, st.sampled_from(BITS))
def test_no_codebook_errs_less(rows: Rows, bits: int) -> None:
    table, _, bad = fused(rows, bits, 0)
    assert not bad.any()
    for row, decoded in zip(rows, decode(table, bits, 0, rows.shape[1]), strict=True):
        assert squared_error(row, decoded) <= least_error(row, 1 << bits) * (1 + 1e-9) + rounding(row)


def shapes(count: int) -> list[Rows]:
    """Elements of one row, distributed in several ways."""
    rng = np.random.default_rng(count)
    normal = rng.normal(0, 1, count)
    heavy = np.concatenate([normal[: count // 2], rng.standard_cauchy(count - count // 2)])
    return [row.astype(np.float32) for row in (normal, heavy, rng.random(count), np.round(normal, 1), normal**3 + 1000)]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [20, 60] if INTERPRETED else [48, 63, 64, 120, 255, 256, 257, 300, 1023, 1500])
def test_no_codebook_errs_less_on_wide_rows(count: int, bits: int) -> None:
    for row in shapes(count):
        books, _ = choose(row[np.newaxis], bits, 0)
        decoded = books[0][reference_codes(row, books[0])]
        assert squared_error(row, decoded) <= least_error(row, 1 << bits) * (1 + 1e-9) + rounding(row)


@pytest.mark.parametrize("bits", [2] if INTERPRETED else [2, 4])
def test_many_elements_are_put_into_bins(bits: int) -> None:
    for row in shapes(4097)[1 : 2 if INTERPRETED else 3]:
        books, _ = choose(row[np.newaxis], bits, 0)
        limits = (books[0, 1:].astype(np.float64) + books[0, :-1]) / 2
        decoded = books[0][np.searchsorted(limits, row)]
        assert squared_error(row, decoded) <= least_error(row, 1 << bits) * (1 + 1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_no_worse_than_scikit_learn(bits: int, trained: Rows) -> None:
    count, dim = (2, 17) if INTERPRETED else (6, 64)
    usual = np.random.default_rng(bits).normal(0, 1, (count, dim)).astype(np.float32)
    rows = np.concatenate([usual, trained[:count, :dim]])
    table, _, _ = fused(rows, bits, 0)
    for row, decoded in zip(rows, decode(table, bits, 0, dim), strict=True):
        peer = KMeans(1 << bits, n_init=4, random_state=0).fit(row.astype(np.float64)[:, np.newaxis])
        assert squared_error(row, decoded) <= peer.inertia_ + rounding(row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim", [1, 4, 7, 16, 33])
def test_one_that_is_not_finite_anywhere(kind: int, value: float, dim: int) -> None:
    for at in range(dim):
        rows = np.linspace(-1, 1, 3 * dim, dtype=np.float32).reshape(3, dim)
        rows[1, at] = value
        table, books, bad = fused(rows, 4, kind)
        assert bad.tolist() == [False, True, False]
        assert not table[1].any()
        assert not books[1].any()


def test_the_ends_of_half_precision() -> None:
    below = np.nextafter(np.float32(65520), np.float32(0))  # 65520 is the first that rounds to infinity.
    for value, bad in [(below, False), (-below, False), (65520, True), (-65520, True)]:
        assert choose(np.array([[0, value]], np.float32), 2, 1)[1].tolist() == [bad]
        assert choose(np.array([[0, value]], np.float32), 2, 0)[1].tolist() == [False]


def test_the_nearest_in_exact_arithmetic() -> None:
    # The middle of two numbers doesn't fit into 53 bits, and an element lies where it would be rounded to.
    for low, high in [(-1e-30, 1e30), (1e-30, 1e30), (-1e30, 1e-30), (-1e30, -1e-30), (-3e-45, 1e-45), (0, 1e-45)]:
        book = np.array([[low, high, high, high]], np.float32)
        middle = np.float32(book[0, 0] / 2 if abs(low) > abs(high) else book[0, 1] / 2)
        near = [middle, np.nextafter(middle, np.float32(1)), np.nextafter(middle, np.float32(-1)), np.float32(0)]
        rows = np.array([near], np.float32)
        codes = encode(rows, book, np.zeros(1, np.bool_), 2, 0)
        assert np.array_equal(codes, packed(np.array([reference_codes(rows[0], book[0])], np.uint8), 2))


def test_a_number_that_nothing_is_nearest_to_after_rounding_is_left_out() -> None:
    # Halves have steps of 1 here: 1025.4 and 1025.6 become 1025 and 1026, 1027.5 becomes 1028.
    rows = np.array([[1025.4, 1025.6, 1025.9, 1027.5, 1027.6, 2049.0, 2051.0]], np.float32)
    for bits in BITS:
        check(rows, bits, 1)
    # The mean of each cluster becomes 2048, the end of the other one is nearer to it than its own.
    rows = np.repeat(np.array([[2047.5, 2048.9, 2049.1, 2050.9]], np.float32), 40, axis=1)
    check(rows, 2, 1)


# Codebooks that rows share.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("block", "dim"), [(2, 1), (2, 9), (3, 16), (5, 7), (40, 5)])
def test_a_block_is_clustered_as_one_row_would_be(block: int, dim: int, bits: int, kind: int) -> None:
    rng = np.random.default_rng(block)
    rows = rng.normal(0, 1, (23, dim)).astype(np.float32)
    rows[[1, 9, 10, 11], rng.integers(0, dim, 4)] = [np.nan, np.inf, -np.inf, np.nan]
    books, bad = choose(rows, bits, kind, block)
    assert np.flatnonzero(bad).tolist() == [1, 9, 10, 11]
    for j, book in enumerate(books):
        sound = rows[j * block : (j + 1) * block][~bad[j * block : (j + 1) * block]]
        want = np.zeros(1 << bits, np.float32)
        if sound.size:
            want = choose(sound.reshape(1, -1), bits, kind)[0][0]
        assert np.array_equal(book, want)


def test_a_block_with_a_number_beyond_half_precision_is_bad() -> None:
    rows = np.ones((7, 4), np.float32)
    rows[3, 2] = 1e6
    books, bad = choose(rows, 2, 1, 3)
    assert bad.tolist() == [False, False, False, True, True, True, False]
    assert not books[1].any()
    assert choose(rows, 2, 0, 3)[1].tolist() == [False] * 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [1, 8, 17] if INTERPRETED else [1, 3, 8, 16, 50])
def test_shared_rows_from_anywhere(dim: int, bits: int, kind: int, trained: Rows, given: Give) -> None:
    rows, block = np.ascontiguousarray(trained[:60, :dim]), 7
    books, bad = choose(given(rows), bits, kind, block)
    assert not bad.any()
    section = np.empty((len(books), size_of(bits, kind)), np.uint8)
    codebooks.write_codebooks(given(books), kind, section)
    assert section.tobytes() == of_kind(books, kind).tobytes()
    codes = [reference_codes(row, books[i // block]) for i, row in enumerate(rows)]
    values = np.array([books[i // block][code] for i, code in enumerate(codes)])
    table = encode(given(rows), given(books), bad, bits, 0, block)
    assert np.array_equal(table, packed(np.array(codes, np.uint8), bits))
    again = choose(values, bits, kind, block)[0]
    assert np.array_equal(again, books)  # What was decoded has the same codebooks, and so the same codes.
    for first in (5, 7, 59):  # Any rows can be encoded apart, and decoded.
        assert np.array_equal(encode(rows[first:], books, bad[first:], bits, 0, block, first), table[first:])
    row_bytes = table.shape[1]
    for shift in (0, 1, 3):
        data = np.concatenate([np.full(shift, 0xEE, np.uint8), table.reshape(-1)])
        numbers = np.concatenate([np.full(shift, 0xEE, np.uint8), section.reshape(-1)])
        for first in (0, 5, 59):
            out = np.full((60 - first, dim), np.nan, np.float32)
            at = shift + first * row_bytes
            codebooks.decode_range_shared(given(data), at, first, bits, given(numbers), shift, kind, block, out)
            assert np.array_equal(out, values[first:])
        rng = np.random.default_rng(shift)
        picked, targets = rng.integers(0, 60, 45), rng.permutation(70)[:45]
        out = np.full((70, dim), 5, np.float32)
        codebooks.decode_rows_shared(
            given(data),
            given(picked * row_bytes + shift),
            given(picked),
            bits,
            given(numbers),
            shift,
            kind,
            block,
            out,
            given(targets),
        )
        want = np.full((70, dim), 5, np.float32)
        want[targets] = values[picked]
        assert np.array_equal(out, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [1, 8, 17] if INTERPRETED else [1, 3, 8, 16, 50])
def test_rows_from_anywhere(dim: int, bits: int, kind: int, trained: Rows, given: Give) -> None:
    rows = np.ascontiguousarray(trained[:60, :dim])
    table, books, _ = fused(given(rows), bits, kind)
    values = np.array([book[reference_codes(row, book)] for row, book in zip(rows, books, strict=True)])
    for shift in (0, 1, 3):  # A mapped section starts anywhere in what a caller hands in.
        data = np.concatenate([np.full(shift, 0xEE, np.uint8), table.reshape(-1)])
        out = np.full((60, dim), np.nan, np.float32)
        codebooks.decode_range(given(data), shift, bits, kind, out)
        assert np.array_equal(out, values)
        rng = np.random.default_rng(shift)
        picked, targets = rng.integers(0, 60, 45), rng.permutation(70)[:45]
        offsets = picked * table.shape[1] + shift
        out = np.full((70, dim), 5, np.float32)
        codebooks.decode_rows(given(data), given(offsets), bits, kind, out, given(targets))
        want = np.full((70, dim), 5, np.float32)
        want[targets] = values[picked]
        assert np.array_equal(out, want)


@pytest.mark.parametrize("bits", BITS)
def test_every_half_widens(bits: int) -> None:
    halves = np.arange(0, 65536, 97 if INTERPRETED else 1, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))]
    halves = halves[: len(halves) - len(halves) % 16]
    for dim in (8, 7):  # As vectors, and one by one.
        size = 1 << bits
        books = halves.reshape(-1, size).view(np.uint8)
        codes = np.arange(dim, dtype=np.uint8)[np.newaxis] % size
        rows = np.concatenate([books, np.repeat(packed(codes, bits), len(books), axis=0)], axis=1)
        found = decode(rows, bits, 1, dim)
        want = halves.reshape(-1, size).view(np.float16).astype(np.float32)[:, codes[0]]
        assert np.array_equal(found.view(np.uint32), want.view(np.uint32))
