"""Finding manifests where slots, or the newest manifest, are damaged."""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cnrfmt.errors import DamagedError, StorageError, UnsupportedError
from cnrfmt.format import limits
from cnrfmt.format.blocks import FIRST_SPAN, FileHeader, Slot, check_block, magic
from cnrfmt.format.limits import BLOCK, PAGE
from cnrfmt.format.manifest import ChainEntry, Manifest, parse_manifest
from cnrfmt.format.segment import SegmentHeader
from cnrfmt.salvaging.segments import as_damage, is_loss
from cnrfmt.storage.base import MAX_MANIFEST, manifest_place, segment_place
from cnrfmt.storage.directory import MANIFESTS, SEGMENTS, manifest_name, segment_name
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.source import OpenFile, Source

_NAME = re.compile(r"([0-9]{20})\.cnrm", re.ASCII)
_SEGMENT = re.compile(r"([0-9a-f]{32})\.cnrs", re.ASCII)
_STEP = 1 << 20
_MOST_SHOWN = 10


@dataclass
class Found:
    """The manifests of a container.

    `sound` holds those that check, by version; `unsound` what is wrong with the others whose version is known;
    `newer` why a version newer than all sound ones must or may have been there, which damage alone explains;
    `perhaps_newer` why one may have been there, where an interrupted save explains it too; `notes` what is worth
    knowing.
    """

    sound: dict[int, Manifest] = field(default_factory=dict)
    unsound: dict[int, DamagedError | UnsupportedError] = field(default_factory=dict)
    newer: list[str] = field(default_factory=list)
    perhaps_newer: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The newest version with a sound manifest; -1 if there is none."""
        return max(self.sound, default=-1)


class DamagedFile:
    """A single file whose pages may be damaged."""

    def __init__(self, fs: Fs, path: str) -> None:
        self.path = path
        self._file = OpenFile(fs, path, follow=True)
        self._sources: list[Source] = []
        self.size = self._file.size
        self._budget = 0

    def segment(self, entry: ChainEntry) -> Source:
        """The span of a segment, as far as the file reaches."""
        place = segment_place(self.path, entry.segment)
        offset = entry.offset
        if offset is None or offset % PAGE or offset < FIRST_SPAN:
            raise DamagedError("span", place, expected="a span", found=f"{entry.length} bytes at {offset}")
        self._sources.append(Source(self._file, offset, entry.length, place, "file-length"))
        return self._sources[-1]

    def close(self) -> None:
        """Lets go of the file, whatever still refers to its segments."""
        for source in self._sources:
            source.close()
        del self._file

    def _read(self, offset: int, length: int) -> bytes:
        """The bytes there; zero bytes for those that the medium has lost, none behind the file's end."""
        try:
            return self._file.read(offset, length)
        except StorageError as error:
            if not is_loss(error):
                raise
            if length <= PAGE:
                return bytes(max(0, min(length, self.size - offset)))
            end = offset + length
            return b"".join(self._read(at, min(PAGE, end - at)) for at in range(offset, end, PAGE))

    def went(self) -> set[int]:
        """None: whoever replaces the file leaves the one that is open as it is."""
        return set()

    def find(self) -> Found:
        """All manifests that can be found.

        Raises `UnsupportedError` where the file as a whole needs what this release doesn't know.
        """
        found = Found()
        owner = self._container_id(found)
        slots = self._slots(owner, found)
        head = max(slots, key=lambda s: s.version, default=None)
        for slot in slots:
            # Two slots of one version should agree; where they don't, the manifests tell which is right.
            if head is not None and slot.version == head.version and slot.version not in found.sound:
                self._take(found, slot.manifest_offset, slot.manifest_length, slot.version, slot.manifest_digest, owner)
        if head is not None and self.size < head.committed_end:
            found.notes.append(f"{self.path}: cut to {self.size} of {head.committed_end} bytes")
        if head is not None and head.version in found.sound:
            found.unsound.pop(head.version, None)
            self._take_history(found, found.sound[head.version], owner)
            return found
        if head is not None:
            found.newer.append(f"the slots name version {head.version}, whose manifest is damaged")
        self._search(found, owner, head)
        return found

    def _container_id(self, found: Found) -> bytes | None:
        place = f"{self.path}: file header"
        try:
            return FileHeader.parse(self._read(0, PAGE), place).container_id
        except DamagedError as error:
            found.notes.append(f"{place} is damaged ({error.rule})")
            return None

    def _slots(self, owner: bytes | None, found: Found) -> list[Slot]:
        slots = []
        for number in (0, 1):
            page = self._read(PAGE * (1 + number), PAGE)
            place = f"{self.path}: slot {'AB'[number]}"
            try:
                slots.append(Slot.parse(page, place, number=number, container_id=owner or page[16:32]))
            except DamagedError as error:
                found.notes.append(f"{place} is damaged ({error.rule})")
        if len(slots) == 2 and slots[0].container_id != slots[1].container_id:
            return []
        return slots

    def _take(
        self, found: Found, offset: int, length: int, version: int, mark: int, owner: bytes | None
    ) -> Manifest | None:
        """Reads the manifest that something names, and keeps it or what is wrong with it."""
        place = manifest_place(self.path, version)
        try:
            if length > MAX_MANIFEST or offset % PAGE or offset < FIRST_SPAN:
                raise DamagedError("span", place, expected="a manifest", found=f"{length} bytes at {offset}")
            manifest = parse_manifest(self._read(offset, min(length, max(0, self.size - offset))), place)
            _check_identity(manifest, place, version, mark, owner)
        except (DamagedError, UnsupportedError) as error:
            found.unsound[version] = copy.copy(error)
            return None
        found.sound[version] = manifest
        return manifest

    def _take_history(self, found: Found, head: Manifest, owner: bytes | None) -> None:
        for r in head.versions:
            if r.version not in found.sound and r.offset is not None:
                self._take(found, r.offset, r.length, r.version, r.digest, owner or head.container_id)

    def _search(self, found: Found, owner: bytes | None, head: Slot | None) -> None:
        """Looks for manifests at every page: from the last, since later ones lie behind earlier ones."""
        self._budget = 4 * self.size + MAX_MANIFEST
        newest: Manifest | None = None
        spans: list[tuple[int, int]] = []
        named: dict[int, int] = {}
        suspects: list[str] = []
        end = FIRST_SPAN
        for offset in reversed(self._pages_with_magic()):
            if any(a <= offset < b for a, b in spans):
                # Within a segment: somebody stored a container in a container.
                continue
            manifest, why = self._manifest_at(offset, owner)
            if manifest is None:
                if newest is None:
                    suspects.append(f"byte {offset} starts like a manifest, which is damaged ({why})")
            elif newest is None and head is not None and manifest.version > head.version:
                found.notes.append(f"byte {offset}: version {manifest.version}, which was never committed")
            elif newest is None:
                newest, end = manifest, limits.round_up(offset + manifest.length, PAGE)
                owner = manifest.container_id
                found.sound[manifest.version] = manifest
                # It names the earlier ones.
                self._take_history(found, manifest, owner)
                named = {r.version: r.digest for r in manifest.versions}
                spans = _spans(found, offset)
            elif manifest.version < newest.version and named.get(manifest.version, manifest.digest) == manifest.digest:
                found.unsound.pop(manifest.version, None)
                found.sound.setdefault(manifest.version, manifest)
                spans += [(e.offset, e.offset + e.length) for e in manifest.chain if e.offset is not None]
        if head is None and newest is not None:
            found.newer += suspects[:_MOST_SHOWN]
            if self.size > end and not suspects:
                found.newer.append(f"{self.size - end} bytes follow its manifest, and no slot says where the file ends")

    def _pages_with_magic(self) -> list[int]:
        start = np.frombuffer(magic("M"), np.uint8)
        hits: list[int] = []
        for at in range(FIRST_SPAN, self.size, _STEP):
            data = np.frombuffer(self._read(at, _STEP).ljust(_STEP, b"\0"), np.uint8).reshape(-1, PAGE)
            same = (data[:, : len(start)] == start).all(axis=1)
            hits += (at + PAGE * np.flatnonzero(same)).tolist()
        return hits

    def _manifest_at(self, offset: int, owner: bytes | None) -> tuple[Manifest | None, str]:
        place = f"{self.path}: manifest at byte {offset}"
        try:
            block = check_block(self._read(offset, BLOCK), "M", 0, place)
            length = BLOCK + int.from_bytes(block[64:72], "little") + int.from_bytes(block[72:80], "little") + 8
            if length > min(MAX_MANIFEST, self.size - offset):
                raise DamagedError("block-length", place, expected="a manifest", found=f"{length} bytes")
            # Bytes that many would-be manifests claim at once are read a few times and no more.
            self._budget -= length
            if self._budget < 0:
                return None, "too many of them overlap"
            manifest = parse_manifest(self._read(offset, length), place)
            _check_identity(manifest, place, manifest.version, manifest.digest, owner)
            return manifest, ""
        except DamagedError as error:
            return None, error.rule
        except UnsupportedError as error:
            return None, f"it needs {error.feature}"


