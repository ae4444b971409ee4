"""Targets: row indexes, rows under each encoding, and dense entries."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np

from cnrfmt import dtypes
from cnrfmt.dense import read_entry
from cnrfmt.encodings import coder, row_ids
from cnrfmt.errors import DamagedError
from cnrfmt.format.encoding import DENSE_ITEM_SIZES, ITEM_SIZES, Layout, RawLayout, RowwiseLayout
from cnrfmt.format.toc import DenseEntry, index_length
from cnrfmt.kernels import row_index as kernel
from tools import cnrcheck
from tools.fuzz.oracle import SOUND, Disagreement, attempt, same

PLACE = "input"
MOST_IDS = 4096
CODES = ("raw", "packed", "runs", "bitmap")
_FIELDS = struct.Struct("<BIqq")
INDEX_PREFIX = _FIELDS.size
LAYOUTS: tuple[Layout, ...] = (*map(RawLayout, ITEM_SIZES), RowwiseLayout(8), RowwiseLayout(4), RowwiseLayout(2))


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
    verdict, ids, error = attempt(
        lambda: row_ids.decode(code, raw, count, first, last, PLACE, max_ids=MOST_IDS)
    )
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
    """Rows of a part: the layout, a width, then the rows. Both decoders give the same bits."""
    if len(data) < 2:
        return
    layout, width = LAYOUTS[data[0] % len(LAYOUTS)], 1 + data[1] % 40
    size = layout.row_bytes(width)
    count = min((len(data) - 2) // size, 64)
    if not count:
        return
    raw = np.frombuffer(data, np.uint8, count * size, 2)
    code = coder(layout)
    found = np.empty((count, width), code.dtype)
    code.decode_range(raw, 0, found)
    backwards = np.arange(count, dtype=np.int64)[::-1].copy()
    scattered = np.empty_like(found)
    code.decode_rows(raw, backwards * size, scattered, backwards)
    same(scattered.tobytes(), found.tobytes(), "rows decoded one by one")
    encoding: Any = layout.to_json()
    expected = cnrcheck.decode_rows(raw.reshape(count, size), encoding, width)
    with np.errstate(all="ignore"):
        # A NaN may come out of an infinite scale, and the sign of such a NaN is the machine's.
        wider = found.astype(np.float64) if found.dtype.kind != "u" and found.dtype.kind != "i" else found
        equal = np.array_equal(wider, expected.astype(wider.dtype), equal_nan=wider.dtype.kind == "f")
    same(equal, True, f"values of {layout}")
    part = cnrcheck.Part(PLACE, "weight", 0, 0, width, encoding, None, (0, count * size), size, True)
    table = cnrcheck.Table(PLACE, "", None, [None], None, [part])
    checker = cnrcheck._Checker(data=b"")
    checker.check_part_rows(cnrcheck.Segment(PLACE, raw, 0), table, part)
    errors = {f.error for f in checker.found}
    same(code.find_padding(raw, 0, count, width) >= 0, "code-padding" in errors, "code-padding")
    same(code.find_parameter(raw, 0, count, width) >= 0, "row-parameter" in errors, "row-parameter")


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
