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
from cnrfmt.errors import ChainTooLongError, CommitUnknownError, UnsupportedError, UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.blocks import bit_names
from cnrfmt.format.digests import new_id
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, pack_manifest, parse_manifest
from cnrfmt.format.segment import NO_STATE, SegmentHeader
from cnrfmt.format.toc import DenseEntry
from cnrfmt.run_record import RESERVED, RunRecord, record_of
from cnrfmt.segment_writer import write_segment
from cnrfmt.slices import is_sliced, sliced
from cnrfmt.storage.container import Transaction, begin
from cnrfmt.storage.fs import Fs
from cnrfmt.table_writes import TableWrite

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
            versions=self._none_retained() if anew else self.retained(keep, _tagged(changes.get("metadata", {}))),
            digest=0,
            length=0,
            **changes,
        )

    def retained(self, keep: Keep | None = None, pinned: frozenset[int] = frozenset()) -> tuple[Retained, ...]:
        """The versions that stay readable after the next commit: all, the head among them, unless `keep` has a say.

        Those that are tagged by now, and those that are `pinned`, stay whatever it says; so do all in a single file
        that is appended to, whose bytes would be no version's (rule `file-gap`).
        """
        tx, head = self.tx, self.head
        if head is None:
            return ()
        versions = (*head.versions, Retained(head.version, tx.head_offset, head.length, head.digest))
        most = limits.MAX_VERSIONS
        if tx.kind == "file" and len(versions) > most:
            raise ChainTooLongError(f"{tx.path}: it holds {most} versions, as many as it may; save a new baseline")
        pinned |= _tagged(head.metadata)
        kept = versions if keep is None or tx.kind == "file" else keep(versions)
        chosen = {r.version for r in kept} | pinned
        versions = tuple(r for r in versions if r.version in chosen)
        # Of more than there may be, the oldest go.
        spare = [r.version for r in versions if r.version not in pinned]
        going = set(spare[: max(0, len(versions) - most)])
        if len(versions) - len(going) > most:
            raise ChainTooLongError(f"{tx.path}: {most} versions have tags, as many as may be retained; untag some")
        return tuple(r for r in versions if r.version not in going)

    def _none_retained(self) -> tuple[Retained, ...]:
        """What a single file retains that is put in another's place: nothing; refused where a version has a tag."""
        head = self.head
        record = None if head is None else record_of(head)
        if record is not None and record.tags:
            name, version = next(iter(record.tags.items()))
            raise UsageError(
                f"{self.tx.path}: version {version} has the tag {name!r}, and a single file that is written anew keeps "
                "no earlier version; untag it first, or use a directory"
            )
        return ()

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
        writes = [sliced(write)[0] if is_sliced(write) else write for write in tables]
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
        try:
            self.tx.commit(data, version=parsed.version, commit_id=parsed.commit_id, digest=parsed.digest)
        except CommitUnknownError as error:
            error.state = parsed.state
            raise
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


def _tagged(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The versions that have tags."""
    record = RunRecord.parse(metadata.get(RESERVED))
    return frozenset() if record is None else frozenset(record.tags.values())


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
