"""Committing to a single file: appending to it, or putting a new one in its place (`spec/commit.md`)."""

from __future__ import annotations

import os
from contextlib import suppress

from cnrfmt.errors import ConflictError, StorageError, UnsupportedError, UsageError
from cnrfmt.format.blocks import FIRST_SPAN, FileHeader, Slot, bit_names
from cnrfmt.format.digests import new_id
from cnrfmt.format.limits import PAGE, round_up
from cnrfmt.format.manifest import ChainEntry
from cnrfmt.storage.base import (
    LEFTOVER,
    SegmentSink,
    Transaction,
    temporary_token,
)
from cnrfmt.storage.fs import Fs
from cnrfmt.storage.locks import WriterLock
from cnrfmt.storage.single_file import (
    SingleFile,
    Slots,
    leftover_names,
    read_head,
    read_header,
    read_slots,
    slot_like,
)
from cnrfmt.storage.source import Source


def begin_single_file(fs: Fs, path: str, *, replace: bool) -> Transaction:
    """Locks the single file at this resolved path and starts a transaction on its head."""
    lock = WriterLock.acquire(fs, path)
    try:
        for name in leftover_names(fs, path):
            # Under the lock, whoever made them is gone.
            with suppress(StorageError):
                fs.unlink(os.path.join(os.path.dirname(path), name))
        if fs.stat(path) is None:
            return NewFile(fs, path, lock, None)
        base = _Base(fs, path)
        try:
            if replace:
                return NewFile(fs, path, lock, base)
            return Appending(fs, path, lock, base)
        except BaseException:
            base.close()
            raise
    except BaseException:
        lock.release()
        raise


class _Base:
    """The container that a transaction builds on: its file, its head and its slots, read under the lock."""

    def __init__(self, fs: Fs, path: str) -> None:
        self.fs, self.path = fs, path
        self.handle = fs.open(path, "write")
        try:
            stat = fs.stat_handle(self.handle)
            self.identity, self.size, self.mode = stat.identity, stat.size, stat.mode
            self.header = read_header(self._read, path)
            if bits := self.header.features.unknown_ro_compat:
                raise UnsupportedError(f"{path} (writing)", f"ro_compat {bit_names(bits)}")
            self.slots = read_slots(self._read, path, self.header.container_id)
            self.head = self.slots.head
            self.head_bytes = read_head(self._read, self.size, path, self.head)
        except BaseException:
            self.close()
            raise

    def _read(self, offset: int, length: int) -> bytes:
        buffer = bytearray(length)
        return bytes(memoryview(buffer)[: self.fs.pread_into(self.handle, offset, buffer)])

    def check_unchanged(self, lock: WriterLock) -> None:
        """Raises `ConflictError` if somebody wrote here in spite of the lock.

        Under the lock that can't happen; where a file system's locks don't hold it is found out here, most times.
        """
        lock.check()
        at_path = self.fs.stat(self.path)
        if at_path is None or at_path.identity != self.identity or self.read_slots().pages != self.slots.pages:
            raise ConflictError(
                f"{self.path}: another writer was here in spite of the lock; nothing was committed: open "
                "the new head and try again, and use a directory where a file system's locks don't hold"
            )

    def read_slots(self) -> Slots:
        """The slots as they are now."""
        return read_slots(self._read, self.path, self.header.container_id)

    def write_slot(self, number: int, named: Slot) -> None:
        """Makes slot `number` name the manifest of `named`; it isn't durable yet."""
        page = slot_like(named, number).pack()
        self.fs.pwrite(self.handle, PAGE * (1 + number), page)

    def close(self) -> None:
        """Closes the handle."""
        with suppress(StorageError):
            self.fs.close(self.handle)


class _FileTransaction(Transaction):
    """What appending and writing anew share: spans behind each other in one file."""

    kind = "file"
    handle: int

    def __init__(self, fs: Fs, path: str, lock: WriterLock, base: _Base | None) -> None:
        super().__init__(fs, path)
        self._lock, self._base = lock, base
        self._sink: _FileSink | None = None
        self._end = FIRST_SPAN
        if base is None:
            self.container_id = new_id()
        else:
            self.container_id = base.header.container_id
            self.head_bytes = base.head_bytes
            self.head_version = base.head.version
            self.head_offset = base.head.manifest_offset

    def source(self, entry: ChainEntry) -> Source:
        """The span of a segment in the file that is there."""
        if self._base is None:
            raise UsageError(f"{self.path}: there is no container yet, so no segment to read")
        with SingleFile(self.fs, self.path) as container:
            return container.segment(entry)

    def segment(self, segment_id: bytes, size_hint: int | None = None) -> SegmentSink:
        """Starts a span behind what was written; one at a time."""
        self.check_usable()
        self._check_finished()
        self._check_space(os.path.dirname(self.path), size_hint)
        self._sink = _FileSink(self, self._end)
        return self._sink

    def manifest_offset(self) -> int:
        """Where the spans written so far end."""
        self._check_finished()
        return self._end

    def finish_span(self, end: int) -> None:
        """The span under way ends here, or at its start if it was given up."""
        self._end, self._sink = round_up(end, PAGE), None

    def _check_finished(self) -> None:
        if self._sink is not None:
            raise UsageError(f"{self.path}: a segment is still being written; finish or abort it")

    def _write_manifest(self, manifest: bytes, version: int, digest: int) -> Slot:
        self._check_finished()
        slot = Slot(0, self.container_id, version, self._end, len(manifest), digest)
        self.fs.pwrite(self.handle, self._end, manifest)
        self.fs.truncate(self.handle, slot.committed_end)
        return slot


