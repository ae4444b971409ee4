"""The manifest: the commit record of one version (specification, section 4)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from cnrfmt.errors import DamagedError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.blocks import Features, check_block, check_zero, seal
from cnrfmt.format.digests import digest, digest_hex
from cnrfmt.format.schema import TableSchema, parse_schema
from cnrfmt.format.strict_json import Json, Record

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_KEYS = frozenset(
    (
        "state",
        "commit",
        "step",
        "created",
        "created_by",
        "parent",
        "tables",
        "chain",
        "versions",
        "dense",
        "metadata",
    )
)
_PARENT_KEYS = frozenset(("version", "digest"))
_CHAIN_KEYS = frozenset(("segment", "from", "to", "offset", "length", "trailer", "toc"))
_VERSION_KEYS = ("version", "offset", "length", "digest")
"""In the order of the array that they are keys to."""


@dataclass(frozen=True)
class ChainEntry:
    """One segment of a chain; `offset` in a single file, `toc` where it stands in the attachments."""

    segment: bytes
    from_state: bytes | None
    to_state: bytes
    offset: int | None
    length: int
    trailer_digest: int
    toc: tuple[int, int] | None = None


@dataclass(frozen=True)
class Retained:
    """An earlier version that is still there."""

    version: int
    offset: int | None
    length: int
    digest: int


@dataclass(frozen=True)
class Manifest:
    """One version. `digest` and `length` are those of its bytes, 0 until it was packed or parsed."""

    container_id: bytes
    version: int
    state: bytes
    commit_id: bytes
    step: int | None
    created: str
    created_by: str
    parent: tuple[int, int] | None
    tables: tuple[TableSchema, ...]
    chain: tuple[ChainEntry, ...]
    versions: tuple[Retained, ...] = ()
    dense: bytes | None = None
    metadata: dict[str, Json] = field(default_factory=dict)
    features: Features = Features()
    attachments: bytes = b""
    digest: int = 0
    length: int = 0

    def table(self, name: str) -> TableSchema | None:
        """The live table of that name."""
        return next((t for t in self.tables if t.name == name), None)

    def steps(self) -> list[list[ChainEntry]]:
        """The chain grouped by to-state, oldest first."""
        found: list[list[ChainEntry]] = []
        for entry in self.chain:
            if not found or found[-1][0].to_state != entry.to_state:
                found.append([])
            found[-1].append(entry)
        return found


def pack_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest; the last eight are its digest."""
    m = manifest
    text = strict_json.dump(
        {
            "state": m.state.hex(),
            "commit": m.commit_id.hex(),
            "step": m.step,
            "created": m.created,
            "created_by": m.created_by,
            "parent": m.parent and {"version": m.parent[0], "digest": digest_hex(m.parent[1])},
            "tables": [t.to_json() for t in m.tables],
            "chain": [
                {
                    "segment": e.segment.hex(),
                    "from": e.from_state and e.from_state.hex(),
                    "to": e.to_state.hex(),
                    "offset": e.offset,
                    "length": e.length,
                    "trailer": digest_hex(e.trailer_digest),
                    "toc": e.toc,
                }
                for e in m.chain
            ],
            "versions": [[r.version, r.offset, r.length, digest_hex(r.digest)] for r in m.versions],
            "dense": m.dense and m.dense.hex(),
            "metadata": m.metadata,
        }
    )
    fields = m.features.pack() + struct.pack(
        "<16sQQQ", m.container_id, m.version, len(text), len(m.attachments)
    )
    body = seal("M", fields, 0) + text + m.attachments
    return body + digest(body).to_bytes(8, "little")


def parse_manifest(data: bytes, place: str) -> Manifest:
    """The manifest that these bytes are, checked as far as it goes alone.

    Raises `DamagedError` or `UnsupportedError`.
    """
    block = check_block(data, "M", 0, place)
    features = Features.parse(block, place)
    check_zero(block, 80, 120, place)
    container_id, version, text_length, rest_length = struct.unpack_from("<16sQQQ", block, 40)
    end = limits.BLOCK + text_length + rest_length
    if len(data) != end + 8:
        raise DamagedError(
            "block-length", place, expected=f"{end + 8} bytes", found=f"{len(data)} bytes"
        )
    for what, length in (("JSON", text_length), ("attachments", rest_length)):
        if length > limits.MAX_METADATA:
            raise DamagedError(
                "limit",
                f"{place}, {what}",
                expected=f"at most {limits.MAX_METADATA} bytes",
                found=length,
            )
    mark = int.from_bytes(data[end:], "little")
    if (found := digest(data[:end])) != mark:
        raise DamagedError(
            "manifest-digest", place, expected=f"{mark:016x}", found=f"{found:016x}"
        )
    text_end = limits.BLOCK + text_length
    value = strict_json.parse(bytes(data[limits.BLOCK : text_end]), place)
    record = Record(value, _KEYS, place, lenient=features.lenient)
    created = record.text("created")
    if not _TIME.fullmatch(created):
        raise DamagedError(
            "json-field", f"{place}, created", expected="YYYY-MM-DDThh:mm:ssZ", found=repr(created)
        )
    step = None
    if not record.is_null("step"):
        step = record.integer("step", -limits.MAX_INTEGER)
    metadata = record["metadata"]
    if not isinstance(metadata, dict):
        raise DamagedError(
            "json-field", f"{place}, metadata", expected="an object", found=type(metadata).__name__
        )
    if not any(container_id):
        raise DamagedError("manifest-identity", place, expected="a container id", found="zero")
    if version > limits.MAX_INTEGER:
        raise DamagedError("limit", place, expected=f"a version up to {limits.MAX_INTEGER}", found=version)
    manifest = Manifest(
        container_id,
        version,
        record.identity("state"),
        record.identity("commit"),
        step,
        created,
        record.text("created_by"),
        _parse_parent(record, features.lenient),
        parse_schema(
            record.array("tables", limits.MAX_TABLES), place, lenient=features.lenient
        ),
        _parse_chain(record, features.lenient),
        _parse_versions(record),
        None if record.is_null("dense") else record.identity("dense"),
        metadata,
        features,
        bytes(data[text_end:end]),
        mark,
        len(data),
    )
    _check_lineage(manifest, place)
    _check_path(manifest, place)
    _check_attachments(manifest, place)
    return manifest


