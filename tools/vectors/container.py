"""Manifests and the two containers, with a hook at every stage as in `layout`."""

from __future__ import annotations

import copy
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vectors.layout import (
    PAGE,
    Hooks,
    Json,
    Segment,
    block,
    digest,
    dump,
    hex64,
    ident,
    run,
    seal,
    up,
    versions_and_masks,
)

FIRST = 3 * PAGE
ITEM_SIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
}


@dataclass(frozen=True)
class Link:
    """A symbolic link in a directory container."""

    target: str


Tree = dict[str, "bytes | Link"]


def column(name: str, dtype: str, shape: Sequence[int], fill: bytes = b"") -> Json:
    """A COLUMN; its fill is zero bytes unless told."""
    fill = fill or bytes(ITEM_SIZE[dtype])
    return {"name": name, "dtype": dtype, "shape": list(shape), "fill": fill.hex()}


def schema(label: str, name: str, rows: int | None, dim: int, *columns: Json) -> Json:
    """A SCHEMA: dense with rows, keyed without; one float32 column `weight` unless told."""
    return {
        "id": ident(f"table {label}").hex(),
        "name": name,
        "kind": "keyed" if rows is None else "dense",
        "rows": rows,
        "dim": dim,
        "columns": list(columns) or [column("weight", "float32", [dim])],
    }


@dataclass(frozen=True)
class Commit:
    """Where a manifest lies, as slots and `versions` say it."""

    version: int
    offset: int | None
    length: int
    digest: int
    step: int | None = None
    metadata: Json = field(default_factory=dict)

    def listed(self) -> list[Any]:
        """The entry of `versions`."""
        return [self.version, self.offset, self.length, hex64(self.digest)]

    def parent(self) -> Json:
        """The `parent` of the next version."""
        return {"version": self.version, "digest": hex64(self.digest)}


class Store:
    """A container under construction: a single file, or a directory where `folder` is set."""

    def __init__(self, *, folder: bool = False, hooks: Hooks | None = None) -> None:
        self.id = ident("container")
        self.folder = folder
        self.hooks = hooks or {}
        self.masks = (0, 0, 0)
        self.files: Tree = {}
        self.spans: list[tuple[int, bytes]] = []
        self.end = FIRST
        self.log: list[Commit] = []
        self.tocs: dict[str, bytes] = {}
        self.slots: tuple[Commit, Commit] | None = None

    def store(self, data: bytes, name: str, at: int | None = None) -> int | None:
        """Keep bytes in a span of the file (the next free pages unless told), or in a file."""
        if self.folder:
            self.files[name] = data
            return None
        offset = self.end if at is None else at
        self.spans.append((offset, data))
        self.end = max(self.end, up(offset + len(data), PAGE))
        return offset

    def put(self, segment: Segment, at: int | None = None) -> Json:
        """Store a segment; its ENTRY."""
        sealed = seal(segment)
        offset = self.store(sealed.data, f"segments/{segment.id.hex()}.cnrs", at)
        self.tocs[segment.id.hex()] = sealed.toc
        return {
            "segment": segment.id.hex(),
            "from": segment.source.hex() if segment.source else None,
            "to": segment.target.hex(),
            "offset": offset,
            "length": len(sealed.data),
            "trailer": hex64(sealed.trailer),
            "toc": None,
        }

    def _attach(self, chain: list[Json], numbers: Sequence[int]) -> bytearray:
        attachments = bytearray()
        for number in numbers:
            toc = self.tocs[chain[number]["segment"]]
            chain[number]["toc"] = [len(attachments), len(toc)]
            attachments += toc
        return attachments

    def commit(
        self,
        target: bytes,
        tables: Sequence[Json],
        chain: Sequence[Json],
        *,
        step: int | None = None,
        dense: bytes | None = None,
        metadata: Json | None = None,
        retain: Sequence[Commit] | None = None,
        version: int | None = None,
        parent: Json | None = None,
        attach: Sequence[int] = (),
        masks: tuple[int, int, int] = (0, 0, 0),
        hooks: Hooks | None = None,
        at: int | None = None,
    ) -> Commit:
        """Store a manifest; every version before it is retained unless told.

        Hooks, in order: `attachments`, `json`, `json text`, `manifest`, `manifest sealed`,
        `manifest body`, `manifest digest`.
        """
        hooks = hooks or {}
        last = self.log[-1] if self.log else None
        version = version if version is not None else (last.version + 1 if last else 0)
        entries = [copy.deepcopy(entry) for entry in chain]
        attachments = bytes(run(hooks, "attachments", self._attach(entries, attach)))
        value = {
            "state": target.hex(),
            "commit": ident(f"commit {version}").hex(),
            "step": step,
            "created": "2024-02-29T12:00:00Z",
            "created_by": "vectors",
            "parent": parent or (last.parent() if last else None),
            "tables": [copy.deepcopy(table) for table in tables],
            "chain": entries,
            "versions": [commit.listed() for commit in (self.log if retain is None else retain)],
            "dense": dense.hex() if dense else None,
            "metadata": metadata or {},
        }
        text = run(hooks, "json text", dump(run(hooks, "json", value)))
        fields = versions_and_masks(masks) + self.id
        fields += struct.pack("<3Q", version, len(text), len(attachments))
        head = block("M", fields, 0, hooks, "manifest")
        body = bytes(run(hooks, "manifest body", bytearray(head + text + attachments)))
        seal_ = run(hooks, "manifest digest", digest(body))
        body += struct.pack("<Q", seal_)
        offset = self.store(body, f"manifests/{version:020}.cnrm", at)
        commit = Commit(version, offset, len(body), seal_, step, metadata or {})
        self.log.append(commit)
        return commit

    def _slot(self, number: int, commit: Commit) -> bytes:
        letter = "AB"[number]
        offset = commit.offset or 0
        fields = struct.pack("<I4x", number) + self.id
        fields += struct.pack("<4Q", commit.version, offset, commit.length, commit.digest)
        fields += struct.pack("<Q", up(offset + commit.length, PAGE))
        page = bytearray(block("H", fields, 0, self.hooks, f"slot {letter}").ljust(PAGE, b"\0"))
        return bytes(run(self.hooks, f"page {letter}", page))

    def build(self) -> bytes | Tree:
        """The container's bytes, or its files.

        Hooks of a file, in order: `file header`, `file header sealed`, `header page`, `slot A`,
        `slot A sealed`, `page A`, the same for B, `file`. Hook of a directory: `files`.
        """
        if self.folder:
            tree: Tree = run(self.hooks, "files", self.files)
            return tree
        fields = versions_and_masks(self.masks) + self.id
        page = bytearray(block("F", fields, 0, self.hooks, "file header").ljust(PAGE, b"\0"))
        data = bytearray(run(self.hooks, "header page", page))
        for number, commit in enumerate(self.slots or (self.log[-1], self.log[-1])):
            data += self._slot(number, commit)
        data = data.ljust(self.end, b"\0")
        for offset, span in self.spans:
            data[offset : offset + len(span)] = span
        return bytes(run(self.hooks, "file", data))
