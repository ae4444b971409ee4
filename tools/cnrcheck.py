"""An independent validator and slow reader of the cnr format, version 1.0.

It is written from `spec/format.md` alone and imports nothing of the library, so that the two can
be held against each other. Every finding names the error id and the number of the rule that is
broken. Hostile bytes never make it raise: only I/O errors do.

    python tools/cnrcheck.py PATH [--json] [--level structure|digests|full] [--version N]
    python tools/cnrcheck.py PATH --rows TABLE [--range a:b | --ids 1,2,3] [--column NAME]

Exit codes: 0 sound, 1 damaged, 2 usage, 3 can't judge (newer features), 4 I/O.
"""

from __future__ import annotations

import argparse
import errno
import json
import mmap
import os
import re
import stat
import struct
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

# The numbers of the rules are their places in this list; 0 stands for what no rule forbids.
# fmt: off
ERRORS = [
    "block-magic", "block-digest", "block-zero", "block-length", "json-syntax", "json-field",
    "json-name", "feature-union", "limit", "segment-identity", "segment-length", "trailer-geometry",
    "trailer-digest", "toc-digest", "node-digest", "piece-digest", "section-geometry",
    "section-zero", "section-reference", "node-count", "table-repeated", "row-set", "row-bounds",
    "tombstone", "elements", "part-length", "part-encoding", "exception", "part-overlap",
    "dense-entry", "manifest-digest", "manifest-identity", "manifest-parent", "schema",
    "chain-path", "chain-schema", "baseline-tiling", "dense-reference", "attachment", "file-header",
    "slot", "slot-order", "file-length", "span", "file-gap", "file-missing", "directory-layout",
    "code-padding", "row-parameter", "index-code", "index-order", "index-bounds", "part-scheme",
    "grid-directory", "grid-models", "grid-codes", "residual-base", "grid-range",
]
# fmt: on
RULE = {error: number for number, error in enumerate(ERRORS, 1)}
LEVELS = ("structure", "digests", "full")
HEAD = -1  # stands for the head where a version is asked for

PAGE, FIRST_SPAN, BLOCK, NODE = 4096, 12288, 128, 65536
MIB64, MAX_INT = 64 << 20, (1 << 53) - 1
ITEM = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1},
    **{"float8_e5m2": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1},
    **{"uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1},
}
DENSE_ITEM = {**ITEM, "bool": 1, "complex64": 8, "complex128": 16}
INDEX_CODES = ("range", "raw", "packed", "runs", "bitmap")
BIAS_OF = {"float32": "float32", "float16": "float16", "bfloat16": "float32"}  # by scale, under `packed`
INFINITY = 0x7F800000  # the bit pattern of a float32
GROUP_VALUES = 65536  # the most rows, or values, of a group of rows; and more in one row
CHUNK = 1 << 20  # values that are decoded together, and more only in one row

Runs = tuple[np.ndarray, np.ndarray]  # the first and the last id of each run, both int64


@dataclass(frozen=True)
class Finding:
    """One broken rule, thing worth a note, or thing that a newer version may judge."""

    error: str
    rule: int
    severity: str  # "damage" | "note" | "unjudged"
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.severity} {self.error} (rule {self.rule}) {self.place}: "
            f"expected {self.expected}, found {self.found}"
        )


def verdict(findings: Iterable[Finding]) -> str:
    """Return "damaged", "unjudged" or "sound": damage outweighs what can't be judged."""
    severities = {finding.severity for finding in findings}
    return "damaged" if "damage" in severities else "unjudged" if "unjudged" in severities else "sound"


def digest(data: Any, seed: int = 0) -> int:
    """Return the 64-bit XXH3 of the bytes under a seed taken modulo 2^64."""
    return xxhash.xxh3_64_intdigest(data, seed & 0xFFFFFFFFFFFFFFFF)


def u64(data: Any, at: int) -> int:
    """Return the little-endian u64 at an offset."""
    return int.from_bytes(data[at : at + 8], "little")


