"""Digests made right after a mutation, so that a fuzzer gets past them to the code behind.

A *packed container* is what the structure-aware target mutates: a byte of options, then manifests and segments one
behind the other, each found by the magic of its first block; there are no pages and no digest sections to waste
mutations on. `unpack` lays out the container that it stands for: a directory or a single file, with every length,
offset and digest that follows from something else filled in.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cnrfmt.format.blocks import FIRST_SPAN, magic
from cnrfmt.format.digests import HEADER_LEVEL, NODE_LEVEL, TOC_LEVEL, TRAILER_LEVEL, digest, seed_of
from cnrfmt.format.limits import BLOCK, NODE, PAGE, round_up

SINGLE_FILE, KEEP_JSON, ATTACH, OLD_SLOT, FLIP = 1, 2, 4, 8, 16
"""Options of a packed container: lay out a single file; leave the manifests' JSON as it is; attach tables of contents;
let slot B name the version before the head; change one byte at the end."""

_ITEM = re.compile(re.escape(magic("M")) + b"|" + re.escape(magic("S")))
_NODES = re.compile(rb'"nodes":"[0-9a-f]*"')
TOC_START = b'{"sections"'
"""How a table of contents starts, as every writer that packs one here writes it."""


def seal_block(letter: str, fields: bytes, seed: int = 0) -> bytes:
    """A block with these fields (cut, or filled with zero, to 112 bytes) and the right digest."""
    body = magic(letter) + fields[:112].ljust(112, b"\0")
    return body + digest(body, seed).to_bytes(8, "little")


def reseal_segment(item: bytes) -> bytes:
    """The segment of a header, data, a table of contents and a trailer block, in that order."""
    trailer = item[-BLOCK:].ljust(BLOCK, b"\0")
    segment_id = item[40:56].ljust(16, b"\0")
    start = item.rfind(TOC_START, BLOCK)
    if start < 0:
        start = max(BLOCK, len(item) - BLOCK)
    toc = item[start : max(start, len(item) - BLOCK)]
    data = seal_block("S", item[8:120], seed_of(segment_id, HEADER_LEVEL)) + item[BLOCK:start]
    data = data.ljust(round_up(len(data), 64), b"\0")
    (piece,) = struct.unpack_from("<I", trailer, 64)
    step = piece if 64 <= piece <= 1 << 24 else 4096
    starts = range(0, len(data), step)
    sums = b"".join(
        digest(data[at : at + step], seed_of(segment_id, 0, i)).to_bytes(8, "little") for i, at in enumerate(starts)
    )
    nodes = "".join(
        f"{digest(sums[at : at + NODE], seed_of(segment_id, NODE_LEVEL, j)):016x}"
        for j, at in enumerate(range(0, len(sums), NODE))
    )
    toc = _NODES.sub(b'"nodes":"' + nodes.encode() + b'"', toc, count=1)
    at = len(data) + len(sums)
    fields = struct.pack(
        "<16sQQQQQI",
        trailer[8:24] if any(trailer[8:24]) else segment_id,
        at + len(toc) + BLOCK,
        len(data),
        at,
        len(toc),
        digest(toc, seed_of(segment_id, TOC_LEVEL)),
        piece,
    )
    return data + sums + toc + seal_block("T", fields + trailer[68:120], seed_of(segment_id, TRAILER_LEVEL))


def reseal_manifest(head: bytes, text: bytes, attachments: bytes) -> bytes:
    """A manifest with the header fields of `head`, but for the lengths."""
    fields = head[8:64].ljust(56, b"\0") + struct.pack("<QQ", len(text), len(attachments)) + head[80:120]
    body = seal_block("M", fields) + text + attachments
    return body + digest(body).to_bytes(8, "little")


@dataclass
class _Placed:
    data: bytes
    offset: int | None


class _Layout:
    """A container as it grows: spans of a single file, or files."""

    def __init__(self, options: int) -> None:
        self.options = options
        self.files: dict[str, bytes] = {}
        self.spans: list[tuple[int, bytes]] = []
        self.end = FIRST_SPAN
        self.segments: dict[str, _Placed] = {}
        self.manifests: list[tuple[int, _Placed]] = []
        self.container_id = bytes(16)

    def place(self, name: str, data: bytes) -> int | None:
        if not self.options & SINGLE_FILE:
            self.files[name] = data
            return None
        offset = self.end
        self.spans.append((offset, data))
        self.end = round_up(offset + len(data), PAGE)
        return offset

    def add_segment(self, item: bytes) -> None:
        name = item[40:56].ljust(16, b"\0").hex()
        data = reseal_segment(item)
        self.segments[name] = _Placed(data, self.place(f"segments/{name}.cnrs", data))

    def add_manifest(self, item: bytes) -> None:
        self.container_id = item[40:56].ljust(16, b"\0")
        (version,) = struct.unpack("<Q", item[56:64].ljust(8, b"\0"))
        text, attachments = item[BLOCK:], b""
        if not self.options & KEEP_JSON:
            text, attachments = self.patched(text)
        data = reseal_manifest(item, text, attachments)
        offset = self.place(f"manifests/{version:020d}.cnrm", data)
        self.manifests.append((version, _Placed(data, offset)))

    def patched(self, text: bytes) -> tuple[bytes, bytes]:
        """The JSON with the places, lengths and digests of what it names, and the attachments that it asks for."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text, b""
        attachments = b""
        if not isinstance(value, dict):
            return text, b""
        for entry in _dicts(value.get("chain")):
            found = self.segments.get(str(entry.get("segment")))
            if found is None:
                continue
            entry |= {
                "offset": found.offset,
                "length": len(found.data),
                "trailer": f"{int.from_bytes(found.data[-8:], 'little'):016x}",
                "toc": None,
            }
            if self.options & ATTACH:
                at, size = struct.unpack_from("<QQ", found.data, len(found.data) - BLOCK + 40)
                toc = found.data[at : at + size]
                entry["toc"] = [len(attachments), len(toc)]
                attachments += toc
        known = dict(self.manifests)
        for listed in value["versions"] if isinstance(value.get("versions"), list) else ():
            if isinstance(listed, list) and listed and isinstance(listed[0], int) and listed[0] in known:
                listed[1:] = _named(known[listed[0]])
        parent = value.get("parent")
        if isinstance(parent, dict) and isinstance(parent.get("version"), int) and parent["version"] in known:
            parent["digest"] = _named(known[parent["version"]])[2]
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), attachments
        except (ValueError, RecursionError):
            return text, b""

    def slot(self, number: int) -> bytes:
        step = -2 if self.options & OLD_SLOT and number and len(self.manifests) > 1 else -1
        version, placed = self.manifests[step] if self.manifests else (0, _Placed(b"", FIRST_SPAN))
        offset, length = placed.offset or 0, len(placed.data)
        mark = int.from_bytes(placed.data[-8:], "little")
        fields = struct.pack(
            "<I4x16sQQQQQ", number, self.container_id, version, offset, length, mark, round_up(offset + length, PAGE)
        )
        return seal_block("H", fields).ljust(PAGE, b"\0")

    def single_file(self) -> bytes:
        header = seal_block("F", struct.pack("<HH4x24x16s", 1, 0, self.container_id)).ljust(PAGE, b"\0")
        data = bytearray((header + self.slot(0) + self.slot(1)).ljust(self.end, b"\0"))
        for offset, span in self.spans:
            data[offset : offset + len(span)] = span
        return bytes(data)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _named(placed: _Placed) -> tuple[int | None, int, str]:
    return placed.offset, len(placed.data), f"{int.from_bytes(placed.data[-8:], 'little'):016x}"


def unpack(packed: bytes) -> bytes | dict[str, bytes]:
    """The container that a packed one stands for: the bytes of a single file, or the files of a directory."""
    options = packed[0] if packed else 0
    starts = [match.start() for match in _ITEM.finditer(packed, 1)]
    layout = _Layout(options)
    for start, stop in pairwise([*starts, len(packed)]):
        item = packed[start:stop]
        if item[4:5] == b"S":
            layout.add_segment(item)
        else:
            layout.add_manifest(item)
    if options & SINGLE_FILE:
        whole = layout.single_file()
        return whole[:-1] + bytes([whole[-1] ^ 1]) if options & FLIP else whole
    # A folder that holds no file can't be told in a mapping of files.
    return layout.files


def pack(segments: list[bytes], manifests: list[bytes], options: int) -> bytes:
    """The packed form of segments and manifests as they are stored, those that a manifest needs first."""
    packed = bytes([options])
    for data in segments:
        end, at = struct.unpack_from("<QQ", data, len(data) - BLOCK + 32)
        packed += data[:end] + data[at:]
    for data in manifests:
        (length,) = struct.unpack_from("<Q", data, 64)
        packed += data[: BLOCK + length]
    return packed
