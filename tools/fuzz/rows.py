"""Targets: row indexes, rows under each encoding, and dense entries."""

from __future__ import annotations

import struct
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.dense import read_entry
from cnrfmt.encodings import Coder, Recipe, coder, encoder, row_ids
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import (
    DENSE_ITEM_SIZES,
    ITEM_SIZES,
    CastLayout,
    CodebookLayout,
    Layout,
    LogLayout,
    RawLayout,
    RowwiseLayout,
)
from cnrfmt.format.legality import is_legal
from cnrfmt.format.scheme import Scheme, methods_of
from cnrfmt.format.toc import DenseEntry
from cnrfmt.format.toc_parser import index_length
from cnrfmt.kernels import row_index as kernel
from tools import cnrcheck
from tools.fuzz.oracle import SOUND, Disagreement, attempt, same

PLACE = "input"
MOST_IDS = 4096
CODES = ("raw", "packed", "runs", "bitmap")
_FIELDS = struct.Struct("<BIqq")
INDEX_PREFIX = _FIELDS.size
_OTHER_PLACEMENTS = product(range(2, 9), ("tail", "head"), ("float32", "float16"))
_PACKED = product(range(2, 9), ("float32", "float16", "bfloat16"), ("float32", "float16", None), (None, 8, 24))
LAYOUTS: tuple[Layout, ...] = tuple(
    layout
    for layout in (
        *map(RawLayout, ITEM_SIZES),
        *map(CastLayout, ITEM_SIZES),
        *(RowwiseLayout(bits, placement, kind, kind) for bits, placement, kind in _OTHER_PLACEMENTS),
        *(RowwiseLayout(bits, "packed", *rest) for bits, *rest in _PACKED),
        *(CodebookLayout(*values) for values in product((2, 3, 4), ("float32", "float16"), (None, 2, 3))),
        *(LogLayout(*values) for values in product((8, 12, 16), (1, 0x00800000, 0x2F800000), (0, 7, 15, 23))),
    )
    if is_legal(layout)
)
MOST_WIDTH = 40
_MOST_ROWS = 64
_ENCODED_AGAIN = 3


def index_input(code: str, count: int, first: int, last: int, section: bytes) -> bytes:
    """The input that stands for a row index."""
    return _FIELDS.pack(CODES.index(code), count, first, last) + section


def row_index(data: bytes) -> None:
    """A row index: code, count, first and last row id, then the section.

    The ids are those that the validator finds, and are written back as they were: each code has one way to say them.
    """
    if len(data) < INDEX_PREFIX:
        return
    number, count, first, last = _FIELDS.unpack_from(data)
    code, section = CODES[number % 4], data[INDEX_PREFIX:]
    span = last - first + 1
    # What a row set must say before its index is looked at.
    if not 1 <= count <= span or index_length(code, count, span) not in (None, len(section)):
        return
    raw = np.frombuffer(section, np.uint8)
    verdict, ids, error = attempt(lambda: row_ids.decode(code, raw, count, first, last, PLACE, max_ids=MOST_IDS))
    if code == "runs" and count > MOST_IDS:
        same(verdict == SOUND, False, "ids beyond what the caller is ready to hold")
        return
    rows = cnrcheck.RowSet(code, count, first, last, (0, len(section)), True)
    try:
        runs = cnrcheck.decode_index(rows, section)
    except cnrcheck.BrokenIndexError as refusal:
        if verdict == SOUND:
            raise Disagreement(f"accepted what cnrcheck refuses: {refusal}") from None
        return
    if ids is None:
        raise Disagreement(f"refused what cnrcheck accepts: {error}")
    same(ids.tolist(), cnrcheck.expand(runs).tolist(), "row ids")
    same(_encoded(code, ids, len(section)), section, "row index written back")


