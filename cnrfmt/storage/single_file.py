"""The single file: header page, two slots that name the head, and spans (specification, section 5.1)."""

from __future__ import annotations

import copy
import errno
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cnrfmt.errors import DamagedError, StorageError, UsageError
from cnrfmt.format.blocks import FIRST_SPAN, FileHeader, Slot
from cnrfmt.format.limits import PAGE
from cnrfmt.format.manifest import ChainEntry, Retained
from cnrfmt.storage.base import (
    LEFTOVER,
    Container,
    FileFacts,
    Head,
    check_manifest,
    check_manifest_length,
    manifest_place,
    segment_place,
)
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.source import OpenFile, Source

Read = Callable[[int, int], bytes]
"""Gives the bytes at an offset, fewer at the file's end."""

_TRIES = 50
_PAUSE = 0.001


@dataclass(frozen=True)
class Slots:
    """Both slots as they were read; an unsound one is None, with its fault in `faults`."""

    pages: tuple[bytes, bytes]
    found: tuple[Slot | None, Slot | None]
    faults: tuple[DamagedError, ...]

    @property
    def head(self) -> Slot:
        """The slot that names the head: the one with the higher version among the sound ones.

        Raises `DamagedError`: without a sound slot there is no head, and sound slots of one version that differ
        can't both be right.
        """
        a, b = self.found
        if a is None or b is None:
            only = a or b
            if only is None:
                raise self.faults[0]
            return only
        if a.version == b.version and not self.agree:
            raise DamagedError(
                "slot-order",
                self.place,
                expected=f"one manifest of version {a.version} in both slots",
                found=f"offsets {a.manifest_offset} and {b.manifest_offset}",
            )
        return a if a.version >= b.version else b

    place: str

    @property
    def agree(self) -> bool:
        """Whether both are sound and name the same manifest."""
        a, b = self.found
        return a is not None and b is not None and a.pack() == slot_like(b, 0).pack()


def slot_like(slot: Slot, number: int) -> Slot:
    """The slot of that number which names the same manifest."""
    return Slot(
        number,
        slot.container_id,
        slot.version,
        slot.manifest_offset,
        slot.manifest_length,
        slot.manifest_digest,
    )


def read_header(read: Read, path: str) -> FileHeader:
    """The file header; raises `DamagedError` or `UnsupportedError`."""
    return FileHeader.parse(read(0, PAGE), f"{path}: file header")


def read_slots(read: Read, path: str, container_id: bytes) -> Slots:
    """Both slots, read again while a writer seems to be in the middle of one.

    A reader may see a slot half written. Such a page changes within moments, and a rotten one doesn't:
    what is unsound twice in the same way is unsound.
    """
    before = None
    for _ in range(_TRIES):
        pages = _slot_pages(read)
        slots = _parse_slots(pages, path, container_id)
        if not slots.faults or pages == before:
            break
        before = pages
        time.sleep(_PAUSE)
    return slots


def _slot_pages(read: Read) -> tuple[bytes, bytes]:
    pages = read(PAGE, 2 * PAGE)
    return pages[:PAGE], pages[PAGE:]


def _parse_slots(pages: tuple[bytes, bytes], path: str, container_id: bytes) -> Slots:
    found: list[Slot | None] = []
    faults = []
    for number, page in enumerate(pages):
        place = f"{path}: slot {'AB'[number]}"
        try:
            found.append(Slot.parse(page, place, number=number, container_id=container_id))
        except DamagedError as error:
            found.append(None)
            # The frames of its traceback hold this list, and so it itself, and every file that they have open.
            faults.append(copy.copy(error))
    return Slots(pages, (found[0], found[1]), tuple(faults), f"{path}: slots")


