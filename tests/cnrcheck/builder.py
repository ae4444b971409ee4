"""Builds small cnr containers straight from the words of `spec/format.md`.

Everything that goes into a file passes through here as plain values, so that a test can break one
thing and have the digests right all the same.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from tests.cnrcheck import encodings

MASK = (1 << 64) - 1


def digest(data: bytes, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(data, seed & MASK)


def round_up(n: int, a: int) -> int:
    return (n + a - 1) // a * a


def make_id(n: int) -> bytes:
    return struct.pack("<QQ", 0xC0FFEE00 + n, ~n & MASK)


def block(letter: bytes, body: bytes, seed: int = 0) -> bytes:
    raw = (b"\x89CNR" + letter + b"\r\n\x1a" + body).ljust(120, b"\0")
    assert len(raw) == 120
    return raw + struct.pack("<Q", digest(raw, seed))


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# Row indexes, one id at a time.


def raw_index(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}q", *ids)


def packed_index(ids: Sequence[int]) -> bytes:
    skip, payload = b"", b""
    for at in range(0, len(ids), 128):
        group = ids[at : at + 128]
        slots = [0] + [b - a - 1 for a, b in itertools.pairwise(group)]
        width = max(slots).bit_length()
        skip += struct.pack("<qIB3x", group[0], len(payload) // 8, width)
        string = sum(slot << (k * width) for k, slot in enumerate(slots))
        payload += string.to_bytes(-(-len(group) * width // 64) * 8, "little")
    return skip + payload


def runs_index(ids: Sequence[int]) -> bytes:
    entries: list[list[int]] = []
    for row in ids:
        if entries and row == sum(entries[-1]):
            entries[-1][1] += 1
        else:
            entries.append([row, 1])
    return b"".join(struct.pack("<qQ", *entry) for entry in entries)


def bitmap_index(ids: Sequence[int]) -> bytes:
    words = round_up(-(-(ids[-1] - ids[0] + 1) // 64), 8)
    bits = sum(1 << (row - ids[0]) for row in ids)
    raw = bits.to_bytes(8 * words, "little")
    groups = [int.from_bytes(raw[at : at + 64], "little").bit_count() for at in range(0, len(raw), 64)]
    ranks = [sum(groups[:k]) for k in range(len(groups))]
    return raw + struct.pack(f"<{len(ranks)}Q", *ranks)


INDEX: dict[str, Callable[[Sequence[int]], bytes]] = {
    "raw": raw_index,
    "packed": packed_index,
    "runs": runs_index,
    "bitmap": bitmap_index,
}


def rowwise(values: np.ndarray, bits: int) -> tuple[bytes, np.ndarray]:
    """Encode float32 rows; return the bytes and what they decode to."""
    kind = np.float32 if bits == 8 else np.float16
    low = values.min(axis=1, keepdims=True).astype(kind)
    scale = ((values.max(axis=1, keepdims=True) - low) / ((1 << bits) - 1)).astype(kind)
    scale[scale == 0] = 1
    codes = np.clip(np.rint((values - low) / scale), 0, (1 << bits) - 1).astype(np.uint8)
    out = b""
    for row, s, b in zip(codes.tolist(), scale, low, strict=True):
        string = sum(code << (bits * k) for k, code in enumerate(row))
        out += string.to_bytes(-(-len(row) * bits // 8), "little") + s.tobytes() + b.tobytes()
    product = codes.astype(np.float32) * scale.astype(np.float32)
    return out, product + low.astype(np.float32)


@dataclass
class Segment:
    """Collects the sections and the table of contents of one segment."""

    number: int
    start: int | None
    to: int
    piece: int = 512
    masks: tuple[int, int, int] = (0, 0, 0)
    sections: list[bytes] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    dense: list[dict[str, Any]] | None = None
    edit_toc: Callable[[dict[str, Any]], None] = lambda toc: None
    edit_data: Callable[[bytearray], None] = lambda data: None
    toc: bytes = b""
    trailer: int = 0

    def section(self, raw: bytes) -> int:
        self.sections.append(raw)
        return len(self.sections) - 1

    def table(self, number: int, rows: int | None) -> dict[str, Any]:
        made = {"id": make_id(number).hex(), "rows": rows, "row_sets": [], "deleted": None, "parts": []}
        self.tables.append(made)
        return made

    def row_set(self, table: dict[str, Any], code: str, ids: Sequence[int]) -> int:
        section = None if code == "range" else self.section(INDEX[code](ids))
        made = {"code": code, "count": len(ids), "min": str(ids[0]), "max": str(ids[-1]), "section": section}
        table["row_sets"].append(made)
        return len(table["row_sets"]) - 1

    def part(
        self,
        table: dict[str, Any],
        column: str,
        rows: int,
        elements: tuple[int, int],
        raw: bytes,
        kind: str | int | dict[str, Any],
        exceptions_of: int | None = None,
        codebooks: bytes | None = None,
    ) -> int:
        """Add a part of a data type, of row-wise rows of this many bits, or of an encoding."""
        encoding: dict[str, Any] = kind if isinstance(kind, dict) else {"name": "raw", "dtype": kind}
        if isinstance(kind, int):
            half = "float32" if kind == 8 else "float16"
            encoding = encodings.rowwise(kind, "tail", half, half)
        section = self.section(raw)
        table["parts"].append(
            {"column": column, "rows": rows, "elements": list(elements), "encoding": dict(encoding),
             "section": section, "codebooks": None if codebooks is None else self.section(codebooks),
             "exceptions_of": exceptions_of, "scheme": encodings.scheme_of(encoding)}
        )  # fmt: skip
        return len(table["parts"]) - 1

    def bytes(self) -> bytes:
        own = make_id(self.number)
        seed = struct.unpack_from("<Q", own)[0]
        start = b"" if self.start is None else make_id(self.start)
        body = struct.pack("<HHI3Q", 1, 0, 0, *self.masks) + own + make_id(900 + self.number)
        data = bytearray(block(b"S", body + start.ljust(16, b"\0") + make_id(self.to), seed + (4 << 56)))
        places = []
        for raw in self.sections:
            at = round_up(len(data), 4096 if len(raw) >= 65536 else 64)
            data += bytes(at - len(data)) + raw
            places.append([at, len(raw)])
        data += bytes(round_up(len(data), 64) - len(data))
        self.edit_data(data)
        pieces = [bytes(data[at : at + self.piece]) for at in range(0, len(data), self.piece)]
        digests = struct.pack(f"<{len(pieces)}Q", *(digest(p, seed + i) for i, p in enumerate(pieces)))
        nodes = [digests[at : at + 65536] for at in range(0, len(digests), 65536)]
        toc: dict[str, Any] = {
            "sections": places,
            "nodes": "".join(f"{digest(n, seed + (1 << 56) + j):016x}" for j, n in enumerate(nodes)),
            "tables": self.tables,
            "dense": self.dense,
        }
        self.edit_toc(toc)
        self.toc = dumps(toc)
        at = len(data) + len(digests)
        length = at + len(self.toc) + 128
        fields = (length, len(data), at, len(self.toc), digest(self.toc, seed + (2 << 56)), self.piece)
        trailer = block(b"T", own + struct.pack("<5QI", *fields), seed + (3 << 56))
        self.trailer = struct.unpack_from("<Q", trailer, 120)[0]
        return bytes(data) + digests + self.toc + trailer


def schema(
    number: int, name: str, rows: int | None, dim: int, *columns: tuple[str, str, list[int], str]
) -> dict[str, Any]:
    keys = ("name", "dtype", "shape", "fill")
    return {
        "id": make_id(number).hex(), "name": name, "kind": "keyed" if rows is None else "dense", "rows": rows,
        "dim": dim, "columns": [dict(zip(keys, column, strict=True)) for column in columns],
    }  # fmt: skip


@dataclass
class Version:
    """What one version says: its schema and the segments of its chain."""

    tables: list[dict[str, Any]]
    segments: list[Segment]
    dense: int | None = None
    masks: tuple[int, int, int] = (0, 0, 0)
    attach: bool = True
    edit: Callable[[dict[str, Any]], None] = lambda doc: None


CONTAINER = make_id(77)


class Container:
    """Lays versions out as a single file or as the files of a directory."""

    def __init__(self, versions: Sequence[Version], single: bool, retain: bool = True) -> None:
        self.single, self.data = single, bytearray(12288)
        self.files: dict[str, bytes] = {}
        self.placed: dict[int, tuple[int | None, int]] = {}
        self.versions: list[list[Any]] = []
        for number, version in enumerate(versions):
            raw = self.manifest(number, version)
            offset = self.append(raw)
            self.files[f"manifests/{number:020d}.cnrm"] = raw
            self.last = (number, offset, len(raw), struct.unpack("<Q", raw[-8:])[0])
            self.parent = {"version": number, "digest": f"{self.last[3]:016x}"}
            if retain:
                self.versions.append([number, offset, len(raw), f"{self.last[3]:016x}"])
        self.data += bytes(round_up(len(self.data), 4096) - len(self.data))
        header = block(b"F", struct.pack("<HHI3Q", 1, 0, 0, 0, 0, 0) + CONTAINER)
        self.data[: len(header)] = header
        for slot in (0, 1):
            self.slot(slot, self.last, len(self.data))

    def slot(self, slot: int, last: tuple[int, int | None, int, int], end: int) -> None:
        number, offset, length, own = last
        fields = struct.pack("<5Q", number, offset or 0, length, own, end)
        self.data[4096 * (1 + slot) : 4096 * (1 + slot) + 128] = block(
            b"H", struct.pack("<II", slot, 0) + CONTAINER + fields
        )

    def append(self, raw: bytes) -> int | None:
        if not self.single:
            return None
        self.data += bytes(round_up(len(self.data), 4096) - len(self.data))
        self.data += raw
        return len(self.data) - len(raw)

    def manifest(self, number: int, version: Version) -> bytes:
        entries, attachments = [], b""
        for seg in version.segments:
            if seg.number not in self.placed:
                raw = seg.bytes()
                self.files[f"segments/{make_id(seg.number).hex()}.cnrs"] = raw
                self.placed[seg.number] = (self.append(raw), len(raw))
            offset, length = self.placed[seg.number]
            toc = [len(attachments), len(seg.toc)] if version.attach else None
            attachments += seg.toc if version.attach else b""
            start = None if seg.start is None else make_id(seg.start).hex()
            entries.append(
                {"segment": make_id(seg.number).hex(), "from": start, "to": make_id(seg.to).hex(), "offset": offset,
                 "length": length, "trailer": f"{seg.trailer:016x}", "toc": toc}
            )  # fmt: skip
        doc = {
            "state": entries[-1]["to"], "commit": make_id(500 + number).hex(), "step": 100 * number,
            "created": "2026-01-02T03:04:05Z", "created_by": "builder",
            "parent": self.parent if number else None, "tables": version.tables, "chain": entries,
            "versions": list(self.versions),
            "dense": None if version.dense is None else make_id(version.dense).hex(), "metadata": {"lr": 0.5},
        }  # fmt: skip
        version.edit(doc)
        raw = dumps(doc)
        body = struct.pack("<HHI3Q", 1, 0, 0, *version.masks) + CONTAINER
        whole = block(b"M", body + struct.pack("<3Q", number, len(raw), len(attachments))) + raw + attachments
        return whole + struct.pack("<Q", digest(whole))