def _encoded(code: str, ids: Any, size: int) -> bytes:
    words = np.zeros(size // 8, np.uint64)
    if code == "raw":
        return bytes(ids.astype("<i8").tobytes())
    if code == "packed":
        skip = 2 * -(-len(ids) // 128)
        kernel.encode_packed(ids, words[:skip], words[skip:])
    elif code == "runs":
        kernel.encode_runs(ids, words)
    else:
        blocks = size // 72
        kernel.encode_bitmap(ids, words[:-blocks], words[-blocks:])
    return words.tobytes()


def encoded_rows(data: bytes) -> None:
    """Rows of a part: the layout, a width, then the rows and the codebooks that they share.

    Both decoders give the same bits, and both validators find the same broken.
    """
    if len(data) < 2:
        return
    layout = LAYOUTS[data[0] % len(LAYOUTS)]
    width = 1 if isinstance(layout, LogLayout) else 1 + data[1] % MOST_WIDTH
    count = _fitting_rows(layout, width, len(data) - 2)
    if not count:
        return
    size, shared = layout.section_bytes(count, width), layout.codebook_bytes(count)
    code = coder(layout)
    raw, section = np.frombuffer(data, np.uint8, size, 2), np.frombuffer(data, np.uint8, shared, 2 + size)
    books = code.codebooks(section) if shared else None
    found = np.empty((count, width), code.dtype)
    code.decode_range(raw, 0, found, 0, books)
    _decode_otherwise(layout, raw, books, found)

    encoding: Any = layout.to_json()
    places = (0, size), (size, shared) if shared else None
    part = cnrcheck.Part(PLACE, "weight", 0, 0, width, encoding, None, *places, ok=True)
    row_set = cnrcheck.RowSet("range", count, 0, count - 1, None, True)
    table = cnrcheck.Table(PLACE, "", None, [row_set], None, [part])
    segment = cnrcheck.Segment(PLACE, data[2 : 2 + size + shared], 0)
    every = np.arange(count)
    if part.grid is None:
        values = cnrcheck.decode_rows(segment, part, every)
    else:
        values = cnrcheck.values_of(cnrcheck.integers_of(segment, table, part, every), part.grid)
    _same_values(found, values, f"values of {layout}")
    checker = cnrcheck._Checker(data=b"")
    checker.check_part_rows(segment, table, part)
    errors = {f.error for f in checker.found}
    same(code.find_padding(raw, 0, count, width) >= 0, "code-padding" in errors, "code-padding")
    finite = books is None or bool(np.isfinite(books).all())
    same(code.find_parameter(raw, 0, count, width) >= 0 or not finite, "row-parameter" in errors, "row-parameter")
    slots = np.arange(count, dtype=np.int64)
    zero = code.are_zero(raw, layout.offsets(slots, width), slots, width)
    under_log = isinstance(layout, LogLayout)
    kept = cnrcheck.log_codes(segment, part, slots)[:, None] if under_log else cnrcheck.part_bytes(segment, part)
    same(zero.tolist(), (~kept.any(axis=1)).tolist(), f"zero slots of {layout}")
    _encode_again(layout, found[:_ENCODED_AGAIN], data[1] // MOST_WIDTH)


def _fitting_rows(layout: Layout, width: int, size: int) -> int:
    """As many rows as so many bytes hold, with the codebooks that they share."""
    fits = (layout.section_bytes(n, width) + layout.codebook_bytes(n) <= size for n in range(1, _MOST_ROWS + 1))
    return sum(fits)


def _decode_otherwise(layout: Layout, raw: Any, books: Any, found: Any) -> None:
    """Rows from the middle on, and rows one by one, are those that were decoded as a run."""
    code, (count, width) = coder(layout), found.shape
    middle = count // 2
    start, size = layout.span(middle, count - middle, width)
    rest = np.empty_like(found[middle:])
    code.decode_range(raw[start : start + size], 0, rest, middle, books)
    same(rest.tobytes(), found[middle:].tobytes(), f"rows of {layout} from the middle on")
    backwards = np.arange(count, dtype=np.int64)[::-1].copy()
    scattered = np.empty_like(found)
    code.decode_rows(raw, layout.offsets(backwards, width), scattered, backwards, backwards, books)
    same(scattered.tobytes(), found.tobytes(), f"rows of {layout} decoded one by one")


def _same_values(found: Any, expected: Any, what: str) -> None:
    """The same numbers with the same signs; a NaN may come out of an infinite scale, with the machine's sign."""
    with np.errstate(all="ignore"):
        if found.dtype.kind in "iu":
            equal = np.array_equal(found, expected.astype(found.dtype))
        else:
            wide, other = found.astype(np.float64), expected.astype(np.float64)
            signs = np.array_equal(np.signbit(wide) & ~np.isnan(wide), np.signbit(other) & ~np.isnan(other))
            equal = signs and np.array_equal(wide, other, equal_nan=True)
    same(equal, True, what)


def _encode_again(layout: Layout, rows: Any, number: int) -> None:
    """Whatever the numbers are, what encoding makes of them is legal, and zero where the encoding can't hold them."""
    methods = methods_of(layout)
    if not methods:
        return
    scheme = Scheme(methods[number % len(methods)], num_bins=3, ratio=0.5, starts=1, bound=(None, 0.25)[number % 2])
    found = encoder(Recipe(layout, scheme)).encode(rows)
    code: Coder = coder(layout)
    count, width = rows.shape
    books = None if found.codebooks is None else code.codebooks(found.codebooks)
    sizes = len(found.data), 0 if found.codebooks is None else len(found.codebooks)
    same(sizes, (layout.section_bytes(count, width), layout.codebook_bytes(count)), f"bytes of {layout}")
    same(code.find_padding(found.data, 0, count, width), -1, f"padding of {layout}, encoded")
    same(code.find_parameter(found.data, 0, count, width), -1, f"parameters of {layout}, encoded")
    same(books is None or bool(np.isfinite(books).all()), True, f"codebooks of {layout}, encoded")
    zero = code.are_zero(found.data, layout.offsets(found.bad, width), found.bad, width)
    same(zero.all(), True, f"slots of rows that {layout} can't hold")
    held = np.setdiff1d(np.arange(count), found.bad)
    same(bool(np.isfinite(rows[held]).all()), True, f"rows that {layout} holds")
    decoded = np.empty_like(rows)
    code.decode_range(found.data, 0, decoded, 0, books)
    same(bool(np.isfinite(decoded[held]).all()), True, f"what {layout} makes of rows that it holds")
    if scheme.bound is not None:
        same(found.worst_error <= scheme.bound, True, f"the greatest error of {layout}")


class _Section:
    """As much of a segment as an entry of the dense state is read from."""

    place = PLACE

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.toc = SimpleNamespace(sections=((0, len(data)),))

    def section(self, number: int) -> Any:
        """The only one."""
        return np.frombuffer(self._data, np.uint8)


def dense(data: bytes) -> None:
    """An entry of the dense state: its kind or data type, how many dimensions, then its bytes."""
    if len(data) < 2:
        return
    types = tuple(DENSE_ITEM_SIZES)
    number, dimensions, rest = data[0] % (len(types) + 2), data[1] % 4, data[2:]
    if number >= len(types):
        kind = ("json", "bytes")[number - len(types)]
        entry = DenseEntry("x", kind, 0)
    else:
        dtype = types[number]
        length = len(rest) // DENSE_ITEM_SIZES[dtype]
        shape = (1,) * (dimensions - 1) + (length,) if dimensions else (length,)
        rest = rest[: length * DENSE_ITEM_SIZES[dtype]]
        entry = DenseEntry("x", "array", 0, dtype, shape)
    segment: Any = _Section(rest)
    try:
        value = read_entry(segment, entry)
    except DamagedError as error:
        same(error.rule in ("json-syntax", "dense-entry"), True, f"rule of {error}")
        return
    if entry.kind == "array":
        same((value.shape, value.dtype), (entry.shape, dtypes.dtype_of(entry.dtype)), "array")
        same(value.tobytes(), rest, "bytes of an array")
    elif entry.kind == "bytes":
        same(value, rest, "bytes")
