"""Writing: `save` commits a baseline, `append` a delta. Each returns once its version is durable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cnrfmt import parallel
from cnrfmt.commits import attempt, check_common
from cnrfmt.dense import prepare
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import ChainTooLongError, UsageError
from cnrfmt.format import limits
from cnrfmt.format.encoding import RawLayout
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.toc import Toc
from cnrfmt.plan import plan_baseline, plan_delta
from cnrfmt.run_record import metadata_with, record_of, user_metadata
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.storage.container import Transaction, path_text
from cnrfmt.storage.fs import Fs

PathLike = str | os.PathLike[str]


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
    check_common(metadata, step)
    count = parallel.thread_count(threads)
    with attempt(text, replace=True, fs=fs) as one:
        record = None if one.head is None else record_of(one.head)
        manifest = one.next(None, step=step, tables=plan.tables, metadata=metadata_with(metadata or {}, record))
        manifest = one.write(manifest, plan.writes, prepared, threads=count)
        return one.commit(manifest).version


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
    check_common(metadata, step)
    count = parallel.thread_count(threads)
    with attempt(text, fs=fs) as one:
        head = one.head
        if head is None:
            raise UsageError(f"{text}: nothing to append to; save makes a container")
        plan = plan_delta(tables, head.tables, quantize, KnownRecipes(one.tx, head).of)
        dropped = {t.table_id for t in head.tables} - {t.table_id for t in plan.tables}
        content = bool(plan.writes) or bool(dropped) or prepared is not None
        if content and len(head.chain) >= limits.MAX_CHAIN:
            raise ChainTooLongError(
                f"{text}: the chain has {len(head.chain)} segments, as many as it may; "
                "compact it, or save a new baseline"
            )
        user = user_metadata(head) if metadata is None else metadata
        manifest = one.next(
            head,
            same_state=not content,
            step=step,
            tables=plan.tables,
            metadata=metadata_with(user, record_of(head)),
        )
        if content:
            manifest = one.write(manifest, plan.writes, prepared, threads=count)
        return one.commit(manifest).version


class KnownRecipes:
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


