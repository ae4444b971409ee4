"""What the two kinds of container have in common: reading, and the life of a transaction."""

from __future__ import annotations

import errno
import os
import secrets
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from cnrfmt.errors import CommitUnknownError, DamagedError, StorageError, UsageError
from cnrfmt.format import limits
from cnrfmt.format.blocks import Features, check_block
from cnrfmt.format.manifest import ChainEntry, Retained
from cnrfmt.storage.fs import Fs, Kind, byte_view
from cnrfmt.storage.source import Source

ContainerKind = Literal["file", "directory"]

LEFTOVER = ".tmp-"
"""How the names of unfinished files start."""
MAX_MANIFEST = limits.BLOCK + 2 * limits.MAX_METADATA + 8


class Head(NamedTuple):
    """The newest manifest: its bytes, its version, and its digest if something outside it names one."""

    data: bytes
    version: int
    digest: int | None


@dataclass(frozen=True)
class Name:
    """A name found in a directory, and what it stands for."""

    name: str
    kind: Kind
    size: int


@dataclass(frozen=True)
class FileFacts:
    """What is there of a single file, sound or not."""

    size: int
    header_page: bytes
    slot_pages: tuple[bytes, bytes]
    leftovers: tuple[str, ...]


@dataclass(frozen=True)
class DirectoryFacts:
    """What is there of a directory, sound or not; None for a folder that isn't one."""

    names: tuple[Name, ...]
    manifests: tuple[Name, ...] | None
    segments: tuple[Name, ...] | None


def check_manifest(data: bytes, place: str, version: int, digest: int | None, container_id: bytes | None) -> bytes:
    """That a manifest is the one that was named; gives the container id that it carries."""
    block = check_block(data, "M", 0, place)
    Features.parse(block, place)
    found_id, found_version = struct.unpack_from("<16sQ", block, 40)
    known = container_id or found_id
    if (found_id, found_version) != (known, version):
        raise DamagedError(
            "manifest-identity",
            place,
            expected=f"version {version} of container {known.hex()}",
            found=f"version {found_version} of container {found_id.hex()}",
        )
    found_digest = int.from_bytes(data[-8:], "little")
    if digest is not None and found_digest != digest:
        raise DamagedError("manifest-digest", place, expected=f"{digest:016x}", found=f"{found_digest:016x}")
    return bytes(found_id)


def check_manifest_length(length: int, place: str) -> None:
    """That a manifest isn't longer than one may be, before it is read."""
    if length > MAX_MANIFEST:
        raise DamagedError("limit", place, expected=f"a manifest of at most {MAX_MANIFEST} bytes", found=length)


def segment_place(path: str, segment_id: bytes) -> str:
    """How errors name a segment."""
    return f"{path}: segment {segment_id.hex()[:8]}…"


def manifest_place(path: str, version: int) -> str:
    """How errors name a manifest."""
    return f"{path}: manifest of version {version}"


def temporary_token() -> str:
    """A part of a name that no other writer has."""
    return secrets.token_hex(8)


