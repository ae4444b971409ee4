"""Encoded rows by the letter of the specification's section 6, in plain numpy; and rows that are hard to encode."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from cnrfmt.encodings import Encoded, Encoder, Recipe, coder, encoder
from cnrfmt.format.encoding import CastLayout, CodebookLayout, Layout, LogLayout, RawLayout, RowwiseLayout
from cnrfmt.format.legality import is_legal
from cnrfmt.format.scheme import Scheme
from cnrfmt.kernels._jit import INTERPRETED

Array = npt.NDArray[Any]
F32 = np.float32
TYPES = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SEARCH = (3, 0.5) if INTERPRETED else (25, 0.5)
"""Bins and ratio of greedy searches in tests."""


def rowwise_layouts(groups: tuple[int | None, ...]) -> list[RowwiseLayout]:
    """All legal row-wise layouts with these groups."""
    every = product((8, 7, 6, 5, 4, 3, 2), ("tail", "head", "packed"), TYPES, (*TYPES, None), groups)
    return [layout for one in every if is_legal(layout := RowwiseLayout(*one))]


def recipes() -> list[Recipe]:
    """Recipes for all layouts of whole rows, and for half of those of groups; each method with many of them."""
    found: list[Recipe] = [Recipe(CastLayout(t), Scheme("cast")) for t in ("float16", "bfloat16")]
    searches = Scheme("adaptive", *SEARCH), Scheme("lsq", starts=2), Scheme("lsq", *SEARCH, starts=1)
    for number, layout in enumerate([*rowwise_layouts((None,)), *rowwise_layouts((8,))[::2]]):
        if layout.bias is None or layout.placement != "packed":
            found.append(Recipe(layout, Scheme("symmetric")))
        if layout.bias is not None:
            found.append(Recipe(layout, Scheme("asymmetric")))
            found.append(Recipe(layout, searches[number % 3]))
    for bits, values, block in product((2, 3, 4), ("float32", "float16"), (None, 4)):
        found.append(Recipe(CodebookLayout(bits, values, block), Scheme("kmeans")))
    return found


LOGS = [
    # Normal numbers from 1e-3 on, with as much reach as the bits give for a small shift, a middle one and the widest.
    Recipe(LogLayout(bits, 0x3A800000, shift), Scheme("log"))
    for bits, shift in ((8, 14), (8, 20), (12, 10), (12, 16), (16, 0), (16, 12))
]


def name_of(recipe: Recipe) -> str:
    """A short name for a test's parameters."""
    layout, scheme = recipe
    parts = [str(value) for value in vars(layout).values() if value is not None]
    method = "" if scheme is None else f"{scheme.method}{scheme.num_bins or ''}"
    return "-".join([type(layout).__name__.removesuffix("Layout").lower(), *parts, method])


def codes_of(rows: Array, bits: int, width: int) -> Array:
    """Code k of each row of bytes: the bits k b to k b + b - 1, counted from the lowest bit of the first byte."""
    each = np.unpackbits(rows, axis=1, bitorder="little")[:, : width * bits].reshape(len(rows), width, bits)
    return (each.astype(np.int64) << np.arange(bits)).sum(axis=2)


def numbers_of(data: Array, kind: str) -> Array:
    """Bytes as numbers of a data type, widened."""
    with np.errstate(invalid="ignore"):
        return np.frombuffer(data.tobytes(), TYPES[kind]).astype(F32)


