"""Rows that inference operators read as they are, against the operators themselves."""

from __future__ import annotations

from typing import Any

import fbgemm_gpu  # noqa: F401  (registers the operators)
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cnrfmt.encodings import Encoded, Encoder, Recipe, coder, encoder
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.format.scheme import Scheme

Array = npt.NDArray[Any]
F32, F16 = np.float32, np.float16
BITS = (8, 4, 2)


def tail(bits: int) -> RowwiseLayout:
    parameter = "float32" if bits == 8 else "float16"
    return RowwiseLayout(bits, "tail", parameter, parameter)


def encoder_of(bits: int) -> Encoder:
    return encoder(Recipe(tail(bits), Scheme("asymmetric")))


def encode(rows: Array, bits: int) -> tuple[Array, Array]:
    done: Encoded = encoder_of(bits).encode(rows)
    return done.data, done.bad


def _plain_encode(row: Array, bits: int) -> bytes | None:
    """A row by section 6 of the specification, step by step in float32; None if it can't be held."""
    low, high = row.min(), row.max()
    with np.errstate(all="ignore"):
        if bits == 8:
            span = F32(high - low)
            scale, bias = F32(span / F32(255)), low
            codes = np.rint((row - low) * F32(F32(255) / F32(span + F32(1e-8))))
            parameters = np.array([scale, bias], F32)
        else:
            bias = F32(F16(low))
            scale = F32(F16(F32(F32(high - bias) / F32(2**bits - 1))))
            if scale == 0 or np.isinf(F32(1) / scale):
                scale = F32(1)
            codes = np.clip(np.rint((row - bias) * F32(F32(1) / scale)), 0, 2**bits - 1)
            parameters = np.array([scale, bias], F16)
    if not (np.isfinite(row).all() and np.isfinite(parameters).all()):
        return None
    number = sum(int(code) << (k * bits) for k, code in enumerate(codes))
    return number.to_bytes(-(-len(row) * bits // 8), "little") + parameters.tobytes()


def _plain_held(row: Array, bits: int) -> bytes | None:
    """The same; None also if it would be off by more than a row of zeros is."""
    data = _plain_encode(row, bits)
    if data is None:
        return None
    given = row.astype(np.float64)
    change = np.linalg.norm(_plain_decode(data, bits, len(row)).astype(np.float64) - given)
    return data if change <= np.linalg.norm(given) else None


def _plain_decode(data: bytes, bits: int, width: int) -> Array:
    size = -(-width * bits // 8)
    number = int.from_bytes(data[:size], "little")
    codes = np.array([number >> (k * bits) & (2**bits - 1) for k in range(width)], F32)
    scale, bias = np.frombuffer(data[size:], F32 if bits == 8 else F16).astype(F32)
    with np.errstate(all="ignore"):
        values: Array = codes * scale + bias
    assert values.dtype == F32
    return values


def _operator_encode(rows: Array, bits: int) -> Array:
    """What FBGEMM's own operator makes of the rows."""
    tensor = torch.from_numpy(rows)
    if bits == 8:
        found = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(tensor)
    else:
        found = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(tensor, bits)
    encoded: Array = found.numpy()
    return encoded


def _operator_decode(encoded: Array, bits: int) -> Array:
    tensor = torch.from_numpy(encoded)
    if bits == 8:
        found = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(tensor)
    else:
        found = torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(tensor, bits)
    values: Array = found.numpy()
    return values


@pytest.fixture(params=["embeddings", "hours"])
def rows(request: pytest.FixtureRequest) -> Array:
    """3000 real rows: token embeddings, or counts with many constant rows."""
    table: Array = request.getfixturevalue(request.param)
    return np.ascontiguousarray(table[:3000])


@pytest.mark.parametrize("bits", BITS)
def test_real_rows_are_encoded_as_the_operator_does_bit_for_bit(rows: Array, bits: int) -> None:
    encoded, bad = encode(rows, bits)
    assert bad.size == 0
    want = _operator_encode(rows, bits)
    assert tail(bits).row_bytes(rows.shape[1]) == want.shape[1]
    assert encoded.tobytes() == want.tobytes()


@pytest.mark.parametrize("bits", BITS)
def test_real_rows_decode_as_specified_and_near_what_operators_read(rows: Array, bits: int) -> None:
    encoded, _ = encode(rows, bits)
    out = np.empty_like(rows)
    coder(tail(bits)).decode_range(encoded, 0, out)
    stored = encoded.reshape(len(rows), -1)
    want = [_plain_decode(row.tobytes(), bits, rows.shape[1]) for row in stored[::7]]
    assert out[::7].tobytes() == np.stack(want).tobytes()
    # Operators may contract product and sum into one rounding, and sum in another order.
    np.testing.assert_allclose(out, _operator_decode(stored, bits), rtol=1e-6, atol=1e-6)
    steps = np.ptp(rows, axis=1, keepdims=True) / (2**bits - 1)
    half = np.abs(rows).max() * 2**-10 if bits < 8 else 1e-6
    assert (np.abs(out - rows) <= 0.51 * steps + half).all()


@pytest.mark.parametrize("bits", BITS)
def test_pooling_operators_read_the_encoded_rows(embeddings: Array, bits: int) -> None:
    rows = embeddings[:500]
    encoded, _ = encode(rows, bits)
    out = np.empty_like(rows)
    coder(tail(bits)).decode_range(encoded, 0, out)
    bags = torch.tensor([[3, 499, 3], [0, 17, 250]])
    name = {8: "byte", 4: "4bit", 2: "2bit"}[bits]
    operator = getattr(torch.ops.quantized, f"embedding_bag_{name}_rowwise_offsets")
    found = operator(
        torch.from_numpy(encoded.reshape(len(rows), -1)),
        bags.reshape(-1),
        torch.tensor([0, 3]),
    )
    np.testing.assert_allclose(found, out[bags.numpy()].sum(axis=1), rtol=1e-5, atol=1e-5)


# Every finite number, and now and then what no encoding holds.
_ELEMENTS = st.one_of(
    st.floats(-2, 2, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(width=32),
    st.sampled_from([0.0, 65504.0, 65520.0, -65519.0, 6e-8, 3.3999999521443642e38, 1e-45]),
).map(lambda x: x + 0.0)  # The sign of a zero bias depends on the order of zeros: tested apart.


@pytest.mark.parametrize("bits", BITS)
@given(
    rows=st.tuples(st.integers(0, 5), st.integers(1, 21)).flatmap(
        lambda shape: hnp.arrays(F32, shape, elements=_ELEMENTS, fill=st.nothing())
    )
)
@example(rows=np.zeros((1, 1), F32))
@example(rows=np.array([[np.nan, 1], [1, 2], [np.inf, 0], [-np.inf, 0]], F32))
@example(rows=np.array([[-3.4e38, 3.4e38], [7e4, 7e4], [-7e4, 0], [0, 3e5], [0, 3e4]], F32))
def test_any_rows(bits: int, rows: Array) -> None:
    encoding = coder(tail(bits))
    count, width = rows.shape
    row_bytes = tail(bits).row_bytes(width)
    encoded, bad = encode(rows, bits)
    want = [_plain_held(row, bits) for row in rows]
    assert bad.tolist() == [i for i, row in enumerate(want) if row is None]
    assert bad.dtype == np.int64
    assert encoded.tobytes() == b"".join(row or bytes(row_bytes) for row in want)
    assert encoding.find_padding(encoded, 0, count, width) == -1
    assert encoding.find_parameter(encoded, 0, count, width) == -1

    # Rows in any order, from read-only bytes at any offset, into any place.
    stored = np.concatenate([np.full(5, 255, np.uint8), encoded])
    stored.flags.writeable = False
    offsets = 5 + row_bytes * np.arange(count, dtype=np.int64)[::-1]
    targets = np.arange(count, dtype=np.int64)[::-1] + 1
    out = np.full((count + 2, width), 7, F32)
    encoding.decode_rows(stored, offsets, out, targets)
    decoded = b"".join(_plain_decode(row or bytes(row_bytes), bits, width).tobytes() for row in want)
    assert out[1:-1].tobytes() == decoded
    assert (out[[0, -1]] == 7).all()
    encoding.decode_range(stored, 5, out[2:])
    assert out[2:].tobytes() == decoded


@pytest.mark.parametrize(
    ("bits", "width"),
    # The operators' own code for fewer bits wants rows of an even number of code bytes.
    [(8, 1), (8, 7), (8, 13), (8, 64), (4, 4), (4, 12), (4, 20), (4, 64), (2, 8), (2, 24), (2, 64)],
)
def test_zeros_of_both_signs_are_encoded_as_the_operator_does(bits: int, width: int) -> None:
    rng = np.random.default_rng(width)
    rows = rng.choice(np.array([0.0, -0.0, 1.0], F32), (300, width), p=[0.45, 0.45, 0.1])
    rows[::2] *= -1
    encoded, _ = encode(rows, bits)
    assert encoded.tobytes() == _operator_encode(rows, bits).tobytes()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 16, 33, 64, 100, 128, 257])
def test_every_width(embeddings: Array, bits: int, width: int) -> None:
    """Widths that are no multiple of a vector, with strided read-only rows."""
    rows = np.tile(embeddings[:40], 2)[:, :width]
    rows.flags.writeable = False
    encoded, bad = encode(rows, bits)
    assert bad.size == 0
    assert encoded.tobytes() == b"".join(_plain_encode(row, bits) or b"" for row in rows)
    out = np.empty((40, width), F32)
    coder(tail(bits)).decode_range(encoded, 0, out)
    stored = encoded.reshape(40, -1)
    assert out.tobytes() == b"".join(_plain_decode(row.tobytes(), bits, width).tobytes() for row in stored)
