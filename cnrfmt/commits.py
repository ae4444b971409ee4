"""What every commit does: begin on the head, name the next version, write its segment, publish its manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cnrfmt._version import __version__
from cnrfmt.arrays import Bytes
from cnrfmt.errors import ChainTooLongError, UnsupportedError, UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.blocks import bit_names
from cnrfmt.format.digests import new_id
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, pack_manifest, parse_manifest
from cnrfmt.format.segment import NO_STATE, SegmentHeader
from cnrfmt.format.toc import DenseEntry
from cnrfmt.run_record import RESERVED
from cnrfmt.segment_writer import TableWrite, write_segment
from cnrfmt.storage.container import Transaction, begin
from cnrfmt.storage.fs import Fs

Prepared = Iterable[tuple[DenseEntry, Bytes]]
"""Dense state as segments hold it."""
Keep = Callable[[tuple[Retained, ...]], tuple[Retained, ...]]
"""From the versions that could stay readable, ascending, the head last, to those that do."""

_INLINE_TOC = 4096
"""In a directory, tables of contents up to this size also stand in the manifest."""
_INLINE_ALL = 256 << 10
"""And all of them together take up to this."""


@dataclass(frozen=True)
class Attempt:
    """A transaction on a container, and the head that it builds on; None where there is no version yet."""

    tx: Transaction
    head: Manifest | None

    def next(
        self,
        base: Manifest | None,
        *,
        same_state: bool = False,
        step: int | None = None,
        keep: Keep | None = None,
        **changes: Any,
    ) -> Manifest:
        """The manifest of the next version, before its segment is written.

        It has the chain, tables, dense state and metadata of `base`, which is the head, another version of the same
        history, or None for a baseline, with the `changes` given. With `same_state` its content is that of `base`:
        the commit only says it in another way.
        """
        tx, head = self.tx, self.head
        first = base if base is not None else Manifest(tx.container_id, 0, b"", b"", None, "", "", None, (), ())
        # A single file that is put in another's place has no earlier versions in it.
        anew = tx.kind == "file" and base is None
        return replace(
            first,
            container_id=tx.container_id,
            version=0 if head is None else head.version + 1,
            state=first.state if same_state else new_id(),
            commit_id=new_id(),
            step=None if step is None else int(step),
            created=now(),
            created_by=f"cnrfmt {__version__}",
            parent=None if head is None else (head.version, head.digest),
            versions=() if anew else self.retained(keep),
            digest=0,
            length=0,
            **changes,
        )

    def retained(self, keep: Keep | None = None) -> tuple[Retained, ...]:
        """The versions that stay readable after the next commit: all, the head among them, unless `keep` has a say."""
        tx, head = self.tx, self.head
        if head is None:
            return ()
        versions = (*head.versions, Retained(head.version, tx.head_offset, head.length, head.digest))
        if tx.kind == "file" and len(versions) > limits.MAX_VERSIONS:
            raise ChainTooLongError(
                f"{tx.path}: it holds {limits.MAX_VERSIONS} versions, as many as it may; save a new baseline"
            )
        return (versions if keep is None else keep(versions))[-limits.MAX_VERSIONS :]

    def write(
        self, manifest: Manifest, tables: Iterable[TableWrite], dense: Prepared | None, *, threads: int
    ) -> Manifest:
        """Streams the segment that leads from the end of the manifest's chain to its state, and names it there."""
        from_state = manifest.chain[-1].to_state if manifest.chain else None
        header = SegmentHeader(new_id(), manifest.commit_id, from_state or NO_STATE, manifest.state)
        entry, toc = self.segment(header, tables, dense, threads=threads)
        manifest = with_segment(manifest, entry, toc if self.tx.kind == "directory" else None)
        return manifest if dense is None else replace(manifest, dense=header.segment_id)

    def segment(
        self, header: SegmentHeader, tables: Iterable[TableWrite], dense: Prepared | None, *, threads: int
    ) -> tuple[ChainEntry, bytes]:
        """Streams a segment; gives what a chain says of it, and its table of contents."""
        writes = list(tables)
        # A disk that is too full is better refused now than half-way.
        sink = self.tx.segment(header.segment_id, size_hint=sum(write.data_bytes for write in writes))
        written = write_segment(sink, header, writes, dense, threads=threads)
        sink.finish()
        from_state = None if header.from_state == NO_STATE else header.from_state
        entry = ChainEntry(
            header.segment_id, from_state, header.to_state, sink.offset, written.length, written.trailer_digest
        )
        return entry, written.toc

    def commit(self, manifest: Manifest) -> Manifest:
        """Publishes a manifest whose segments are written, and gives it as it was published."""
        data = pack_manifest(manifest)
        parsed = parse_manifest(data, f"{self.tx.path}, manifest of version {manifest.version}")
        self.tx.commit(data, version=parsed.version, commit_id=parsed.commit_id, digest=parsed.digest)
        return parsed


@contextmanager
def attempt(path: str, *, replace: bool = False, fs: Fs | None = None) -> Iterator[Attempt]:
    """A transaction on a container and its head, for the length of a ``with``; undone unless it is committed.

    `replace` writes a single file anew, with nothing but what is committed now. Raises what `storage.begin` raises,
    and `UnsupportedError` for a container that needs more of its writers than this release knows.
    """
    with begin(path, replace=replace, fs=fs) as tx:
        head = None
        if tx.head_bytes is not None:
            head = parse_manifest(tx.head_bytes, f"{tx.path}, newest manifest")
            # A container with a ro_compat bit that isn't known here is left as it is (specification, section 2.3).
            if bits := head.features.unknown_ro_compat:
                raise UnsupportedError(f"{tx.path} (writing)", f"ro_compat {bit_names(bits)}")
        yield Attempt(tx, head)


def with_segment(manifest: Manifest, entry: ChainEntry, toc: bytes | None) -> Manifest:
    """The manifest with one more segment, its table of contents attached if it is small."""
    attached = manifest.attachments
    if toc is not None and len(toc) <= _INLINE_TOC and len(attached) + len(toc) <= _INLINE_ALL:
        entry = replace(entry, toc=(len(attached), len(toc)))
        attached += toc
    return replace(manifest, chain=(*manifest.chain, entry), attachments=attached)


def check_common(metadata: Mapping[str, Any] | None, step: int | None) -> None:
    """What every commit takes of a caller; raises `UsageError`."""
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise UsageError(f"metadata must be a dict, found {type(metadata).__name__}")
        if RESERVED in metadata:
            raise UsageError(f"metadata: the name {RESERVED!r} is the library's own; take another")
        strict_json.check_user_value(dict(metadata), "metadata")
    if step is not None and (
        isinstance(step, bool) or not isinstance(step, int | np.integer) or abs(step) > limits.MAX_INTEGER
    ):
        raise UsageError(f"step must be an integer within 2^53, found {step!r}")


def now() -> str:
    """The time as manifests hold it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