def decode(layout: Layout, data: Array, count: int, width: int, books: Array | None = None) -> Array:
    """What `count` rows of bytes mean. `books` are the bytes of shared codebooks."""
    if isinstance(layout, LogLayout):
        codes = codes_of(data.reshape(1, -1), layout.bits, count)[0]
        patterns = np.where(codes > 0, layout.base + (np.maximum(codes - 1, 0) << layout.shift), 0)
        return patterns.astype(np.uint32).view(F32).reshape(count, 1)
    rows = data.reshape(count, layout.row_bytes(width))
    if isinstance(layout, CastLayout):
        return numbers_of(rows, layout.stored).reshape(count, width)
    if isinstance(layout, CodebookLayout):
        if layout.block is None:
            size = TYPES[layout.values].itemsize << layout.bits
            own = numbers_of(rows[:, :size], layout.values).reshape(count, 1 << layout.bits)
            return np.take_along_axis(own, codes_of(rows[:, size:], layout.bits, width), axis=1)
        assert books is not None
        shared = numbers_of(books, layout.values).reshape(-1, 1 << layout.bits)[np.arange(count) // layout.block]
        return np.take_along_axis(shared, codes_of(rows, layout.bits, width), axis=1)
    assert isinstance(layout, RowwiseLayout)
    scales, biases = parameters_of(layout, rows, width)
    codes = codes_of(rows[:, 4:] if layout.placement == "head" else rows, layout.bits, width)
    groups = np.arange(width) // (layout.group or width)
    with np.errstate(all="ignore"):
        if biases is None:
            odd = (2 * codes - ((1 << layout.bits) - 1)).astype(F32)
            return odd * scales[:, groups]
        product = codes.astype(F32) * scales[:, groups]
        return product + biases[:, groups]


def parameters_of(layout: RowwiseLayout, rows: Array, width: int) -> tuple[Array, Array | None]:
    """Scales and biases of rows of bytes, one of each for a group; no biases where there are none."""
    groups = 1 if layout.group is None else -(-width // layout.group)
    size, bias_size = groups * TYPES[layout.scale].itemsize, groups * TYPES[layout.bias or "float32"].itemsize
    at = 0 if layout.placement == "head" else -(-width * layout.bits // 8)
    scales = numbers_of(rows[:, at : at + size], layout.scale).reshape(len(rows), groups)
    if layout.bias is None:
        return scales, None
    biases = numbers_of(rows[:, at + size : at + size + bias_size], layout.bias)
    return scales, biases.reshape(len(rows), groups)


def used_bits(layout: Layout, width: int) -> Array:
    """Which bits of a row of whole bytes belong to a code or a parameter."""
    used = np.zeros(8 * layout.row_bytes(width), np.bool_)
    if isinstance(layout, RawLayout | CastLayout):
        used[:] = True
    elif isinstance(layout, CodebookLayout):
        own = 0 if layout.block is not None else 8 * TYPES[layout.values].itemsize << layout.bits
        used[: own + width * layout.bits] = True
    elif isinstance(layout, RowwiseLayout):
        codes = 32 if layout.placement == "head" else 0
        used[codes : codes + width * layout.bits] = True
        if layout.placement == "head":
            used[:32] = True
        else:
            used[8 * -(-width * layout.bits // 8) :] = True
    return used


def relative_errors(rows: Array, decoded: Array) -> Array:
    """The l2 norm of what decoding changed over that of the row, each row by itself; 0 where nothing was changed."""
    rows, decoded = rows.astype(np.float64), decoded.astype(np.float64)
    change, norm = np.sqrt(((decoded - rows) ** 2).sum(axis=1)), np.sqrt((rows**2).sum(axis=1))
    with np.errstate(all="ignore"):
        return np.where(change == 0, 0, change / norm)


def usual(count: int, width: int, seed: int = 0) -> Array:
    """Rows like trained ones: of many sizes, around zero, some with an outlier."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, width)) * 2.0 ** random.integers(-6, 3, (count, 1))
    rows[::5, :: max(1, width // 3)] *= 4
    return rows.astype(F32)


def peculiar(width: int) -> Array:
    """Rows that are hard to encode; what isn't finite, or overflows, is among them."""
    random = np.random.default_rng(width)
    some, ramp = usual(2, width, width), np.linspace(-1, 1, width)
    rows = np.concatenate(
        [
            np.zeros((1, width)),
            np.full((1, width), -0.0),
            np.full((3, width), np.array([[1.5], [-0.1], [1e-3]])),
            np.full((6, width), np.array([[1e-40], [-1e-45], [1e-30], [7e4], [-1e30], [3.4e38]])),
            ramp * np.array([[1], [1e-44], [1e-38], [1e-30], [3e4], [65504], [7e4], [1e30], [3.4e38]]),
            np.where(random.random((2, width)) < 0.5, 1e-30, 1e30) * np.sign(random.normal(size=(2, width))),
            1e3 + some * 1e-3,
            np.abs(some),
            -np.abs(some),
            *np.split(np.repeat(some[:1], 5, axis=0), 5),
        ]
    ).astype(F32)
    for k, value in enumerate((np.nan, np.inf, -np.inf, 1e20, 1e-20)):
        rows[-1 - k, random.integers(width)] = value
    return rows


def encoder_of(layout: Layout, scheme: Scheme, bound: float | None = None) -> Encoder:
    """An encoder, with a bound for the error of a row."""
    return encoder(Recipe(layout, Scheme(scheme.method, scheme.num_bins, scheme.ratio, scheme.starts, bound)))


def decoded(layout: Layout, done: Encoded, count: int, width: int) -> Array:
    """What encoded rows decode to, by the coder of their layout."""
    books = None if done.codebooks is None else coder(layout).codebooks(done.codebooks)
    out = np.full((count, width), np.nan, F32)
    coder(layout).decode_range(done.data, 0, out, 0, books)
    return out
