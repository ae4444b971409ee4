"""Where everything of a sound container lies, and how to change a field with every digest made right again.

Nothing here comes from the library, so that a fault of the library doesn't hide in its own test.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import xxhash

from tools.damage.golden import SINGLE, Files

BLOCK, PAGE, NODE, FIRST = 128, 4096, 65536, 12288

Kind = Literal[
    "file header",
    "slot",
    "manifest",
    "segment header",
    "piece",
    "row index",
    "codebooks",
    "digests",
    "toc",
    "trailer",
    "gap",
]


@dataclass(frozen=True)
class Region:
    """A run of bytes of one meaning; `metadata` says that each of its bits is tried, not each byte alone."""

    kind: Kind
    name: str
    file: str
    start: int
    stop: int
    metadata: bool


@dataclass(frozen=True)
class Span:
    """A segment or a manifest: the name is the segment's id, or the version in decimal digits."""

    name: str
    file: str
    start: int
    length: int

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.length


@dataclass(frozen=True)
class Geometry:
    """What a trailer says."""

    data_end: int
    toc: int
    toc_length: int
    piece: int


def digest(data: bytes | bytearray, seed: int = 0) -> int:
    """The 64-bit XXH3 under a seed modulo 2^64."""
    return xxhash.xxh3_64_intdigest(bytes(data), seed % 2**64)


def u64(data: bytes | bytearray, at: int) -> int:
    """The u64 at an offset."""
    return int.from_bytes(data[at : at + 8], "little")


def geometry(segment: bytes | bytearray) -> Geometry:
    """What the trailer of a segment says."""
    data_end, toc, toc_length, _, piece = struct.unpack_from("<4QI", segment, len(segment) - BLOCK + 32)
    return Geometry(data_end, toc, toc_length, piece)


