"""Conversion both ways between containers and HDF5, safetensors and npz files, in bounded memory."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from cnrfmt.arrays import Array
from cnrfmt.encodings.quantize import Choices, check_patterns
from cnrfmt.errors import CnrError, StorageError, UsageError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.integrations.content import Export, Format, Outgoing, check_room, damaged, spooling
from cnrfmt.integrations.scheme import NO_TABLES, from_container, table_bytes, take_tables, to_container
from cnrfmt.patterns import Patterns
from cnrfmt.reader import open as open_checkpoint
from cnrfmt.storage.base import temporary_token
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import POSIX, PosixFs
from cnrfmt.stored_column import table_data
from cnrfmt.tabledata import TableData
from cnrfmt.writer import save

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with the bytes of arrays that are written and with how many there will be."""

CNR = "cnr"
_MODULES = {"hdf5": (".h5", ".hdf5"), "safetensors": (".safetensors",), "npz": (".npz",)}
_SUPPORTED = (
    "cnr (.cnr, or a directory), hdf5 (.h5, .hdf5, .weights.h5), safetensors (.safetensors), npz (.npz)"
)


def convert(
    source: PathLike,
    target: PathLike,
    *,
    quantize: Choices = None,
    tables: Iterable[str] | None = None,
    version: int | None = None,
    force: bool = False,
    source_format: str | None = None,
    target_format: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Converts a container into an HDF5, safetensors or npz file, or such a file into a container.

    Arrays come back bit for bit, and metadata come along. Towards a container, two-dimensional arrays of numbers
    become tables named by their full path in the file, and all the rest becomes dense state. Towards a file, a version
    is decoded to plain arrays; `cnrfmt.integrations.scheme` says how keys, further columns and metadata are kept.

    HDF5 files are read by the HDF5 library, which isn't proof against files that were made to crash it: convert
    those of strangers in a process of its own.

    Parameters
    ----------
    source, target
        Paths. The format follows from the suffix: ``.cnr`` or a directory; ``.h5``, ``.hdf5``; ``.safetensors``;
        ``.npz``.
    quantize
        How a container is to store float32 weights, as in `save`.
    tables
        Patterns (as in `fnmatch`) of the tables wanted. Towards a container, other two-dimensional arrays become
        dense state; towards a file, other tables are left out.
    version
        The version of the container to convert; the newest if None.
    force
        Whether a file that is there may be replaced. On a container that is there, `save` commits the next version.
    source_format, target_format
        ``"cnr"``, ``"hdf5"``, ``"safetensors"`` or ``"npz"``, whatever the suffix.
    threads
        How many threads to use; as many as there are processors if None.
    progress
        Called from time to time with the bytes that are written and those that will be, about.

    Returns
    -------
    dict
        ``source_format``, ``target_format``; ``version`` and ``step`` of the container; ``tables`` and
        ``dense``, the names of what was converted; ``bytes`` of the arrays as the target holds them;
        ``skipped``, what couldn't be kept, in words.

    Raises
    ------
    UsageError
        An unknown format, a target that is there, something that the target can't hold.
    DamagedError, UnsupportedError
        The source breaks the rules of its format, or needs what this release doesn't know.
    StorageError, CommitError, CommitUnknownError, VersionNotFoundError
        As `open` and `save` raise them. After an error the target is as it was (`CommitUnknownError` aside).
    """
    source, target = path_text(source, "source"), path_text(target, "target")
    theirs = _format_of(source, source_format, "source")
    ours = _format_of(target, target_format, "target")
    patterns = Patterns(tables)
    if (theirs == CNR) == (ours == CNR):
        advice = "`cnrfmt quantize` makes one of another" if ours == CNR else "convert by way of a container"
        raise UsageError(
            f"{source} to {target}: one of the two must be a container, and only one, "
            f"found {theirs} and {ours}; {advice}"
        )
    if not os.path.exists(source):
        raise StorageError(errno.ENOENT, "there is no such file", source)
    if not force and os.path.lexists(target):
        raise UsageError(f"{target}: is there already; force=True replaces it")
    report = progress or (lambda done, total: None)
    job = _Job(source, target, patterns, quantize, version, threads, report)
    with _our_errors(source):
        summary = job.import_file(theirs) if ours == CNR else job.export_file(ours, force)
    return {"source_format": theirs, "target_format": ours, **summary}


@contextmanager
def opened_tables(source: PathLike, patterns: Patterns, version: int | None = None) -> Iterator[dict[str, TableData]]:
    """The tables of a container or of a file that `convert` reads; rows can be read as long as the context lasts.

    What a file holds compressed is unpacked into the folder for temporary files. Raises what `convert` raises.
    """
    path = path_text(source, "source")
    name = _format_of(path, None, "source")
    if not os.path.exists(path):
        raise StorageError(errno.ENOENT, "there is no such file", path)
    with _our_errors(path):
        if name == CNR:
            with open_checkpoint(path, version=version, backend="pread", threads=1) as ck:
                patterns.check(list(ck), path)
                yield {table: table_data(ck, table) for table in ck if table in patterns}
            return
        if version is not None:
            raise UsageError(f"{path}: only containers have versions; leave version out")
        with spooling(tempfile.gettempdir()) as spool, _module(name).read(path, spool) as found:
            yield take_tables(found.notes, dict(found.arrays), patterns, path)


def _format_of(path: str, wanted: str | None, role: str) -> str:
    if wanted is not None:
        if wanted != CNR and wanted not in _MODULES:
            raise UsageError(f"{role}_format {wanted!r} isn't known; supported are {_SUPPORTED}")
        return wanted
    lower = path.lower()
    for name, suffixes in _MODULES.items():
        if lower.endswith(suffixes):
            return name
    # A directory that is yet to be made has no suffix, as a rule.
    plain = role == "target" and not os.path.lexists(path) and not os.path.splitext(path)[1]
    if lower.endswith(".cnr") or os.path.isdir(path) or plain:
        return CNR
    raise UsageError(
        f"{path}: the {role}'s format can't be told from its name; supported are {_SUPPORTED}; "
        f"or say which with {role}_format="
    )


def _module(name: str) -> Format:
    form: Format = import_module(f"cnrfmt.integrations.{name}").FORMAT
    return form


@contextmanager
def _our_errors(source: str) -> Iterator[None]:
    """An error of the operating system, or of h5py amid a read, becomes one of our own."""
    try:
        yield
    except CnrError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise StorageError(error.errno, error.strerror, error.filename or source) from error
        raise damaged(source, expected="data that can be read", found=error) from error
    except MemoryError as error:
        raise UsageError(f"{source}: holds something that doesn't fit into memory: {error}") from error


class _Watched(PosixFs):
    """The file system, telling how much was written."""

    def __init__(self, report: Progress, total: int) -> None:
        super().__init__()
        self._report, self._total, self._done = report, total, 0

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        """Writes the whole buffer at `offset`."""
        super().pwrite(handle, offset, data)
        self._done = min(self._total, self._done + memoryview(data).nbytes)
        self._report(self._done, self._total)


@dataclass(frozen=True)
class _Job:
    source: str
    target: str
    patterns: Patterns
    quantize: Choices
    version: int | None
    threads: int | None
    report: Progress

    @property
    def folder(self) -> str:
        """Where the target is to be, and temporary files with it."""
        return os.path.dirname(os.path.abspath(self.target))

    def import_file(self, name: str) -> dict[str, Any]:
        """A foreign file into a container."""
        if self.version is not None:
            raise UsageError(f"{self.source}: only containers have versions; leave version out")
        form = _module(name)
        with spooling(self.folder) as spool, form.read(self.source, spool) as found:
            content = to_container(found, self.patterns, spool, self.source)
            if not content.tables and isinstance(self.quantize, Mapping) and set(self.quantize) != {"*"}:
                raise UsageError(f"{self.source}: {NO_TABLES}; leave quantize out")
            check_patterns(self.quantize, {name: (WEIGHT, *data.columns) for name, data in content.tables.items()})
            total = table_bytes(content.tables, self.quantize)
            total += sum(getattr(value, "nbytes", 0) for value in content.dense.values())
            check_room(self.folder, total, self.target)
            version = save(
                self.target,
                content.tables,
                quantize=self.quantize,
                dense=content.dense or None,
                metadata=content.metadata or None,
                step=content.step,
                threads=self.threads,
                fs=_Watched(self.report, total),
            )
        self.report(total, total)
        return {
            "version": version,
            "step": content.step,
            "tables": sorted(content.tables),
            "dense": sorted(content.dense),
            "bytes": total,
            "skipped": found.skipped,
        }

    def export_file(self, name: str, force: bool) -> dict[str, Any]:
        """A version of a container into a foreign file."""
        if self.quantize is not None:
            raise UsageError(f"{self.target}: only containers are quantised; leave quantize out")
        form = _module(name)
        # Mapped files would count as memory of this process; slices that are read don't stay.
        with open_checkpoint(
            self.source, version=self.version, backend="pread", threads=self.threads
        ) as ck:
            export = from_container(ck, self.patterns, form)
            total = sum(out.nbytes for out in export.arrays)
            check_room(self.folder, total, self.target)
            with _put_in_place(self.target, force) as temporary:
                form.write(temporary, _counted(export, self.report, total))
            self.report(total, total)
            return {
                "version": ck.version,
                "step": ck.step,
                "tables": sorted(name for name in ck if name in self.patterns),
                "dense": sorted(ck.dense),
                "bytes": total,
                "skipped": [],
            }


def _counted(export: Export, report: Progress, total: int) -> Export:
    """The same, telling as it is written how much of it was."""
    done = 0

    def counted(out: Outgoing) -> Outgoing:
        def chunks() -> Iterator[Array]:
            nonlocal done
            for chunk in out.chunks():
                yield chunk
                done += chunk.nbytes
                report(done, total)

        return replace(out, chunks=chunks)

    return replace(export, arrays=[counted(out) for out in export.arrays])


@contextmanager
def _put_in_place(target: str, force: bool) -> Iterator[str]:
    """A name for a new file, which is made durable and put in the target's place once it is whole."""
    folder = os.path.dirname(os.path.abspath(target))
    there = POSIX.stat(target, follow=True)
    if there is not None and there.kind != "file":
        raise UsageError(f"{target}: isn't a file; choose another name")
    temporary = os.path.join(folder, f".cnrfmt-{temporary_token()}.tmp")
    try:
        yield temporary
        handle = POSIX.open(temporary, "write")
        try:
            POSIX.sync(handle)
            if there is not None:
                POSIX.copy_mode(handle, there.mode)
        finally:
            POSIX.close(handle)
        if force:
            POSIX.rename(temporary, target)
        else:
            # Unlike renaming, linking never replaces a file that came in the meantime.
            POSIX.link(temporary, target)
        POSIX.sync_directory(folder)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
