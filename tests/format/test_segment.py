"""The header and the trailer of a segment, and the digests that the trailer vouches for."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from cnrfmt.errors import DamagedError, UnsupportedError
from cnrfmt.format import limits
from cnrfmt.format.blocks import Features, check_zero, seal
from cnrfmt.format.digests import HEADER_LEVEL, TRAILER_LEVEL, digest, seed_of
from cnrfmt.format.segment import (
    NO_STATE,
    SegmentHeader,
    Trailer,
    check_node_count,
    check_toc_digest,
    toc_digest,
)

SEGMENT, COMMIT = b"segment id, 16 b", b"commit id, 16 by"
BEFORE, AFTER = b"the state before", b"the state behind"
SEED = int.from_bytes(SEGMENT[:8], "little")
HEADER = SegmentHeader(SEGMENT, COMMIT, BEFORE, AFTER, Features(3, 0, 0))
# 5 pieces of 512 bytes and a bit of a sixth, 48 bytes of digests, 100 of contents, and the trailer.
TRAILER = Trailer(SEGMENT, 2624 + 48 + 100 + 128, 2624, 2672, 100, 0x1234, 512)


def by_hand(letter: bytes, fields: bytes, seed: int) -> bytes:
    body = (b"\x89CNR" + letter + b"\r\n\x1a" + fields).ljust(120, b"\0")
    return body + digest(body, seed % 2**64).to_bytes(8, "little")


def header(fields: bytes) -> SegmentHeader:
    return SegmentHeader.parse(by_hand(b"S", fields, SEED + 4 * 2**56), "here", segment_id=SEGMENT)


def fields_of(found: SegmentHeader) -> bytes:
    masks = struct.pack("<HHIQQQ", 1, 0, 0, found.features.compat, 0, 0)
    return masks + found.segment_id + found.commit_id + found.from_state + found.to_state


def trailer(found: Trailer, zero: bytes = bytes(52), **expected: Any) -> Trailer:
    fields = struct.pack(
        "<16sQQQQQI",
        found.segment_id,
        found.length,
        found.data_end,
        found.toc_offset,
        found.toc_length,
        found.toc_digest,
        found.piece_size,
    )
    data = by_hand(b"T", fields + zero, SEED + 3 * 2**56)
    options = {"segment_id": SEGMENT, "length": found.length, "mark": int.from_bytes(data[120:], "little"), **expected}
    return Trailer.parse(data, "here", **options)


def refused(rule: str, call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(DamagedError) as caught:
        call(*args, **options)
    assert caught.value.rule == rule, caught.value
    return caught.value.place


def test_a_header_is_packed_and_read_as_by_hand() -> None:
    assert HEADER.pack() == by_hand(b"S", fields_of(HEADER), SEED + 4 * 2**56)
    assert header(fields_of(HEADER)) == HEADER
    baseline = replace(HEADER, from_state=NO_STATE, features=Features())
    assert SegmentHeader.parse(baseline.pack(), "here", segment_id=SEGMENT) == baseline
    assert bytes(16) == NO_STATE


def test_a_header_is_sealed_under_its_own_id() -> None:
    other = b"another segment!"
    assert refused("segment-identity", SegmentHeader.parse, HEADER.pack(), "here", segment_id=other) == "here, header"
    data = seal("S", fields_of(HEADER), seed_of(other, HEADER_LEVEL))
    for identity in (SEGMENT, other):
        refused("block-digest", SegmentHeader.parse, data, "here", segment_id=identity)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"commit_id": bytes(16)}, "here, header, commit id"),
        ({"to_state": bytes(16)}, "here, header, to-state"),
        ({"from_state": AFTER}, "here, header"),
    ],
)
def test_ids_of_a_header(change: dict[str, bytes], place: str) -> None:
    assert refused("segment-identity", header, fields_of(replace(HEADER, **change))) == place  # type: ignore[arg-type]


@pytest.mark.parametrize("byte", [96, 111])
def test_a_header_is_zero_behind_its_fields(byte: int) -> None:
    fields = bytearray(fields_of(HEADER).ljust(112, b"\0"))
    fields[byte] = 1
    assert refused("block-zero", header, bytes(fields)) == f"here, header, byte {byte + 8}"


@pytest.mark.parametrize("byte", [12 - 8, 15 - 8])
def test_the_zero_between_version_and_masks(byte: int) -> None:
    fields = bytearray(fields_of(HEADER))
    fields[byte] = 1
    assert refused("block-zero", header, bytes(fields)) == f"here, header, byte {byte + 8}"


def test_an_unknown_incompat_bit_comes_before_everything_else() -> None:
    fields = bytearray(fields_of(HEADER).ljust(112, b"\xff"))
    fields[24:32] = (1 << 63).to_bytes(8, "little")
    with pytest.raises(UnsupportedError, match="incompat bit 63"):
        header(bytes(fields))


def test_a_trailer_is_packed_and_read_as_by_hand() -> None:
    assert trailer(TRAILER) == TRAILER
    data = TRAILER.pack()
    assert data == seal("T", data[8:120], (SEED + 3 * 2**56) % 2**64)
    assert Trailer.parse(data, "x", segment_id=SEGMENT, length=TRAILER.length, mark=digest_of(data)) == TRAILER
    assert TRAILER.pieces == 6


def digest_of(block: bytes) -> int:
    return int.from_bytes(block[120:], "little")


def test_a_trailer_is_the_one_of_the_chain() -> None:
    refused("trailer-digest", trailer, TRAILER, mark=0)
    refused("segment-length", trailer, TRAILER, length=TRAILER.length + 1)
    refused("segment-length", trailer, TRAILER, length=TRAILER.length - 1)
    other = b"another segment!"
    assert refused("segment-identity", trailer, TRAILER, segment_id=other) == "here, trailer"
    data = seal("T", TRAILER.pack()[8:120], seed_of(other, TRAILER_LEVEL))
    for identity in (SEGMENT, other):
        options = {"segment_id": identity, "length": TRAILER.length, "mark": digest_of(data)}
        refused("block-digest", Trailer.parse, data, "here", **options)


@pytest.mark.parametrize("byte", [0, 51])
def test_a_trailer_is_zero_behind_its_fields(byte: int) -> None:
    zero = bytearray(52)
    zero[byte] = 1
    assert refused("block-zero", trailer, TRAILER, bytes(zero)) == f"here, trailer, byte {68 + byte}"


def laid_out(piece: int = 512, end: int = 2624, contents: int = 100, **change: int) -> Trailer:
    """A trailer whose numbers fit each other, but for the change."""
    offset = end + 8 * -(-end // piece) if piece else end
    fields = {"length": offset + contents + 128, "data_end": end, "toc_offset": offset, "toc_length": contents}
    return Trailer(SEGMENT, **{**fields, "toc_digest": 0, "piece_size": piece, **change})


@pytest.mark.parametrize(
    "found",
    [
        laid_out(),
        laid_out(piece=1 << 20),
        laid_out(piece=1024),
        laid_out(end=128),
        laid_out(end=512),
        laid_out(end=576),
        laid_out(contents=0),
    ],
)
def test_geometries_that_are_sound(found: Trailer) -> None:
    assert trailer(found) == found


@pytest.mark.parametrize(
    "found",
    [
        laid_out(piece=256),
        laid_out(piece=511),
        laid_out(piece=768),
        laid_out(piece=1 << 21),
        laid_out(end=64),
        laid_out(end=0),
        laid_out(end=2625),
        laid_out(end=2656),
        laid_out(toc_offset=2673),
        laid_out(toc_offset=2664),
        laid_out(toc_length=99),
        laid_out(toc_length=101),
        laid_out(data_end=2688),
        laid_out(data_end=1 << 60),
        laid_out(length=2624 + 48 + 100 + 64),
    ],
)
def test_geometries_that_are_not(found: Trailer) -> None:
    assert refused("trailer-geometry", trailer, found) == "here, trailer"


def test_a_piece_size_of_zero_divides_nothing() -> None:
    refused("trailer-geometry", trailer, laid_out(piece=0))


def test_contents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_METADATA", 100)
    assert trailer(TRAILER) == TRAILER
    monkeypatch.setattr(limits, "MAX_METADATA", 99)
    assert refused("limit", trailer, TRAILER) == "here, trailer, table of contents"


def test_the_digest_of_the_contents() -> None:
    mark = digest(b"contents", (SEED + 2 * 2**56) % 2**64)
    assert toc_digest(b"contents", SEGMENT) == mark
    check_toc_digest(b"contents", replace(TRAILER, toc_digest=mark), "here")
    place = refused("toc-digest", check_toc_digest, b"content", replace(TRAILER, toc_digest=mark), "here")
    assert place == "here, table of contents"


@pytest.mark.parametrize(
    ("pieces", "nodes"), [(1, 1), (8191, 1), (8192, 1), (8193, 2), (2 * 8192, 2), (2 * 8192 + 1, 3)]
)
def test_the_number_of_nodes(pieces: int, nodes: int) -> None:
    found = laid_out(end=512 * pieces)
    check_node_count(nodes, found, "here")
    for wrong in (nodes - 1, nodes + 1):
        assert refused("node-count", check_node_count, wrong, found, "here") == "here"


@pytest.mark.parametrize(("start", "stop", "byte"), [(0, 4, 0), (0, 4, 3), (2, 4, 2), (1, 9, 4), (0, 5, 4)])
def test_the_first_byte_that_is_not_zero_is_named(start: int, stop: int, byte: int) -> None:
    data = bytearray(5)
    data[byte] = 0x5A
    place = refused("block-zero", check_zero, bytes(data), start, stop, "here")
    assert place == f"here, byte {byte}"
    check_zero(bytes(data), byte + 1, 5, "here")
    check_zero(bytes(data), 0, byte, "here")