def read_head(read: Read, size: int, path: str, slot: Slot) -> bytes:
    """The manifest that a slot names, in a file of `size` bytes."""
    place = manifest_place(path, slot.version)
    check_manifest_length(slot.manifest_length, place)
    if size < slot.committed_end:
        raise DamagedError("file-length", path, expected=f"at least {slot.committed_end} bytes", found=size)
    data = read(slot.manifest_offset, slot.manifest_length)
    check_manifest(data, place, slot.version, slot.manifest_digest, slot.container_id)
    return data


def check_span(offset: int | None, length: int, committed_end: int, place: str) -> int:
    """The offset of a span that lies where spans may lie; raises `DamagedError` (rule `span`)."""
    if offset is None or offset % PAGE or offset < FIRST_SPAN or offset + length > committed_end:
        raise DamagedError(
            "span",
            place,
            expected=f"a span at a multiple of {PAGE}, from {FIRST_SPAN} to {committed_end}",
            found=f"{length} bytes at {offset}",
        )
    return offset


def leftover_names(fs: Fs, path: str) -> list[str]:
    """The unfinished files that writers of this container have left beside it."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(LEFTOVER + name) + "-[0-9a-f]{16}")
    return sorted(n for n in fs.list_directory(folder or ".") if pattern.fullmatch(n))


class SingleFile(Container):
    """A single file, open for reading. It stays the same file when another is put in its place."""

    kind = "file"

    def __init__(self, fs: Fs, path: str) -> None:
        self.path, self._fs = path, fs
        # Whoever names a container may do so through a link.
        self._file: OpenFile | None = OpenFile(fs, path, follow=True)
        self._header: FileHeader | None = None
        self._committed_end = 0

    @property
    def container_id(self) -> bytes:
        """The id in the file header."""
        if self._header is None:
            self._header = read_header(self._opened().read, self.path)
        return self._header.container_id

    def head(self) -> Head:
        """The manifest that the slots name."""
        file = self._opened()
        slot = read_slots(file.read, self.path, self.container_id).head
        data = read_head(file.read, file.size, self.path, slot)
        self._committed_end = max(self._committed_end, slot.committed_end)
        return Head(data, slot.version, slot.manifest_digest)

    def read_manifest(self, retained: Retained) -> bytes:
        """The manifest at its span."""
        place = manifest_place(self.path, retained.version)
        check_manifest_length(retained.length, place)
        buffer = bytearray(retained.length)
        self._span(retained.offset, retained.length, place).pread_into(0, buffer)
        data = bytes(buffer)
        check_manifest(data, place, retained.version, retained.digest, self.container_id)
        return data

    def segment(self, entry: ChainEntry) -> Source:
        """The span of a segment."""
        return self._span(entry.offset, entry.length, segment_place(self.path, entry.segment))

    def _span(self, offset: int | None, length: int, place: str) -> Source:
        file = self._opened()
        if not self._committed_end:
            self.head()
        start = check_span(offset, length, self._committed_end, place)
        return Source(file, start, length, place, "file-length")

    def whole(self) -> Source:
        """The whole file as it is now, for a validator that looks between the spans."""
        file = self._opened()
        return Source(file, 0, file.size, self.path, "file-length")

    def same_as(self, other: Container) -> bool:
        """Whether both are the same file."""
        if not isinstance(other, SingleFile):
            return False
        try:
            return self._opened().identity == other._opened().identity
        except StorageError as error:
            # A server has removed the other's file, whose number it may have given to this one.
            if error.errno == errno.ESTALE:
                return False
            raise

    def inspect(self) -> FileFacts:
        """The pages at the start of the file, and the unfinished files beside it."""
        file = self._opened()
        leftovers: list[str] = []
        # A directory that one may not list hides leftovers, which are harmless.
        with suppress(StorageError):
            leftovers = leftover_names(self._fs, os.path.realpath(self.path))
        return FileFacts(file.size, file.read(0, PAGE), _slot_pages(file.read), tuple(leftovers))

    def close(self) -> None:
        """Lets go of the file."""
        self._file = None

    def _opened(self) -> OpenFile:
        file = self._file
        if file is None:
            raise UsageError(f"{self.path}: the container was closed; open it again")
        return file