class DamagedDirectory:
    """A directory whose files may be damaged or missing."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs, self.path = fs, path
        self._sources: list[Source] = []
        self._listed: set[int] = set()

    def _open(self, folder: str, name: str, place: str) -> OpenFile:
        for path in (os.path.join(self.path, folder), os.path.join(self.path, folder, name)):
            stat = self._fs.stat(path)
            want = "file" if path.endswith(name) else "directory"
            if stat is None or stat.kind != want:
                found = "none" if stat is None else f"a {stat.kind}"
                raise DamagedError("file-missing", place, expected=f"a {want} at {path}", found=found)
        return OpenFile(self._fs, path)

    def segment(self, entry: ChainEntry) -> Source:
        """The file of a segment, as far as it reaches."""
        place = segment_place(self.path, entry.segment)
        if entry.offset is not None:
            raise DamagedError("span", place, expected="no offset in a directory", found=entry.offset)
        file = self._open(SEGMENTS, segment_name(entry.segment), place)
        self._sources.append(Source(file, 0, entry.length, place, "segment-length"))
        return self._sources[-1]

    def close(self) -> None:
        """Lets go of the files, whatever still refers to their segments."""
        for source in self._sources:
            source.close()

    def find(self) -> Found:
        """All manifests that are there."""
        found = Found()
        versions = self._versions()
        self._listed = set(versions)
        for version in versions:
            place = manifest_place(self.path, version)
            try:
                file = self._open(MANIFESTS, manifest_name(version), place)
                if file.size > MAX_MANIFEST:
                    raise DamagedError("limit", place, expected=f"at most {MAX_MANIFEST} bytes", found=file.size)
                manifest = parse_manifest(file.read(0, file.size), place)
                _check_identity(manifest, place, version, manifest.digest, None)
                found.sound[version] = manifest
            except (DamagedError, StorageError) as error:
                if not is_loss(error):
                    raise
                found.unsound[version] = as_damage(error, place)
            except UnsupportedError as error:
                found.unsound[version] = copy.copy(error)
        self._leave_out_strangers(found)
        self._check_lineage(found)
        for version, why in found.unsound.items():
            if version > found.newest >= 0:
                rule = why.rule if isinstance(why, DamagedError) else why.feature
                found.newer.append(f"the manifest of version {version} is there and can't be read ({rule})")
        if found.sound and not found.newer:
            # It may as well be what an interrupted save left, which is no damage.
            found.perhaps_newer += self._unnamed_deltas(found)
        return found

    def went(self) -> set[int]:
        """The versions whose manifests were there when `find` looked, and have been removed since."""
        return self._listed - set(self._versions())

    def _unnamed_deltas(self, found: Found) -> list[str]:
        """Deltas on the newest state that no manifest names: of a version whose manifest is gone, or of no version."""
        named = {segment_name(e.segment) for m in found.sound.values() for e in m.chain}
        folder = os.path.join(self.path, SEGMENTS)
        stat = self._fs.stat(folder)
        signs: list[str] = []
        for name in sorted(self._fs.list_directory(folder)) if stat is not None and stat.kind == "directory" else []:
            match = _SEGMENT.fullmatch(name)
            if match is None or name in named:
                continue
            try:
                block = self._open(SEGMENTS, name, name).read(0, BLOCK)
                header = SegmentHeader.parse(block, name, segment_id=bytes.fromhex(match[1]))
            except (DamagedError, UnsupportedError, StorageError):
                continue
            if header.from_state == found.sound[found.newest].state:
                text = "of a later version whose manifest is gone, or of an append that was interrupted"
                signs.append(f"segments/{name} is a delta on version {found.newest}: {text}")
        return signs[:_MOST_SHOWN]

    def _versions(self) -> list[int]:
        folder = os.path.join(self.path, MANIFESTS)
        stat = self._fs.stat(folder)
        if stat is None or stat.kind != "directory":
            return []
        matches = (_NAME.fullmatch(name) for name in self._fs.list_directory(folder))
        return sorted((int(m[1]) for m in matches if m), reverse=True)

    def _leave_out_strangers(self, found: Found) -> None:
        """The manifests of another container that were put here by mistake."""
        owners = Counter(m.container_id for m in reversed(found.sound.values()))
        if len(owners) < 2:
            return
        owner = max(owners, key=lambda o: (owners[o], max(v for v, m in found.sound.items() if m.container_id == o)))
        for version, manifest in list(found.sound.items()):
            if manifest.container_id != owner:
                found.unsound[version] = DamagedError(
                    "manifest-identity",
                    manifest_place(self.path, version),
                    expected=f"container {owner.hex()}",
                    found=manifest.container_id.hex(),
                )
                del found.sound[version]

    def _check_lineage(self, found: Found) -> None:
        """That each manifest is the one that later ones name."""
        for manifest in sorted(found.sound.values(), key=lambda m: -m.version):
            if manifest.version not in found.sound:
                continue
            named = {r.version: r.digest for r in manifest.versions}
            if manifest.parent is not None:
                named.setdefault(*manifest.parent)
            for version, mark in named.items():
                other = found.sound.get(version)
                place = manifest_place(self.path, version)
                if other is not None and other.digest != mark:
                    found.unsound[version] = DamagedError(
                        "manifest-digest", place, expected=f"{mark:016x}", found=f"{other.digest:016x}"
                    )
                    del found.sound[version]
            for r in manifest.versions:
                if manifest.version == found.newest and r.version not in {*found.sound, *found.unsound}:
                    place = manifest_place(self.path, r.version)
                    found.unsound[r.version] = DamagedError("file-missing", place, expected="a file", found="none")


def _spans(found: Found, offset: int) -> list[tuple[int, int]]:
    """Where segments and manifests of the sound versions lie; `offset` is the newest manifest's."""
    newest = found.sound[found.newest]
    spans = {(offset, offset + newest.length)}
    spans |= {(r.offset, r.offset + r.length) for r in newest.versions if r.offset is not None}
    spans |= {
        (e.offset, e.offset + e.length) for m in found.sound.values() for e in m.chain if e.offset is not None
    }
    return sorted(spans)


Damaged = DamagedFile | DamagedDirectory
"""A damaged container."""


def _check_identity(manifest: Manifest, place: str, version: int, mark: int, owner: bytes | None) -> None:
    known = owner or manifest.container_id
    if (manifest.version, manifest.container_id) != (version, known):
        raise DamagedError(
            "manifest-identity",
            place,
            expected=f"version {version} of container {known.hex()}",
            found=f"version {manifest.version} of container {manifest.container_id.hex()}",
        )
    if manifest.digest != mark:
        raise DamagedError("manifest-digest", place, expected=f"{mark:016x}", found=f"{manifest.digest:016x}")
