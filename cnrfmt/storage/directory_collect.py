"""Removing the files of a directory that nothing needs any more (`spec/commit.md`, section 8).

`survey` looks at what is there, `plan` decides, and `remove` removes: first manifests, then segments.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from cnrfmt.errors import DamagedError, StorageError, UnsupportedError, VersionExpiredError
from cnrfmt.format.manifest import Manifest, parse_manifest
from cnrfmt.storage.base import LEFTOVER, check_manifest, manifest_place, temporary_token
from cnrfmt.storage.directory import (
    MANIFESTS,
    SEGMENTS,
    Directory,
    committed_versions,
    manifest_name,
    read_manifest_file,
    segment_name,
)
from cnrfmt.storage.fs import FileStat, Fs

_SEGMENT_NAME = re.compile(r"([0-9a-f]{32})\.cnrs", re.ASCII)
_TRIES = 20

Obstacle = DamagedError | UnsupportedError
"""Why a manifest can't be read."""


@dataclass(frozen=True)
class ManifestFile:
    """A manifest that is there: its size in bytes, when it was written, and the segments of its chain.

    Where it can't be read, `segments` is None and `obstacle` says why. `unnamed_since` is since when the head doesn't
    name it, as far as the manifests that are there show it: when the oldest of those after it was written of which none
    names it; None where the head does. Times are nanoseconds by the clock of the file system.
    """

    version: int
    nbytes: int
    modified: int
    segments: frozenset[bytes] | None
    obstacle: Obstacle | None = None
    unnamed_since: int | None = None


@dataclass(frozen=True)
class SegmentFile:
    """A segment that is there: its id, its size in bytes, and when it was written, as for a manifest."""

    segment: bytes
    nbytes: int
    modified: int


@dataclass(frozen=True)
class Survey:
    """The files of a directory at one moment.

    `manifests` ascend, the head last. One that the head names and that isn't there is among them as one that can't be
    read.
    """

    manifests: tuple[ManifestFile, ...]
    segments: tuple[SegmentFile, ...]

    @property
    def head(self) -> ManifestFile:
        """The newest manifest."""
        return self.manifests[-1]

    @property
    def newest_time(self) -> int:
        """When the newest file was written: the file system's clock shows that time or a later one."""
        return max(*(file.modified for file in self.manifests), *(file.modified for file in self.segments))


@dataclass(frozen=True)
class Waiting:
    """A file that nothing needs, which stays until its grace period is over; `until` is in nanoseconds."""

    name: str
    nbytes: int
    until: int


