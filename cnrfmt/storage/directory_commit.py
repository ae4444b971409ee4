"""Committing to a directory: segments, then a manifest, each published under a name that is free (`spec/commit.md`)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from cnrfmt.errors import (
    CommitUnknownError,
    ConflictError,
    DamagedError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from cnrfmt.format.digests import new_id
from cnrfmt.format.manifest import ChainEntry, Manifest, parse_manifest
from cnrfmt.storage.base import (
    LEFTOVER,
    SegmentSink,
    Transaction,
    check_manifest,
    manifest_place,
    temporary_token,
)
from cnrfmt.storage.directory import (
    MANIFESTS,
    SEGMENTS,
    Directory,
    check_folder,
    committed_versions,
    manifest_name,
    read_manifest_file,
    read_newest,
    segment_name,
)
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.source import Source

_TRIES = 20


@dataclass
class _Temporary:
    """A file under a temporary name, locked for as long as its handle is open: its writer is alive."""

    path: str
    handle: int


class DirectoryTransaction(Transaction):
    """Adds a version to a directory, which is made if it isn't there."""

    kind = "directory"

    def __init__(self, fs: Fs, path: str) -> None:
        super().__init__(fs, path)
        self._sinks: list[_DirectorySink] = []
        self._temporaries: list[_Temporary] = []
        self._published: list[str] = []
        self._made: list[str] = []
        try:
            self._make_folders()
            self._remove_leftovers()
            newest = read_newest(fs, path)
            if newest is None:
                self.container_id = new_id()
            else:
                # A pending head becomes durable here: a version that is kept must not lose the one that it builds on.
                fs.sync_directory(self._folder(MANIFESTS))
                self.head_version, self.head_bytes = newest
                place = manifest_place(path, newest[0])
                self.container_id = check_manifest(newest[1], place, newest[0], None, None)
        except BaseException:
            self.abort()
            raise

    def _make_folders(self) -> None:
        if self.fs.stat(self.path) is not None and not check_folder(self.fs, self._folder(MANIFESTS)):
            names = self.fs.list_directory(self.path)
            foreign = [n for n in names if n != SEGMENTS and not n.startswith(".")]
            if foreign:
                raise UsageError(
                    f"{self.path}: a directory that isn't a container and isn't empty (it has "
                    f"{sorted(foreign)[0]!r}); give the path of a new directory"
                )
        for folder in (self.path, self._folder(SEGMENTS), self._folder(MANIFESTS)):
            if not check_folder(self.fs, folder):
                try:
                    self.fs.mkdir(folder)
                    self._made.append(folder)
                except StorageError as error:
                    # Another first writer was quicker.
                    if error.errno != errno.EEXIST:
                        raise

    def _folder(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _remove_leftovers(self) -> None:
        """Removes the unfinished files of writers that are gone: nobody holds their locks any more."""
        for folder in (self._folder(SEGMENTS), self._folder(MANIFESTS)):
            for name in self.fs.list_directory(folder):
                if name.startswith(LEFTOVER):
                    # What can't be removed is in nobody's way.
                    with suppress(StorageError):
                        self._remove_if_abandoned(os.path.join(folder, name))

    def _remove_if_abandoned(self, path: str) -> None:
        handle = self.fs.open(path, "write")
        try:
            if self.fs.lock_handle(handle):
                self.fs.unlink(path)
        finally:
            self.fs.close(handle)

    def create_temporary(self, folder: str) -> _Temporary:
        """A new file, open and locked."""
        for _ in range(_TRIES):
            path = os.path.join(self._folder(folder), LEFTOVER + temporary_token())
            made = _Temporary(path, self.fs.open(path, "create"))
            self._temporaries.append(made)
            if self._lock(made.handle):
                at_path = self.fs.stat(path)
                identity = self.fs.stat_handle(made.handle).identity
                if at_path is not None and at_path.identity == identity:
                    return made
            # Another writer took it for abandoned in the moment before it was locked.
            self.discard(made)
        raise StorageError(errno.EAGAIN, "new files are removed again and again", self.path)

    def _lock(self, handle: int) -> bool:
        try:
            return self.fs.lock_handle(handle)
        except StorageError:
            # The file system has no such locks; then nobody can take one to remove the file, either.
            return True

    def discard(self, temporary: _Temporary) -> None:
        """Removes a temporary file."""
        self._temporaries.remove(temporary)
        with suppress(StorageError):
            self.fs.unlink(temporary.path)
        with suppress(StorageError):
            self.fs.close(temporary.handle)

    def source(self, entry: ChainEntry) -> Source:
        """The file of a segment."""
        return Directory(self.fs, self.path).segment(entry)

    def segment(self, segment_id: bytes, size_hint: int | None = None) -> SegmentSink:
        """Starts a segment in a file of its own; several may be under way."""
        self.check_usable()
        self._check_space(self.path, size_hint)
        sink = _DirectorySink(self, segment_id)
        self._sinks.append(sink)
        return sink

    def drop(self, sink: _DirectorySink) -> None:
        """Takes a segment out of the transaction."""
        self._sinks.remove(sink)
        self.discard(sink.temporary)

    def manifest_offset(self) -> None:
        """None: a manifest is a file of its own."""
        return None

    def publish(self) -> None:
        """Puts the finished segments under their final names, durably; nothing counts before a manifest names them.

        Whatever ends the transaction without a commit takes them away again. Raises what `commit` raises.
        """
        self.check_usable()
        fs = self.fs
        if not all(sink.finished for sink in self._sinks):
            raise UsageError(f"{self.path}: a segment is still being written; finish or abort it")
        waiting = [sink for sink in self._sinks if not sink.published]
        for sink in waiting:
            fs.sync(sink.temporary.handle)
            fs.point("segment-synced")
        self._check_head()
        for sink in waiting:
            self._publish_segment(sink)
            fs.point("segment-published")
        fs.sync_directory(self._folder(SEGMENTS))

    def hand_over(self) -> None:
        """Publishes the segments for the manifest of another writer: from now on they stay, however this one ends."""
        self.publish()
        self._state = "pending"

    def take_back(self) -> None:
        """Removes what was handed over; right only where no manifest names it, now or later."""
        self._state = "open"
        self.abort()

    @property
    def may_count(self) -> bool:
        """Whether the version counts, or may count, now or after a crash."""
        return self._state in ("pending", "committed")

    def committed_by(self, version: int, commit_id: bytes) -> Manifest | None:
        """The manifest of a version, made durable, if it is of that attempt; None if it isn't there.

        For a writer that handed its segments over and can't hear from the one that commits. None is final only where
        that one can't publish any more. Raises `CommitUnknownError` where nothing can be told.
        """
        with self._settling(version):
            # Looked at first: a version that appears in between is found.
            versions = committed_versions(self.fs, self.path)
            data = self._manifest_at(version)
            if data is not None:
                self.fs.sync_directory(self._folder(MANIFESTS))
        if data is None:
            if versions and versions[-1] >= version:
                raise CommitUnknownError(f"{self.path}: version {version} was committed by somebody and is gone since")
            return None
        try:
            found = parse_manifest(data, manifest_place(self.path, version))
        except (DamagedError, UnsupportedError) as error:
            raise CommitUnknownError(f"{self.path}: whose version {version} is can't be told: {error}") from error
        return found if found.commit_id == commit_id else None

    def _commit(self, manifest: bytes, version: int, commit_id: bytes, digest: int) -> None:
        fs = self.fs
        self.publish()
        if self.head_bytes is None:
            fs.sync_directory(self.path)
            fs.sync_directory(os.path.dirname(self.path))
        fs.point("segments-synced")
        temporary = self.create_temporary(MANIFESTS)
        fs.pwrite(temporary.handle, 0, manifest)
        fs.sync(temporary.handle)
        fs.point("manifest-synced")
        self._state = "pending"
        target = os.path.join(self._folder(MANIFESTS), manifest_name(version))
        try:
            fs.link(temporary.path, target)
        except StorageError as error:
            # An answer may be lost where the file system is elsewhere: what stands under the name tells.
            whose = self._settle_link(version, commit_id)
            if whose != "ours":
                self._state = "open"
                if whose == "nobody's":
                    raise
                raise self._conflict(version) from error
        self._drop_name(temporary)
        fs.point("manifest-published")
        with self._settling(version):
            fs.sync_directory(self._folder(MANIFESTS))
        fs.point("manifests-synced")
        self._check_won(target, version, digest)

    def _check_head(self) -> None:
        versions = committed_versions(self.fs, self.path)
        if (versions[-1] if versions else None) != self.head_version:
            raise self._conflict(versions[-1] if versions else None)

    def _publish_segment(self, sink: _DirectorySink) -> None:
        target = os.path.join(self._folder(SEGMENTS), segment_name(sink.segment_id))
        try:
            self.fs.link(sink.temporary.path, target)
        except StorageError:
            at_path = self.fs.stat(target)
            identity = self.fs.stat_handle(sink.temporary.handle).identity
            if at_path is None or at_path.identity != identity:
                raise
        self._published.append(target)
        sink.published = True
        self._drop_name(sink.temporary)

    def _drop_name(self, temporary: _Temporary) -> None:
        """Takes away the temporary name of a file that has its own by now."""
        with suppress(StorageError):
            self.fs.unlink(temporary.path)

    def _settle_link(self, version: int, commit_id: bytes) -> Literal["ours", "another's", "nobody's"]:
        """Whose the manifest of a version is, after its publication was refused."""
        with self._settling(version):
            data = self._manifest_at(version)
        if data is None:
            return "nobody's"
        try:
            found = parse_manifest(data, manifest_place(self.path, version)).commit_id
        except (DamagedError, UnsupportedError):
            return "another's"
        return "ours" if found == commit_id else "another's"

    def _manifest_at(self, version: int) -> bytes | None:
        try:
            return read_manifest_file(self.fs, self.path, version)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def _check_won(self, target: str, version: int, digest: int) -> None:
        """That later versions, if there are some already, build on this one.

        The name that a version gets may have become free again: others may have committed this version and later
        ones, and collected this one's manifest. Then this commit came too late, and its manifest is taken away.
        """
        with self._settling(version):
            newest = read_newest(self.fs, self.path)
            if newest is None or newest[0] <= version:
                return
            following = self._manifest_at(version + 1)
        named = _named_digest(self.path, version, newest, following)
        if named is None:
            raise CommitUnknownError(
                f"{self.path}: version {version} was committed by this writer or by another, and has been "
                f"removed since; the newest is {newest[0]}: open it and try again on it"
            )
        if named != digest:
            self._published.append(target)
            self._state = "open"
            raise self._conflict(newest[0])

    def _conflict(self, newest: int | None) -> ConflictError:
        return ConflictError(
            f"{self.path}: another writer committed version {newest} first; nothing was committed: "
            "open the new head and try again"
        )

    def _undo(self) -> None:
        for temporary in list(self._temporaries):
            self.discard(temporary)
        for path in self._published:
            with suppress(StorageError):
                self.fs.unlink(path)
        for folder in reversed(self._made):
            with suppress(StorageError):
                self.fs.rmdir(folder)

    def _release(self) -> None:
        for temporary in self._temporaries:
            with suppress(StorageError):
                self.fs.close(temporary.handle)
        self._temporaries.clear()


def _named_digest(path: str, version: int, newest: tuple[int, bytes], following: bytes | None) -> int | None:
    """The digest of a version's manifest according to later manifests; None if they don't say."""
    try:
        if following is not None:
            parent = parse_manifest(following, manifest_place(path, version + 1)).parent
            return None if parent is None else parent[1]
        head = parse_manifest(newest[1], manifest_place(path, newest[0]))
    except (DamagedError, UnsupportedError):
        return None
    return next((r.digest for r in head.versions if r.version == version), None)


class _DirectorySink(SegmentSink):
    def __init__(self, owner: DirectoryTransaction, segment_id: bytes) -> None:
        super().__init__(owner, None)
        self._directory, self.segment_id = owner, segment_id
        self.temporary = owner.create_temporary(SEGMENTS)
        self.published = False

    def _write(self, view: memoryview) -> None:
        self._directory.fs.pwrite(self.temporary.handle, self.position, view)

    def _finish(self) -> None:
        pass

    def _abort(self) -> None:
        self._directory.drop(self)
