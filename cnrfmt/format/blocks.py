"""Blocks of 128 bytes with a magic and a digest, and the pages of a single file (sections 2.1, 5.1)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cnrfmt.errors import DamagedError, UnsupportedError
from cnrfmt.format.digests import digest
from cnrfmt.format.limits import BLOCK, MAX_BYTES, PAGE, round_up

MAJOR, MINOR = 1, 0
KNOWN_COMPAT = KNOWN_RO_COMPAT = KNOWN_INCOMPAT = 0

FIRST_SPAN = 3 * PAGE
"""Where the spans of a single file start: behind the file header page and the two slots."""


def magic(letter: str) -> bytes:
    """The magic of a block, with bytes that a transfer as text would change."""
    return b"\x89CNR" + letter.encode() + b"\r\n\x1a"


def seal(letter: str, fields: bytes, seed: int) -> bytes:
    """The block of these fields (at most 112 bytes, which start at offset 8)."""
    body = (magic(letter) + fields).ljust(BLOCK - 8, b"\0")
    return body + digest(body, seed).to_bytes(8, "little")


def check_block(data: bytes, letter: str, seed: int, place: str) -> bytes:
    """The 128 bytes of a block whose magic and digest are right."""
    if len(data) < BLOCK:
        raise DamagedError(
            "block-length", place, expected=f"{BLOCK} bytes", found=f"{len(data)} bytes"
        )
    block = bytes(data[:BLOCK])
    if block[:8] != magic(letter):
        raise DamagedError(
            "block-magic", place, expected=magic(letter).hex(" "), found=block[:8].hex(" ")
        )
    want, have = int.from_bytes(block[120:], "little"), digest(block[:120], seed)
    if want != have:
        raise DamagedError("block-digest", place, expected=f"{want:016x}", found=f"{have:016x}")
    return block


def check_zero(data: bytes, start: int, stop: int, place: str) -> None:
    """The bytes from `start` to `stop` must be zero."""
    found = data[start:stop]
    if found != bytes(len(found)):
        offset = start + len(found) - len(found.lstrip(b"\0"))
        raise DamagedError(
            "block-zero", f"{place}, byte {offset}", expected="zero", found=f"{data[offset]:#04x}"
        )


@dataclass(frozen=True)
class Features:
    """The three feature masks (section 2.3)."""

    compat: int = 0
    ro_compat: int = 0
    incompat: int = 0

    def pack(self) -> bytes:
        """Major and minor version, four zero bytes and the masks: bytes 8 to 39 of a block."""
        return struct.pack(
            "<HHIQQQ", MAJOR, MINOR, 0, self.compat, self.ro_compat, self.incompat
        )

    @staticmethod
    def parse(block: bytes, place: str) -> Features:
        """The masks of a block; raises `UnsupportedError` on what a reader must know."""
        major, _, zero, compat, ro_compat, incompat = struct.unpack_from("<HHIQQQ", block, 8)
        if major != MAJOR:
            raise UnsupportedError(place, f"format version {major}")
        if unknown := incompat & ~KNOWN_INCOMPAT:
            raise UnsupportedError(place, f"incompat {bit_names(unknown)}")
        if zero:
            check_zero(block, 12, 16, place)
        return Features(compat, ro_compat, incompat)

    def __or__(self, other: Features) -> Features:
        return Features(
            self.compat | other.compat,
            self.ro_compat | other.ro_compat,
            self.incompat | other.incompat,
        )

    @property
    def lenient(self) -> bool:
        """Whether metadata may hold keys that this release doesn't know (rule `json-field`)."""
        return bool(self.compat & ~KNOWN_COMPAT or self.ro_compat & ~KNOWN_RO_COMPAT)

    @property
    def unknown_ro_compat(self) -> int:
        """The bits that forbid writing to this release."""
        return self.ro_compat & ~KNOWN_RO_COMPAT


