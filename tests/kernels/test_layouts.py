"""Rows of codes in every layout against plain numpy, and against FBGEMM's operators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from hypothesis import given as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnrfmt.kernels import layouts, rowwise
from cnrfmt.kernels._jit import INTERPRETED
from tests.kernels.geometries import (
    KINDS,
    PARAMETERS,
    Geometry,
    Rows,
    Table,
    every,
    groups_of,
    head,
    packed,
    reference_rows,
    reference_values,
    spread,
    tail,
)

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
BITS = range(2, 9)
DIMS = [1, 3, 7, 8, 9, 16, 20, 33] if INTERPRETED else [*range(1, 301), 4096]


def some_rows(dim: int, count: int = 5) -> Rows:
    return np.random.default_rng(dim).normal(0, 1, (count, dim)).astype(np.float32)


def some_parameters(rows: Rows, geometry: Geometry) -> tuple[Rows, Rows]:
    """Scales with which some codes are clamped, and biases; numbers of their kinds, and a scale of 0."""
    rng = np.random.default_rng(geometry.row_bytes)
    shape = len(rows), groups_of(rows.shape[1], geometry.group)
    scales = rng.uniform(2, 5, shape) / (1 << geometry.bits)
    scales[rng.random(shape) < 0.1] = 0
    biases = rng.normal(-1.5, 0.3, shape)
    kinds = (KINDS[max(kind, 0)] for kind in (geometry.scale_kind, geometry.bias_kind))
    return tuple(x.astype(kind).astype(np.float32) for x, kind in zip((scales, biases), kinds, strict=True))


def encode(rows: Rows, scales: Rows, biases: Rows, bad: Table, geometry: Geometry) -> Table:
    """Encoded rows; what lies before and after them must be left alone."""
    size = len(rows) * geometry.row_bytes
    memory = np.full(size + 128, 0xAA, np.uint8)
    out = memory[64 : 64 + size].reshape(len(rows), geometry.row_bytes)
    layouts.encode_codes(rows, scales, biases, bad, *geometry, out)
    assert (memory[:64] == 0xAA).all()
    assert (memory[64 + size :] == 0xAA).all()
    return out


def decode(data: Table, geometry: Geometry, dim: int, offset: int = 0) -> Rows:
    """Decoded rows; what lies before and after them must be left alone."""
    count = (data.size - offset) // geometry.row_bytes
    memory = np.full(count * dim + 32, np.float32(7))
    out = memory[16 : 16 + count * dim].reshape(count, dim)
    layouts.decode_range(data, offset, *geometry, out)
    assert (memory[:16] == 7).all()
    assert (memory[16 + count * dim :] == 7).all()
    return out


def same(a: Rows, b: Rows) -> bool:
    """Equal bit for bit, signs of zeros too."""
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def finite_parameters(table: Table, geometry: Geometry, rng: np.random.Generator, dim: int) -> Table:
    """The rows with parameters that are finite, of any magnitude."""
    groups = groups_of(dim, geometry.group)
    for at, kind in ((geometry.scales_at, geometry.scale_kind), (geometry.biases_at, geometry.bias_kind)):
        if kind >= 0:
            numbers = rng.normal(0, 1, (len(table), groups)) * 10.0 ** rng.integers(-4, 4, (len(table), 1))
            data = numbers.astype(KINDS[kind]).view(np.uint8).reshape(len(table), -1)
            table[:, at : at + data.shape[1]] = data
    return table


@pytest.mark.parametrize("bits", BITS)
def test_every_dim(bits: int) -> None:
    for dim in DIMS:
        rows = some_rows(dim)
        bad = np.array([0, 0, 1, 0, 0], np.uint8)
        geometries = every(bits, dim)
        # They differ in how a row starts and ends, of which the first dims are every case.
        for geometry in geometries if dim < 50 else geometries[dim % 7 :: 7]:
            scales, biases = some_parameters(rows, geometry)
            table = encode(rows, scales, biases, bad, geometry)
            assert np.array_equal(table, reference_rows(rows, scales, biases, bad, geometry)), (dim, geometry)
            table[2] = table[3]
            assert same(decode(table.reshape(-1), geometry, dim), reference_values(table, geometry, dim)), (
                dim,
                geometry,
            )


@pytest.mark.parametrize("bits", BITS)
def test_any_bytes(bits: int, given: Give) -> None:
    # Whatever codes and parameters there are, a row may start at any byte.
    rng = np.random.default_rng(bits)
    for dim in DIMS[:8] if INTERPRETED else [*range(1, 40), 64, 100, 256, 257]:
        for geometry in every(bits, dim):
            table = rng.integers(0, 256, (6, geometry.row_bytes), dtype=np.uint8)
            table = finite_parameters(table, geometry, rng, dim)
            want = reference_values(table, geometry, dim)
            for shift in (0, 1, 3):
                data = np.concatenate([np.full(shift, 0xEE, np.uint8), table.reshape(-1)])
                assert same(decode(given(data), geometry, dim, shift), want), (dim, geometry)


@pytest.mark.parametrize("bits", BITS)
def test_rows_from_anywhere(bits: int, given: Give) -> None:
    rng = np.random.default_rng(bits)
    for dim in (1, 6, 16, 50):
        for geometry in every(bits, dim):
            table = rng.integers(0, 256, (60, geometry.row_bytes), dtype=np.uint8)
            table = finite_parameters(table, geometry, rng, dim)
            values = reference_values(table, geometry, dim)
            data = np.concatenate([np.full(3, 0xEE, np.uint8), table.reshape(-1)])
            picked, targets = rng.integers(0, 60, 45), rng.permutation(70)[:45]
            offsets = picked * geometry.row_bytes + 3
            out = np.full((70, dim), 5, np.float32)
            layouts.decode_rows(given(data), given(offsets), *geometry, out, given(targets))
            want = np.full((70, dim), 5, np.float32)
            want[targets] = values[picked]
            assert same(out, want), (dim, geometry)


@pytest.mark.parametrize("bits", [7, 8])
def test_decoding_rounds_twice(bits: int) -> None:
    # A fused multiplication and addition, which the sum of doubles stands for, gives something else.
    rng = np.random.default_rng(bits)
    dim = 64
    geometry = packed(bits, dim, dim, 0, 0)
    table = rng.integers(0, 256, (200, geometry.row_bytes), dtype=np.uint8)
    table[:, geometry.scales_at :] = rng.normal(0, 1, (200, 2)).astype(np.float32).view(np.uint8)
    found = decode(table.reshape(-1), geometry, dim)
    assert same(found, reference_values(table, geometry, dim))
    ones = table.copy()
    ones[:, geometry.biases_at :] = 0
    exact = np.ascontiguousarray(table[:, geometry.scales_at :]).view(np.float32).astype(np.float64)
    codes = np.rint(decode(ones.reshape(-1), geometry, dim) / exact[:, :1])
    assert (found != (codes * exact[:, :1] + exact[:, 1:]).astype(np.float32)).any()


def test_what_is_not_finite_becomes_zero(given: Give) -> None:
    rows = some_rows(24)
    rows[1, 3], rows[3] = np.nan, np.inf
    bad = np.array([0, 1, 0, 1, 0], np.uint8)
    for bits in BITS:
        for geometry in every(bits, 24):
            scales, biases = some_parameters(rows, geometry)
            scales[bad == 1], biases[bad == 1] = np.nan, np.inf
            table = encode(given(rows), given(scales), given(biases), given(bad), geometry)
            assert not table[bad == 1].any()
            good = bad == 0
            want = reference_rows(rows[good], scales[good], biases[good], bad[good], geometry)
            assert np.array_equal(table[good], want)


def test_a_row_without_bias_and_scale_is_zero() -> None:
    for bits in BITS:
        for dim in (3, 16, 21):
            geometry = packed(bits, dim, dim, 0, -1)
            zero = np.zeros((1, 1), np.float32)
            bad = np.zeros(1, np.uint8)
            table = encode(np.full((1, dim), -0.4, np.float32), zero, zero, bad, geometry)
            assert same(decode(table.reshape(-1), geometry, dim), np.zeros((1, dim), np.float32))


def test_a_scale_whose_inverse_is_infinite() -> None:
    # No choice of parameters here leads to it, but codes must be within bounds all the same.
    for bits in BITS:
        for kinds in PARAMETERS:
            geometry = packed(bits, 16, 16, *kinds)
            scales = np.full((1, 1), 2.0**-133 if kinds[0] != 1 else 2.0**-24, np.float32)
            rows, biases, bad = some_rows(16, 1), np.zeros((1, 1), np.float32), np.zeros(1, np.uint8)
            table = encode(rows, scales, biases, bad, geometry)
            assert np.array_equal(table, reference_rows(rows, scales, biases, bad, geometry))


@examples(
    arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 40)), elements=st.floats(-4, 4, width=32)),
    st.sampled_from(BITS),
    st.integers(0, 19),
    st.data(),
)
def test_cut_anywhere(rows: Rows, bits: int, cut: int, data: st.DataObject) -> None:
    # A row comes out the same whichever call encodes or decodes it.
    geometry = data.draw(st.sampled_from(every(bits, rows.shape[1])))
    scales, biases = some_parameters(rows, geometry)
    bad = np.zeros(len(rows), np.uint8)
    table = encode(rows, scales, biases, bad, geometry)
    parts = [encode(rows[i], scales[i], biases[i], bad[i], geometry) for i in (slice(0, cut), slice(cut, None))]
    assert np.array_equal(np.concatenate(parts), table)
    values = decode(table.reshape(-1), geometry, rows.shape[1])
    rest = decode(table.reshape(-1), geometry, rows.shape[1], min(cut, len(rows)) * geometry.row_bytes)
    assert same(rest, values[cut:])


# Decodes rows that lie at the end of readable memory, or at its start, and encodes into such.
AT_THE_EDGE = """
import ctypes, mmap
import numpy as np
from cnrfmt.kernels import layouts
from tests.kernels.geometries import every, groups_of

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * page)
everything = np.frombuffer(memory, np.uint8)
protect = ctypes.CDLL(None, use_errno=True).mprotect
for closed in (0, 2 * page):
    assert protect(ctypes.c_void_p(everything.ctypes.data + closed), ctypes.c_size_t(page), 0) == 0
