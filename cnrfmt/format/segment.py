"""The fixed blocks of a segment and the digests of its pieces (specification, sections 3.1 and 3.2)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits
from cnrfmt.format.blocks import Features, check_block, check_id, check_zero, seal
from cnrfmt.format.digests import HEADER_LEVEL, TOC_LEVEL, TRAILER_LEVEL, digest, seed_of

NO_STATE = bytes(16)


@dataclass(frozen=True)
class SegmentHeader:
    """The first block of a segment; `from_state` is all zero for a baseline."""

    segment_id: bytes
    commit_id: bytes
    from_state: bytes
    to_state: bytes
    features: Features = Features()

    def pack(self) -> bytes:
        """The block."""
        ids = self.segment_id + self.commit_id + self.from_state + self.to_state
        return seal("S", self.features.pack() + ids, seed_of(self.segment_id, HEADER_LEVEL))

    @staticmethod
    def parse(data: bytes, place: str, *, segment_id: bytes) -> SegmentHeader:
        """The header of the segment `segment_id`; raises `DamagedError` or `UnsupportedError`."""
        place = f"{place}, header"
        # Sealed under the id that it holds: so a sound block of another segment is told from a damaged one.
        block = check_block(data, "S", seed_of(data[40:56], HEADER_LEVEL), place)
        features = Features.parse(block, place)
        check_zero(block, 104, 120, place)
        found = SegmentHeader(block[40:56], block[56:72], block[72:88], block[88:104], features)
        if found.segment_id != segment_id:
            raise DamagedError(
                "segment-identity",
                place,
                expected=f"segment {segment_id.hex()}",
                found=found.segment_id.hex(),
            )
        check_id(found.commit_id, "commit id", place)
        check_id(found.to_state, "to-state", place)
        if found.from_state == found.to_state:
            raise DamagedError(
                "segment-identity",
                place,
                expected="a to-state unlike the from-state",
                found=found.to_state.hex(),
            )
        return found


@dataclass(frozen=True)
class Trailer:
    """The last block of a segment."""

    segment_id: bytes
    length: int
    data_end: int
    toc_offset: int
    toc_length: int
    toc_digest: int
    piece_size: int

    @property
    def pieces(self) -> int:
        """How many pieces the segment has."""
        return -(-self.data_end // self.piece_size)

    def pack(self) -> bytes:
        """The block."""
        fields = struct.pack(
            "<16sQQQQQI",
            self.segment_id,
            self.length,
            self.data_end,
            self.toc_offset,
            self.toc_length,
            self.toc_digest,
            self.piece_size,
        )
        return seal("T", fields, seed_of(self.segment_id, TRAILER_LEVEL))

    @staticmethod
    def parse(data: bytes, place: str, *, segment_id: bytes, length: int, mark: int) -> Trailer:
        """The trailer of a segment whose chain entry gives id, length and digest `mark`.

        Raises `DamagedError`.
        """
        place = f"{place}, trailer"
        block = check_block(data, "T", seed_of(data[8:24], TRAILER_LEVEL), place)
        trailer = Trailer(*struct.unpack_from("<16sQQQQQI", block, 8))
        check_zero(block, 68, 120, place)
        if trailer.segment_id != segment_id:
            raise DamagedError(
                "segment-identity",
                place,
                expected=f"segment {segment_id.hex()}",
                found=trailer.segment_id.hex(),
            )
        if (found := int.from_bytes(block[120:], "little")) != mark:
            raise DamagedError(
                "trailer-digest", place, expected=f"{mark:016x}", found=f"{found:016x}"
            )
        if trailer.length != length:
            raise DamagedError(
                "segment-length", place, expected=f"{length} bytes", found=trailer.length
            )
        _check_geometry(trailer, place)
        return trailer


def _check_geometry(t: Trailer, place: str) -> None:
    piece = t.piece_size
    if (
        not limits.MIN_PIECE <= piece <= limits.MAX_PIECE
        or piece & (piece - 1)
        or t.data_end % limits.SMALL_ALIGNMENT
        or not limits.BLOCK <= t.data_end <= t.length
        or t.toc_offset != t.data_end + 8 * t.pieces
        or t.toc_offset + t.toc_length + limits.BLOCK != t.length
    ):
        raise DamagedError(
            "trailer-geometry",
            place,
            expected="data, digests, table of contents and trailer one behind the other",
            found=f"piece size {piece}, data end {t.data_end}, table of contents at "
            f"{t.toc_offset} of {t.toc_length} bytes, segment of {t.length} bytes",
        )
    if t.toc_length > limits.MAX_METADATA:
        raise DamagedError(
            "limit",
            f"{place}, table of contents",
            expected=f"at most {limits.MAX_METADATA} bytes",
            found=t.toc_length,
        )


def toc_digest(toc: bytes, segment_id: bytes) -> int:
    """The digest that a trailer holds of its table of contents."""
    return digest(toc, seed_of(segment_id, TOC_LEVEL))


def check_toc_digest(toc: bytes, trailer: Trailer, place: str) -> None:
    """Raises `DamagedError` (rule `toc-digest`)."""
    if (found := toc_digest(toc, trailer.segment_id)) != trailer.toc_digest:
        raise DamagedError(
            "toc-digest",
            f"{place}, table of contents",
            expected=f"{trailer.toc_digest:016x}",
            found=f"{found:016x}",
        )


def check_node_count(nodes: int, trailer: Trailer, place: str) -> None:
    """Raises `DamagedError` (rule `node-count`)."""
    want = -(-8 * trailer.pieces // limits.NODE)
    if nodes != want:
        raise DamagedError("node-count", place, expected=f"{want} nodes", found=nodes)