def _parse_parent(record: Record, lenient: bool) -> tuple[int, int] | None:
    if record.is_null("parent"):
        return None
    place = f"{record.place}, parent"
    parent = Record(record["parent"], _PARENT_KEYS, place, lenient=lenient)
    return parent.integer("version"), parent.digest("digest")


def _parse_chain(record: Record, lenient: bool) -> tuple[ChainEntry, ...]:
    found = []
    for number, value in enumerate(record.array("chain", limits.MAX_CHAIN)):
        entry = Record(value, _CHAIN_KEYS, f"{record.place}, chain entry {number}", lenient=lenient)
        toc = None if entry.is_null("toc") else entry.integers("toc", 2)
        found.append(
            ChainEntry(
                entry.identity("segment"),
                None if entry.is_null("from") else entry.identity("from"),
                entry.identity("to"),
                None if entry.is_null("offset") else entry.integer("offset"),
                entry.integer("length"),
                entry.digest("trailer"),
                None if toc is None else (toc[0], toc[1]),
            )
        )
    return tuple(found)


def _parse_versions(record: Record) -> tuple[Retained, ...]:
    found = []
    for number, value in enumerate(record.array("versions", limits.MAX_VERSIONS)):
        place = f"{record.place}, retained version {number}"
        if not isinstance(value, list) or len(value) != 4:
            raise DamagedError(
                "json-field", place, expected="[version, offset, length, digest]", found=str(value)[:80]
            )
        named = dict(zip(_VERSION_KEYS, value, strict=True))
        item = Record(named, named.keys(), place, lenient=False)
        found.append(
            Retained(
                item.integer("version"),
                None if item.is_null("offset") else item.integer("offset"),
                item.integer("length"),
                item.digest("digest"),
            )
        )
    return tuple(found)


def _check_lineage(m: Manifest, place: str) -> None:
    parent_version = -1 if m.parent is None else m.parent[0]
    numbers = [r.version for r in m.versions]
    named = {r.version: r.digest for r in m.versions}
    sound = (
        parent_version == m.version - 1
        and numbers == sorted(set(numbers))
        and all(n < m.version for n in numbers)
        and (m.parent is None or named.get(parent_version, m.parent[1]) == m.parent[1])
    )
    if not sound:
        raise DamagedError(
            "manifest-parent",
            place,
            expected=f"the parent of version {m.version}, and earlier versions in order",
            found=f"parent {m.parent}, versions {numbers[:20]}",
        )


def _check_path(m: Manifest, place: str) -> None:
    seen_states: set[bytes] = set()
    previous: ChainEntry | None = None
    for number, entry in enumerate(m.chain):
        if previous is None:
            sound = entry.from_state is None
        else:
            same_step = (entry.from_state, entry.to_state) == (
                previous.from_state,
                previous.to_state,
            )
            sound = same_step or (
                entry.from_state == previous.to_state and entry.to_state not in seen_states
            )
        if not sound:
            raise DamagedError(
                "chain-path",
                f"{place}, chain entry {number}",
                expected="an unbroken path of states from a baseline",
                found=f"from {entry.from_state and entry.from_state.hex()} to {entry.to_state.hex()}",
            )
        seen_states.add(entry.to_state)
        previous = entry
    if previous is None or previous.to_state != m.state:
        found = "an empty chain" if previous is None else previous.to_state.hex()
        raise DamagedError("chain-path", place, expected=f"state {m.state.hex()}", found=found)
    if len({entry.segment for entry in m.chain}) < len(m.chain):
        raise DamagedError("chain-path", place, expected="each segment once", found="one twice")
    if m.dense is not None and all(entry.segment != m.dense for entry in m.chain):
        raise DamagedError(
            "dense-reference", place, expected="a segment of the chain", found=m.dense.hex()
        )


def _check_attachments(m: Manifest, place: str) -> None:
    position = 0
    for number, entry in enumerate(m.chain):
        if entry.toc is not None:
            if entry.toc[0] != position or entry.toc[1] < 1:
                raise DamagedError(
                    "attachment",
                    f"{place}, chain entry {number}",
                    expected=f"a table of contents at {position}",
                    found=entry.toc,
                )
            position += entry.toc[1]
    if position != len(m.attachments):
        raise DamagedError(
            "attachment", place, expected=f"{position} bytes", found=f"{len(m.attachments)} bytes"
        )
