"""Blocks and segments, with a hook at every stage, so that a vector can spoil any one field.

A hook is a function of what a stage made: it changes it in place or returns what takes its place.
Whatever comes after the stage (digests above all) is made from what the hook left, so that a vector
breaks the one rule that it is about and no other.
"""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from vectors import encodings

Hook = Callable[[Any], Any]
Hooks = Mapping[str, Hook]
Json = dict[str, Any]

PAGE = 4096
NODE = 65536
BLOCK = 128
# Seeds are S plus one of these; see section 2 of the specification.
NODE_SEED, TOC_SEED, TRAILER_SEED, HEADER_SEED = (k * 2**56 for k in (1, 2, 3, 4))


def digest(data: bytes | bytearray, seed: int = 0) -> int:
    """The 64-bit XXH3 of `data` under `seed` modulo 2^64."""
    return xxhash.xxh3_64_intdigest(bytes(data), seed % 2**64)


def hex64(value: int) -> str:
    """A digest as it stands in JSON."""
    return f"{value:016x}"


def ident(label: str) -> bytes:
    """The 16-byte id that a label stands for: the same at every run."""
    return hashlib.sha256(label.encode()).digest()[:16]


def state(label: str) -> bytes:
    """The id of the state that a letter stands for."""
    return ident(f"state {label}")


