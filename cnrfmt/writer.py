"""Writing: `save` commits a baseline, `append` a delta. Each returns once its version is durable."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cnrfmt import parallel
from cnrfmt._version import __version__
from cnrfmt.dense import prepare
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import ChainTooLongError, UnsupportedError, UsageError
from cnrfmt.format import limits, strict_json
from cnrfmt.format.blocks import bit_names
from cnrfmt.format.digests import new_id
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, pack_manifest, parse_manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.segment import NO_STATE, SegmentHeader
from cnrfmt.format.toc import Toc
from cnrfmt.plan import Plan, plan_baseline, plan_delta
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.segment_writer import write_segment
from cnrfmt.storage.container import Transaction, begin, path_text
from cnrfmt.storage.fs import Fs

PathLike = str | os.PathLike[str]

_INLINE_TOC = 4096
"""In a directory, tables of contents up to this size also stand in the manifest."""
_INLINE_ALL = 256 << 10
"""And all of them together take up to this."""


def save(
    path: PathLike,
    tables: Mapping[str, Any],
    *,
    quantize: Choices = None,
    dense: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    step: int | None = None,
    threads: int | None = None,
    fs: Fs | None = None,
) -> int:
    """Commits these tables as a full baseline and returns its version.

    On a path where nothing is, makes a container: a single file if the name ends in ``.cnr``, else a directory. On a
    container that is there, commits the next version; a single file is written anew with that version alone and put
    in the old one's place, so a table that is mapped from the old file may be saved over it.

    When it returns, the version is on disk; when it raises, the container is as it was (`CommitUnknownError` aside).

    Parameters
    ----------
    tables
        Names to tables: arrays of `rows x dim` (anything with ``__array__``, the buffer protocol or DLPack, h5py
        datasets) or `TableData`.
    quantize
        How float32 columns are stored: one `Quantize` for all tables, or None for raw, or a dict of patterns (as in
        `fnmatch`, case counts) to these: of table names, or of pairs of table and column names. A pair goes before a
        table, a name before a pattern, then the first pattern that matches; what none matches is raw. A table's
        `Quantize` is for its `weight` and for columns of one value per row; columns of `dim` values that aren't the
        weight stay raw unless a pair names them.
    dense
        Names to values: arrays of any shape, `bytes`, or what JSON can say.
    metadata
        What JSON can say, for the user.
    step
        The trainer's own counter.
    threads
        How many threads to use; as many as there are processors if None.

    Raises
    ------
    UsageError, LockedError, ConflictError, StorageError, CommitUnknownError
    """
    text = path_text(path)
    plan = plan_baseline(tables, quantize)
    prepared = None if dense is None else prepare(dense)
    _check_common(metadata, step)
    count = parallel.thread_count(threads)
    with begin(text, replace=True, fs=fs) as tx:
        head = _head(tx)
        _check_features(tx, head)
        state = new_id()
        manifest = Manifest(
            container_id=tx.container_id,
            version=0 if head is None else head.version + 1,
            state=state,
            commit_id=new_id(),
            step=None if step is None else int(step),
            created=now(),
            created_by=f"cnrfmt {__version__}",
            parent=None if head is None else (head.version, head.digest),
            tables=plan.tables,
            chain=(),
            versions=_retained(tx, head) if tx.kind == "directory" else (),
            metadata=dict(metadata or {}),
        )
        manifest = write_step(tx, manifest, plan, prepared, None, count)
        return commit_manifest(tx, manifest)


def append(
    path: PathLike,
    tables: Mapping[str, Any],
    *,
    quantize: Choices = None,
    dense: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    step: int | None = None,
    threads: int | None = None,
    fs: Fs | None = None,
) -> int:
    """Commits a delta on the container's head and returns the new version.

    `tables` maps names to `Rows` (some rows of a table), `Deleted` (keys of a keyed one), a tuple of both,
    `Dropped`, or to an array or `TableData` for a table that is new or wholly replaced. Tables that aren't named stay
    as they are. Columns keep the encoding of their newest rows, with the choices that were made for it, unless
    `quantize` says otherwise; `dense` and `metadata` are inherited from the head if they are left out. What is durable
    and what is raised is as for `save`; further, `ChainTooLongError` where the chain is as long as it may be: `save`
    starts a new one.
    """
    text = path_text(path)
    prepared = None if dense is None else prepare(dense)
    _check_common(metadata, step)
    count = parallel.thread_count(threads)
    with begin(text, replace=False, fs=fs) as tx:
        head = _head(tx)
        if head is None:
            raise UsageError(f"{text}: nothing to append to; save makes a container")
        _check_features(tx, head)
        recipes = _KnownRecipes(tx, head)
        plan = plan_delta(tables, head.tables, quantize, recipes.of)
        dropped = {t.table_id for t in head.tables} - {t.table_id for t in plan.tables}
        content = bool(plan.writes) or bool(dropped) or prepared is not None
        if content and len(head.chain) >= limits.MAX_CHAIN:
            raise ChainTooLongError(
                f"{text}: the chain has {len(head.chain)} segments, as many as it may; "
                "save a new baseline"
            )
        manifest = replace(
            head,
            version=head.version + 1,
            state=new_id() if content else head.state,
            commit_id=new_id(),
            step=None if step is None else int(step),
            created=now(),
            created_by=f"cnrfmt {__version__}",
            parent=(head.version, head.digest),
            tables=plan.tables,
            versions=_retained(tx, head),
            metadata=head.metadata if metadata is None else dict(metadata),
        )
        if content:
            manifest = write_step(tx, manifest, plan, prepared, head, count)
        return commit_manifest(tx, manifest)


def _check_common(metadata: Mapping[str, Any] | None, step: int | None) -> None:
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise UsageError(f"metadata must be a dict, found {type(metadata).__name__}")
        strict_json.check_user_value(dict(metadata), "metadata")
    if step is not None and (
        isinstance(step, bool)
        or not isinstance(step, int | np.integer)
        or abs(step) > limits.MAX_INTEGER
    ):
        raise UsageError(f"step must be an integer within 2^53, found {step!r}")


def now() -> str:
    """The time as manifests hold it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _head(tx: Transaction) -> Manifest | None:
    if tx.head_bytes is None:
        return None
    return parse_manifest(tx.head_bytes, f"{tx.path}, newest manifest")