def round_up(n: int, a: int) -> int:
    """Return the smallest multiple of `a` that is not less than `n`."""
    return -(-n // a) * a


def first_nonzero(data: Any, start: int, stop: int) -> int | None:
    """Return where the first byte that isn't zero stands, looking at bounded pieces at a time."""
    for at in range(start, stop, 1 << 24):
        piece = bytes(data[at : min(stop, at + (1 << 24))])
        if rest := piece.lstrip(b"\0"):
            return at + len(piece) - len(rest)
    return None


def show(value: object) -> str:
    """Return a short ASCII form of a value that may be hostile and huge."""
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    text = value[:80] if isinstance(value, str) else ascii(value)
    return ascii(text)[1:-1][:80]


# --- Strict JSON and the shapes of its objects ---------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in an object")
    return made


def _integer(text: str) -> int:
    # 2^53 - 1 has 16 digits; longer texts never reach int(), which is quadratic.
    if len(text) > 17 or not -MAX_INT <= (value := int(text)) <= MAX_INT:
        raise ValueError("an integer beyond 2^53 - 1")
    return value


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number that overflows float64")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"the constant {text}")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def strict_json(raw: bytes) -> Any:
    """Parse metadata (section 2.2); raises ValueError for whatever isn't strict."""
    text = raw.decode("utf-8")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested more than 32 deep") from None
    if re.search(r"\\u[dD][89a-fA-F]", text):
        # Encoding fails on a surrogate without its twin.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    if text.count("[") + text.count("{") > 32:
        depth, level = 0, [value]
        while level := [x for x in level if type(x) in (dict, list)]:
            depth += 1
            if depth > 32:
                raise ValueError("nested more than 32 deep")
            level = [y for x in level for y in (x.values() if type(x) is dict else x)]
    return value


Check = tuple[Callable[[Any], bool], str]
_HEX16 = re.compile(r"[0-9a-f]{16}").fullmatch
_ID = re.compile(r"(?!0{32})[0-9a-f]{32}").fullmatch
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z").fullmatch
_FILL = re.compile(r"(?:[0-9a-f]{2})*").fullmatch
_ROW_ID = re.compile(r"0|-?[1-9][0-9]{0,18}").fullmatch
_NODES = re.compile(r"(?:[0-9a-f]{16})*").fullmatch


def _row_id(v: Any) -> bool:
    return type(v) is str and _ROW_ID(v) is not None and -(1 << 63) <= int(v) < 1 << 63


def _maybe(check: Check) -> Check:
    return (lambda v: v is None or check[0](v)), f"null or {check[1]}"


def _text(match: Callable[[str], object], what: str) -> Check:
    return (lambda v: type(v) is str and match(v) is not None), what


def _ints(v: Any) -> bool:
    return type(v) is list and all(type(x) is int for x in v)


ANY: Check = (lambda v: True), "a value"
INT: Check = (lambda v: type(v) is int), "an integer"
NUMBER: Check = (lambda v: type(v) in (int, float)), "a number"
COUNT: Check = (lambda v: type(v) is int and v >= 0), "an integer >= 0"
STR: Check = (lambda v: type(v) is str), "a string"
LIST: Check = (lambda v: type(v) is list), "a list"
DICT: Check = (lambda v: type(v) is dict), "an object"
ID: Check = _text(_ID, "an id")
DIGEST: Check = _text(_HEX16, "16 lower-case hexadecimal digits")
TWO_INTS: Check = (lambda v: _ints(v) and len(v) == 2), "two integers"
TWO_COUNTS: Check = (lambda v: _ints(v) and len(v) == 2 and min(v) >= 0), "two integers >= 0"
TYPE: Check = (lambda v: type(v) is str and v in DENSE_ITEM), "a data type"
ROW: Check = _row_id, "a row id"

Shape = dict[str, Check]
MANIFEST: Shape = {
    **{"state": ID, "commit": ID, "step": _maybe(INT)},
    "created": _text(_CREATED, "YYYY-MM-DDThh:mm:ssZ"),
    "created_by": ((lambda v: type(v) is str and len(v.encode()) <= 256), "at most 256 bytes"),
    **{"parent": _maybe(DICT), "tables": LIST, "chain": LIST, "versions": LIST},
    **{"dense": _maybe(ID), "metadata": DICT},
}
PARENT: Shape = {"version": COUNT, "digest": DIGEST}
SCHEMA: Shape = {
    **{"id": ID, "name": STR, "rows": _maybe(COUNT), "dim": INT, "columns": LIST},
    "kind": ((lambda v: v in ("dense", "keyed")), "dense or keyed"),
}
COLUMN: Shape = {
    **{"name": STR, "dtype": TYPE, "shape": (_ints, "a list of integers")},
    "fill": _text(_FILL, "pairs of lower-case hexadecimal digits"),
}
ENTRY: Shape = {
    **{"segment": ID, "from": _maybe(ID), "to": ID, "offset": _maybe(COUNT), "length": COUNT},
    **{"trailer": DIGEST, "toc": _maybe(TWO_COUNTS)},
}
TOC: Shape = {
    **{"sections": LIST, "tables": LIST, "dense": _maybe(LIST)},
    "nodes": _text(_NODES, "16 lower-case hexadecimal digits per node"),
}
TABLE: Shape = {**{"id": ID, "rows": _maybe(COUNT), "row_sets": LIST, "deleted": _maybe(INT), "parts": LIST}}
ROWSET: Shape = {
    "code": ((lambda v: type(v) is str and v in INDEX_CODES), "a code of section 7"),
    **{"count": INT, "min": ROW, "max": ROW, "section": _maybe(INT)},
}
PART: Shape = {
    **{"column": STR, "rows": INT, "elements": TWO_INTS, "encoding": DICT, "section": INT},
    **{"codebooks": _maybe(INT), "exceptions_of": _maybe(INT), "scheme": _maybe(DICT)},
}
# Of the values of an encoding, whatever their types, section 6 says which are legal together.
ENCODINGS: dict[str, Shape] = {
    name: dict.fromkeys(("name", *keys.split()), ANY)
    for name, keys in {
        "raw": "dtype",
        "cast": "dtype",
        "rowwise": "bits layout scale bias group",
        "codebook": "bits values block",
        "log": "kind bits base shift payload group",
        "grid": "kind floor payload bits group",
    }.items()
}
SCHEME: Shape = {
    **{"method": STR, "num_bins": _maybe(INT), "ratio": _maybe(NUMBER), "starts": _maybe(INT)},
    **{"bound": _maybe(NUMBER), "step": _maybe(DICT), "mean_error": NUMBER, "max_error": NUMBER},
}
STEP: Shape = {"size": NUMBER, "reference": _maybe(NUMBER), "column": _maybe(STR)}
DENSE: Shape = {
    **{"name": STR, "section": _maybe(INT)},
    "kind": ((lambda v: v in ("array", "json", "bytes")), "array, json or bytes"),
}
DENSE_ARRAY: Shape = {
    **{**DENSE, "dtype": TYPE},
    "shape": ((lambda v: _ints(v) and min(v, default=0) >= 0), "a list of integers >= 0"),
}


# --- What parsing yields -------------------------------------------------------------------------


@dataclass
class Name:
    """How a slot, a file name or `versions` names a manifest."""

    version: int
    offset: int | None
    length: int | None
    digest: int | None


@dataclass
class Column:
    """One column of the schema."""

    dtype: str
    width: int
    fill: bytes
    vector: bool


@dataclass
class Schema:
    """One table of the schema."""

    id: str
    name: str
    rows: int | None
    keyed: bool
    key: str  # tells this table's schema from every other
    columns: dict[str, Column]


@dataclass
class Manifest:
    """A manifest that could be understood, and how far."""

    place: str
    version: int
    digest: int
    masks: tuple[int, int, int]
    doc: dict[str, Any]
    attachments: bytes
    parent: tuple[int, int] | None = None
    versions: list[Name] = field(default_factory=list)
    schema: dict[str, Schema] = field(default_factory=dict)
    chain: list[dict[str, Any]] = field(default_factory=list)
    schema_ok: bool = True
    path_ok: bool = False
    whole: bool = True  # every span that it names is known


@dataclass
class RowSet:
    """One row set; `ok` says that its fields are sound."""

    code: str
    count: int
    min: int
    max: int
    section: tuple[int, int] | None
    ok: bool
    runs: Runs | None = None


@dataclass
class Part:
    """One part; `ok` says that its rows can be read."""

    place: str
    column: str
    rows: int
    first: int
    end: int
    encoding: dict[str, Any]
    exceptions_of: int | None
    section: tuple[int, int] | None = None
    codebooks: tuple[int, int] | None = None
    ok: bool = False
    legal: bool = False  # its encoding is one of section 6
    codes_ok: bool = True  # its integers can be decoded

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """What it has in common with the parts that it adds up with, if it holds integers."""
        keys = {"grid": ("name", "floor"), "log": ("name", "bits", "base", "shift")}.get(self.encoding["name"])
        return None if keys is None else tuple(self.encoding[key] for key in keys)

    @property
    def residual(self) -> bool:
        """Say whether its rows add to what older steps say."""
        return self.encoding.get("kind") == "residual"


@dataclass
class Table:
    """One TABLE; None stands for what couldn't be understood."""

    place: str
    id: str
    rows: int | None
    row_sets: list[RowSet | None]
    deleted: int | None
    parts: list[Part | None]

    def set_of(self, part: Part) -> RowSet | None:
        """Return the row set of a part."""
        return self.row_sets[part.rows] if 0 <= part.rows < len(self.row_sets) else None


@dataclass
class Segment:
    """A segment, as far as it could be understood."""

    place: str
    data: Any
    length: int
    id: str | None = None
    states: tuple[str | None, str] | None = None
    masks: tuple[int, int, int] | None = None
    trailer_id: str | None = None
    trailer_digest: int | None = None
    toc_raw: bytes | None = None
    data_end: int = 0
    sections: list[tuple[int, int] | None] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    dense: bool = False
    judged: bool = False  # the table of contents was read
    whole: bool = True  # every object of the table of contents was understood

    @property
    def lenient(self) -> bool:
        """Say whether a feature that is unknown here may have added keys."""
        return self.masks is None or bool(self.masks[0] | self.masks[1])


# --- Encodings as metadata says them (section 6) -------------------------------------------------


def _within(v: Any, low: int, high: int) -> bool:
    return type(v) is int and low <= v <= high


def _legal_rowwise(bits: Any, layout: Any, scale: Any, bias: Any, group: Any) -> bool:
    if not _within(bits, 2, 8):
        return False
    if layout in ("tail", "head"):
        parameter = "float32" if (bits, layout) == (8, "tail") else "float16"
        return bits in (8, 4, 2) and scale == bias == parameter and group is None
    grouped = group is None or (_within(group, 8, 1 << 20) and group % 8 == 0)
    pair = type(scale) is str and scale in BIAS_OF and bias in (None, BIAS_OF[scale])
    return layout == "packed" and grouped and pair


def is_legal(encoding: dict[str, Any]) -> bool:
    """Say whether the values of an encoding, which has the keys of its name, are legal together."""
    name, *values = (encoding[key] for key in ENCODINGS[encoding["name"]])
    if name == "raw":
        return type(values[0]) is str and values[0] in ITEM
    if name == "cast":
        return values[0] in ("float16", "bfloat16")
    if name == "rowwise":
        return _legal_rowwise(*values)
    if name == "codebook":
        bits, numbers, block = values
        shared = block is None or _within(block, 2, 1 << 20)
        return _within(bits, 2, 4) and numbers in ("float32", "float16") and shared
    if name == "grid":
        kind, floor, payload, bits, group = values
        if kind not in ("absolute", "residual") or not _within(floor, -126, 103):
            return False
        if payload == "fixed":
            return _within(bits, 1, 26) and group is None
        return payload in ("packed", "rans") and bits is None and _within(group, 1, GROUP_VALUES)
    kind, bits, base, shift, payload, group = values
    known = _within(bits, 8, 16) and bits in (8, 12, 16) and _within(base, 1, INFINITY) and _within(shift, 0, 23)
    if not known or base + (((1 << bits) - 2) << shift) >= INFINITY:
        return False
    if payload == "fixed":
        return kind == "absolute" and group is None
    return payload == "rans" and kind in ("absolute", "residual") and _within(group, 1, GROUP_VALUES)


def has_width(encoding: dict[str, Any], n: int) -> bool:
    """Say whether rows of n elements may have a legal encoding, as far as it alone says it."""
    if in_groups(encoding):
        return encoding["group"] == 1 or encoding["group"] * n <= GROUP_VALUES
    return encoding["name"] != "log" or n == 1


def methods_of(encoding: dict[str, Any]) -> tuple[str, ...]:
    """Return the methods that section 6.6 gives for a legal encoding that isn't raw."""
    if encoding["name"] != "rowwise":
        only = {"cast": "cast", "codebook": "kmeans", "log": "log", "grid": "closed-loop"}
        return (only[encoding["name"]],)
    if encoding["bias"] is None:
        return ("symmetric",)
    rest = ("asymmetric", "adaptive", "lsq")
    return rest if encoding["layout"] == "packed" else ("symmetric", *rest)


@dataclass
class RowLayout:
    """Where the things of a row stand: its codes, and by name the data type, place and count of its numbers."""

    row_bytes: int
    codes: int = 0
    code_bytes: int = 0
    numbers: dict[str, tuple[str, int, int]] = field(default_factory=dict)


def row_layout(encoding: dict[str, Any], n: int) -> RowLayout:
    """Return the layout of a row of n elements under a legal encoding other than `log`, and not in groups."""
    if encoding["name"] == "grid":
        size = -(-n * encoding["bits"] // 8)
        return RowLayout(1 + size, 1, size)
    if encoding["name"] in ("raw", "cast"):
        return RowLayout(ITEM[encoding["dtype"]] * n)
    bits = encoding["bits"]
    size = -(-n * bits // 8)
    if encoding["name"] == "codebook":
        if encoding["block"] is not None:
            return RowLayout(size, 0, size)
        codes = ITEM[encoding["values"]] << bits
        return RowLayout(codes + size, codes, size, {"values": (encoding["values"], 0, 1 << bits)})
    scale, bias, group = encoding["scale"], encoding["bias"], encoding["group"]
    if encoding["layout"] == "head":
        return RowLayout(round_up(4 + size, 16), 4, size, {"scale": (scale, 0, 1), "bias": (bias, 2, 1)})
    groups = 1 if group is None else -(-n // group)
    end = size + groups * ITEM[scale]
    numbers = {"scale": (scale, size, groups)}
    if bias is not None:
        numbers["bias"] = (bias, end, groups)
        end += groups * ITEM[bias]
    return RowLayout(end, 0, size, numbers)


def in_groups(encoding: dict[str, Any]) -> bool:
    """Say whether the rows of a part stand in groups (section 6.8)."""
    return encoding.get("payload") in ("packed", "rans")


def directory_length(groups: int) -> int:
    """Return the length of the directory of so many groups."""
    rest = groups % 1024
    return groups // 1024 * (8 + 4 * 1024) + (8 + round_up(4 * rest, 8) if rest else 0)


def part_length(encoding: dict[str, Any], count: int, n: int) -> int:
    """Return the length of the section of a part of `count` rows of n elements; the least one, in groups."""
    if in_groups(encoding):
        groups = -(-count // encoding["group"])
        payload = 2 * count if encoding["payload"] == "packed" else 24 + 32 * groups
        return directory_length(groups) + payload
    if encoding["name"] == "log":
        return -(-count * encoding["bits"] // 8)
    return count * row_layout(encoding, n).row_bytes


def codebooks_length(encoding: dict[str, Any], count: int) -> int | None:
    """Return the length of the codebooks that blocks of `count` rows share, or None without any."""
    if encoding["name"] != "codebook" or encoding["block"] is None:
        return None
    return -(-count // encoding["block"]) * (ITEM[encoding["values"]] << encoding["bits"])


# --- Row sets as runs: a bounded form even of 2^40 ids -------------------------------------------


def runs_of_ids(ids: np.ndarray) -> Runs:
    """Return ascending ids as runs."""
    breaks = np.flatnonzero(np.diff(ids) != 1)
    starts = np.concatenate((ids[:1], ids[breaks + 1]))
    return starts, np.concatenate((ids[breaks], ids[-1:]))


def locate(runs: Runs, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which ids are in the row set, and the place in it of those that are."""
    starts, lasts = runs
    at = np.searchsorted(starts, ids, side="right") - 1
    inside = (at >= 0) & (ids <= lasts[at])
    before = np.concatenate(([0], np.cumsum(lasts - starts + 1)[:-1]))
    return inside, before[at] + (ids - starts[at])


def expand(runs: Runs) -> np.ndarray:
    """Return all ids of a row set; the caller has bounded their number."""
    starts, lasts = runs
    lengths = lasts - starts + 1
    before = np.cumsum(lengths) - lengths
    ids: np.ndarray = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - before, lengths)
    return ids


def shared_row(a: Runs, b: Runs) -> int | None:
    """Return a row that both row sets hold; costs the size of `a` times the logarithm of `b`'s."""
    at = np.searchsorted(b[0], a[1], side="right") - 1
    hits = np.flatnonzero((at >= 0) & (b[1][at] >= a[0]))
    return int(max(a[0][hits[0]], b[0][at[hits[0]]])) if len(hits) else None


class BrokenIndexError(Exception):
    """A row index breaks one of the rules 50 to 52; the arguments are a finding's last three."""


def index_length(code: str, count: int, low: int, high: int) -> int | None:
    """Return the length of a row index's section where its code determines it."""
    if code == "raw":
        return 8 * count
    if code == "bitmap":
        words = round_up(-(-(high - low + 1) // 64), 8)
        return 8 * words + words
    return None


def _ascending(ids: np.ndarray, starts: np.ndarray) -> None:
    """Compare each start but the first with the id before it."""
    if bad := np.flatnonzero(starts[1:] <= ids[:-1]).tolist():
        k = bad[0]
        raise BrokenIndexError("index-order", f"an id above {ids[k]}", f"{starts[k + 1]}")


def _raw_index(raw: bytes, count: int, low: int, high: int) -> Runs:
    ids = np.frombuffer(raw, "<i8")
    _ascending(ids, ids)
    return runs_of_ids(ids)


def _packed_index(raw: bytes, count: int, low: int, high: int) -> Runs:
    groups = -(-count // 128)
    if 16 * groups > len(raw) or len(raw) % 8:
        raise BrokenIndexError("index-code", f"a skip table of {groups} entries, then words", f"{len(raw)} bytes")
    skip = np.frombuffer(raw, [("id", "<i8"), ("at", "<u4"), ("w", "u1"), ("zero", "u1", 3)], count=groups)
    words = np.frombuffer(raw, "<u8", offset=16 * groups)
    sizes = np.full(groups, 128, np.int64)
    sizes[-1] = count - 128 * (groups - 1)
    width = skip["w"].astype(np.int64)
    if skip["zero"].any() or width.max() > 64:
        raise BrokenIndexError("index-code", "widths up to 64 and zero bytes", "others in the skip table")
    lengths = -(-sizes * width // 64)
    offsets = np.cumsum(lengths) - lengths
    if (offsets != skip["at"]).any() or int(lengths.sum()) != len(words):
        raise BrokenIndexError("index-code", "payloads without gaps to the end", "other offsets or length")
    ids = np.empty((groups, 128), np.int64)
    for w in np.unique(width).tolist():
        rows = np.flatnonzero(width == w)
        # One zero word behind each payload stands for what a short last group doesn't store.
        at = offsets[rows, None] + np.arange(2 * w + 1)
        stored = np.arange(2 * w + 1) < lengths[rows, None]
        padded = np.append(words, np.uint64(0))
        payload = padded[np.where(stored, at, len(words))]
        bit = np.arange(128) * w
        word, shift = bit // 64, (bit % 64).astype(np.uint64)
        slots = payload[:, word] >> shift
        if w:
            # A shift by 64 isn't defined, so the upper part is moved in two steps.
            slots |= (payload[:, word + 1] << np.uint64(1)) << (np.uint64(63) - shift)
            slots &= np.uint64((1 << w) - 1)
        beyond = np.arange(128) >= sizes[rows, None]
        if slots[:, 0].any() or slots[beyond].any():
            raise BrokenIndexError("index-code", "slot 0 and the bits beyond the last slot zero", "others")
        if w and not (slots.max(axis=1) >> np.uint64(w - 1)).all():
            raise BrokenIndexError("index-code", "the smallest width", f"{w} bits where fewer do")
        slots[:, 0] = skip["id"][rows].view(np.uint64)
        slots[:, 1:] += np.uint64(1)
        # The sum wraps where an id would leave int64; then the order below is broken.
        ids[rows] = np.cumsum(slots, axis=1, dtype=np.uint64).view(np.int64)
    flat = ids.reshape(-1)[:count]
    _ascending(flat, flat)
    return runs_of_ids(flat)


def _runs_index(raw: bytes, count: int, low: int, high: int) -> Runs:
    if len(raw) % 16:
        raise BrokenIndexError("index-code", "entries of 16 bytes", f"{len(raw)} bytes")
    starts = np.frombuffer(raw, "<i8")[::2].copy()
    lengths = np.frombuffer(raw, "<u8")[1::2]
    if not lengths.all():
        raise BrokenIndexError("index-code", "runs of at least 1", "a run of 0")
    room = np.uint64((1 << 63) - 1) - starts.view(np.uint64)
    if (lengths - np.uint64(1) > room).any():
        raise BrokenIndexError("index-order", "ids within int64", "a run past 2^63 - 1")
    lasts = (starts.view(np.uint64) + (lengths - np.uint64(1))).view(np.int64)
    _ascending(lasts, starts)
    if (starts[1:] - lasts[:-1] == 1).any():
        raise BrokenIndexError("index-code", "a gap between runs", "two runs that touch")
    total = (int((lengths >> np.uint64(32)).sum()) << 32) + int((lengths & np.uint64(0xFFFFFFFF)).sum())
    if total != count:
        raise BrokenIndexError("index-bounds", f"{count} ids", f"{total}")
    return starts, lasts


def _bitmap_index(raw: bytes, count: int, low: int, high: int) -> Runs:
    words = len(raw) // 72 * 8
    bits = np.unpackbits(np.frombuffer(raw, np.uint8, count=8 * words), bitorder="little")
    ranks = np.frombuffer(raw, "<u8", offset=8 * words)
    ones = bits.reshape(-1, 512).sum(axis=1, dtype=np.uint64)
    if (np.cumsum(ones) - ones != ranks).any():
        raise BrokenIndexError("index-code", "the number of one bits before each 8 words", "another rank")
    if bits[high - low + 1 :].any():
        raise BrokenIndexError("index-code", "zero bits beyond max", "a one bit")
    if int(ones.sum()) != count or not (bits[0] and bits[high - low]):
        raise BrokenIndexError("index-bounds", f"{count} ids from {low} to {high}", "other bits")
    edges = np.flatnonzero(np.diff(bits, prepend=np.uint8(0), append=np.uint8(0)))
    return edges[::2] + np.int64(low), edges[1::2] - 1 + np.int64(low)


_INDEX = {"raw": _raw_index, "packed": _packed_index, "runs": _runs_index, "bitmap": _bitmap_index}


def decode_index(rows: RowSet, data: Any) -> Runs:
    """Return the runs of a row set whose fields are sound; raises BrokenIndexError."""
    if rows.section is None:
        return np.array([rows.min]), np.array([rows.max])
    at, length = rows.section
    runs = _INDEX[rows.code](bytes(data[at : at + length]), rows.count, rows.min, rows.max)
    if (int(runs[0][0]), int(runs[1][-1])) != (rows.min, rows.max):
        expected = f"{rows.count} ids from {rows.min} to {rows.max}"
        raise BrokenIndexError("index-bounds", expected, f"ids from {runs[0][0]} to {runs[1][-1]}")
    return runs


def _sweep(groups: list[tuple[int, int, Runs]]) -> bool:
    """Say whether two of the rectangles (elements x run of rows) share a cell, row by row."""
    events = []
    for first, end, (starts, lasts) in groups:
        for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
            # A run ends after its last row, so that an end sorts after a start of that row.
            events.append((start, 0, first, end))
            events.append((last, 1, first, end))
    active: list[tuple[int, int]] = []
    for _, ends, first, end in sorted(events):
        at = bisect_left(active, (first, end))
        if ends:
            active.pop(at)
        elif (at and active[at - 1][1] > first) or (at < len(active) and active[at][0] < end):
            return True
        else:
            active.insert(at, (first, end))
    return False


def overlap(parts: Sequence[tuple[int, int, Runs]]) -> bool:
    """Say whether two parts (first, end, rows) of one column share an element of a row."""
    groups = []
    ranges = sorted(parts, key=lambda p: p[:2])
    for (first, end), same in groupby(ranges, key=lambda p: p[:2]):
        sets = [runs for _, _, runs in same]
        starts = np.concatenate([s for s, _ in sets])
        order = np.argsort(starts, kind="stable")
        starts, lasts = starts[order], np.concatenate([s for _, s in sets])[order]
        if (starts[1:] <= lasts[:-1]).any():
            return True
        groups.append((first, end, (starts, lasts)))
    reach = np.maximum.accumulate([end for _, end, _ in groups])
    firsts = np.array([first for first, _, _ in groups])
    # Element ranges that are apart, the usual case, need no look at the rows.
    return bool((firsts[1:] < reach[:-1]).any()) and _sweep(groups)


# --- The checker ---------------------------------------------------------------------------------


class _Checker:
    """Judges one container; `findings` holds what it found, each thing once and in order."""

    def __init__(
        self,
        data: Any = None,
        files: Mapping[str, Any] | None = None,
        folders: Iterable[str] = (),
        level: str = "full",
        only: int | None = None,
        keep: bool = False,
    ) -> None:
        self.data = None if data is None else memoryview(data)
        self.files = files if files is not None else {}
        self.folders = set(folders)
        self.level = LEVELS.index(level)
        self.only, self.keep = only, keep
        self.found: dict[Finding, None] = {}
        self.damage = 0
        self.container: bytes | None = None
        self.end = 0
        self.manifests: dict[int, Manifest] = {}
        self.segments: dict[object, Segment | None] = {}
        self.spans: dict[tuple[int, int], str] = {}
        self.matched: set[tuple[int, str]] = set()
        self.steps: dict[tuple[object, ...], set[tuple[str, str]]] = {}
        self.summed: dict[tuple[str, str], list[tuple[int, ...]]] = {}

    def add(self, error: str, place: str, expected: str, found: object, severity: str = "damage") -> None:
        self.damage += severity == "damage"
        rule = RULE.get(error, 0)
        self.found[Finding(error, rule, severity, place, expected, show(found))] = None

    # Blocks, metadata and names

    def block(self, data: Any, letter: str, place: str, error: str, id_at: int, level: int) -> bytes:
        """Return the block at the start of `data`, or nothing where it isn't sound.

        `error` stands for the block rules where it isn't empty. A block of a segment is sealed
        under the id that it holds itself (at `id_at`), so that a foreign block is told from a
        damaged one.
        """
        raw = bytes(data[:BLOCK])
        magic = b"\x89CNR" + letter.encode() + b"\r\n\x1a"
        if len(raw) < BLOCK:
            self.add(error or "block-length", place, "128 bytes", f"{len(raw)}")
        elif raw[:8] != magic:
            self.add(error or "block-magic", place, magic.hex(" "), raw[:8].hex(" "))
        else:
            seed = u64(raw, id_at) + (level << 56) if id_at else 0
            if (right := digest(raw[:120], seed)) == u64(raw, 120):
                return raw
            self.add(error or "block-digest", place, f"{right:016x}", f"{u64(raw, 120):016x}")
        return b""

    def zeros(self, data: Any, start: int, stop: int, place: str, error: str) -> None:
        if (at := first_nonzero(data, start, stop)) is not None:
            self.add(error, place, f"zero bytes from {start} to {stop}", f"{data[at]} at {at}")

    def features(self, raw: bytes, place: str) -> tuple[int, int, int] | None:
        """Return a block's masks, or None where what hangs on the block can't be judged."""
        major = int.from_bytes(raw[8:10], "little")
        compat, ro_compat, incompat = struct.unpack_from("<3Q", raw, 16)
        if major != 1:
            self.add("unknown-feature", place, "major version 1", major, "unjudged")
            return None
        if incompat:
            self.add("unknown-feature", place, "no incompat bit", hex(incompat), "unjudged")
            return None
        if ro_compat:
            self.add("unknown-feature", place, "no ro_compat bit", hex(ro_compat), "unjudged")
        if compat:
            self.add("unknown-feature", place, "no compat bit", hex(compat), "note")
        return compat, ro_compat, incompat

    def json(self, raw: Any, place: str) -> tuple[bool, Any]:
        try:
            return True, strict_json(bytes(raw))
        except ValueError as error:
            self.add("json-syntax", place, "strict JSON (section 2.2)", str(error))
            return False, None

    def fields(self, value: Any, shape: Shape, place: str, lenient: bool = False) -> set[str]:
        """Report what is wrong with an object; return the keys that can't be used."""
        if type(value) is not dict:
            self.add("json-field", place, "an object", value)
            return set(shape)
        bad = set()
        for key, (check, what) in shape.items():
            if key not in value:
                self.add("json-field", f"{place}, {key}", what, "no such key")
                bad.add(key)
            elif not check(value[key]):
                self.add("json-field", f"{place}, {key}", what, value[key])
                bad.add(key)
        if len(value) > len(shape) - len(bad) and not lenient:
            for key in value.keys() - shape.keys():
                self.add("json-field", place, "no further key", key)
        return bad

    def name(self, name: str, place: str) -> None:
        if not 1 <= len(name.encode()) <= 1024 or any(c < " " or c == "\x7f" for c in name):
            self.add("json-name", place, "1 to 1024 bytes without control characters", name)

    def limit(self, value: int, most: int, place: str, what: str) -> bool:
        if value > most:
            self.add("limit", place, f"at most {most} {what}", value)
        return value <= most

    # Containers

    def run(self) -> None:
        name = self.open_single() if self.data is not None else self.open_folder()
        if name is None or (head := self.manifest(name)) is None:
            return
        self.manifests[head.version] = head
        for old in head.versions:
            if old.version not in self.manifests and (found := self.manifest(old)) is not None:
                self.manifests[old.version] = found
        whole = len(self.manifests) == 1 + len(head.versions)
        for manifest in self.manifests.values():
            self.check_names(manifest)
            whole = whole and manifest.whole
        for manifest in self.manifests.values():
            if self.only in (None, manifest.version) or (self.only == HEAD and manifest is head):
                self.check_chain(manifest)
        if self.data is not None:
            self.check_spans(whole)
        elif whole:
            named = {f"segments/{e['segment']}.cnrs" for m in self.manifests.values() for e in m.chain}
            kept = {f"manifests/{version:020d}.cnrm" for version in self.manifests}
            for file in sorted(set(self.files) - named - kept):
                if re.fullmatch(r"segments/[0-9a-f]{32}\.cnrs|manifests/[0-9]{20}\.cnrm", file):
                    self.add("garbage", file, "a retained version that names it", "none", "note")

    def open_single(self) -> Name | None:
        data, error = self.data, "file-header"
        assert data is not None
        if len(data) < FIRST_SPAN:
            self.add(error, "file", f"at least {FIRST_SPAN} bytes", len(data))
            return None
        if raw := self.block(data, "F", "file header", error, 0, 0):
            if self.features(raw, "file header") is None:
                return None
            self.zeros(raw, 12, 16, "file header", error)
            self.zeros(raw, 56, 120, "file header", error)
            self.container = raw[40:56]
            if not any(self.container):
                self.add(error, "file header", "a container id", "zero")
        self.zeros(data, BLOCK, PAGE, "file header page", error)
        slots = [s for number in (0, 1) if (s := self.slot(data, number))]
        if len(slots) == 2:
            a, b = (u64(s, 32) for s in slots)
            if a < b:
                self.add("slot-order", "slot A", f"version {b} or newer", a)
            elif a > b:
                self.add("slots-differ", "slot B", f"version {a}", f"{b}: a crash's trace", "note")
            elif slots[0][16:120] != slots[1][16:120]:
                self.add("slot-order", "slot B", "the fields of slot A", "others of one version")
        if not slots:
            return None
        raw = max(slots, key=lambda s: u64(s, 32))
        self.container = self.container or raw[16:32]
        self.end = u64(raw, 64)
        if len(data) < self.end:
            self.add("file-length", "file", f"at least {self.end} bytes", len(data))
        elif len(data) > self.end:
            extra = f"{len(data) - self.end} bytes more"
            self.add("bytes-after-end", "file", f"{self.end} bytes", extra, "note")
        return Name(u64(raw, 32), u64(raw, 40), u64(raw, 48), u64(raw, 56))

    def slot(self, data: Any, number: int) -> bytes:
        """Return the block of a slot, or nothing where the slot isn't sound."""
        place, at, before = f"slot {'AB'[number]}", PAGE * (1 + number), self.damage
        raw = self.block(data[at : at + BLOCK], "H", place, "slot", 0, 0)
        self.zeros(data[at : at + PAGE], BLOCK, PAGE, place, "slot")
        if not raw:
            return b""
        if (own := int.from_bytes(raw[8:12], "little")) != number:
            self.add("slot", place, f"slot number {number}", own)
        self.zeros(raw, 12, 16, place, "slot")
        self.zeros(raw, 72, 120, place, "slot")
        if not any(raw[16:32]) or raw[16:32] != (self.container or raw[16:32]):
            self.add("slot", place, "the container id of the file header", raw[16:32].hex())
        offset, end = u64(raw, 40), u64(raw, 64)
        if offset % PAGE or offset < FIRST_SPAN:
            self.add("slot", place, "a multiple of 4096 from 12288 on", offset)
        if end != round_up(offset + u64(raw, 48), PAGE):
            self.add("slot", place, f"committed end {round_up(offset + u64(raw, 48), PAGE)}", end)
        self.limit(end, MAX_INT, place, "bytes of a container")
        self.limit(u64(raw, 32), MAX_INT, place, "as a version")
        return raw if self.damage == before else b""

    def open_folder(self) -> Name | None:
        for folder in ("manifests", "segments"):
            if folder not in self.folders:
                self.add("directory-layout", f"{folder}/", "a folder that is no link", "none")
        versions = []
        for file in self.files:
            if match := re.fullmatch(r"manifests/([0-9]{20})\.cnrm", file):
                versions.append(int(match[1]))
            elif not re.fullmatch(r"segments/[0-9a-f]{32}\.cnrs", file):
                what = "an interrupted write" if "/.tmp-" in f"/{file}" else "another file"
                self.add("other-file", file, "files of the container alone", what, "note")
        if not versions:
            self.add("directory-layout", "manifests/", "at least one manifest", "none")
            return None
        return Name(max(versions), None, None, None)

    def read_file(self, file: str, place: str) -> Any:
        data = self.files.get(file)
        if data is None:
            what = "something else" if file in self.files else "nothing"
            self.add("file-missing", place, f"a regular file {file}", what)
            return None
        return memoryview(data)

    def span(self, offset: int | None, length: int, place: str) -> Any:
        """Return the bytes of a span; what is wrong with its place `check_spans` reports."""
        assert self.data is not None
        if offset is None or offset + length > len(self.data):
            return None
        return self.data[offset : offset + length]

    def name_span(self, m: Manifest, offset: int | None, length: int, place: str) -> None:
        """Note a span that a manifest names."""
        if (offset is None) != (self.data is None):
            expected = "offset null" if self.data is None else "an offset in a single file"
            self.add("span", f"{m.place}, {place}", expected, offset)
            m.whole = False
        elif offset is not None:
            self.spans.setdefault((offset, offset + length), place)

    def check_spans(self, whole: bool) -> None:
        """Check rules 44 and 45; `whole` says that every span is known."""
        assert self.data is not None
        stop = min(self.end, len(self.data))
        reach, last = FIRST_SPAN, "the slots"
        for (start, end), place in sorted(self.spans.items()):
            if start % PAGE or start < FIRST_SPAN:
                self.add("span", place, "a multiple of 4096 from 12288 on", start)
            if end > self.end:
                self.add("span", place, f"an end by {self.end}", end)
            if start < reach:
                self.add("span", place, f"a start from {reach} on, after {last}", start)
            elif whole and self.level:
                self.zeros(self.data, reach, min(start, stop), f"gap before {place}", "file-gap")
            if end > reach:
                reach, last = end, place
        if whole and self.level:
            self.zeros(self.data, reach, stop, "gap before the committed end", "file-gap")

    # Manifests

    def manifest(self, name: Name) -> Manifest | None:
        place = f"manifest {name.version}"
        if self.data is not None:
            raw = self.span(name.offset, name.length or 0, place)
        else:
            raw = self.read_file(f"manifests/{name.version:020d}.cnrm", place)
        if raw is None or not (head := self.block(raw, "M", place, "", 0, 0)):
            return None
        if (masks := self.features(head, place)) is None:
            return None
        self.zeros(head, 12, 16, place, "block-zero")
        self.zeros(head, 80, 120, place, "block-zero")
        if (version := u64(head, 56)) != name.version:
            self.add("manifest-identity", place, f"version {name.version}", version)
            return None
        self.limit(version, MAX_INT, place, "as a version")
        self.container = self.container or head[40:56]
        if head[40:56] != self.container or not any(self.container):
            self.add("manifest-identity", place, f"container id {self.container.hex()}", head[40:56].hex())
        J, A = u64(head, 64), u64(head, 72)
        if len(raw) != BLOCK + J + A + 8 or name.length not in (None, len(raw)):
            expected = f"{BLOCK + J + A + 8} bytes, as its header says"
            self.add("block-length", place, expected, f"{len(raw)}, named as {name.length}")
            return None
        if not (self.limit(J, MIB64, place, "bytes of JSON") and self.limit(A, MIB64, place, "bytes of attachments")):
            return None
        own, right = u64(raw, len(raw) - 8), digest(raw[:-8])
        for what in {right, name.digest} - {None, own}:
            self.add("manifest-digest", place, f"{what:016x}", f"{own:016x}")
        if right not in (own, name.digest):
            return None
        understood, doc = self.json(raw[BLOCK : BLOCK + J], place)
        if not understood:
            return None
        lenient = bool(masks[0] | masks[1])
        unusable = self.fields(doc, MANIFEST, place, lenient)
        if unusable & {"state", "parent", "tables", "chain", "versions", "dense"}:
            return None
        attachments = bytes(raw[BLOCK + J : BLOCK + J + A])
        made = Manifest(place, version, right, masks, doc, attachments)
        if self.data is not None:
            self.name_span(made, name.offset, len(raw), place)
        self.check_versions(made, lenient)
        self.check_schema(made, lenient)
        self.check_path(made, lenient)
        return made

    def check_versions(self, m: Manifest, lenient: bool) -> None:
        parent = m.doc["parent"]
        if (parent is None) != (m.version == 0):
            self.add("manifest-parent", m.place, "parent null exactly for version 0", parent)
        if parent is not None and not self.fields(parent, PARENT, f"{m.place}, parent", lenient):
            m.parent = parent["version"], int(parent["digest"], 16)
            if m.version and m.parent[0] != m.version - 1:
                self.add("manifest-parent", m.place, f"parent version {m.version - 1}", m.parent[0])
        if not self.limit(len(m.doc["versions"]), 4096, m.place, "retained versions"):
            m.whole = False
            return
        last = -1
        for entry in m.doc["versions"]:
            match entry:
                case [int(version), (int() | None) as offset, int(length), str(sum_)] if (
                    type(version) is type(length) is int
                    and min(version, length, offset or 0) >= 0
                    and not isinstance(offset, bool)
                    and _HEX16(sum_)
                ):
                    pass
                case _:
                    self.add("json-field", f"{m.place}, versions", "[version, offset or null, length, digest]", entry)
                    m.whole = False
                    continue
            if not last < version < m.version:
                expected = f"a version after {last}, before {m.version}"
                self.add("manifest-parent", f"{m.place}, versions", expected, version)
            last = version
            m.versions.append(Name(version, offset, length, int(sum_, 16)))
            self.name_span(m, offset, length, f"manifest {version}")
            if m.parent and m.parent[0] == version and m.parent[1] != int(sum_, 16):
                self.add("manifest-parent", f"{m.place}, versions", f"the parent's digest {m.parent[1]:016x}", sum_)

    def check_names(self, m: Manifest) -> None:
        """Compare how this manifest names the others with what they are (rule 31)."""
        names = [(n.version, n.digest) for n in m.versions] + ([m.parent] if m.parent else [])
        for version, named in names:
            other = self.manifests.get(version)
            if version < m.version and other is not None and named not in (None, other.digest):
                place = f"manifest {version}"
                expected = f"{named:016x}, by which version {m.version} names it"
                self.add("manifest-digest", place, expected, f"{other.digest:016x}")

    def check_schema(self, m: Manifest, lenient: bool) -> None:
        ids: set[str] = set()
        names: set[str] = set()
        self.limit(len(m.doc["tables"]), 65536, m.place, "tables")
        for number, table in enumerate(m.doc["tables"]):
            place = f"{m.place}, table {number}"
            if self.fields(table, SCHEMA, place, lenient):
                m.schema_ok = False
                continue
            self.name(table["name"], place)
            if table["id"] in ids or table["name"] in names:
                self.add("schema", place, "an id and a name of its own", table["name"])
            ids.add(table["id"])
            names.add(table["name"])
            if table["dim"] < 1:
                self.add("schema", place, "dim >= 1", table["dim"])
            self.limit(table["dim"], 1 << 20, place, "dim")
            self.limit(table["rows"] or 0, 1 << 48, place, "rows")
            if (table["rows"] is None) != (table["kind"] == "keyed"):
                self.add("schema", place, "rows null exactly for a keyed table", table["rows"])
            self.limit(len(table["columns"]), 256, place, "columns")
            schema = Schema(table["id"], table["name"], table["rows"], table["kind"] == "keyed", json.dumps(table), {})
            m.schema.setdefault(table["id"], schema)
            if not table["columns"]:
                self.add("schema", place, "the first column weight", "no column")
            for position, column in enumerate(table["columns"]):
                self.check_column(m, schema, table["dim"], column, position, lenient)

    def check_column(self, m: Manifest, schema: Schema, dim: int, column: Any, position: int, lenient: bool) -> None:
        place = f"{m.place}, table {schema.id}, column {position}"
        if self.fields(column, COLUMN, place, lenient):
            m.schema_ok = False
            return
        name, dtype, shape = column["name"], column["dtype"], column["shape"]
        self.name(name, place)
        if name in schema.columns:
            self.add("schema", place, "a name of its own", name)
        if position == 0 and (name != "weight" or shape != [dim]):
            self.add("schema", place, f"weight of shape [{dim}] first", f"{name} of {shape}")
        elif shape not in ([], [dim]):
            self.add("json-field", place, f"shape [] or [{dim}]", shape)
            m.schema_ok = False
            return
        if dtype not in ITEM:
            self.add("schema", place, "a data type for columns", dtype)
        elif len(column["fill"]) != 2 * ITEM[dtype]:
            self.add("schema", place, f"a fill of {ITEM[dtype]} bytes", column["fill"])
        width = dim if shape else 1
        made = Column(dtype, width, bytes.fromhex(column["fill"]), bool(shape))
        schema.columns.setdefault(name, made)

    def check_path(self, m: Manifest, lenient: bool) -> None:
        """Check the entries of the chain, their path, spans and attachments, not the segments."""
        place, before, entries = f"{m.place}, chain", self.damage, m.doc["chain"]
        if not self.limit(len(entries), 256, place, "segments"):
            m.whole = False
            return
        used: set[str] = set()
        states: set[str] = set()
        last: dict[str, Any] | None = None
        reach = 0
        for number, entry in enumerate(entries):
            spot = f"{place} entry {number}"
            if self.fields(entry, ENTRY, spot, lenient):
                m.whole = False
                continue
            m.chain.append(entry)
            self.name_span(m, entry["offset"], entry["length"], f"segment {entry['segment']}")
            start, to = entry["from"], entry["to"]
            if start == to:
                self.add("segment-identity", spot, "a from-state other than the to-state", to)
            same = last is not None and (start, to) == (last["from"], last["to"])
            follows = start == last["to"] if last is not None else start is None
            if not same and (not follows or to in states):
                self.add("chain-path", spot, "the next link of a path", f"{start} to {to}")
            if entry["segment"] in used:
                self.add("chain-path", spot, "a segment that occurs once", entry["segment"])
            used.add(entry["segment"])
            states.add(to)
            last = entry
            if entry["toc"] is not None:
                offset, length = entry["toc"]
                if offset != reach or not 1 <= length <= len(m.attachments) - offset:
                    expected = f"an attachment from {reach} to at most {len(m.attachments)}"
                    self.add("attachment", spot, expected, entry["toc"])
                reach = offset + length
        if len(m.chain) < len(entries):
            return
        if not entries or (last is not None and last["to"] != m.doc["state"]):
            found = last["to"] if last is not None else "no entry"
            self.add("chain-path", place, f"a path to {m.doc['state']}", found)
        if reach != len(m.attachments):
            found = f"{len(m.attachments)} bytes"
            self.add("attachment", m.place, f"attachments that end at {reach}", found)
        m.path_ok = self.damage == before

    # Segments

    def segment(self, entry: dict[str, Any]) -> Segment | None:
        """Return what a chain entry names, judged once however many entries name it."""
        in_folder = self.data is None
        key = entry["segment"] if in_folder else (entry["offset"], entry["length"])
        if key not in self.segments:
            self.segments[key] = self.load(entry)
        return self.segments[key]

    def raw(self, entry: dict[str, Any]) -> Any:
        """Return the bytes of a segment."""
        place = f"segment {entry['segment']}"
        if self.data is not None:
            return self.span(entry["offset"], entry["length"], place)
        return self.read_file(f"segments/{entry['segment']}.cnrs", place)

    def load(self, entry: dict[str, Any]) -> Segment | None:
        place = f"segment {entry['segment']}"
        raw = self.raw(entry)
        if raw is None:
            return None
        seg = Segment(place, raw, len(raw))
        if head := self.block(raw, "S", f"{place} header", "", 40, 4):
            seg.masks = self.features(head, f"{place} header")
            if seg.masks is None:
                # The length of a file is no content: whatever its trailer says, it can't be that of both.
                if len(raw) != entry["length"]:
                    self.add("segment-length", place, f"{entry['length']}", len(raw))
                return None
            self.zeros(head, 12, 16, f"{place} header", "block-zero")
            self.zeros(head, 104, 120, f"{place} header", "block-zero")
            ids = [head[at : at + 16].hex() if any(head[at : at + 16]) else None for at in (40, 56, 72, 88)]
            if None in (ids[0], ids[1], ids[3]) or ids[2] == ids[3]:
                self.add("segment-identity", f"{place} header", "ids that aren't zero and states that differ", ids)
            seg.id, seg.states = head[40:56].hex(), (ids[2], head[88:104].hex())
        self.check_trailer(seg)
        if not self.keep:
            seg.data = None
        return seg

    def check_trailer(self, seg: Segment) -> None:
        data, end = seg.data, seg.length - BLOCK
        place = f"{seg.place} trailer"
        if not (raw := self.block(data[max(end, 0) :], "T", place, "", 8, 3)):
            return
        seg.trailer_id, seg.trailer_digest = raw[8:24].hex(), u64(raw, 120)
        self.zeros(raw, 68, 120, place, "block-zero")
        if not any(raw[8:24]) or seg.trailer_id != (seg.id or seg.trailer_id):
            self.add("segment-identity", place, f"segment id {seg.id}", seg.trailer_id)
        length, D, at, size, toc_digest, piece = struct.unpack_from("<5QI", raw, 24)
        if length != seg.length:
            self.add("segment-length", place, f"{seg.length}", length)
        power = 512 <= piece <= 1 << 20 and piece & (piece - 1) == 0
        n = -(-D // piece) if power else 0
        if not power or D % 64 or D < BLOCK or at != D + 8 * n or at + size != end:
            expected = f"a piece size, a data end, a table of contents that ends at {end}"
            found = f"{piece}, {D}, {size} bytes from {at}"
            self.add("trailer-geometry", place, expected, found)
            return
        self.limit(size, MIB64, place, "bytes of a table of contents")
        seg.data_end, seed, toc = D, u64(raw, 8), bytes(data[at:end])
        if self.level:
            for i, want in enumerate(struct.unpack(f"<{n}Q", data[D:at])):
                if (right := digest(data[i * piece : min((i + 1) * piece, D)], seed + i)) != want:
                    spot = f"{seg.place} piece {i}"
                    self.add("piece-digest", spot, f"{want:016x}", f"{right:016x}")
        if (right := digest(toc, seed + (2 << 56))) != toc_digest:
            self.add("toc-digest", f"{seg.place} toc", f"{toc_digest:016x}", f"{right:016x}")
            return
        seg.toc_raw = toc
        self.check_toc(seg, seed, data[D:at])

    def check_toc(self, seg: Segment, seed: int, digests: Any) -> None:
        place = f"{seg.place} toc"
        understood, doc = self.json(seg.toc_raw, place)
        if not understood:
            return
        unusable = self.fields(doc, TOC, place, seg.lenient)
        if "nodes" not in unusable:
            self.check_nodes(seg, doc["nodes"], seed, digests)
        if unusable & {"sections", "tables", "dense"}:
            return
        if not all(TWO_INTS[0](section) for section in doc["sections"]):
            self.add("json-field", f"{place}, sections", "[offset, length] each", "others")
            return
        self.check_sections(seg, doc["sections"])
        uses: Counter[int] = Counter()
        for number, entry in enumerate(doc["tables"]):
            table = self.table(seg, entry, f"{seg.place} table {number}", uses)
            if table is None:
                seg.whole = False
            elif table.id in seg.tables:
                self.add("table-repeated", place, "a table id once", table.id)
            else:
                seg.tables[table.id] = table
        seg.dense = doc["dense"] is not None
        self.check_dense(seg, doc["dense"] or [], uses)
        for number in range(len(seg.sections)):
            if uses[number] > 1 or (seg.whole and not uses[number]):
                spot = f"{seg.place} section {number}"
                self.add("section-reference", spot, "one reference", uses[number])
        seg.judged = seg.whole
        if self.level == 2:
            self.check_rows(seg)

    def check_nodes(self, seg: Segment, nodes: str, seed: int, digests: Any) -> None:
        count = -(-len(digests) // NODE)
        if len(nodes) != 16 * count:
            self.add("node-count", seg.place, f"{count} digests of nodes", f"{len(nodes) / 16:g}")
        for j in range(min(count, len(nodes) // 16) if self.level else 0):
            right = digest(digests[j * NODE : (j + 1) * NODE], seed + (1 << 56) + j)
            if f"{right:016x}" != (want := nodes[16 * j : 16 * j + 16]):
                self.add("node-digest", f"{seg.place} node {j}", want, f"{right:016x}")

    def check_sections(self, seg: Segment, sections: list[list[int]]) -> None:
        D = seg.data_end
        self.limit(len(sections), 1 << 22, seg.place, "sections")
        starts, lengths = np.array(sections, np.int64).reshape(-1, 2).T
        ends = starts + lengths
        before = np.maximum(np.concatenate(([BLOCK], ends))[:-1], BLOCK)
        align = np.where(lengths >= 65536, PAGE, 64)
        right = -(-before // align) * align
        for k in np.flatnonzero((lengths < 1) | (starts != right)).tolist():
            place = f"{seg.place} section {k}"
            self.add("section-geometry", place, f"at least 1 byte from {right[k]} on", sections[k])
        end = round_up(int(ends[-1]) if sections else BLOCK, 64)
        if end != D:
            self.add("section-geometry", f"{seg.place} data end", f"{end}", D)
        # Sections that lie within the data and apart from those before them can be read.
        inside = (starts >= BLOCK) & (lengths >= 1) & (ends <= D)
        reached = np.maximum.accumulate(np.where(inside, ends, BLOCK))
        inside[1:] &= starts[1:] >= reached[:-1]
        seg.sections = [
            (at, length) if good else None for (at, length), good in zip(sections, inside.tolist(), strict=True)
        ]
        reach = BLOCK
        for at, length in [s for s in seg.sections if s and self.level] + [(D, 0)]:
            if self.level and at > reach:
                self.zeros(seg.data, reach, at, f"{seg.place} padding", "section-zero")
            reach = max(reach, at + length)

    def section(self, seg: Segment, number: int, place: str, uses: Counter[int]) -> Any:
        """Return offset and length of the section that is referred to, where it can be read.

        Only the first reference gets them, so that no number of references costs more than one.
        """
        if not 0 <= number < len(seg.sections):
            self.add("section-reference", place, f"one of {len(seg.sections)} sections", number)
            return None
        uses[number] += 1
        return seg.sections[number] if uses[number] == 1 else None

    def table(self, seg: Segment, doc: Any, place: str, uses: Counter[int]) -> Table | None:
        if self.fields(doc, TABLE, place, seg.lenient):
            return None
        place = f"{seg.place} table {doc['id']}"
        sets, parts, deleted = doc["row_sets"], doc["parts"], doc["deleted"]
        made = Table(place, doc["id"], doc["rows"], [], deleted, [])
        self.limit(doc["rows"] or 0, 1 << 48, place, "rows")
        self.limit(max(len(sets), len(parts)), 65536, place, "row sets, parts")
        for number, entry in enumerate(sets):
            spot = f"{place} row set {number}"
            made.row_sets.append(self.row_set(seg, made, entry, spot, uses))
        for number, entry in enumerate(parts):
            made.parts.append(self.part(seg, made, entry, f"{place} part {number}", uses))
        used = {part.rows for part in made.parts if part}
        if deleted is not None:
            if made.rows is not None or deleted in used:
                expected = "a keyed table, with a row set for the deleted rows alone"
                self.add("tombstone", place, expected, f"row set {deleted}")
            if not 0 <= deleted < len(sets):
                self.add("section-reference", f"{place}, deleted", f"one of {len(sets)} row sets", deleted)
            elif (rows := made.row_sets[deleted]) is not None:
                self.limit(rows.count, 1 << 26, place, "tombstones")
        if None in made.parts or None in made.row_sets:
            seg.whole = False
        for number in set() if None in made.parts else set(range(len(sets))) - used - {deleted}:
            self.add("section-reference", f"{place} row set {number}", "a use", "none")
        taken: set[int] = set()
        for number, part in enumerate(made.parts):
            if part is not None and part.exceptions_of is not None:
                self.check_exception(made, number, part, part.exceptions_of, taken)
        return made

    def row_set(self, seg: Segment, table: Table, doc: Any, place: str, uses: Counter[int]) -> RowSet | None:
        if self.fields(doc, ROWSET, place, seg.lenient):
            return None
        before, code, count, number = self.damage, doc["code"], doc["count"], doc["section"]
        low, high = int(doc["min"]), int(doc["max"])
        span = high - low + 1
        section = None if number is None else self.section(seg, number, place, uses)
        if not 1 <= count <= span:
            self.add("row-set", place, "1 <= count <= max - min + 1", f"{count}, {low} to {high}")
        elif code == "range" and (table.rows is None or number is not None or count != span):
            self.add("row-set", place, f"a dense table, no section, count {span}", f"section {number}, count {count}")
        elif code != "range" and number is None:
            self.add("row-set", place, f"a section for code {code}", "null")
        elif section and (length := index_length(code, count, low, high)) not in (None, section[1]):
            self.add("row-set", place, f"a section of {length} bytes", section[1])
        if table.rows is not None and (low < 0 or high >= table.rows):
            self.add("row-bounds", place, f"ids in 0 .. {table.rows - 1}", f"{low} to {high}")
        ok = self.damage == before and (code == "range" or section is not None)
        return RowSet(code, count, low, high, section, ok)

    def part(self, seg: Segment, table: Table, doc: Any, place: str, uses: Counter[int]) -> Part | None:
        if self.fields(doc, PART, place, seg.lenient):
            return None
        before, (first, end), encoding = self.damage, doc["elements"], doc["encoding"]
        made = Part(place, doc["column"], doc["rows"], first, end, encoding, doc["exceptions_of"])
        self.name(made.column, place)
        rows = table.set_of(made)
        if not 0 <= made.rows < len(table.row_sets):
            self.add("section-reference", place, f"one of {len(table.row_sets)} row sets", made.rows)
        made.section = self.section(seg, doc["section"], place, uses)
        if doc["codebooks"] is not None:
            made.codebooks = self.section(seg, doc["codebooks"], place, uses)
        # No column is wider, whether the schema lists the table or not.
        if not 0 <= first < end <= 1 << 20:
            self.add("elements", place, "0 <= first < end <= 2^20", doc["elements"])
        made.legal = self.encoding(encoding, place, seg.lenient)
        if made.legal:
            if first < end and not has_width(encoding, end - first):
                self.add("part-encoding", place, "rows of another width", f"{end - first} elements of {encoding}")
            elif rows and rows.count > 0 and first < end:
                self.check_lengths(made, rows.count, doc["codebooks"] is not None)
            self.check_scheme(doc["scheme"], encoding, place, seg.lenient)
        elif doc["scheme"] is not None:
            self.fields(doc["scheme"], SCHEME, f"{place}, scheme", seg.lenient)
        placed = made.section is not None and (doc["codebooks"] is None or made.codebooks is not None)
        made.ok = self.damage == before and placed and bool(rows and rows.ok)
        return made

    def encoding(self, encoding: dict[str, Any], place: str, lenient: bool) -> bool:
        """Say whether an encoding is one of section 6; report it if not."""
        name = encoding.get("name")
        shape = ENCODINGS.get(name) if type(name) is str else None
        if self.fields(encoding, shape or {"name": ANY}, f"{place}, encoding", lenient or shape is None):
            return False
        if shape is None or not is_legal(encoding):
            self.add("part-encoding", place, "an encoding of section 6", encoding)
            return False
        return True

    def check_lengths(self, part: Part, count: int, has_codebooks: bool) -> None:
        expected = part_length(part.encoding, count, part.end - part.first)
        at_least = in_groups(part.encoding)
        if part.section and (part.section[1] < expected if at_least else part.section[1] != expected):
            what = f"{'at least ' if at_least else ''}{expected} bytes"
            self.add("part-length", part.place, what, part.section[1])
        shared = codebooks_length(part.encoding, count)
        if (shared is not None) != has_codebooks:
            what = "codebooks null" if shared is None else f"codebooks of {shared} bytes"
            self.add("part-length", part.place, what, "others" if has_codebooks else "null")
        elif part.codebooks and part.codebooks[1] != shared:
            self.add("part-length", part.place, f"codebooks of {shared} bytes", part.codebooks[1])

    def check_scheme(self, scheme: Any, encoding: dict[str, Any], place: str, lenient: bool) -> None:
        """Judge the scheme of a part whose encoding is legal."""
        if (scheme is None) != (encoding["name"] == "raw"):
            self.add("part-scheme", place, "a scheme exactly where the encoding isn't raw", scheme)
        if scheme is None:
            return
        place = f"{place}, scheme"
        bad = self.fields(scheme, SCHEME, place, lenient)
        if encoding["name"] != "raw" and "method" not in bad and scheme["method"] not in methods_of(encoding):
            self.add("part-scheme", place, f"one of {methods_of(encoding)}", scheme["method"])
        ranges: dict[str, tuple[Callable[[Any], bool], str]] = {
            **dict.fromkeys(("num_bins", "starts"), ((lambda v: 1 <= v <= 65536), "null or 1 to 65536")),
            "ratio": ((lambda v: 0 < v <= 1), "null, or above 0 and at most 1"),
            **dict.fromkeys(("bound", "mean_error", "max_error"), ((lambda v: v >= 0), "at least 0")),
        }
        for key, (check, what) in ranges.items():
            if key not in bad and scheme[key] is not None and not check(scheme[key]):
                self.add("part-scheme", f"{place}, {key}", what, scheme[key])
        if "step" not in bad and scheme["step"] is not None:
            self.check_step(scheme["step"], scheme["method"], f"{place}, step", lenient)
        if not bad & {"mean_error", "max_error"} and scheme["mean_error"] > scheme["max_error"]:
            expected = f"at most the greatest, {scheme['max_error']}"
            self.add("part-scheme", f"{place}, mean_error", expected, scheme["mean_error"])

    def check_step(self, step: Any, method: Any, place: str, lenient: bool) -> None:
        bad = self.fields(step, STEP, place, lenient)
        if method != "closed-loop":
            self.add("part-scheme", place, "null but for closed-loop", step)
        if "size" not in bad and not step["size"] > 0:
            self.add("part-scheme", f"{place}, size", "above 0", step["size"])
        if "reference" not in bad and step["reference"] is not None and not step["reference"] >= 0:
            self.add("part-scheme", f"{place}, reference", "null or at least 0", step["reference"])
        if "column" not in bad and step["column"] is not None:
            self.name(step["column"], f"{place}, column")

    def check_exception(self, table: Table, number: int, part: Part, of: int, taken: set[int]) -> None:
        if not 0 <= of < len(table.parts):
            self.add("section-reference", part.place, f"one of {len(table.parts)} parts", of)
            part.ok = False
            return
        main = table.parts[of]
        if main is None:
            return
        same = (main.column, main.first, main.end) == (part.column, part.first, part.end)
        names = (part.encoding.get("name"), main.encoding.get("name"))
        if not same or names[0] != "raw" or names[1] == "raw" or of >= number or of in taken:
            expected = "a raw part, the only one of a part of these elements before it that isn't raw"
            self.add("exception", part.place, expected, f"{names} of part {of}")
            part.ok = False
        taken.add(of)

    def check_dense(self, seg: Segment, entries: list[Any], uses: Counter[int]) -> None:
        names: set[str] = set()
        self.limit(len(entries), 65536, seg.place, "entries of dense state")
        for number, entry in enumerate(entries):
            place = f"{seg.place} dense entry {number}"
            kind = entry.get("kind") if type(entry) is dict else None
            shape = DENSE_ARRAY if kind == "array" else DENSE
            if self.fields(entry, shape, place, seg.lenient):
                seg.whole = False
                continue
            self.name(entry["name"], place)
            if entry["name"] in names:
                self.add("table-repeated", place, "a name of its own", entry["name"])
            names.add(entry["name"])
            section = None
            if entry["section"] is not None:
                section = self.section(seg, entry["section"], place, uses)
                if section is None:
                    continue
            size = section[1] if section else 0
            if kind == "array":
                if not self.limit(len(entry["shape"]), 32, place, "dimensions"):
                    continue
                item, extents = DENSE_ITEM[entry["dtype"]], entry["shape"]
                expected = item * prod(extents)
                if size != expected:
                    self.add("dense-entry", place, f"{expected} bytes", size)
                else:
                    self.limit(item * prod(max(1, n) for n in extents), MAX_INT, place, "bytes of an array")
            elif kind == "json" and section is None:
                self.add("dense-entry", place, "a section", "null")
            if self.level == 2 and section:
                at = section[0]
                raw = seg.data[at : at + size]
                if kind == "json" and not self.json(raw, place)[0]:
                    self.add("dense-entry", place, "metadata", "what isn't strict JSON")
                if kind == "array" and entry["dtype"] == "bool" and bytes(raw).strip(b"\0\1"):
                    self.add("dense-entry", place, "bool bytes 0 or 1", "others")

    # What only the rows themselves tell

    def check_rows(self, seg: Segment) -> None:
        for table in seg.tables.values():
            for number, rows in enumerate(table.row_sets):
                if rows is not None and rows.ok:
                    try:
                        rows.runs = decode_index(rows, seg.data)
                    except BrokenIndexError as broken:
                        error, expected, found = broken.args
                        self.add(error, f"{table.place} row set {number}", expected, found)
            deleted = None
            if table.deleted is not None and 0 <= table.deleted < len(table.row_sets):
                deleted = table.row_sets[table.deleted]
            for number, rows in enumerate(table.row_sets):
                if rows is None or deleted is None or rows is deleted:
                    continue
                if rows.runs and deleted.runs:
                    row = shared_row(rows.runs, deleted.runs)
                    if row is not None:
                        place = f"{table.place} row set {number}"
                        self.add("tombstone", place, "no deleted row", row)
            for part in table.parts:
                if part is not None and part.ok:
                    self.check_part_rows(seg, table, part)

    def check_part_rows(self, seg: Segment, table: Table, part: Part) -> None:
        encoding, n = part.encoding, part.end - part.first
        if encoding["name"] == "grid" or in_groups(encoding):
            self.check_integers(seg, table, part)
        elif encoding["name"] == "log":
            self.check_log_padding(seg, table, part)
        elif encoding["name"] in ("rowwise", "codebook"):
            self.check_codes(part, part_bytes(seg, part), row_layout(encoding, n), n * encoding["bits"])
        if part.codebooks is not None:
            at, length = part.codebooks
            numbers = decode_raw(np.frombuffer(seg.data, np.uint8, length, at), encoding["values"])
            self.check_finite(part, numbers.reshape(-1, 1 << encoding["bits"]), "codebook")
        main = None if part.exceptions_of is None else table.parts[part.exceptions_of]
        own, rows = table.set_of(part), main and table.set_of(main)
        if not main or not main.ok or not own or not own.runs or not rows or not rows.runs:
            return
        inside, slots = locate(rows.runs, expand(own.runs))
        if not inside.all():
            self.add("exception", part.place, "rows of the main part", "others")
        if main.codes_ok and not all(self.are_zero(seg, table, main, some) for some in chunks(slots[inside], n)):
            self.add("exception", part.place, "the main part's slots zero", "others")

    def are_zero(self, seg: Segment, table: Table, part: Part, slots: np.ndarray) -> bool:
        """Say whether the slots of a part at these places are those of exceptions."""
        if part.encoding["name"] == "grid" or in_groups(part.encoding):
            _, codes, exponents = open_integers(seg, table, part).at(slots)
            return not codes.any() and (in_groups(part.encoding) or not exponents.any())
        under_log = part.encoding["name"] == "log"
        kept = log_codes(seg, part, slots) if under_log else part_bytes(seg, part)[slots]
        return not kept.any()

    def check_integers(self, seg: Segment, table: Table, part: Part) -> None:
        """Decode a part of integers once, in pieces; an absolute one says what must be in range."""
        part.codes_ok = False
        try:
            opened = open_integers(seg, table, part)
            for units in opened.pieces():
                said = scaled(*opened.read(units)[1:])
                if not part.residual and (bad := out_of_range(said, part.grid)) is not None:
                    self.add("grid-range", part.place, "an integer in range", bad)
                    return
        except BrokenCodesError as broken:
            error, expected, found = broken.args
            self.add(error, part.place, expected, found)
            return
        part.codes_ok = True
        for what in sorted(opened.padding):
            self.add("code-padding", part.place, f"zero bits beyond the last {what}", "a one bit")

    def check_log_padding(self, seg: Segment, table: Table, part: Part) -> None:
        rows = table.set_of(part)
        assert part.section is not None
        assert rows is not None
        used = rows.count * part.encoding["bits"] % 8
        if used and seg.data[sum(part.section) - 1] >> used:
            self.add("code-padding", part.place, "zero bits beyond the last code", "a one bit")

    def check_codes(self, part: Part, raw: np.ndarray, layout: RowLayout, bits: int) -> None:
        """Check what stands beside the codes, which take `bits` bits of each row."""
        end = layout.codes + layout.code_bytes
        if bits % 8 and (raw[:, end - 1] >> (bits % 8)).any():
            self.add("code-padding", part.place, "zero bits beyond the last code", "a one bit")
        unused = np.ones(layout.row_bytes, bool)
        unused[layout.codes : end] = False
        for what, (dtype, at, count) in layout.numbers.items():
            stop = at + count * ITEM[dtype]
            unused[at:stop] = False
            self.check_finite(part, decode_raw(raw[:, at:stop].copy(), dtype), what)
        if raw[:, unused].any():
            self.add("code-padding", part.place, "zero bytes that belong to nothing", "others")

    def check_finite(self, part: Part, numbers: np.ndarray, what: str) -> None:
        """Check scales, biases or the numbers of codebooks, those of a row or of a codebook together."""
        if len(bad := np.flatnonzero(~np.isfinite(numbers).all(axis=1))):
            found = f"{numbers[bad[0]].tolist()}, number {bad[0]}"
            self.add("row-parameter", part.place, f"a finite {what}", found)

    # Versions

    def check_chain(self, m: Manifest) -> None:
        """Judge the segments of a version, then what they say together under its schema."""
        loaded = [(entry, self.segment(entry)) for entry in m.chain]
        for entry, seg in loaded:
            if seg is not None:
                self.match(m, entry, seg)
                self.match_schema(m, seg)
        dense = [seg for entry, seg in loaded if entry["segment"] == m.doc["dense"]]
        entries_ok = len(m.chain) == len(m.doc["chain"])
        if m.doc["dense"] and entries_ok and not any(seg is None or not seg.judged or seg.dense for seg in dense):
            self.add("dense-reference", m.place, "a segment of the chain with dense state", m.doc["dense"])
        if not m.path_ok:
            return
        steps = [(to, [seg for _, seg in group]) for to, group in groupby(loaded, key=lambda pair: pair[0]["to"])]
        if self.level == 2:
            for to, segs in steps:
                self.overlaps(to, [seg for seg in segs if seg])
        if any(seg is None or not seg.judged for _, seg in loaded) or not m.schema_ok:
            return
        for schema in m.schema.values():
            place = f"{m.place}, table {schema.id}"
            by_step = [[s.tables[schema.id] for s in segs if s and schema.id in s.tables] for _, segs in steps]
            of_steps = [tables for tables in by_step if tables]
            if not of_steps:
                self.add("chain-schema", place, "a TABLE in the chain", "none")
            elif wrong := {table.rows for table in of_steps[-1]} - {schema.rows}:
                self.add("chain-schema", place, f"newest rows {schema.rows}", sorted(wrong, key=str))
            for tables in of_steps:
                if len(rows := {table.rows for table in tables}) > 1:
                    self.add("chain-schema", place, "one number of rows in a step", sorted(rows, key=str))
        self.check_bases(m, [[seg for seg in segs if seg] for _, segs in steps])
        if self.level == 2:
            self.check_sums(m, loaded)
        if self.level == 2 and steps:
            first = [seg for seg in steps[0][1] if seg]
            self.check_tiling(m, first, self.overlaps(steps[0][0], first))

    def check_bases(self, m: Manifest, steps: list[list[Segment]]) -> None:
        """Look for integers of the same grid under each residual part, by columns alone."""
        older: set[tuple[Any, ...]] = set()
        for segs in steps:
            found = [
                (part, (table.id, part.column, part.grid))
                for seg in segs
                for table in seg.tables.values()
                for part in table.parts
                if part is not None and part.legal and part.grid is not None and table.id in m.schema
            ]
            for part, key in found:
                if part.residual and key not in older:
                    place = f"{m.place}, {part.place}"
                    self.add("residual-base", place, "integers of its grid in an older step", "none")
            older |= {key for _, key in found}

    def check_sums(self, m: Manifest, loaded: list[tuple[dict[str, Any], Segment | None]]) -> None:
        """Add up the integers of every column that has residual parts, step by step."""
        chain = [(entry, seg) for entry, seg in loaded if seg is not None]
        key = tuple(id(seg) for _, seg in chain)
        columns = {
            (schema, name)
            for schema in m.schema
            for _, seg in chain
            if schema in seg.tables
            for part in seg.tables[schema].parts
            if part is not None and part.residual and part.column in m.schema[schema].columns
            for name in (part.column,)
        }
        columns -= {c for c in columns for done in self.summed.get(c, ()) if done[: len(key)] == key}
        if not columns:
            return
        for entry, seg in chain:
            seg.data = seg.data if seg.data is not None else self.raw(entry)
        for schema, name in sorted(columns):
            self.summed.setdefault((schema, name), []).append(key)
            steps = [
                [(seg, seg.tables[schema]) for _, seg in group if schema in seg.tables]
                for _, group in groupby(chain, key=lambda pair: pair[0]["to"])
            ]
            for error, part, expected, found in broken_sums(steps, name, m.schema[schema].columns[name].width):
                self.add(error, f"{m.place}, {part.place}", expected, found)
        for _, seg in chain:
            if not self.keep:
                seg.data = None

    def match(self, m: Manifest, entry: dict[str, Any], seg: Segment) -> None:
        """Compare a segment with the manifest and the chain entry that name it."""
        place, states = f"{m.place}, {seg.place}", (entry["from"], entry["to"])
        if {seg.id, seg.trailer_id} - {None, entry["segment"]}:
            self.add("segment-identity", place, f"segment id {entry['segment']}", f"{seg.id}, {seg.trailer_id}")
        if seg.states not in (None, states):
            self.add("segment-identity", place, f"states {states}", seg.states)
        if seg.length != entry["length"]:
            self.add("segment-length", place, f"{entry['length']}", seg.length)
        if seg.trailer_digest is not None and f"{seg.trailer_digest:016x}" != entry["trailer"]:
            self.add("trailer-digest", place, entry["trailer"], f"{seg.trailer_digest:016x}")
        if seg.masks and any(own & ~all_ for own, all_ in zip(seg.masks, m.masks, strict=True)):
            self.add("feature-union", place, f"masks within {m.masks}", seg.masks)
        if entry["toc"] is not None and seg.toc_raw is not None:
            offset, length = entry["toc"]
            if m.attachments[offset : offset + length] != seg.toc_raw:
                self.add("attachment", place, "the segment's own table of contents", "other bytes")

    def match_schema(self, m: Manifest, seg: Segment) -> None:
        for table in seg.tables.values():
            schema = m.schema.get(table.id)
            if schema is None or (id(seg), schema.key) in self.matched:
                continue
            self.matched.add((id(seg), schema.key))
            if (table.rows is None) != schema.keyed:
                self.add("chain-schema", table.place, "rows null exactly for a keyed table", table.rows)
            for part in table.parts:
                column = schema.columns.get(part.column) if part else None
                if part is None or (column is None and not m.schema_ok):
                    continue
                if column is None:
                    self.add("chain-schema", part.place, "a column of the schema", part.column)
                    continue
                if part.end > column.width:
                    for error in ("elements", "chain-schema"):
                        self.add(error, part.place, f"end <= {column.width}", part.end)
                name, dtype = part.encoding.get("name"), part.encoding.get("dtype")
                fits = dtype == column.dtype if name == "raw" else column.dtype == "float32"
                if not fits or (name == "log" and not in_groups(part.encoding) and column.vector):
                    what = f"{column.dtype}, {'dim values' if column.vector else 'one value'} per row"
                    self.add("part-encoding", part.place, f"an encoding for {what}", part.encoding)

    def overlaps(self, to: str, segs: list[Segment]) -> set[tuple[str, str]]:
        """Return the (table id, column) pairs of a step whose parts overlap; report each once."""
        key = tuple(id(seg) for seg in segs)
        if key not in self.steps:
            columns: dict[tuple[str, str], list[tuple[int, int, Runs]]] = {}
            for seg in segs:
                for table in seg.tables.values():
                    for part in table.parts:
                        if part is None or not part.ok or part.exceptions_of is not None:
                            continue
                        if (rows := table.set_of(part)) is not None and rows.runs is not None:
                            same = columns.setdefault((table.id, part.column), [])
                            same.append((part.first, part.end, rows.runs))
            self.steps[key] = {c for c, parts in columns.items() if len(parts) > 1 and overlap(parts)}
            for table_id, column in self.steps[key]:
                place = f"step to {to}, table {table_id}, column {column}"
                self.add("part-overlap", place, "parts that share nothing", "a shared element")
        return self.steps[key]

    def check_tiling(self, m: Manifest, segs: list[Segment], overlapping: set[tuple[str, str]]) -> None:
        """Compare areas: parts that don't overlap cover a column exactly if their areas add up."""
        for schema in m.schema.values():
            tables = [seg.tables[schema.id] for seg in segs if schema.id in seg.tables]
            if schema.rows is None or not tables or None in {table.rows for table in tables}:
                continue
            cells = max(table.rows or 0 for table in tables)
            for name, column in schema.columns.items():
                area, known, parts = 0, True, 0
                for table in tables:
                    for part in table.parts:
                        if part and part.column == name and part.exceptions_of is None:
                            rows = table.set_of(part)
                            known = known and part.ok and rows is not None and rows.runs is not None
                            area += rows.count * (part.end - part.first) if rows else 0
                            parts += 1
                whole = cells * column.width
                if parts and known and (area < whole or (area > whole and (schema.id, name) not in overlapping)):
                    place = f"{m.place}, table {schema.id}, column {name}"
                    self.add("baseline-tiling", place, f"{whole} elements", area)


def part_bytes(seg: Segment, part: Part) -> np.ndarray:
    """Return the rows of a part that isn't under `log`, (count, row bytes) uint8."""
    assert part.section is not None
    at, length = part.section
    row_bytes = row_layout(part.encoding, part.end - part.first).row_bytes
    return np.frombuffer(seg.data, np.uint8, length, at).reshape(-1, row_bytes)


def read_codes(raw: np.ndarray, bits: int, numbers: np.ndarray) -> np.ndarray:
    """Return the codes of these numbers in each row of code bytes, (rows, numbers)."""
    at, shift = numbers * bits // 8, (numbers * bits % 8).astype(np.uint64)
    # Bytes more behind the row, so that as many as a code may touch are there wherever it begins.
    touched = -(-(bits + 7) // 8)
    padded = np.pad(raw, ((0, 0), (0, touched)))
    window = np.zeros((len(raw), len(numbers)), np.uint64)
    for k in range(touched):
        window |= padded[:, at + k].astype(np.uint64) << np.uint64(8 * k)
    return window >> shift & np.uint64((1 << bits) - 1)


def signed_codes(raw: np.ndarray, bits: int, n: int) -> np.ndarray:
    """Return the n codes of each row of code bytes, in two's complement, as int64 (rows, n)."""
    codes = read_codes(raw, bits, np.arange(n)).astype(np.int64)
    return codes - (codes >> (bits - 1) << bits)


def log_codes(seg: Segment, part: Part, slots: np.ndarray) -> np.ndarray:
    """Return the codes of a part under `log` at these places of its row set."""
    assert part.section is not None
    at, length = part.section
    return read_codes(np.frombuffer(seg.data, np.uint8, length, at)[None], part.encoding["bits"], slots)[0]


# --- Integers, in groups or not (sections 6.5, 6.7 and 6.8) --------------------------------------


class BrokenCodesError(Exception):
    """A part of integers breaks one of the rules 54 to 56; the arguments are a finding's last three."""


@dataclass
class Models:
    """The models of a `rans` section: number 0 is that of the row kinds, 1 + c that of class c."""

    exponent: np.ndarray  # of each row kind
    of: np.ndarray  # the model of the values of each row kind
    symbol: np.ndarray  # (models, 4096)
    frequency: np.ndarray  # (models, symbols)
    start: np.ndarray  # the same


class Integers:
    """The codes of a part, a unit of rows at a time: a group, or a row where there are none."""

    def __init__(self, raw: np.ndarray, encoding: dict[str, Any], count: int, n: int) -> None:
        self.raw, self.encoding, self.count, self.n = raw, encoding, count, n
        self.unit = encoding["group"] or 1
        self.most = 25 if encoding["kind"] == "residual" else 24
        self.padding: set[str] = set()  # what has one bits behind it
        if in_groups(encoding):
            at = 0
            if encoding["payload"] == "rans":
                at, self.models = read_models(raw, 24 if encoding["name"] == "grid" else 0)
            groups = -(-count // self.unit)
            self.begins = self.directory(raw[at : at + directory_length(groups)], groups)
            self.payload = raw[at + directory_length(groups) :]
            if self.begins[-1] > len(self.payload):
                raise BrokenCodesError("grid-directory", f"at most {len(self.payload)}", f"{self.begins[-1]}")
            self.ends = np.append(self.begins[1:], len(self.payload))

    def directory(self, raw: np.ndarray, groups: int) -> np.ndarray:
        """Return where each group begins; the last one may still be out of bounds."""
        if len(raw) < directory_length(groups):
            raise BrokenCodesError("grid-directory", f"a directory of {directory_length(groups)} bytes", f"{len(raw)}")
        begins = []
        for first in range(0, groups, 1024):
            size = min(1024, groups - first)
            block, raw = np.split(raw, [directory_length(size)])
            base, offsets = u64(block.tobytes(), 0), block[8 : 8 + 4 * size].copy().view("<u4").astype(np.int64)
            # The begins are sums that stay below 2^62, or the block is wrong anyway.
            if offsets[0] or block[8 + 4 * size :].any() or base >= 1 << 61 or (first == 0 and base):
                raise BrokenCodesError("grid-directory", "the base of its first group, and zero bytes", "others")
            begins.append(base + offsets)
        found = np.concatenate(begins)
        if (np.diff(found) < 0).any():
            raise BrokenCodesError("grid-directory", "beginnings that don't descend", "others")
        return found

    def pieces(self) -> Iterable[np.ndarray]:
        """Return all units, some at a time."""
        units = -(-self.count // self.unit)
        some = max(1, CHUNK // (self.unit * self.n))
        return (np.arange(first, min(first + some, units)) for first in range(0, units, some))

    def at(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for rows at some places their order, and in it the codes (rows, n) and exponents (rows,)."""
        order = np.argsort(slots, kind="stable")
        units = np.unique(slots // self.unit)
        some = max(1, CHUNK // (self.unit * self.n))
        codes, exponents = [np.empty((0, self.n), np.int64)], [np.empty(0, np.int64)]
        for first in range(0, len(units), some):
            positions, read, of_rows = self.read(units[first : first + some])
            wanted = slots[order]
            wanted = wanted[(wanted >= positions[0]) & (wanted <= positions[-1])]
            at = np.searchsorted(positions, wanted)
            codes.append(read[at])
            exponents.append(of_rows[at])
        return order, np.concatenate(codes), np.concatenate(exponents)

    def read(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions of the rows of some ascending units, their codes (rows, n) and exponents (rows,)."""
        sizes = np.minimum(self.unit, self.count - units * self.unit)
        before = np.cumsum(sizes) - sizes
        positions = np.arange(sizes.sum()) + np.repeat(units * self.unit - before, sizes)
        if self.encoding["payload"] == "fixed":
            rows = self.raw.reshape(self.count, -1)[units]
            exponents = rows[:, 0].astype(np.int64)
            codes = self.codes(rows[:, 1:], self.encoding["bits"])
        elif self.encoding["payload"] == "packed":
            both = [self.packed(unit, size) for unit, size in zip(units.tolist(), sizes.tolist(), strict=True)]
            codes, exponents = (np.concatenate(of_groups) for of_groups in zip(*both, strict=True))
        else:
            codes, exponents = self.rans(units, sizes)
        if (exponents > 24).any() or (np.abs(codes) >> (self.most - exponents)[:, None]).any():
            raise BrokenCodesError("grid-codes", f"e up to 24 and codes below 2^({self.most} - e)", "others")
        return positions, codes, exponents

    def codes(self, rows: np.ndarray, bits: int) -> np.ndarray:
        """Return the codes of rows of code bytes, and note what stands beyond them."""
        if (used := self.n * bits % 8) and (rows[:, -1] >> used).any():
            self.padding.add("code")
        return signed_codes(rows, bits, self.n)

    def packed(self, unit: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and exponents of a group of so many rows."""
        raw = self.payload[self.begins[unit] : self.ends[unit]]
        exponents, widths = (raw[at : at + size].astype(np.int64) for at in (0, size))
        if len(widths) < size or widths.max() > 26:
            raise BrokenCodesError("grid-codes", f"{size} widths up to 26", "others")
        lengths = (self.n * widths + 7) // 8
        begins = 2 * size + np.cumsum(lengths) - lengths
        if len(raw) != 2 * size + int(lengths.sum()):
            raise BrokenCodesError("grid-codes", f"a group of {2 * size + int(lengths.sum())} bytes", f"{len(raw)}")
        if exponents[widths == 0].any():
            raise BrokenCodesError("grid-codes", "e = 0 where w = 0", "another")
        codes = np.zeros((size, self.n), np.int64)
        for width in np.unique(widths[widths > 0]).tolist():
            rows = np.flatnonzero(widths == width)
            length = -(-self.n * width // 8)
            codes[rows] = self.codes(raw[begins[rows, None] + np.arange(length)], width)
            # A code needs its width if it isn't that of one bit less, but zeros need none.
            least, greatest = codes[rows].min(axis=1), codes[rows].max(axis=1)
            half = 1 << width - 1 >> 1
            fits_in_less = (least >= -half) & (greatest < half) if width > 1 else (least == 0)
            if fits_in_less.any():
                raise BrokenCodesError("grid-codes", "the smallest width", f"{width} bits where fewer do")
        return codes, exponents

    def rans(self, units: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and exponents of some groups, all of which are decoded in step."""
        models, raw = self.models, self.payload
        begins, ends = self.begins[units], self.ends[units]
        if (ends - begins < 32).any():
            raise BrokenCodesError("grid-codes", "eight states", "a group of less than 32 bytes")
        states = raw[begins[:, None] + np.arange(32)].view("<u4").astype(np.int64)
        if (states < 65536).any():
            raise BrokenCodesError("grid-codes", "states of at least 65536", "others")
        streams = Streams(models, raw, states, begins + 32, ends)
        most = int(sizes.max())
        kinds = np.zeros((len(units), most), np.int64)
        if len(models.exponent) > 1:
            kinds = streams.phase(np.zeros((len(units), most), np.int64), sizes)
        tokens = streams.phase(np.repeat(models.of[kinds], self.n, axis=1), sizes * self.n)
        if (streams.states != 65536).any():
            raise BrokenCodesError("grid-codes", "states of 65536 at the end", "others")
        codes = []
        for at, size in enumerate(sizes.tolist()):
            found = tokens[at, : size * self.n]
            codes.append(self.from_tokens(found, raw[streams.at[at] : ends[at]]).reshape(size, self.n))
        exponents = [models.exponent[kinds[at, :size]] for at, size in enumerate(sizes.tolist())]
        return np.concatenate(codes), np.concatenate(exponents)

    def from_tokens(self, tokens: np.ndarray, extra: np.ndarray) -> np.ndarray:
        """Return the codes of tokens and the extra bits that go with them."""
        m = 5 + (tokens - 32 >> 2)
        bits = np.where(tokens < 32, 0, m - 2)
        end = int(bits.sum())
        if len(extra) != -(-end // 8):
            raise BrokenCodesError("grid-codes", f"{end} extra bits", f"{len(extra)} bytes")
        if end % 8 and extra[-1] >> end % 8:
            self.padding.add("extra bit")
        begins = np.cumsum(bits) - bits
        padded = np.append(extra, np.zeros(4, np.uint8)).astype(np.int64)
        window = sum(padded[begins // 8 + k] << 8 * k for k in range(4))
        low = window >> begins % 8 & (1 << bits) - 1
        z = np.where(tokens < 32, tokens, (4 + (tokens - 32 & 3) << np.maximum(m - 2, 0)) + low)
        return z >> 1 ^ -(z & 1)


class Streams:
    """The symbols of groups side by side: states (groups, 8), and where the next word of each group stands."""

    def __init__(self, models: Models, raw: np.ndarray, states: np.ndarray, at: np.ndarray, ends: np.ndarray) -> None:
        self.models, self.raw, self.states, self.at, self.ends = models, raw, states, at.copy(), ends

    def phase(self, model: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return a symbol under each model (groups, symbols), of which each group has so many."""
        models = self.models
        symbols = models.symbol[model, 0]
        if (models.frequency[model, symbols] == 4096).all():
            # What is certain leaves the states as they are.
            return symbols
        for first in range(0, model.shape[1], 8):
            of = model[:, first : first + 8]
            here = first + np.arange(of.shape[1]) < counts[:, None]
            x = self.states[:, : of.shape[1]]
            slot = x & 4095
            s = models.symbol[of, slot]
            x = np.where(here, models.frequency[of, s] * (x >> 12) + slot - models.start[of, s], x)
            short = here & (x < 65536)
            ends = self.at[:, None] + 2 * np.cumsum(short, axis=1)
            if (self.at + 2 * short.sum(axis=1) > self.ends).any():
                raise BrokenCodesError("grid-codes", "another word", "the end of the group")
            at = np.where(short, ends - 2, 0)
            word = self.raw[at].astype(np.int64) | self.raw[at + 1].astype(np.int64) << 8
            self.states[:, : of.shape[1]] = np.where(short, x << 16 | word, x)
            self.at = ends[:, -1]
            symbols[:, first : first + 8] = s
        return symbols


def read_models(raw: np.ndarray, most: int) -> tuple[int, Models]:
    """Return the length of the head of a `rans` section and its models; `most` is the greatest exponent."""

    def wrong(expected: str) -> BrokenCodesError:
        return BrokenCodesError("grid-models", expected, "others")

    head = raw[:16].tobytes()
    kinds, classes, length = struct.unpack_from("<HHI", head)
    if not 1 <= kinds <= 1024 or not 1 <= classes <= 256 or any(head[8:]):
        raise wrong("1 to 1024 row kinds, 1 to 256 classes, zero bytes")
    if 16 + length > len(raw):
        raise wrong("tables within the section")
    tables = raw[16 : 16 + length].tobytes()
    if 4 * kinds > length:
        raise wrong(f"{kinds} row kinds")
    listed = [struct.unpack_from("<BBH", tables, 4 * k) for k in range(kinds)]
    pairs = [(e, of) for e, of, _ in listed]
    if sorted(set(pairs)) != pairs or max(e for e, _ in pairs) > most:
        raise wrong(f"row kinds that ascend, exponents up to {most}")
    if {of for _, of in pairs} != set(range(classes)) or any(f == 0 for _, _, f in listed):
        raise wrong("every class in a row kind, and frequencies above 0")
    frequencies = [[f for _, _, f in listed]]
    at = 4 * kinds
    for _ in range(classes):
        size = tables[at] if at < length else 0
        if not 1 <= size <= 124 or at + 1 + 2 * size > length:
            raise wrong("1 to 124 tokens within the tables")
        frequencies.append(list(struct.unpack_from(f"<{size}H", tables, at + 1)))
        if not frequencies[-1][-1]:
            raise wrong("a last frequency above 0")
        at += 1 + 2 * size
    if length != round_up(at, 8) or any(tables[at:]):
        raise wrong(f"tables of {at} bytes, and zero bytes up to a multiple of 8")
    if any(sum(model) != 4096 for model in frequencies):
        raise wrong("frequencies that sum to 4096")
    table = np.zeros((len(frequencies), max(map(len, frequencies))), np.int64)
    for number, model in enumerate(frequencies):
        table[number, : len(model)] = model
    symbol = np.array([np.repeat(np.arange(len(model)), model) for model in frequencies])
    exponent, of = np.array(pairs).T
    return 16 + length, Models(exponent, 1 + of, symbol, table, np.cumsum(table, axis=1) - table)


def open_integers(seg: Segment, table: Table, part: Part) -> Integers:
    """Return the codes of a part whose length is right; raises BrokenCodesError."""
    rows = table.set_of(part)
    assert part.section is not None
    assert rows is not None
    at, length = part.section
    raw = np.frombuffer(seg.data, np.uint8, length, at)
    return Integers(raw, part.encoding, rows.count, part.end - part.first)


def scaled(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return what the codes of rows say."""
    return codes << exponents[:, None]


def out_of_range(sums: np.ndarray, grid: tuple[Any, ...] | None) -> int | None:
    """Return an integer that no row of a grid may have, or None."""
    assert grid is not None
    low, high = (0, (1 << grid[1]) - 1) if grid[0] == "log" else (1 - (1 << 24), (1 << 24) - 1)
    bad = sums[(sums < low) | (sums > high)]
    return int(bad[0]) if len(bad) else None


def chunks(places: np.ndarray, n: int) -> Iterable[np.ndarray]:
    """Return places of rows of n elements, some at a time."""
    some = max(1, CHUNK // n)
    return (places[first : first + some] for first in range(0, len(places), some))


def union(sets: list[Runs]) -> Runs:
    """Return the rows that are in any of some row sets."""
    starts, lasts = (np.concatenate(ends) for ends in zip(*sets, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(lasts[order])
    first = np.append(True, starts[1:] > reach[:-1])
    return starts[first], reach[np.append(first[1:], True)]


def id_blocks(runs: Runs, size: int) -> Iterable[np.ndarray]:
    """Return the ids of a row set, so many at a time."""
    starts, lasts = runs
    ends = np.cumsum(lasts - starts + 1)
    for first in range(0, int(ends[-1]), size):
        places = np.arange(first, min(first + size, int(ends[-1])))
        run = np.searchsorted(ends, places, side="right")
        yield lasts[run] - (ends[run] - 1 - places)


def broken_sums(
    steps: list[list[tuple[Segment, Table]]], column: str, width: int
) -> Iterable[tuple[str, Part, str, object]]:
    """Yield what breaks the rules 57 and 58 in a column that has residual parts, of each part the first element.

    The rows of these parts are followed from the oldest step to the newest, so many at a time.
    """
    parts = [
        (part, table.set_of(part))
        for step in steps
        for _, table in step
        for part in table.parts
        if part is not None and part.column == column
    ]
    if any(not part.ok or not part.codes_ok or rows is None or rows.runs is None for part, rows in parts):
        return
    added = [rows.runs for part, rows in parts if part.residual and rows is not None and rows.runs is not None]
    told: set[tuple[str, int]] = set()
    for ids in id_blocks(union(added), max(1, CHUNK // width)):
        followed = Followed(ids, width)
        for step in steps:
            for error, part, expected, found in followed.step(step, column):
                if (error, id(part)) not in told:
                    told.add((error, id(part)))
                    yield error, part, expected, found


class Followed:
    """The integers of some rows of a column, as the steps so far say them."""

    def __init__(self, ids: np.ndarray, width: int) -> None:
        self.ids = ids
        self.sums = np.zeros((len(ids), width), np.int64)
        # The number of the grid of each element's integer: -1 without one, -2 where that was reported.
        self.grid = np.full((len(ids), width), -1)
        self.numbers: dict[tuple[Any, ...], int] = {}

    def step(self, step: list[tuple[Segment, Table]], column: str) -> Iterable[tuple[str, Part, str, object]]:
        """Go on by one step; yields what is wrong with its parts."""
        written = np.zeros(self.grid.shape, bool)
        for seg, table in step:
            overrides = {part.exceptions_of: part for part in table.parts if part}
            for number, part in enumerate(table.parts):
                if part is None or part.column != column:
                    continue
                inside, slots = self.places(table, part)
                if part.grid is not None and number in overrides:
                    inside &= ~self.places(table, overrides[number])[0]
                box = np.ix_(inside, np.arange(part.first, part.end))
                written[box] = True
                if part.grid is None:
                    self.grid[box] = -1
                elif inside.any():
                    yield from self.add(part, box, integers_of(seg, table, part, slots[inside]))
        for _, table in step:
            ended = np.zeros(len(self.ids), bool)
            if table.rows is not None:
                ended |= self.ids >= table.rows
            if table.deleted is not None and (rows := table.row_sets[table.deleted]) and rows.runs:
                ended |= locate(rows.runs, self.ids)[0]
            self.grid[ended[:, None] & ~written] = -1

    def places(self, table: Table, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Return which of the rows a part has, and where."""
        rows = table.set_of(part)
        assert rows is not None
        assert rows.runs is not None
        return locate(rows.runs, self.ids)

    def add(self, part: Part, box: Any, said: np.ndarray) -> Iterable[tuple[str, Part, str, object]]:
        """Take in what a part says of some rows and elements."""
        assert part.grid is not None
        own = self.numbers.setdefault(part.grid, len(self.numbers))
        if part.residual:
            said, grid = said + self.sums[box], self.grid[box]
            if ((grid != own) & (grid != -2)).any():
                yield "residual-base", part, "an absolute part of its grid under each row", "none under some"
            grid = np.where(grid == own, own, -2)
        else:
            grid = np.full(said.shape, own)
        if (bad := out_of_range(said[grid == own], part.grid)) is not None:
            yield "grid-range", part, "sums in range", bad
            grid[:] = -2
        self.sums[box], self.grid[box] = said, grid


# --- Entries of the module -----------------------------------------------------------------------


class Folder(Mapping[str, Any]):
    """The files below a directory container, mapped when looked at; None for what is no file."""

    def __init__(self, path: Path) -> None:
        self.entries: dict[str, Path | None] = {}
        self.folders: set[str] = set()
        for below in ("", "manifests/", "segments/"):
            if below and below[:-1] not in self.folders:
                continue
            for entry in os.scandir(path / below):
                mode = entry.stat(follow_symlinks=False).st_mode
                if not below and entry.name in ("manifests", "segments"):
                    if stat.S_ISDIR(mode):
                        self.folders.add(entry.name)
                else:
                    regular = Path(entry.path) if stat.S_ISREG(mode) else None
                    self.entries[below + entry.name] = regular

    def __getitem__(self, file: str) -> Any:
        path = self.entries[file]
        return None if path is None else map_file(path)

    def __iter__(self) -> Any:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def map_file(path: Path) -> Any:
    """Return the bytes of a file without reading it whole."""
    if not path.is_file():
        # Opening a pipe would wait for somebody to write into it.
        path.stat()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _judge(source: Any, **options: Any) -> _Checker:
    if isinstance(source, (bytes, bytearray, memoryview)):
        checker = _Checker(data=source, **options)
    elif isinstance(source, Mapping):
        folders = {file.split("/")[0] for file in source if "/" in file}
        checker = _Checker(files=source, folders=folders, **options)
    elif (path := Path(source)).is_dir():
        folder = Folder(path)
        checker = _Checker(files=folder, folders=folder.folders, **options)
    else:
        checker = _Checker(data=map_file(path), **options)
    checker.run()
    return checker


def check_bytes(data: bytes, level: str = "full") -> list[Finding]:
    """Validate a single-file container in memory."""
    return list(_judge(bytes(data), level=level).found)


def check_files(files: dict[str, bytes], level: str = "full") -> list[Finding]:
    """Validate a directory container in memory: the bytes of each file by its relative path."""
    return list(_judge(files, level=level).found)


def check_path(path: str | os.PathLike[str], level: str = "full") -> list[Finding]:
    """Validate a container, a file or a directory; raises OSError where it can't be read."""
    return list(_judge(path, level=level).found)


# --- Reading rows, slowly and plainly (sections 6 and 8) -----------------------------------------


def _float8_e4m3fn() -> np.ndarray:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(8.0 + mantissa, exponent - 10)
    value = np.where(exponent == 0, np.ldexp(mantissa.astype(float), -9), normal)
    value[codes & 127 == 127] = np.nan
    return np.where(codes < 128, value, -value).astype(np.float32)


def decode_raw(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Decode rows of bytes; the small floats that numpy lacks come back as float32."""
    if dtype == "bfloat16":
        return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "float8_e5m2":
        return (raw.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    if dtype == "float8_e4m3fn":
        return _float8_e4m3fn()[raw]
    return raw.view(np.dtype(dtype).newbyteorder("<"))


def decode_rows(seg: Segment, part: Part, slots: np.ndarray) -> np.ndarray:
    """Decode the rows of a part that holds no integers at these places of its row set, (slots, elements)."""
    encoding, n = part.encoding, part.end - part.first
    raw = np.ascontiguousarray(part_bytes(seg, part)[slots])
    if encoding["name"] == "raw":
        return decode_raw(raw, encoding["dtype"])
    if encoding["name"] == "cast":
        return decode_raw(raw, encoding["dtype"]).astype(np.float32)
    layout = row_layout(encoding, n)
    codes = read_codes(raw[:, layout.codes : layout.codes + layout.code_bytes], encoding["bits"], np.arange(n))
    numbers = {
        what: decode_raw(raw[:, at : at + count * ITEM[dtype]].copy(), dtype).astype(np.float32)
        for what, (dtype, at, count) in layout.numbers.items()
    }
    if encoding["name"] == "codebook":
        if part.codebooks is not None:
            at, length = part.codebooks
            books = decode_raw(np.frombuffer(seg.data, np.uint8, length, at), encoding["values"])
            numbers["values"] = books.reshape(-1, 1 << encoding["bits"])[slots // encoding["block"]].astype(np.float32)
        return np.take_along_axis(numbers["values"], codes, axis=1)
    groups = np.arange(n) // (encoding["group"] or n)
    scales = numbers["scale"][:, groups]
    with np.errstate(over="ignore", invalid="ignore"):
        # Every operation of numpy rounds, so a product and a sum are two roundings.
        if encoding["bias"] is None:
            odd = 2 * codes.astype(np.float32) - np.float32((1 << encoding["bits"]) - 1)
            return odd * scales
        return codes.astype(np.float32) * scales + numbers["bias"][:, groups]


def integers_of(seg: Segment, table: Table, part: Part, slots: np.ndarray) -> np.ndarray:
    """Return what the rows of a part of integers say, (slots, elements) int64."""
    if not in_groups(part.encoding) and part.encoding["name"] == "log":
        return log_codes(seg, part, slots).astype(np.int64)[:, None]
    order, codes, exponents = open_integers(seg, table, part).at(slots)
    said = np.empty(codes.shape, np.int64)
    said[order] = scaled(codes, exponents)
    return said


def values_of(sums: np.ndarray, grid: tuple[Any, ...]) -> np.ndarray:
    """Return the float32 that integers of a grid stand for."""
    if grid[0] == "log":
        return decode_log(sums, *grid[2:])
    return np.ldexp(sums.astype(np.float64), grid[1]).astype(np.float32)


def decode_log(codes: np.ndarray, base: int, shift: int) -> np.ndarray:
    """Return the float32 that each code of one of the logarithmic encodings stands for."""
    patterns = base + (codes.astype(np.int64) - 1 << shift)
    return np.where(codes == 0, 0, patterns).astype(np.uint32).view(np.float32)


def read_table(
    source: Any, name: str, version: int | None = None, column: str = "weight", ids: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return row ids (n, int64) and values of one column of a table of a sound container.

    The values are (n, dim), or (n,) for a column of one value per row. Without `ids` all rows of a
    dense table or all that exist of a keyed one are read; with them, those as they are asked for.
    Raises ValueError where the container isn't sound, KeyError for a name that isn't there.
    """
    checker = _judge(source, keep=True, only=HEAD if version is None else version)
    if (judged := verdict(checker.found)) != "sound":
        worst = next(f for f in checker.found if f.severity != "note")
        raise ValueError(f"the container is {judged}: {worst}")
    manifest = checker.manifests[max(checker.manifests) if version is None else version]
    schema = {schema.name: schema for schema in manifest.schema.values()}[name]
    steps: list[list[tuple[Segment, Table]]] = []
    for _, group in groupby(manifest.chain, key=lambda entry: entry["to"]):
        segs = [seg for entry in group if (seg := checker.segment(entry)) is not None]
        steps.insert(0, [(seg, seg.tables[schema.id]) for seg in segs if schema.id in seg.tables])
    if ids is None:
        ids = np.arange(schema.rows) if schema.rows is not None else existing_rows(steps)
    ids = np.asarray(ids, np.int64)
    if schema.rows is not None and len(ids) and not 0 <= ids.min() <= ids.max() < schema.rows:
        raise KeyError(f"row ids must lie in 0 .. {schema.rows - 1}")
    made = schema.columns[column]
    filled = decode_raw(np.frombuffer(made.fill, np.uint8)[None], made.dtype)
    values = np.repeat(np.repeat(filled, made.width, axis=1), len(ids), axis=0)
    settled = np.zeros(values.shape, bool)
    sums = np.zeros(values.shape, np.int64)
    for step in steps:
        written = np.zeros(values.shape, bool)
        added = np.zeros(values.shape, bool)
        ended = np.zeros(len(ids), bool)
        for seg, table in step:
            # An exception part stands behind its main part, so it overrides it here.
            for part in table.parts:
                assert part is not None
                rows = table.set_of(part)
                if part.column != column or rows is None or rows.runs is None:
                    continue
                inside, slots = locate(rows.runs, ids)
                box = np.ix_(inside, np.arange(part.first, part.end))
                if part.grid is not None:
                    sums[box] += integers_of(seg, table, part, slots[inside])
                    if part.residual:
                        added[box] = True
                        continue
                    got = values_of(sums[box], part.grid)
                else:
                    got = decode_rows(seg, part, slots[inside])
                values[box] = np.where(settled[box], values[box], got)
                written[box] = True
            if table.rows is not None:
                ended |= ids >= table.rows
            if table.deleted is not None and (rows := table.row_sets[table.deleted]) and rows.runs:
                ended |= locate(rows.runs, ids)[0]
        settled |= written | (ended[:, None] & ~added)
    return ids, values if made.vector else values[:, 0]


def existing_rows(steps: list[list[tuple[Segment, Table]]]) -> np.ndarray:
    """Return the rows of a keyed table that exist, the newest step deciding for each."""
    known = present = np.empty(0, np.int64)
    for step in steps:
        listed = [known[:0]]
        deleted = [known[:0]]
        for _, table in step:
            for number, rows in enumerate(table.row_sets):
                if rows is not None and rows.runs is not None:
                    (deleted if number == table.deleted else listed).append(expand(rows.runs))
        new = np.setdiff1d(np.concatenate(listed), known)
        present = np.union1d(present, new)
        known = np.union1d(known, np.concatenate((new, *deleted)))
    return present


# --- The command ---------------------------------------------------------------------------------


def _row_ids(options: argparse.Namespace) -> np.ndarray | None:
    if options.ids is not None:
        return np.array([int(part) for part in options.ids.split(",")], np.int64)
    if options.range is not None:
        start, stop = options.range.split(":")
        return np.arange(int(start), int(stop))
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Validate a cnr container, or print its rows.")
    parser.add_argument("path", help="a single file or a directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--level", choices=LEVELS, default="full")
    parser.add_argument("--version", type=int, help="judge or read this retained version alone")
    parser.add_argument("--rows", metavar="TABLE", help="print the rows of this table")
    parser.add_argument("--column", default="weight")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--range", help="rows a:b, the end left out")
    some.add_argument("--ids", help="row ids, with commas between")
    options = parser.parse_args(arguments)
    try:
        checker = _judge(options.path, level=options.level, only=options.version)
        judged = verdict(checker.found)
        if checker.manifests and options.version not in (None, *checker.manifests):
            parser.error(f"version {options.version} isn't retained, or can't be read")
        if options.rows is not None and judged == "sound":
            return print_rows(options)
    except OSError as error:
        print(f"cannot read {options.path}: {error}", file=sys.stderr)
        return 4
    if options.json:
        print(json.dumps({"verdict": judged, "findings": [asdict(f) for f in checker.found]}))
    else:
        for finding in checker.found:
            print(finding)
        print(f"{options.path}: {judged}")
    return {"sound": 0, "damaged": 1, "unjudged": 3}[judged]


def print_rows(options: argparse.Namespace) -> int:
    """Print the rows that were asked for; returns the exit code."""
    try:
        wanted = _row_ids(options)
        ids, values = read_table(options.path, options.rows, options.version, options.column, wanted)
    except (KeyError, ValueError) as error:
        print(f"usage: {error}", file=sys.stderr)
        return 2
    if options.json:
        # NaN and the infinities aren't JSON, so values go out as text.
        rows = [[str(x) for x in np.atleast_1d(row)] for row in values]
        print(json.dumps({"ids": ids.tolist(), "values": rows}))
    else:
        for row_id, row in zip(ids.tolist(), values, strict=True):
            print(row_id, *np.atleast_1d(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
