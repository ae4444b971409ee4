"""Codes by cnrfmt's kernels, one call after the other as its encoders make them, and what they err."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import cnrfmt
from cnrfmt.arrays import Bytes
from cnrfmt.encodings import Recipe, coder, encoder
from cnrfmt.encodings.errors import KINDS
from cnrfmt.encodings.rowwise import geometry
from cnrfmt.format.encoding import CodebookLayout, Layout, RowwiseLayout
from cnrfmt.format.scheme import Scheme
from cnrfmt.kernels import codebooks, layouts, lsq, rowwise, search
from cnrfmt.segment_writer import _CHUNK as CHUNK
from tools.bench._quantize_setting import Values

_SLICE = 128 << 10
"""Bytes of rows whose parameters are chosen before their codes are written, so that they stay in the cache."""


def recipe(bits: int, method: Any, **options: Any) -> Recipe:
    """What `cnrfmt.Quantize` makes of these."""
    asked = cnrfmt.Quantize(bits=bits, method=method, **options)
    return Recipe(asked.layout_of(bits), asked.scheme_of(bits))


def in_chunks(values: Values) -> list[Values]:
    """A table in the pieces that a save encodes one by one."""
    count = max(1, CHUNK // (4 * values.shape[1]))
    return [values[start : start + count] for start in range(0, len(values), count)]


def encode_asymmetric(bits: int, rows: Values, out: Bytes, bad: Bytes) -> None:
    """The codes that inference operators would have made, in their layout."""
    if bits == 8:
        rowwise.encode_rows_8(rows, out, bad)
    else:
        rowwise.encode_rows_nbit(rows, bits, out, bad)


def kernels_of(how: Recipe, rows: Values) -> Callable[[], Bytes]:
    """What encodes these rows by kernels alone, without statistics, always into the same memory."""
    layout, scheme = how
    out = np.zeros((len(rows), layout.row_bytes(rows.shape[1])), np.uint8)
    bad = np.empty(len(rows), np.uint8)
    assert scheme is not None
    if isinstance(layout, CodebookLayout):
        return _by_codebooks(layout, rows, out, bad)
    assert isinstance(layout, RowwiseLayout)
    return _by_parameters(layout, scheme, rows, out, bad)


def _by_parameters(layout: RowwiseLayout, scheme: Scheme, rows: Values, out: Bytes, bad: Bytes) -> Callable[[], Bytes]:
    places = geometry(layout, rows.shape[1])
    assert layout.bias is not None
    fixed = places[1], layout.bits, KINDS[layout.scale], KINDS[layout.bias]
    bins, ratio = scheme.num_bins or 0, scheme.ratio or 0.0
    step = max(1, _SLICE // (4 * rows.shape[1]))
    scales, biases = (np.empty((step, layout.groups(rows.shape[1])), np.float32) for _ in range(2))

    def work() -> Bytes:
        for start in range(0, len(rows), step):
            some, flags = rows[start : start + step], bad[start : start + step]
            found = scales[: len(some)], biases[: len(some)], flags
            if scheme.method == "lsq":
                lsq.choose_lsq(some, *fixed, scheme.starts or 1, bins, ratio, *found)
            else:
                search.choose_adaptive(some, *fixed, bins, ratio, *found)
            layouts.encode_codes(some, *found, *places, out[start : start + step])
        return out.reshape(-1)

    return work


def _by_codebooks(layout: CodebookLayout, rows: Values, out: Bytes, bad: Bytes) -> Callable[[], Bytes]:
    kind = KINDS[layout.values]
    books = np.empty((len(rows), 1 << layout.bits), np.float32)

    def work() -> Bytes:
        codebooks.choose_codebooks(rows, layout.bits, kind, books, bad)
        codebooks.encode_codes(rows, books, bad, layout.bits, 1, 0, layout.book_bytes, out)
        codebooks.write_codebooks(books, kind, out)
        return out.reshape(-1)

    return work


def statistics_of(how: Recipe, rows: Values) -> Callable[[], None]:
    """What encodes these rows as a save does, their errors worked out too."""
    whole, chunks = encoder(how), in_chunks(rows)

    def work() -> None:
        for chunk in chunks:
            whole.encode(chunk)

    return work


def decoded(layout: Layout, data: Bytes, like: Values) -> Values:
    """What the codes of some rows stand for."""
    out = np.empty_like(like)
    coder(layout).decode_range(data, 0, out)
    return out


def row_errors(rows: Values, again: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The norm of what decoding changed in each row, over the norm of the row; rows of zeros are left out."""
    exact = rows.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    return np.linalg.norm(again - exact, axis=1)[norms > 0] / norms[norms > 0]


def mean_error(rows: Values, again: npt.NDArray[Any]) -> float:
    """The mean of these."""
    return float(row_errors(rows, again).mean())