@dataclass(frozen=True)
class Removal:
    """What is to be removed of a directory whose head is version `head`, and what is not yet."""

    head: int
    manifests: tuple[ManifestFile, ...]
    segments: tuple[SegmentFile, ...]
    waiting: tuple[Waiting, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the files to be removed."""
        return sum(file.nbytes for file in self.manifests) + sum(file.nbytes for file in self.segments)


def survey(fs: Fs, path: str) -> Survey:
    """What is in a directory.

    Raises `DamagedError` or `UnsupportedError` where the head can't be read, and `StorageError`.
    """
    for _ in range(_TRIES):
        # Segments come first: one that is published later isn't among them, so none of a commit that happens after the
        # manifests were looked at can be taken for unneeded.
        segments = _segment_files(fs, path)
        with suppress(VersionExpiredError):
            found = _with_manifests(fs, path, segments)
            if committed_versions(fs, path)[-1:] == [found.head.version]:
                return found
        # There is a new head.
    raise StorageError(errno.EAGAIN, "the newest manifest changes again and again", path)


def _segment_files(fs: Fs, path: str) -> tuple[SegmentFile, ...]:
    folder = os.path.join(path, SEGMENTS)
    found = []
    for name in sorted(fs.list_directory(folder)):
        match = _SEGMENT_NAME.fullmatch(name)
        stat = fs.stat(os.path.join(folder, name)) if match else None
        if match and stat is not None and stat.kind == "file":
            found.append(SegmentFile(bytes.fromhex(match[1]), stat.size, stat.modified))
    return tuple(found)


def _with_manifests(fs: Fs, path: str, segments: tuple[SegmentFile, ...]) -> Survey:
    directory = Directory(fs, path)
    data, newest, _ = directory.head()
    head = parse_manifest(data, manifest_place(path, newest))
    named = {newest, *(r.version for r in head.versions)}
    return Survey(_dated(_manifest_files(fs, directory, head), named), segments)


def _manifest_files(fs: Fs, directory: Directory, head: Manifest) -> Iterator[tuple[ManifestFile, list[int] | None]]:
    """The manifests, ascending, each with the versions that it names; None where it can't be read."""
    path = directory.path
    retained = {r.version: r for r in head.versions}
    there = {version for version in committed_versions(fs, path) if version < head.version}
    # Manifests share most of their segments.
    ids: dict[bytes, bytes] = {}
    for version in sorted({*there, *retained, head.version}):
        manifest: Manifest | None = None
        obstacle: Obstacle | None = None
        try:
            if version == head.version:
                manifest = head
            elif version in retained:
                manifest = parse_manifest(directory.read_manifest(retained[version]), manifest_place(path, version))
            else:
                manifest = _unnamed(fs, path, version, head.container_id)
        except (DamagedError, UnsupportedError) as error:
            obstacle = error
        stat = fs.stat(os.path.join(path, MANIFESTS, manifest_name(version)))
        if stat is None or stat.kind != "file":
            if version in there and version not in retained:
                # It is gone by now, or nothing of ours.
                continue
            if obstacle is None:
                raise VersionExpiredError(f"{manifest_place(path, version)}: somebody removed it")
            stat = FileStat("other", (0, 0), 0, 0)
        if manifest is None:
            yield ManifestFile(version, stat.size, stat.modified, None, obstacle), None
        else:
            chain = frozenset(ids.setdefault(entry.segment, entry.segment) for entry in manifest.chain)
            names = [version, *(r.version for r in manifest.versions)]
            yield ManifestFile(version, stat.size, stat.modified, chain), names


def _unnamed(fs: Fs, path: str, version: int, container_id: bytes) -> Manifest | None:
    """A manifest that the head doesn't name; None where it is gone by now."""
    place = manifest_place(path, version)
    try:
        data = read_manifest_file(fs, path, version)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return None
    check_manifest(data, place, version, None, container_id)
    return parse_manifest(data, place)


def _dated(
    found: Iterable[tuple[ManifestFile, list[int] | None]], named: Collection[int]
) -> tuple[ManifestFile, ...]:
    """The files with the time since when the head, the last of them, doesn't name them."""
    files: list[ManifestFile] = []
    # The number of the newest file that names each version, and of the newest that can't be read: it may name any.
    naming: dict[int, int] = {}
    unread = -1
    for number, (file, names) in enumerate(found):
        files.append(file)
        if names is None:
            unread = number
        else:
            naming.update(dict.fromkeys(names, number))
    return tuple(
        file
        if file.version in named
        else replace(file, unnamed_since=files[max(naming.get(file.version, number), unread) + 1].modified)
        for number, file in enumerate(files)
    )


def store_time(fs: Fs, path: str) -> int | None:
    """The time by the clock of the file system, in nanoseconds; None where it refuses to make the file that tells it.

    The clocks of a server and of its clients differ, so a file's age is told by a file that is made now.
    """
    target = os.path.join(path, SEGMENTS, LEFTOVER + temporary_token())
    try:
        handle = fs.open(target, "create")
    except StorageError:
        # A full disk must not keep anybody from making room on it.
        return None
    try:
        return fs.stat_handle(handle).modified
    finally:
        # The next writer removes what is left.
        with suppress(StorageError):
            fs.unlink(target)
        with suppress(StorageError):
            fs.close(handle)


def plan(found: Survey, now: int, grace: int) -> Removal:
    """What of these files may go at the time `now` after a grace period, both in nanoseconds.

    A manifest that the head doesn't name goes when the head hasn't named it for that long. A segment goes that no
    manifest names which stays, and that was written that long ago: a younger one may be that of a commit under way.
    With a grace period of 0 times don't count. Where a manifest that stays can't be read, nothing goes, since nobody
    knows what it needs.
    """

    def end(start: int) -> int:
        return start + grace if grace else now

    going: list[ManifestFile] = []
    staying: list[ManifestFile] = []
    for file in found.manifests:
        is_over = file.unnamed_since is not None and end(file.unnamed_since) <= now
        (going if is_over else staying).append(file)
    obstacles = tuple(file.obstacle for file in staying if file.obstacle is not None)
    if any(file.segments is None for file in staying):
        return Removal(found.head.version, (), (), (), obstacles)
    waiting = []
    # Until when a manifest needs each segment.
    needed: dict[bytes, float] = {}
    for file in staying:
        until = math.inf
        if file.unnamed_since is not None:
            until = end(file.unnamed_since)
            waiting.append(Waiting(f"{MANIFESTS}/{manifest_name(file.version)}", file.nbytes, until))
        for segment in file.segments or ():
            needed[segment] = max(until, needed.get(segment, until))
    spare = []
    for piece in found.segments:
        until = max(needed.get(piece.segment, now), end(piece.modified))
        if until <= now:
            spare.append(piece)
        elif until < math.inf:
            waiting.append(Waiting(f"{SEGMENTS}/{segment_name(piece.segment)}", piece.nbytes, int(until)))
    return Removal(found.head.version, tuple(going), tuple(spare), tuple(waiting), obstacles)


def remove(fs: Fs, path: str, removal: Removal) -> Removal:
    """Removes what was planned, and says what it was: another may have removed some of it before.

    Raises `StorageError` where the operating system refuses; then some of it is left, which nothing needs.
    """
    if not removal.manifests and not removal.segments:
        return removal
    folder = os.path.join(path, MANIFESTS)
    # The head may be a pending one: it must not be lost in a crash when what the head before it needs is gone.
    fs.sync_directory(folder)
    fs.point("head-synced")
    manifests = tuple(file for file in removal.manifests if _unlink(fs, path, MANIFESTS, manifest_name(file.version)))
    fs.point("manifests-removed")
    # A manifest must not come back after a crash when its segments are gone.
    fs.sync_directory(folder)
    fs.point("removal-synced")
    # What was committed once can't be part of a commit that is under way; anything else can.
    known = frozenset().union(*(file.segments or () for file in removal.manifests))
    committed = tuple(file for file in removal.segments if file.segment in known)
    gone = [f for f in _unneeded(fs, path, removal.head, committed) if _unlink(fs, path, SEGMENTS, _name(f))]
    gone += [f for f in removal.segments if f.segment not in known and _remove_abandoned(fs, path, removal.head, f)]
    fs.point("segments-removed")
    return replace(removal, manifests=manifests, segments=tuple(sorted(gone, key=_name)))


def _name(file: SegmentFile) -> str:
    return segment_name(file.segment)


def _unneeded(fs: Fs, path: str, head: int, segments: tuple[SegmentFile, ...]) -> tuple[SegmentFile, ...]:
    """Those of the segments that no version needs which was committed since they were chosen, on that head."""
    if not segments or committed_versions(fs, path)[-1:] == [head]:
        return segments
    later = survey(fs, path)
    if any(file.segments is None for file in later.manifests):
        return ()
    needed = frozenset().union(*(file.segments or () for file in later.manifests))
    return tuple(file for file in segments if file.segment not in needed)


def _remove_abandoned(fs: Fs, path: str, head: int, file: SegmentFile) -> bool:
    """Removes a segment that no manifest was found to name, unless its writer may still commit it.

    A writer holds a lock on each of its files until its commit has ended in one way or another. So whoever gets that
    lock, and looks at the newest version after that, sees what came of it, however short the grace period. What can't
    be locked stays: a file system without locks keeps such garbage, as it keeps unfinished files.
    """
    try:
        handle = fs.open(os.path.join(path, SEGMENTS, _name(file)), "write")
    except StorageError:
        return False
    try:
        if not _locked(fs, handle) or not _unneeded(fs, path, head, (file,)):
            return False
        return _unlink(fs, path, SEGMENTS, _name(file))
    finally:
        with suppress(StorageError):
            fs.close(handle)


def _locked(fs: Fs, handle: int) -> bool:
    try:
        return fs.lock_handle(handle)
    except StorageError:
        return False


def _unlink(fs: Fs, path: str, folder: str, name: str) -> bool:
    """Removes a file; whether it was there."""
    try:
        fs.unlink(os.path.join(path, folder, name))
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
