"""Targets: the parsers of the format, each alone. Whatever the bytes, only our own errors come out.

Digests are made right by the harness where a parser checks one, so that every input reaches what lies behind.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from cnrfmt.errors import DamagedError
from cnrfmt.format import strict_json
from cnrfmt.format.blocks import FileHeader, Slot
from cnrfmt.format.digests import HEADER_LEVEL, TRAILER_LEVEL, seed_of
from cnrfmt.format.legality import parse_layout
from cnrfmt.format.limits import BLOCK, PAGE
from cnrfmt.format.manifest import pack_manifest, parse_manifest
from cnrfmt.format.schema import parse_schema
from cnrfmt.format.scheme import parse_scheme, scheme_json
from cnrfmt.format.segment import SegmentHeader, Trailer, check_node_count
from cnrfmt.format.toc import data_end, pack_toc
from cnrfmt.format.toc_parser import parse_toc
from cnrfmt.integrations.notes import parse_notes
from tools import cnrcheck
from tools.fuzz import seal
from tools.fuzz.oracle import DAMAGED, SOUND, Disagreement, agree, attempt, same

PLACE = "input"


def json_text(data: bytes) -> None:
    """Strict JSON: the same texts are accepted as by the validator, with the same value, and are written back."""
    verdict, value, error = attempt(lambda: strict_json.parse(data, PLACE))
    try:
        other = cnrcheck.strict_json(data)
    except ValueError as refusal:
        if verdict == SOUND:
            raise Disagreement(f"accepted what cnrcheck refuses: {refusal}") from None
        return
    if verdict != SOUND:
        raise Disagreement(f"refused what cnrcheck accepts: {error}")
    same(repr(value), repr(other), "value")
    same(repr(strict_json.parse(strict_json.dump(value), PLACE)), repr(value), "value read back")


def file_header(data: bytes) -> None:
    """The header page of a single file: 112 bytes of fields, then what stands behind the block."""
    page = (seal.seal_block("F", data[:112]) + data[112:])[:PAGE].ljust(PAGE, b"\0")
    verdict, found, error = attempt(lambda: FileHeader.parse(page, PLACE))
    checker = cnrcheck._Checker(data=page.ljust(3 * PAGE, b"\0"))
    checker.open_single()
    agree(verdict, error, checker, ignore=("slot",))
    if found is not None and page[10:12] == b"\0\0":
        same(found.pack(), page, "page packed again")


def slot(data: bytes) -> None:
    """A slot page: which number it should have, then the fields, then what stands behind the block."""
    number, fields = data[0] & 1 if data else 0, data[1:113]
    page = (seal.seal_block("H", fields) + data[113:])[:PAGE].ljust(PAGE, b"\0")
    container = fields[8:24].ljust(16, b"\0")
    verdict, found, error = attempt(lambda: Slot.parse(page, PLACE, number=number, container_id=container))
    checker = cnrcheck._Checker(data=b"")
    checker.container = container if any(container) else None
    checker.slot(bytes((1 + number) * PAGE) + page, number)
    if any(container):
        agree(verdict, error, checker)
    if found is not None:
        same(found.pack(), page, "page packed again")


def segment_header(data: bytes) -> None:
    """The first block of a segment; a first byte of 0 asks for another segment id."""
    fields = data[1:113].ljust(112, b"\0")
    segment_id = fields[32:48] if data[:1] != b"\0" else bytes(15) + b"\1"
    block = seal.seal_block("S", fields, seed_of(segment_id, HEADER_LEVEL))
    _, found, _ = attempt(lambda: SegmentHeader.parse(block, PLACE, segment_id=segment_id))
    if found is not None and block[10:12] == b"\0\0":
        same(found.pack(), block, "block packed again")


def trailer(data: bytes) -> None:
    """The last block of a segment; the first byte says how far its length is off."""
    fields = data[1:113].ljust(112, b"\0")
    segment_id = fields[:16]
    (length,) = struct.unpack_from("<Q", fields, 16)
    length += data[0] & 3 if data else 0
    block = seal.seal_block("T", fields, seed_of(segment_id, TRAILER_LEVEL))
    mark = int.from_bytes(block[120:], "little")
    found = attempt(lambda: Trailer.parse(block, PLACE, segment_id=segment_id, length=length, mark=mark))[1]
    if found is not None:
        same(found.pack(), block, "block packed again")


def manifest(data: bytes) -> None:
    """A whole manifest: the 112 bytes of its header's fields, then JSON and attachments.

    The lengths in the fields are made right but for their sum: an A beyond what is there leaves all to the JSON.
    """
    fields, rest = data[:112].ljust(112, b"\0"), data[112:]
    size = struct.unpack_from("<Q", fields, 64)[0]
    size = size if size <= len(rest) else 0
    head = bytes(8) + fields
    whole = seal.reseal_manifest(head, rest[: len(rest) - size], rest[len(rest) - size :])
    verdict, found, error = attempt(lambda: parse_manifest(whole, PLACE))
    (version,) = struct.unpack_from("<Q", fields, 48)
    checker = cnrcheck._Checker(files={f"manifests/{version:020d}.cnrm": whole})
    checker.manifest(cnrcheck.Name(version, None, None, None))
    # Whether offsets may stand there is the container's affair. The validator looks for dense state later.
    if not (isinstance(error, DamagedError) and error.rule == "dense-reference"):
        agree(verdict, error, checker, ignore=("span",))
    if found is not None:
        packed = pack_manifest(found)
        again = parse_manifest(packed, PLACE)
        same(replace(again, digest=0, length=0), replace(found, digest=0, length=0), "manifest read back")
        same(pack_manifest(again), packed, "manifest packed again")


def toc(data: bytes) -> None:
    """A table of contents: 8 bytes of what surrounds it, then its text.

    These are the power of the piece size, whether keys may be unknown, and six bytes of the data end.
    """
    if len(data) < 8:
        return
    power, lenient, text = 9 + data[0] % 12, bool(data[1] & 1), data[8:]
    end = int.from_bytes(data[2:8], "little")
    if not end:
        end = _fitting_end(text)
    pieces = -(-end // (1 << power))
    fields = Trailer(b"s" * 16, 0, end, 0, len(text), 0, 1 << power)

    def parse() -> object:
        found = parse_toc(text, end, PLACE, lenient=lenient)
        check_node_count(len(found.nodes), fields, PLACE)
        return found

    verdict, _, error = attempt(parse)
    checker = cnrcheck._Checker(data=b"", level="structure")
    masks = (int(lenient), 0, 0)
    segment = cnrcheck.Segment(PLACE, None, 0, masks=masks, toc_raw=text, data_end=end)
    checker.check_toc(segment, 0, range(8 * min(pieces, 1 << 40)))
    agree(verdict, error, checker)
    if verdict == SOUND and not lenient:
        read = parse_toc(text, end, PLACE, lenient=False)
        packed = pack_toc(read)
        same(parse_toc(packed, end, PLACE, lenient=False), read, "table of contents read back")


def _fitting_end(text: bytes) -> int:
    """The data end that the sections of a text ask for, where they say one."""
    try:
        sections = cnrcheck.strict_json(text)["sections"]
        return max(BLOCK, data_end(tuple((int(a), int(b)) for a, b in sections)))
    except (ValueError, KeyError, TypeError, IndexError):
        return BLOCK


def schema(data: bytes) -> None:
    """The tables of a manifest, as a JSON array; its first byte says whether keys may be unknown."""
    lenient = data[:1] == b"1"
    try:
        values = cnrcheck.strict_json(data[1:])
    except ValueError:
        return
    if not isinstance(values, list):
        return
    verdict, found, error = attempt(lambda: parse_schema(values, PLACE, lenient=lenient))
    checker = cnrcheck._Checker(data=b"")
    made = cnrcheck.Manifest(PLACE, 0, 0, (int(lenient), 0, 0), {"tables": values}, b"")
    checker.check_schema(made, lenient)
    agree(verdict, error, checker)
    if found is not None and not lenient:
        again = parse_schema([table.to_json() for table in found], PLACE, lenient=False)
        same(again, found, "schema read back")


def layout(data: bytes) -> None:
    """The encoding and the scheme of a part, as a JSON array: what they say is what they are written back as."""
    try:
        encoding, scheme = cnrcheck.strict_json(data)
    except (ValueError, TypeError):
        return
    verdict, found, error = attempt(lambda: parse_layout(encoding, PLACE, lenient=False))
    checker = cnrcheck._Checker(data=b"")
    legal = isinstance(encoding, dict) and checker.encoding(encoding, PLACE, False) and not checker.found
    same(verdict == SOUND, legal, f"whether this is an encoding ({error})")
    if found is None:
        return
    same(found.to_json(), encoding, "encoding written back")
    for count, width in ((1, 1), (3, 7), (1 << 30, 1 << 20)):
        lengths = found.section_bytes(count, width), found.codebook_bytes(count)
        others = cnrcheck.part_length(encoding, count, width), cnrcheck.codebooks_length(encoding, count) or 0
        same(lengths, others, "bytes of rows and of codebooks")
    verdict, read, error = attempt(lambda: parse_scheme(scheme, found, PLACE, lenient=False))
    if scheme is None or isinstance(scheme, dict):
        checker.check_scheme(scheme, encoding, PLACE, False)
        agree(verdict, error, checker)
    else:
        same(verdict, DAMAGED, "what is no scheme")
    if read is not None:
        same(scheme_json(*read), scheme, "scheme written back")


def notes(data: bytes) -> None:
    """The notes of a conversion: what is accepted is written and read back."""
    found = attempt(lambda: parse_notes(data, PLACE))[1]
    if found is not None:
        same(repr(parse_notes(found.dump(), PLACE)), repr(found), "notes read back")
