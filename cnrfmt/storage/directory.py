"""The directory: a file for each manifest and for each segment (specification, section 5.2)."""

from __future__ import annotations

import errno
import os
import re

from cnrfmt.errors import DamagedError, StorageError, UnsupportedError, VersionExpiredError
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, parse_manifest
from cnrfmt.storage.base import (
    Container,
    DirectoryFacts,
    Head,
    Name,
    check_manifest,
    check_manifest_length,
    manifest_place,
    segment_place,
)
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.source import OpenFile, Source

MANIFESTS, SEGMENTS = "manifests", "segments"

_MANIFEST_NAME = re.compile(r"([0-9]{20})\.cnrm", re.ASCII)
_TRIES = 20


def manifest_name(version: int) -> str:
    """The name of a version's manifest."""
    return f"{version:020d}.cnrm"


def segment_name(segment_id: bytes) -> str:
    """The name of a segment."""
    return f"{segment_id.hex()}.cnrs"


def committed_versions(fs: Fs, path: str) -> list[int]:
    """The versions whose manifests are there, ascending; none where the folder isn't there yet.

    Raises `DamagedError` (rule `directory-layout`) where the folder is something else.
    """
    folder = os.path.join(path, MANIFESTS)
    check_folder(fs, folder)
    try:
        names = fs.list_directory(folder)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    found = (_MANIFEST_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def check_folder(fs: Fs, folder: str) -> bool:
    """Whether the folder is there; raises `DamagedError` if a link or a file is in its place."""
    found = fs.stat(folder)
    if found is not None and found.kind != "directory":
        raise DamagedError("directory-layout", folder, expected="a folder", found=f"a {found.kind}")
    return found is not None


def read_manifest_file(fs: Fs, path: str, version: int) -> bytes:
    """The bytes of a version's manifest; raises `StorageError` with ENOENT if it isn't there."""
    place = manifest_place(path, version)
    file = _open_regular(fs, os.path.join(path, MANIFESTS, manifest_name(version)), place)
    try:
        size = file.size
        check_manifest_length(size, place)
        return file.read(0, size)
    finally:
        # Who keeps an error, as a future does, mustn't keep the file open with it.
        file.close()


def read_newest(fs: Fs, path: str) -> tuple[int, bytes] | None:
    """Version and bytes of the newest manifest; None where there is none."""
    for _ in range(_TRIES):
        versions = committed_versions(fs, path)
        if not versions:
            return None
        try:
            return versions[-1], read_manifest_file(fs, path, versions[-1])
        except StorageError as error:
            # It was the newest when we looked, and was collected since: then a newer one is there.
            if error.errno != errno.ENOENT:
                raise
    raise StorageError(errno.EAGAIN, "the newest manifest is removed again and again", path)


def _open_regular(fs: Fs, path: str, place: str) -> OpenFile:
    found = fs.stat(path)
    if found is not None and found.kind != "file":
        raise DamagedError("file-missing", place, expected="a regular file", found=f"a {found.kind} at {path}")
    return OpenFile(fs, path)


class Directory(Container):
    """A directory, open for reading."""

    kind = "directory"

    def __init__(self, fs: Fs, path: str) -> None:
        self.path, self._fs = path, fs
        found = fs.stat(path, follow=True)
        if found is None or found.kind != "directory":
            raise StorageError(errno.ENOENT, "no container here any more", path)
        self._identity = found.identity
        self._has_segments = False
        # What was found out when a file was missing: who misses a thousand needn't read every manifest for each.
        self._head: tuple[tuple[int, bytes], Manifest] | None = None
        self._named: tuple[Manifest, frozenset[bytes] | None] | None = None

    @property
    def container_id(self) -> None:
        """None: each manifest carries the id."""
        return None

    def head(self) -> Head:
        """The manifest with the highest version."""
        found = read_newest(self._fs, self.path)
        if found is None:
            raise DamagedError(
                "directory-layout",
                self.path,
                expected="at least one manifest",
                found="none",
                advice="no version was ever committed here, or its manifests were removed; "
                "save commits a first version",
            )
        version, data = found
        check_manifest(data, manifest_place(self.path, version), version, None, None)
        return Head(data, version, None)

    def read_manifest(self, retained: Retained) -> bytes:
        """The manifest under its own name."""
        place = manifest_place(self.path, retained.version)
        self._check_no_offset(retained.offset, place)
        try:
            data = read_manifest_file(self._fs, self.path, retained.version)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            head = self._newest()
            named = head is not None and retained.version in (
                head.version,
                *(r.version for r in head.versions),
            )
            raise self._gone(place, named) from error
        if len(data) != retained.length:
            raise DamagedError(
                "block-length",
                place,
                expected=f"{retained.length} bytes",
                found=f"{len(data)} bytes",
            )
        check_manifest(data, place, retained.version, retained.digest, None)
        return data

    def segment(self, entry: ChainEntry) -> Source:
        """The file of a segment, opened; it stays readable when it is removed."""
        place = segment_place(self.path, entry.segment)
        self._check_no_offset(entry.offset, place)
        folder = os.path.join(self.path, SEGMENTS)
        self._has_segments = self._has_segments or check_folder(self._fs, folder)
        path = os.path.join(folder, segment_name(entry.segment))
        try:
            file = _open_regular(self._fs, path, place)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise self._gone(place, self._names_segment(entry.segment)) from error
        size = file.size
        if size != entry.length:
            raise DamagedError("segment-length", place, expected=f"{entry.length} bytes", found=f"{size} bytes")
        return Source(file, 0, size, place, "segment-length")

    def _check_no_offset(self, offset: int | None, place: str) -> None:
        if offset is not None:
            raise DamagedError("span", place, expected="no offset in a directory", found=offset)

    def _newest(self) -> Manifest | None:
        found = read_newest(self._fs, self.path)
        if found is None:
            return None
        version, data = found
        key = version, bytes(data[-8:])
        if self._head is None or self._head[0] != key:
            self._head = key, parse_manifest(data, manifest_place(self.path, version))
        return self._head[1]

    def _names_segment(self, segment_id: bytes) -> bool:
        """Whether the newest version, or one that it retains, still needs a segment."""
        head = self._newest()
        if head is None:
            return False
        if self._named is None or self._named[0] is not head:
            self._named = head, self._segments_of(head)
        named = self._named[1]
        return named is None or segment_id in named

    def _segments_of(self, head: Manifest) -> frozenset[bytes] | None:
        """The segments of a version and of those that it retains; None where a manifest among them can't be read."""
        chains = [head.chain]
        for retained in head.versions:
            try:
                data = self.read_manifest(retained)
                chains.append(parse_manifest(data, manifest_place(self.path, retained.version)).chain)
            except (DamagedError, UnsupportedError):
                # What is missing may be what that version needs: nobody had the right to remove it.
                return None
        return frozenset(entry.segment for chain in chains for entry in chain)

    def _gone(self, place: str, named: bool) -> Exception:
        """A file that the newest version needs is missing; one that it doesn't need any more has expired."""
        if named:
            return DamagedError("file-missing", place, expected="a file", found="none")
        return VersionExpiredError(
            f"{place}: somebody removed it after this reader had opened it, and the newest version doesn't need it; "
            "refresh to go on with the newest version"
        )

    def same_as(self, other: Container) -> bool:
        """Whether both are the same directory."""
        return isinstance(other, Directory) and self._identity == other._identity

    def inspect(self) -> DirectoryFacts:
        """The names in the directory and in its two folders."""
        return DirectoryFacts(
            self._names(self.path),
            self._folder_names(MANIFESTS),
            self._folder_names(SEGMENTS),
        )

    def _folder_names(self, name: str) -> tuple[Name, ...] | None:
        folder = os.path.join(self.path, name)
        found = self._fs.stat(folder)
        return self._names(folder) if found is not None and found.kind == "directory" else None

    def _names(self, folder: str) -> tuple[Name, ...]:
        names = []
        for name in sorted(self._fs.list_directory(folder)):
            found = self._fs.stat(os.path.join(folder, name))
            if found is not None:
                names.append(Name(name, found.kind, found.size))
        return tuple(names)

    def close(self) -> None:
        """Does nothing: a directory holds no handle between calls."""
        pass