def up(n: int, a: int) -> int:
    """The smallest multiple of `a` that is not less than `n`."""
    return -(-n // a) * a


def run(hooks: Hooks, stage: str, value: Any) -> Any:
    """What the stage's hook makes of `value`; `value` where there is none."""
    hook = hooks.get(stage)
    if hook is None:
        return value
    changed = hook(value)
    return value if changed is None else changed


def dump(value: object) -> bytes:
    """JSON without needless bytes, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def block(letter: str, fields: bytes, seed: int, hooks: Hooks, stage: str) -> bytes:
    """A sealed block of 128 bytes; hooks `stage` (before its digest) and `stage sealed`."""
    raw = bytearray(b"\x89CNR" + letter.encode() + b"\r\n\x1a" + fields)
    raw = run(hooks, stage, raw.ljust(120, b"\0"))
    raw += struct.pack("<Q", digest(raw, seed))
    return bytes(run(hooks, f"{stage} sealed", raw))


def versions_and_masks(masks: tuple[int, int, int]) -> bytes:
    """The fields at 8 .. 39 that file header, segment header and manifest header share."""
    return struct.pack("<HH4x3Q", 1, 0, *masks)


@dataclass
class Segment:
    """A segment under construction; `seal` makes its bytes."""

    label: str
    source: bytes | None
    target: bytes
    dense: list[Json] | None = None
    piece_size: int = 4096
    masks: tuple[int, int, int] = (0, 0, 0)
    hooks: Hooks = field(default_factory=dict)
    sections: list[bytes] = field(default_factory=list)
    tables: list[Json] = field(default_factory=list)
    id: bytes = b""

    def __post_init__(self) -> None:
        self.id = self.id or ident(f"segment {self.label}")

    @property
    def seed(self) -> int:
        """S: what the seeds of this segment are counted from."""
        return int.from_bytes(self.id[:8], "little")

    def section(self, data: bytes) -> int:
        """Append a section; its number."""
        self.sections.append(data)
        return len(self.sections) - 1

    def array(self, name: str, dtype: str, shape: Sequence[int], data: bytes) -> None:
        """Append a dense entry of kind array."""
        number = self.section(data) if data else None
        self._dense().append({"name": name, "kind": "array", "dtype": dtype, "shape": list(shape), "section": number})

    def blob(self, name: str, kind: str, data: bytes) -> None:
        """Append a dense entry of kind json or bytes."""
        number = self.section(data) if data else None
        self._dense().append({"name": name, "kind": kind, "section": number})

    def _dense(self) -> list[Json]:
        self.dense = [] if self.dense is None else self.dense
        return self.dense


class Table:
    """A TABLE of a segment's table of contents under construction."""

    def __init__(self, segment: Segment, table: bytes, rows: int | None) -> None:
        self.segment = segment
        self.json: Json = {
            "id": table.hex(),
            "rows": rows,
            "row_sets": [],
            "deleted": None,
            "parts": [],
        }
        segment.tables.append(self.json)

    def row_set(self, code: str, count: int, low: int, high: int, section: int | None) -> int:
        """Append a row set; its number."""
        self.json["row_sets"].append(
            {"code": code, "count": count, "min": str(low), "max": str(high), "section": section}
        )
        return len(self.json["row_sets"]) - 1

    def span(self, first: int, last: int) -> int:
        """Append the row set of the code `range`; its number."""
        return self.row_set("range", last - first + 1, first, last, None)

    def index(self, code: str, ids: Sequence[int], data: bytes) -> int:
        """Append a row set with a row index; its number."""
        return self.row_set(code, len(ids), min(ids), max(ids), self.segment.section(data))

    def part(
        self,
        column: str,
        rows: int,
        elements: tuple[int, int],
        encoding: Json,
        data: bytes,
        exceptions_of: int | None = None,
        *,
        codebooks: bytes | None = None,
        scheme: Json | None = None,
    ) -> int:
        """Append a part; its number. The scheme is the plainest that goes with the encoding unless told."""
        section = self.segment.section(data)
        self.json["parts"].append(
            {
                "column": column,
                "rows": rows,
                "elements": list(elements),
                "encoding": encoding,
                "section": section,
                "codebooks": None if codebooks is None else self.segment.section(codebooks),
                "exceptions_of": exceptions_of,
                "scheme": encodings.scheme(encoding) if scheme is None else scheme,
            }
        )
        return len(self.json["parts"]) - 1


@dataclass(frozen=True)
class Sealed:
    """The bytes of a segment, and what a manifest says of them."""

    data: bytes
    toc: bytes
    trailer: int


def _places(segment: Segment) -> list[list[int]]:
    places: list[list[int]] = []
    end = BLOCK
    for data in segment.sections:
        start = up(end, PAGE if len(data) >= NODE else 64)
        places.append([start, len(data)])
        end = start + len(data)
    return places


def _pieces(segment: Segment, data: bytes | bytearray) -> list[int]:
    size = segment.piece_size
    starts = range(0, len(data), size)
    return [digest(data[s : s + size], segment.seed + i) for i, s in enumerate(starts)]


def seal(segment: Segment) -> Sealed:
    """The bytes of a segment.

    Hooks, in order: `places`, `data end`, `header`, `header sealed`, `data`, `digests`,
    `digest bytes`, `nodes`, `toc`, `toc text`, `before toc`, `after toc`, `trailer`,
    `trailer sealed`, `segment`.
    """
    hooks, seed = segment.hooks, segment.seed
    places = run(hooks, "places", _places(segment))
    end = run(hooks, "data end", max([BLOCK, *(up(o + n, 64) for o, n in places)]))
    data = bytearray(end)
    for (offset, length), section in zip(places, segment.sections, strict=True):
        data[offset : offset + length] = section
    fields = versions_and_masks(segment.masks) + segment.id + ident("attempt " + segment.label)
    fields += (segment.source or bytes(16)) + segment.target
    data[:BLOCK] = block("S", fields, seed + HEADER_SEED, hooks, "header")
    data = run(hooks, "data", data)

    digests = run(hooks, "digests", _pieces(segment, data))
    leaves = run(hooks, "digest bytes", bytearray(struct.pack(f"<{len(digests)}Q", *digests)))
    starts = range(0, len(leaves), NODE)
    nodes = [digest(leaves[s : s + NODE], seed + NODE_SEED + j) for j, s in enumerate(starts)]
    toc = {
        "sections": places,
        "nodes": "".join(map(hex64, run(hooks, "nodes", nodes))),
        # Copies, since hooks change what they get, and encodings are shared between vectors.
        "tables": copy.deepcopy(segment.tables),
        "dense": copy.deepcopy(segment.dense),
    }
    text = run(hooks, "toc text", dump(run(hooks, "toc", toc)))
    before, after = run(hooks, "before toc", b""), run(hooks, "after toc", b"")

    start = len(data) + len(leaves) + len(before)
    length = start + len(text) + len(after) + BLOCK
    fields = segment.id + struct.pack("<2Q", length, len(data))
    fields += struct.pack("<3QI", start, len(text), digest(text, seed + TOC_SEED), segment.piece_size)
    trailer = block("T", fields, seed + TRAILER_SEED, hooks, "trailer")
    whole = bytearray(bytes(data) + leaves + before + text + after + trailer)
    sealed = struct.unpack_from("<Q", trailer, 120)[0]
    return Sealed(bytes(run(hooks, "segment", whole)), text, sealed)