class Container(ABC):
    """A container, open for reading. Nothing is checked before something is asked for."""

    kind: ContainerKind
    path: str

    @property
    @abstractmethod
    def container_id(self) -> bytes | None:
        """The id in the file header; None for a directory, whose manifests carry it."""

    @abstractmethod
    def head(self) -> Head:
        """The newest manifest at this moment.

        Raises `DamagedError`, `UnsupportedError` or `StorageError`.
        """

    @abstractmethod
    def read_manifest(self, retained: Retained) -> bytes:
        """The manifest of an earlier version: the container's, of that version and with that digest.

        Raises `VersionExpiredError` if it has been removed since by one who may, `DamagedError` if it is wrong
        or missing, and `StorageError`.
        """

    @abstractmethod
    def segment(self, entry: ChainEntry) -> Source:
        """The bytes of a segment; raises as `read_manifest` does."""

    @abstractmethod
    def same_as(self, other: Container) -> bool:
        """Whether both are the same file or directory, rather than one put in the other's place."""

    @abstractmethod
    def inspect(self) -> FileFacts | DirectoryFacts:
        """What is there, unjudged, for a validator. Raises `StorageError` alone."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the container. Sources and maps that were given out stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SegmentSink(ABC):
    """A segment as it is written, one buffer behind the other."""

    def __init__(self, owner: Transaction, offset: int | None) -> None:
        self._owner = owner
        self.offset = offset
        """Where the segment starts in a single file; None in a directory."""
        self.position = 0
        """How many bytes were written."""
        self.finished = False

    def write(self, data: Any) -> None:
        """Writes a contiguous buffer straight from where it lies. Raises `StorageError`."""
        self._owner.check_usable()
        if self.finished:
            raise UsageError("the segment was finished or given up; nothing more goes into it")
        view = byte_view(data)
        self._write(view)
        self.position += len(view)

    def finish(self) -> None:
        """Says that the segment is complete. It is durable once its transaction is committed."""
        self._owner.check_usable()
        if not self.finished:
            self._finish()
            self.finished = True

    def abort(self) -> None:
        """Takes a segment that is still being written out of the transaction, which may go on without it."""
        self._owner.check_usable()
        if self.finished:
            raise UsageError("the segment was finished or given up; it can't be taken out any more")
        self._abort()
        self.finished = True

    @abstractmethod
    def _write(self, view: memoryview) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _abort(self) -> None: ...


def nothing_committed(error: StorageError, newest: int | None) -> StorageError:
    """The error of an attempt that was refused, with what that means for the container."""
    text = f"{error.strerror or error}; nothing was committed"
    if newest is not None:
        text += f", the newest version is still {newest}"
    return StorageError(error.errno, text, error.filename)


class Transaction(ABC):
    """One attempt to commit a version. A context manager: what isn't committed is undone at its end.

    `head_bytes`, `head_version` and `head_offset` tell of the head that it builds on; they are None where there is no
    container yet. `container_id` is that of the container, or the one that a new container gets.
    """

    kind: ContainerKind
    container_id: bytes
    head_bytes: bytes | None = None
    head_version: int | None = None
    head_offset: int | None = None

    def __init__(self, fs: Fs, path: str) -> None:
        self.fs, self.path = fs, path
        self._process = os.getpid()
        # "pending" from the first step that may make the version count; then nothing may be undone any more.
        self._state: Literal["open", "pending", "committed", "closed"] = "open"

    @abstractmethod
    def source(self, entry: ChainEntry) -> Source:
        """The bytes of a segment of the head's chain."""

    @abstractmethod
    def segment(self, segment_id: bytes, size_hint: int | None = None) -> SegmentSink:
        """Starts a segment. With `size_hint`, its size in bytes, a full disk is refused at once."""

    @abstractmethod
    def manifest_offset(self) -> int | None:
        """Where the manifest will start in a single file, if no segment follows; None in a directory."""

    def commit(self, manifest: bytes, *, version: int, commit_id: bytes, digest: int) -> None:
        """Makes the version durable, and acknowledges it by returning.

        Raises
        ------
        ConflictError
            The head is no longer the one that this transaction built on. Nothing was committed.
        StorageError
            The operating system refused. Nothing was committed.
        CommitUnknownError
            It refused at a step after which the version may count, now or after a crash.
        """
        self.check_usable()
        try:
            self._commit(manifest, version, commit_id, digest)
        except CommitUnknownError as error:
            error.version, error.commit_id = version, commit_id
            raise
        self._state = "committed"
        self._release()

    def abort(self) -> None:
        """Undoes what was written, as far as it can be, and lets go of lock and files."""
        if self._state in ("committed", "closed"):
            return
        undo = self._state == "open" and self._process == os.getpid()
        self._state = "closed"
        try:
            # What can't be removed now is ignored by readers, and removed by the next writer.
            if undo:
                self._undo()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        undone = self._state == "open"
        self.abort()
        if undone and isinstance(error, StorageError):
            raise nothing_committed(error, self.head_version) from error

    def check_usable(self) -> None:
        """Raises `UsageError` once it is over, and in a process that was forked off."""
        if self._process != os.getpid():
            raise UsageError(f"{self.path}: this transaction belongs to process {self._process}")
        if self._state != "open":
            raise UsageError(f"{self.path}: this transaction is over; begin another")

    @contextmanager
    def _settling(self, version: int) -> Iterator[None]:
        """Around steps of which a failure leaves open whether the version counts."""
        try:
            yield
        except StorageError as error:
            raise self._unknown(version, error) from error

    def _unknown(self, version: int, error: StorageError) -> CommitUnknownError:
        place = self.path if error.filename in (None, self.path) else f"{self.path}: {error.filename}"
        return CommitUnknownError(
            f"{place}: {error.strerror or error}; version {version} may or may not be committed: open the container "
            "to see, it is there whole, or everything is as it was before"
        )

    def _check_space(self, folder: str, size_hint: int | None) -> None:
        free = None if size_hint is None else self.fs.free_bytes(folder)
        if free is not None and size_hint is not None and size_hint > free:
            text = f"a segment of {size_hint} bytes doesn't fit, {free} bytes are free"
            raise StorageError(errno.ENOSPC, text, folder)

    @abstractmethod
    def _commit(self, manifest: bytes, version: int, commit_id: bytes, digest: int) -> None: ...

    @abstractmethod
    def _undo(self) -> None:
        """Removes what was written; raises nothing of its own."""

    @abstractmethod
    def _release(self) -> None:
        """Closes handles and gives the lock back; raises nothing of its own."""