class Layout:
    """The map of a sound container."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.single = SINGLE in files

    @cached_property
    def manifests(self) -> list[Span]:
        """All retained manifests, ascending."""
        if not self.single:
            names = sorted(file for file in self.files if file.startswith("manifests/"))
            return [Span(str(int(name[10:30])), name, 0, len(self.files[name])) for name in names]
        data = self.files[SINGLE]
        version, offset, length = struct.unpack_from("<3Q", data, PAGE + 32)
        head = Span(str(version), SINGLE, offset, length)
        older = [Span(str(v), SINGLE, at, n) for v, at, n, _ in self.document(head)["versions"]]
        return [*older, head]

    def bytes_of(self, span: Span) -> bytes:
        """The bytes of a segment or manifest."""
        return self.files[span.file][span.start : span.stop]

    def document(self, manifest: Span) -> Any:
        """The JSON of a manifest."""
        raw = self.bytes_of(manifest)
        return json.loads(raw[BLOCK : BLOCK + u64(raw, 64)])

    @cached_property
    def segments(self) -> list[Span]:
        """All segments that a retained version names, in the order of the chains."""
        found: dict[str, Span] = {}
        for manifest in self.manifests:
            for entry in self.document(manifest)["chain"]:
                name, at = entry["segment"], entry["offset"]
                file = SINGLE if self.single else f"segments/{name}.cnrs"
                found.setdefault(name, Span(name, file, at or 0, entry["length"]))
        return list(found.values())

    @cached_property
    def inline(self) -> set[str]:
        """The segments of which a reader finds the table of contents in the manifests."""
        entries = [entry for manifest in self.manifests for entry in self.document(manifest)["chain"]]
        return {e["segment"] for e in entries} - {e["segment"] for e in entries if e["toc"] is None}

    def toc(self, segment: Span) -> Any:
        """The table of contents of a segment."""
        raw = self.bytes_of(segment)
        where = geometry(raw)
        return json.loads(raw[where.toc : where.toc + where.toc_length])

    @cached_property
    def sections(self) -> list[Span]:
        """All sections of all segments, by segment and number."""
        return [
            Span(f"{segment.name} section {number}", segment.file, segment.start + offset, length)
            for segment in self.segments
            for number, (offset, length) in enumerate(self.toc(segment)["sections"])
        ]

    @cached_property
    def pieces(self) -> list[Span]:
        """All pieces of all segments."""
        found = []
        for segment in self.segments:
            where = geometry(self.bytes_of(segment))
            for number, at in enumerate(range(0, where.data_end, where.piece)):
                size = min(where.piece, where.data_end - at)
                found.append(Span(f"{segment.name} piece {number}", segment.file, segment.start + at, size))
        return found

    @cached_property
    def regions(self) -> list[Region]:
        """Every byte of every file, each in one region."""
        found = [r for segment in self.segments for r in self._segment_regions(segment)]
        found += [Region("manifest", m.name, m.file, m.start, m.stop, True) for m in self.manifests]
        if self.single:
            for number, (kind, name) in enumerate((("file header", ""), ("slot", "A"), ("slot", "B"))):
                at = number * PAGE
                found.append(Region(kind, name, SINGLE, at, at + BLOCK, True))  # type: ignore[arg-type]
                found.append(Region(kind, name, SINGLE, at + BLOCK, at + PAGE, False))  # type: ignore[arg-type]
            reach = FIRST
            for region in sorted((r for r in found if r.start >= FIRST), key=lambda r: r.start):
                if region.start > reach:
                    found.append(Region("gap", "", SINGLE, reach, region.start, False))
                reach = region.stop
            if len(self.files[SINGLE]) > reach:
                found.append(Region("gap", "", SINGLE, reach, len(self.files[SINGLE]), False))
        found.sort(key=lambda r: (r.file, r.start))
        sizes = {file: sum(r.stop - r.start for r in found if r.file == file) for file in self.files}
        assert sizes == {file: len(data) for file, data in self.files.items()}
        return found

    def _segment_regions(self, segment: Span) -> list[Region]:
        name, file, base = segment.name, segment.file, segment.start
        where, toc = geometry(self.bytes_of(segment)), self.toc(segment)
        named: dict[int, Kind] = {}
        for table in toc["tables"]:
            named |= {row_set["section"]: "row index" for row_set in table["row_sets"]}
            named |= {part["codebooks"]: "codebooks" for part in table["parts"]}
        sections = [(*toc["sections"][number], kind) for number, kind in named.items() if number is not None]
        found = [
            Region("segment header", name, file, base, base + BLOCK, True),
            Region("digests", name, file, base + where.data_end, base + where.toc, True),
            Region("toc", name, file, base + where.toc, base + where.toc + where.toc_length, True),
            Region("trailer", name, file, segment.stop - BLOCK, segment.stop, True),
        ]
        edges = {BLOCK, where.data_end, *range(where.piece, where.data_end, where.piece)}
        edges |= {edge for offset, length, _ in sections for edge in (offset, offset + length)}
        for start, stop in pairwise(sorted(edges)):
            kinds = [kind for offset, length, kind in sections if offset <= start < offset + length]
            kind = kinds[0] if kinds else "piece"
            piece = f"{name} piece {start // where.piece}"
            found.append(Region(kind, piece, file, base + start, base + stop, kind == "row index"))
        return found

    def regions_of(self, file: str, start: int, stop: int) -> list[Region]:
        """The regions that share a byte with this run."""
        return [r for r in self.regions if r.file == file and r.start < stop and start < r.stop]


# --- Changing fields, and making the digests right again -------------------------------------------


def seal_block(block: bytes | bytearray, seed: int) -> bytes:
    """A block with the digest that its fields ask for."""
    return bytes(block[:120]) + digest(block[:120], seed).to_bytes(8, "little")


def seal_segment(segment: bytes) -> bytes:
    """A segment of which fields or data were changed, but no length, with all digests made right."""
    raw = bytearray(segment)
    where = geometry(raw)
    seed = u64(raw, len(raw) - BLOCK + 8)
    raw[:BLOCK] = seal_block(raw[:BLOCK], u64(raw, 40) + (4 << 56))
    for number, at in enumerate(range(0, where.data_end, where.piece)):
        value = digest(raw[at : min(at + where.piece, where.data_end)], seed + number)
        struct.pack_into("<Q", raw, where.data_end + 8 * number, value)
    section = raw[where.data_end : where.toc]
    nodes = "".join(
        f"{digest(section[at : at + NODE], seed + (1 << 56) + j):016x}"
        for j, at in enumerate(range(0, len(section), NODE))
    )
    end = where.toc + where.toc_length
    raw[where.toc : end] = re.sub(rb'"nodes":"[0-9a-f]*"', f'"nodes":"{nodes}"'.encode(), raw[where.toc : end])
    struct.pack_into("<Q", raw, len(raw) - BLOCK + 56, digest(raw[where.toc : end], seed + (2 << 56)))
    raw[-BLOCK:] = seal_block(raw[-BLOCK:], seed + (3 << 56))
    assert len(raw) == len(segment)
    return bytes(raw)


def toc_bytes(segment: bytes) -> bytes:
    """The table of contents of a segment as it is stored."""
    where = geometry(segment)
    return segment[where.toc : where.toc + where.toc_length]


def reseal(layout: Layout, edits: Mapping[tuple[str, int], bytes]) -> Files:
    """The files with bytes changed at (file, offset), and every digest above them made right.

    No length changes. Fields of file header, segment headers and manifest headers may be edited, and data.
    """
    files = {file: bytearray(data) for file, data in layout.files.items()}
    for (file, offset), data in edits.items():
        files[file][offset : offset + len(data)] = data
    renamed: dict[bytes, bytes] = {}
    for span in layout.segments:
        before, after = layout.bytes_of(span), seal_segment(bytes(files[span.file][span.start : span.stop]))
        files[span.file][span.start : span.stop] = after
        renamed[toc_bytes(before)] = toc_bytes(after)
        renamed[f"{u64(before, len(before) - 8):016x}".encode()] = f"{u64(after, len(after) - 8):016x}".encode()
    digests: dict[int, int] = {}
    for span in layout.manifests:
        manifest = bytes(files[span.file][span.start : span.stop])
        old_digest = u64(layout.bytes_of(span), span.length - 8)
        for old, new in renamed.items():
            manifest = manifest.replace(old, new)
        manifest = seal_block(manifest[:BLOCK], 0) + manifest[BLOCK:-8]
        digests[old_digest] = digest(manifest)
        renamed[f"{old_digest:016x}".encode()] = f"{digest(manifest):016x}".encode()
        files[span.file][span.start : span.stop] = manifest + digest(manifest).to_bytes(8, "little")
    if layout.single:
        pages = files[SINGLE]
        pages[:BLOCK] = seal_block(pages[:BLOCK], 0)
        for at in (PAGE, 2 * PAGE):
            struct.pack_into("<Q", pages, at + 56, digests[u64(pages, at + 56)])
            pages[at : at + BLOCK] = seal_block(pages[at : at + BLOCK], 0)
    return {file: bytes(data) for file, data in files.items()}


def slot_page(layout: Layout, number: int, manifest: Span) -> bytes:
    """The slot page as it was when this manifest was the head."""
    raw = layout.bytes_of(manifest)
    block = bytearray(layout.files[SINGLE][PAGE * (number + 1) : PAGE * (number + 1) + BLOCK])
    end = -(-manifest.stop // PAGE) * PAGE
    struct.pack_into("<5Q", block, 32, int(manifest.name), manifest.start, manifest.length, u64(raw, len(raw) - 8), end)
    return seal_block(block, 0).ljust(PAGE, b"\0")


def older_state(layout: Layout, manifest: Span) -> Files:
    """The whole container as it was when this manifest was the head; what came later is gone."""
    if not layout.single:
        later = {m.file for m in layout.manifests if int(m.name) > int(manifest.name)}
        return {file: data for file, data in layout.files.items() if file not in later}
    data = layout.files[SINGLE]
    end = -(-manifest.stop // PAGE) * PAGE
    return {SINGLE: data[:PAGE] + slot_page(layout, 0, manifest) + slot_page(layout, 1, manifest) + data[FIRST:end]}
