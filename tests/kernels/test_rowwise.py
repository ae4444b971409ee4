"""Row-wise codes, bit for bit: against the operators of FBGEMM, and against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fbgemm_gpu  # noqa: F401  It registers the operators.
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import rowwise
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Rows = npt.NDArray[np.float32]
Table = npt.NDArray[np.uint8]
DIMS = [1, 2, 3, 4, 5, 8, 15, 16, 17, 24, 36] if INTERPRETED else range(1, 301)
BITS = [8, 4, 2]


def row_bytes(dim: int, bits: int) -> int:
    return -(-dim * bits // 8) + (8 if bits == 8 else 4)


def encode(rows: Rows, bits: int) -> tuple[Table, npt.NDArray[np.uint8]]:
    out = np.full((len(rows), row_bytes(rows.shape[1], bits)), 0xAA, np.uint8)
    bad = np.full(len(rows), 7, np.uint8)
    of_bits = () if bits == 8 else (bits,)
    kernel = rowwise.encode_rows_8 if bits == 8 else rowwise.encode_rows_nbit
    assert kernel(rows, *of_bits, out, bad) == bad.sum()
    assert not out[bad == 1].any()
    return out, bad


def decode_range(data: Table, bits: int, dim: int, offset: int = 0) -> Rows:
    out = np.full(((data.size - offset) // row_bytes(dim, bits), dim), np.nan, np.float32)
    if bits == 8:
        rowwise.decode_range_8(data, offset, out)
    else:
        rowwise.decode_range_nbit(data, offset, bits, out)
    return out


# References in numpy.


def parameters(table: Table, bits: int) -> tuple[Rows, Rows]:
    """Scale and bias of each row, as float32 columns."""
    kind, size = (np.float32, 4) if bits == 8 else (np.float16, 2)
    scale, bias = table[:, -2 * size : -size], table[:, -size:]
    return tuple(np.ascontiguousarray(x).view(kind).astype(np.float32) for x in (scale, bias))


def codes_of(table: Table, bits: int, dim: int) -> Table:
    packed = table[:, : -(-dim * bits // 8)]
    codes = np.stack([packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], axis=2)
    codes = codes.reshape(len(table), -1)
    assert not codes[:, dim:].any()  # What is left over of the last byte is zero.
    return codes[:, :dim]


def reference_values(table: Table, bits: int, dim: int) -> Rows:
    """Two roundings: of the product, then of the sum."""
    scale, bias = parameters(table, bits)
    product = codes_of(table, bits, dim).astype(np.float32) * scale
    return product + bias


def reference_codes(rows: Rows, bits: int) -> tuple[Table, npt.NDArray[np.bool_]]:
    """Codes and parameters as the specification words the writer's choice, and the rows it can't hold.

    The sign of a bias that is zero is left out of it: a row may hold zeros of both.
    """
    top = np.float32((1 << bits) - 1)
    table = np.zeros((len(rows), row_bytes(rows.shape[1], bits)), np.uint8)
    bad = np.zeros(len(rows), np.bool_)
    for i, row in enumerate(rows):
        with np.errstate(all="ignore"):
            low, high = row.min(), row.max()
            if bits == 8:
                reach = high - low
                scale, inverse = reach / top, top / (reach + np.float32(1e-8))
                bias: Any = low
            else:
                bias = np.float16(low)
                low = np.float32(bias)
                scale = np.float16((high - low) / top)
                inverse = np.float32(1) / np.float32(scale)
                if scale == 0 or np.isinf(inverse):
                    scale, inverse = np.float16(1), np.float32(1)
            if not (np.isfinite(row).all() and np.isfinite(scale) and np.isfinite(bias)):
                bad[i] = True
                continue
            codes = np.clip(np.rint((row - low) * inverse), 0, top).astype(np.uint8)
        codes = np.pad(codes, (0, -len(codes) % (8 // bits))).reshape(-1, 8 // bits)
        packed = np.bitwise_or.reduce(codes << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
        table[i] = np.concatenate([packed, np.array([scale, bias]).view(np.uint8)])
    return table, bad


def without_sign_of_zero(table: Table, bits: int) -> Table:
    table = table.copy()
    scale, bias = parameters(table, bits)
    table[(bias == 0).ravel(), -1] &= 0x7F
    table[(scale == 0).ravel(), -1 - (4 if bits == 8 else 2)] &= 0x7F
    return table


def operator(rows: Rows, bits: int) -> Table:
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    if bits == 8:
        return torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(tensor).numpy()
    return torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(tensor, bits).numpy()


def peculiar(dim: int) -> Rows:
    """Rows of every kind that has tripped an encoder: constant, zero, tiny, huge, of both zeros."""
    rng = np.random.default_rng(dim)
    usual = rng.normal(0, 0.05, (3, dim)).astype(np.float32)
    zeros = np.where(rng.random((3, dim)) < 0.5, np.float32(0), np.float32(-0.0))
    bits = rng.integers(0, 2**32, (6, dim), dtype=np.uint32).view(np.float32)
    spread = 10.0 ** rng.integers(-12, 6, (6, 1))
    with np.errstate(over="ignore"):
        return np.concatenate(
            [
                usual,
                zeros,
                np.zeros((1, dim), np.float32),
                np.full((1, dim), -0.0, np.float32),
                np.maximum(usual, zeros),
                np.minimum(usual, zeros),
                np.full((1, dim), 0.3, np.float32),
                np.full((1, dim), -1e-40, np.float32),
                np.repeat(rng.normal(0, 1, (3, 1)).astype(np.float32), dim, axis=1),
                np.linspace(-1, 1, dim, dtype=np.float32)[np.newaxis],
                usual * np.float32(1e-38),
                usual * np.float32(1e-7),
                usual * np.float32(1e38),
                usual * np.float32(3e5),  # Around the greatest half.
                np.where(np.isfinite(bits), bits, np.float32(1)),
                (rng.normal(0, 1, (6, dim)) * spread).astype(np.float32),
                (1 + rng.normal(0, 1, (6, dim)) * spread).astype(np.float32),
            ]
        ).astype(np.float32)


@pytest.mark.parametrize("bits", BITS)
def test_the_operators_bits(bits: int) -> None:
    # The operators want an even number of bytes of codes.
    for dim in DIMS if bits == 8 else [16 // bits * n for n in DIMS][: 80 if bits == 4 else 40]:
        rows = peculiar(dim)
        table, bad = encode(rows, bits)
        want = operator(rows, bits)
        sound = np.isfinite(np.concatenate(parameters(want, bits), axis=1)).all(axis=1)
        assert np.array_equal(bad == 0, sound), dim
        assert np.array_equal(table[sound], want[sound]), dim


@pytest.mark.parametrize("bits", BITS)
def test_the_operators_bits_on_a_trained_table(bits: int, trained: Rows, given: Give) -> None:
    table, bad = encode(given(trained), bits)
    assert not bad.any()
    assert np.array_equal(table, operator(trained, bits))
    assert np.array_equal(decode_range(given(table.reshape(-1)), bits, 256), reference_values(table, bits, 256))


@pytest.mark.parametrize("bits", BITS)
def test_every_dim(bits: int) -> None:
    for dim in DIMS if INTERPRETED else [*range(1, 70), 100, 127, 129, 300]:
        rows = peculiar(dim)
        table, bad = encode(rows, bits)
        want, want_bad = reference_codes(rows, bits)
        assert np.array_equal(bad == 1, want_bad), dim
        table, want = (without_sign_of_zero(t, bits) for t in (table, want))
        assert np.array_equal(table, want), dim


@examples(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.integers(1, 40)),
        elements=st.floats(width=32) | st.sampled_from([0.0, -0.0, np.nan, np.inf, 65504.0, 65520.0]),
    ),
    st.sampled_from(BITS),
)
def test_any_rows(rows: Rows, bits: int) -> None:
    table, bad = encode(rows, bits)
    want, want_bad = reference_codes(rows, bits)
    assert np.array_equal(bad == 1, want_bad)
    assert np.array_equal(without_sign_of_zero(table, bits), without_sign_of_zero(want, bits))
    found = decode_range(table.reshape(-1), bits, rows.shape[1])
    want_values = reference_values(table, bits, rows.shape[1])
    assert np.array_equal(found.view(np.uint32), want_values.view(np.uint32))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim", [1, 4, 7, 16, 33])
def test_one_that_is_not_finite_anywhere(bits: int, value: float, dim: int) -> None:
    for at in range(dim):
        rows = np.linspace(-1, 1, 3 * dim, dtype=np.float32).reshape(3, dim)
        rows[1, at] = value
        assert encode(rows, bits)[1].tolist() == [0, 1, 0]


def test_the_ends_of_half_precision() -> None:
    # 65520 is the first that rounds to infinity.
    below = np.nextafter(np.float32(65520), np.float32(0))
    for least, greatest, bad in [
        (-below, 0, 0),
        (-65520, 0, 1),
        (0, below * 15, 0),
        (0, 65520 * 15, 1),
        (-60000, 900000, 0),
        (below, 1e6, 0),
    ]:
        rows = np.array([[least, greatest]], np.float32)
        assert encode(rows, 4)[1].tolist() == [bad], (least, greatest)


@pytest.mark.parametrize("bits", BITS)
def test_blocks_of_rows(bits: int) -> None:
    # Rows are encoded in blocks, in which the bad ones are passed over.
    rng = np.random.default_rng(bits)
    for count in [0, 1, 15, 16, 17, 40]:
        rows = rng.normal(0, 1, (count, 8)).astype(np.float32)
        rows[rng.random(count) < 0.3, 3] = np.nan
        table, bad = encode(rows, bits)
        assert np.array_equal(bad == 1, np.isnan(rows[:, 3]))
        assert np.array_equal(table, reference_codes(rows, bits)[0])


@pytest.mark.parametrize("bits", BITS)
def test_decoding_rounds_twice(bits: int, given: Give) -> None:
    # Any parameters, not those alone that an encoder writes; the sum of doubles stands for a fused
    # multiplication and addition, which must not be what comes out.
    rng = np.random.default_rng(bits)
    differ = 0
    for dim in DIMS if INTERPRETED else [*range(1, 40), 64, 100, 256, 257]:
        kind = np.float32 if bits == 8 else np.float16
        table = rng.integers(0, 256, (10, row_bytes(dim, bits)), dtype=np.uint8)
        if used := dim * bits % 8:
            table[:, dim * bits // 8] &= (1 << used) - 1
        pair = rng.normal(0, 1, (10, 2)).astype(kind)
        table[:, -pair[0].nbytes :] = pair.view(np.uint8)
        want = reference_values(table, bits, dim)
        found = decode_range(given(table.reshape(-1)), bits, dim)
        assert np.array_equal(found.view(np.uint32), want.view(np.uint32)), dim
        scale, bias = (x.astype(np.float64) for x in parameters(table, bits))
        fused = (codes_of(table, bits, dim) * scale + bias).astype(np.float32)
        differ += np.count_nonzero(fused != found)
    assert differ or bits < 8  # 15 times a half fits into a float32: there is nothing to round.


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [1, 3, 6, 16, 50, 256])
def test_rows_from_anywhere(bits: int, dim: int, trained: Rows, given: Give) -> None:
    rows = trained[:60, :dim].copy()
    table, _ = encode(rows, bits)
    values = reference_values(table, bits, dim)
    for shift in (0, 1, 3):  # A mapped section starts anywhere in what a caller hands in.
        data = np.concatenate([np.full(shift, 0xEE, np.uint8), table.reshape(-1)])
        assert np.array_equal(decode_range(data, bits, dim, shift), values)
        rng = np.random.default_rng(shift)
        picked, targets = rng.integers(0, 60, 45), rng.permutation(70)[:45]
        offsets = picked * row_bytes(dim, bits) + shift
        out = np.full((70, dim), 5, np.float32)
        if bits == 8:
            rowwise.decode_rows_8(given(data), given(offsets), out, given(targets))
        else:
            rowwise.decode_rows_nbit(given(data), given(offsets), bits, out, given(targets))
        want = np.full((70, dim), 5, np.float32)
        want[targets] = values[picked]
        assert np.array_equal(out, want)