def _check_features(tx: Transaction, head: Manifest | None) -> None:
    """A container with a ro_compat bit that isn't known here is left as it is (specification, section 2.3)."""
    if head is not None and (bits := head.features.unknown_ro_compat):
        raise UnsupportedError(f"{tx.path} (writing)", f"ro_compat {bit_names(bits)}")


def _retained(tx: Transaction, head: Manifest | None) -> tuple[Retained, ...]:
    """The versions that stay readable after the next commit, the head among them."""
    if head is None:
        return ()
    newest = Retained(head.version, tx.head_offset, head.length, head.digest)
    versions = (*head.versions, newest)
    if tx.kind == "file" and len(versions) > limits.MAX_VERSIONS:
        raise ChainTooLongError(
            f"{tx.path}: it holds {limits.MAX_VERSIONS} versions, as many as it may; save a new baseline"
        )
    return versions[-limits.MAX_VERSIONS :]


def write_step(
    tx: Transaction,
    manifest: Manifest,
    plan: Plan,
    dense: Any,
    head: Manifest | None,
    threads: int,
) -> Manifest:
    """Streams the segment of a commit on `head`, and gives the manifest that names it too."""
    header = SegmentHeader(
        new_id(),
        manifest.commit_id,
        NO_STATE if head is None else head.state,
        manifest.state,
    )
    # A disk that is too full is better refused now than half-way.
    sink = tx.segment(header.segment_id, size_hint=sum(write.data_bytes for write in plan.writes))
    written = write_segment(sink, header, plan.writes, dense, threads=threads)
    sink.finish()
    attachments = b"" if head is None else head.attachments
    toc = None
    small = len(written.toc) <= _INLINE_TOC and len(attachments) + len(written.toc) <= _INLINE_ALL
    if tx.kind == "directory" and small:
        toc = (len(attachments), len(written.toc))
        attachments += written.toc
    entry = ChainEntry(
        header.segment_id,
        None if head is None else head.state,
        manifest.state,
        sink.offset,
        written.length,
        written.trailer_digest,
        toc,
    )
    return replace(
        manifest,
        chain=(*manifest.chain, entry),
        dense=manifest.dense if dense is None else header.segment_id,
        attachments=attachments,
    )


def commit_manifest(tx: Transaction, manifest: Manifest) -> int:
    """Commits a manifest whose segments are written, and returns its version."""
    data = pack_manifest(manifest)
    parsed = parse_manifest(data, f"{tx.path}, manifest of version {manifest.version}")
    tx.commit(data, version=parsed.version, commit_id=parsed.commit_id, digest=parsed.digest)
    return parsed.version


class _KnownRecipes:
    """How the columns of a container's tables are stored, found in the newest segment that has the column."""

    def __init__(self, tx: Transaction, head: Manifest) -> None:
        self._tx, self._head = tx, head
        self._segments: dict[bytes, SegmentReader] = {}

    def of(self, table: TableSchema, column: ColumnSchema) -> Recipe:
        """The recipe of a table's column; raw where it is new, or was never written."""
        known = self._head.table(table.name)
        before = None if known is None else known.column(column.name)
        # A table that takes another's place may have other columns under the same names.
        if known is not None and before is not None and before.per_row == column.per_row:
            for entry in reversed(self._head.chain):
                says = self._toc(entry).by_table.get(known.table_id)
                for part in says.parts if says else ():
                    if part.column == column.name and part.layout.dtype == column.dtype:
                        return Recipe(part.layout, part.scheme)
        return Recipe(RawLayout(column.dtype))

    def _toc(self, entry: ChainEntry) -> Toc:
        if entry.segment not in self._segments:
            toc = None
            if entry.toc is not None:
                toc = self._head.attachments[entry.toc[0] : sum(entry.toc)]
            self._segments[entry.segment] = SegmentReader(
                self._tx.source(entry),
                entry,
                toc,
                backend="pread",
                verify=True,
                manifest=self._head,
            )
        return self._segments[entry.segment].toc