def bit_names(mask: int) -> str:
    """A mask in words: `bit 3`, or `bits 0, 7`."""
    bits = [str(bit) for bit in range(64) if mask >> bit & 1]
    return ("bit " if len(bits) == 1 else "bits ") + ", ".join(bits)


def check_id(value: bytes, what: str, place: str) -> None:
    """An id must not be all zero."""
    if not any(value):
        raise DamagedError("segment-identity", f"{place}, {what}", expected="an id", found="zero")


@dataclass(frozen=True)
class FileHeader:
    """The first page of a single file."""

    container_id: bytes
    features: Features = Features()

    def pack(self) -> bytes:
        """The page, 4096 bytes."""
        return seal("F", self.features.pack() + self.container_id, 0).ljust(PAGE, b"\0")

    @staticmethod
    def parse(page: bytes, place: str) -> FileHeader:
        """Raises `DamagedError` or `UnsupportedError`."""
        if len(page) < PAGE:
            raise DamagedError(
                "file-header",
                place,
                expected=f"a header page of {PAGE} bytes",
                found=f"{len(page)} bytes",
            )
        try:
            block = check_block(page, "F", 0, place)
            features = Features.parse(block, place)
            check_zero(block, 56, 120, place)
            check_zero(page, BLOCK, PAGE, place)
        except DamagedError as error:
            raise DamagedError(
                "file-header",
                error.place,
                expected=error.expected,
                found=error.found,
                advice="this is no cnr container, or its first page is damaged",
            ) from None
        if not any(block[40:56]):
            raise DamagedError("file-header", place, expected="a container id", found="zero")
        return FileHeader(block[40:56], features)


@dataclass(frozen=True)
class Slot:
    """One of the two pages that name the head of a single file."""

    number: int
    container_id: bytes
    version: int
    manifest_offset: int
    manifest_length: int
    manifest_digest: int

    @property
    def committed_end(self) -> int:
        """Where the next span may start; the file reaches to here."""
        return round_up(self.manifest_offset + self.manifest_length, PAGE)

    def pack(self) -> bytes:
        """The page, 4096 bytes."""
        fields = struct.pack(
            "<II16sQQQQQ",
            self.number,
            0,
            self.container_id,
            self.version,
            self.manifest_offset,
            self.manifest_length,
            self.manifest_digest,
            self.committed_end,
        )
        return seal("H", fields, 0).ljust(PAGE, b"\0")

    @staticmethod
    def parse(page: bytes, place: str, *, number: int, container_id: bytes) -> Slot:
        """Slot `number` of the container `container_id`; raises `DamagedError` (rule `slot`)."""
        if len(page) < PAGE:
            raise DamagedError(
                "file-header", place, expected=f"a slot page of {PAGE} bytes", found=f"{len(page)} bytes"
            )
        try:
            block = check_block(page, "H", 0, place)
            slot_number, zero, owner, version, offset, length, mark, end = struct.unpack_from(
                "<II16sQQQQQ", block, 8
            )
            check_zero(block, 72, 120, place)
            check_zero(page, BLOCK, PAGE, place)
        except DamagedError as error:
            raise DamagedError(
                "slot", error.place, expected=error.expected, found=error.found
            ) from None
        slot = Slot(slot_number, owner, version, offset, length, mark)
        for holds, expected, found in (
            (zero == 0, "zero at byte 12", zero),
            (slot_number == number, f"slot number {number}", slot_number),
            (owner == container_id, f"container {container_id.hex()}", owner.hex()),
            (offset % PAGE == 0 and offset >= FIRST_SPAN, "a manifest at a span", offset),
            (end == slot.committed_end, f"committed end {slot.committed_end}", end),
        ):
            if not holds:
                raise DamagedError("slot", place, expected=expected, found=found)
        for what, number in (("committed end", end), ("version", version)):
            if number > MAX_BYTES:
                raise DamagedError("limit", f"{place}, {what}", expected=f"at most {MAX_BYTES}", found=number)
        return slot
