"""The new container: written beside its place, verified there, and put in its place only then."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from cnrfmt.arrays import Array, Bytes, Ids
from cnrfmt.commits import attempt
from cnrfmt.encodings import Encoded
from cnrfmt.errors import DamagedError, StorageError, UsageError
from cnrfmt.format.digests import new_id
from cnrfmt.format.toc import DenseEntry
from cnrfmt.run_record import user_metadata
from cnrfmt.salvaging.versions import Progress, VersionSalvage
from cnrfmt.storage.base import temporary_token
from cnrfmt.storage.container import SUFFIX
from cnrfmt.storage.fs import Fs
from cnrfmt.table_writes import ColumnWrite, EncodedRows, TableWrite
from cnrfmt.verification import verify

METADATA_KEY = "cnrfmt.salvage"
"""Where a salvaged container's user metadata says what it was made of."""


def check_target(fs: Fs, target: str) -> None:
    """Raises `UsageError` where something is there already."""
    found = fs.stat(target)
    if found is None:
        folder = os.path.dirname(target)
        if fs.stat(folder, follow=True) is None:
            raise StorageError(errno.ENOENT, "no such directory; make it first", folder)
        return
    empty = found.kind == "directory" and not fs.list_directory(target) and not target.endswith(SUFFIX)
    if not empty:
        raise UsageError(f"{target}: is there already; a salvage makes a new container, so give another path")


def write_target(
    fs: Fs,
    target: str,
    version: VersionSalvage,
    writes: list[tuple[TableWrite, TableWrite | None]],
    lost: int,
    threads: int,
    progress: Progress,
) -> None:
    """Makes the container. When it returns, the container is durable and was verified."""
    with _put_in_place(fs, target) as temporary:
        _write(fs, temporary, version, writes, lost, threads, progress)
        report = verify(temporary, threads=threads, progress=_increments(progress), fs=fs)
        if not report.sound:
            finding = report.findings[0]
            raise DamagedError(
                finding.rule,
                finding.place,
                expected=finding.expected,
                found=finding.found,
                advice="what was just written can't be read back, and was removed: try another disk",
            )


def _increments(progress: Progress) -> Callable[[int, int], None]:
    before = 0

    def report(done: int, total: int) -> None:
        nonlocal before
        progress(done - before)
        before = done

    return report


def data_bytes(writes: list[tuple[TableWrite, TableWrite | None]]) -> int:
    """About how many bytes will be written."""
    return sum(write.data_bytes for pair in writes for write in pair if write is not None)


def _write(
    fs: Fs,
    path: str,
    version: VersionSalvage,
    writes: list[tuple[TableWrite, TableWrite | None]],
    lost: int,
    threads: int,
    progress: Progress,
) -> None:
    source = version.manifest
    note = {
        "container_id": source.container_id.hex(),
        "version": source.version,
        "digest": f"{source.digest:016x}",
        "losses": lost,
    }
    baseline = tuple(_watched(whole, progress) for whole, _ in writes)
    deltas = tuple(_watched(delta, progress) for _, delta in writes if delta is not None)
    schema = tuple(write.schema for write in baseline)
    with attempt(path, replace=True, fs=fs) as one:
        metadata = {**user_metadata(source), METADATA_KEY: note}
        manifest = one.next(None, step=source.step, tables=schema, metadata=metadata)
        dense = None if source.dense is None else _dense(version)
        manifest = one.write(manifest, baseline, dense, threads=threads)
        if deltas:
            manifest = one.write(replace(manifest, state=new_id()), deltas, None, threads=threads)
        one.commit(manifest)


def _dense(version: VersionSalvage) -> Iterator[tuple[DenseEntry, Bytes]]:
    # One at a time: each may be large.
    return ((entry, read()) for entry, read in version.dense())


def _watched(write: TableWrite, progress: Progress) -> TableWrite:
    columns = []
    for column in write.columns:
        assert isinstance(column.source, EncodedRows)
        source = _Watched(column.source, progress)
        columns.append(ColumnWrite(column.column, source, column.recipe, column.rows, column.elements))
    return replace(write, columns=tuple(columns))


class _Watched(EncodedRows):
    """Rows, telling how many of their bytes were asked for."""

    def __init__(self, rows: EncodedRows, progress: Progress) -> None:
        self._rows, self._progress = rows, progress
        self.dtype, self.errors = rows.dtype, rows.errors

    def encoded(self, start: int, stop: int) -> Encoded:
        """As the rows give them."""
        found = self._rows.encoded(start, stop)
        self._progress(len(found.data))
        return found

    def take(self, positions: Ids) -> Array:
        """As the rows give them."""
        return self._rows.take(positions)


@contextmanager
def _put_in_place(fs: Fs, target: str) -> Iterator[str]:
    """A path for a new container, which is put in the target's place if all goes well."""
    folder, name = os.path.split(target)
    aside = os.path.join(folder, f".salvage-{temporary_token()}-{name[:100]}")
    fs.mkdir(aside)
    try:
        temporary = os.path.join(aside, name)
        yield temporary
        if target.endswith(SUFFIX):
            # Unlike renaming, linking never replaces what came in the meantime.
            fs.link(temporary, target)
        else:
            # Only an empty directory can be replaced by another one.
            fs.rename(temporary, target)
        fs.sync_directory(folder)
    finally:
        with suppress(StorageError):
            _remove(fs, aside)


def _remove(fs: Fs, path: str) -> None:
    for name in fs.list_directory(path):
        inner = os.path.join(path, name)
        found = fs.stat(inner)
        if found is not None and found.kind == "directory":
            _remove(fs, inner)
        else:
            fs.unlink(inner)
    fs.rmdir(path)