class _FileSink(SegmentSink):
    def __init__(self, owner: _FileTransaction, offset: int) -> None:
        super().__init__(owner, offset)
        self._file, self._start = owner, offset

    def _write(self, view: memoryview) -> None:
        self._file.fs.pwrite(self._file.handle, self._start + self.position, view)

    def _finish(self) -> None:
        self._file.finish_span(self._start + self.position)

    def _abort(self) -> None:
        # What was written must not show through as a gap that isn't zero.
        self._file.fs.truncate(self._file.handle, self._start)
        self._file.finish_span(self._start)


class Appending(_FileTransaction):
    """Adds a version to a single file that is there."""

    def __init__(self, fs: Fs, path: str, lock: WriterLock, base: _Base) -> None:
        super().__init__(fs, path, lock, base)
        self._into = base
        self.handle = base.handle
        self._end = base.head.committed_end
        self._undoable = True
        # Whoever put the file there may have died before its name was durable: what is appended would go with it.
        fs.sync_directory(os.path.dirname(path))
        if not base.slots.agree:
            self._repair()
        if base.size > self._end:
            # An attempt that nobody committed.
            fs.truncate(self.handle, self._end)

    def _repair(self) -> None:
        """Ends a commit that was interrupted between the slots, or renews a rotten slot.

        A sound slot is overwritten only once the other names the head, too.
        """
        base, head = self._into, self._into.head
        order = (0, 1) if base.slots.found[1] is not None else (1, 0)
        for number in order:
            base.write_slot(number, head)
            self.fs.sync(self.handle)
            self.fs.point("slot-repaired")
        base.slots = base.read_slots()

    def _commit(self, manifest: bytes, version: int, commit_id: bytes, digest: int) -> None:
        fs, base = self.fs, self._into
        self._check_unchanged()
        slot = self._write_manifest(manifest, version, digest)
        fs.point("manifest-written")
        # The last commit may have met a disk that lost its slot B: before A is overwritten, B has to be there.
        base.write_slot(1, base.head)
        fs.sync(self.handle)
        fs.point("manifest-synced")
        self._check_unchanged()
        self._state = "pending"
        try:
            base.write_slot(0, slot)
        except StorageError as error:
            with self._settling(version):
                untouched = base.read_slots().pages == base.slots.pages
            if untouched:
                self._state = "open"
                raise
            raise self._unknown(version, error) from error
        fs.point("slot-a-written")
        with self._settling(version):
            fs.sync(self.handle)
        fs.point("slot-a-synced")
        with self._settling(version):
            base.write_slot(1, slot)
            fs.point("slot-b-written")
            fs.sync(self.handle)
        fs.point("slot-b-synced")

    def _check_unchanged(self) -> None:
        try:
            self._into.check_unchanged(self._lock)
        except ConflictError:
            # What lies behind the old head may be the other writer's by now.
            self._undoable = False
            raise

    def _undo(self) -> None:
        if self._undoable:
            with suppress(StorageError):
                self.fs.truncate(self.handle, self._into.head.committed_end)

    def _release(self) -> None:
        self._into.close()
        self._lock.release()


class NewFile(_FileTransaction):
    """Writes a whole new file under a temporary name, and puts it in its place."""

    def __init__(self, fs: Fs, path: str, lock: WriterLock, base: _Base | None) -> None:
        super().__init__(fs, path, lock, base)
        self._folder, name = os.path.split(path)
        self._temporary = os.path.join(self._folder, f"{LEFTOVER}{name}-{temporary_token()}")
        self.handle = fs.open(self._temporary, "create")
        try:
            self._identity = fs.stat_handle(self.handle).identity
            if base is not None:
                fs.copy_mode(self.handle, base.mode)
        except BaseException:
            self._undo()
            self._close()
            raise

    def _commit(self, manifest: bytes, version: int, commit_id: bytes, digest: int) -> None:
        fs, base = self.fs, self._base
        slot = self._write_manifest(manifest, version, digest)
        header = FileHeader(self.container_id) if base is None else base.header
        fs.pwrite(self.handle, 0, header.pack() + slot.pack() + slot_like(slot, 1).pack())
        fs.point("file-written")
        fs.sync(self.handle)
        fs.point("file-synced")
        if base is not None:
            base.check_unchanged(self._lock)
        else:
            self._lock.check()
            if fs.stat(self.path) is not None:
                raise ConflictError(
                    f"{self.path}: something was put there while the first version was written; "
                    "nothing was committed: look at it, then try again"
                )
        self._state = "pending"
        try:
            fs.rename(self._temporary, self.path)
        except StorageError:
            # An answer may be lost where the file system is elsewhere: what stands at the path tells.
            with self._settling(version):
                at_path = fs.stat(self.path)
            if at_path is None or at_path.identity != self._identity:
                self._state = "open"
                raise
        fs.point("file-renamed")
        with self._settling(version):
            fs.sync_directory(self._folder)
        fs.point("folder-synced")

    def _undo(self) -> None:
        with suppress(StorageError):
            self.fs.unlink(self._temporary)

    def _close(self) -> None:
        with suppress(StorageError):
            self.fs.close(self.handle)

    def _release(self) -> None:
        self._close()
        if self._base is not None:
            self._base.close()
        self._lock.release()