for bits in range(2, 9):
    for dim in (1, 5, 8, 9, 15, 16, 17, 24, 29, 31, 48, 50):
        for geometry in every(bits, dim):
            rows = np.ones((2, dim), np.float32)
            some = np.ones((2, groups_of(dim, geometry.group)), np.float32)
            size = 2 * geometry.row_bytes
            for first in (page, 2 * page - size):
                edge = everything[first : first + size]
                bad = np.zeros(2, np.uint8)
                layouts.encode_codes(rows, some, some, bad, *geometry, edge.reshape(2, -1))
                out = np.empty((2, dim), np.float32)
                layouts.decode_range(edge, 0, *geometry, out)
                layouts.decode_rows(edge, np.array([0, size // 2]), *geometry, out, np.array([1, 0]))
                assert (out == 1).all(), (bits, dim, geometry)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages by mprotect")
def test_nothing_outside_of_a_row_is_touched() -> None:
    # A mapped file ends with its last row, and so may memory.
    subprocess.run([sys.executable, "-c", AT_THE_EDGE], check=True, timeout=600)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_tail_is_what_the_kernels_of_its_own_write(bits: int) -> None:
    for dim in DIMS[:8] if INTERPRETED else range(1, 70):
        rows, geometry = some_rows(dim), tail(bits, dim)
        table, bad = np.empty((5, geometry.row_bytes), np.uint8), np.empty(5, np.uint8)
        if bits == 8:
            rowwise.encode_rows_8(rows, table, bad)
        else:
            rowwise.encode_rows_nbit(rows, bits, table, bad)
        want = np.empty_like(rows)
        if bits == 8:
            rowwise.decode_range_8(table.reshape(-1), 0, want)
        else:
            rowwise.decode_range_nbit(table.reshape(-1), 0, bits, want)
        assert same(decode(table.reshape(-1), geometry, dim), want)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("pooling", [PoolingMode.NONE, PoolingMode.SUM])
def test_head_is_what_the_operator_reads(bits: int, pooling: PoolingMode) -> None:
    # Bit for bit, with one id per bag: a code times a half-precision scale is exact in float32.
    kind = {8: SparseType.INT8, 4: SparseType.INT4, 2: SparseType.INT2}[bits]
    for dim in (4, 8, 12, 16, 20, 64, 100, 128, 256, 300):
        geometry = head(bits, dim)
        rng = np.random.default_rng(dim)
        table = rng.integers(0, 256, (30, geometry.row_bytes), dtype=np.uint8)
        table = finite_parameters(table, geometry, rng, dim)
        operator = IntNBitTableBatchedEmbeddingBagsCodegen(
            [("table", 30, dim, kind, EmbeddingLocation.HOST)],
            device="cpu",
            output_dtype=SparseType.FP32,
            pooling_mode=pooling,
            row_alignment=16,
        )
        operator.initialize_weights()
        ((weights, _),) = operator.split_embedding_weights(split_scale_shifts=False)
        assert weights.shape == table.shape
        weights.copy_(torch.from_numpy(table))
        found = operator(torch.arange(30, dtype=torch.int32), torch.arange(31, dtype=torch.int32)).numpy()
        assert np.array_equal(found, decode(table.reshape(-1), geometry, dim)), dim


def test_groups_have_parameters_of_their_own() -> None:
    # The reference spreads them over the elements; here it is said by hand.
    assert spread(np.array([[1, 2, 3]], np.float32), 8, 20).tolist() == [[1.0] * 8 + [2.0] * 8 + [3.0] * 4]
    geometry = packed(4, 20, 8, 1, 1)
    assert geometry == (4, 8, 0, 10, 16, 1, 1, 22)
    rows = np.repeat(np.array([[10, 20, 30]], np.float32), [8, 8, 4], axis=1)
    scales, biases = np.array([[1, 2, 4]], np.float32), np.array([[3, 2, 2]], np.float32)
    table = encode(rows, scales, biases, np.zeros(1, np.uint8), geometry)
    assert table[0].tolist() == [
        *[0x77] * 4,
        *[0x99] * 4,
        *[0x77] * 2,
        *np.array([1, 2, 4, 3, 2, 2], np.float16).view(np.uint8),
    ]
