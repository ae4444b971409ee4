"""A file system in memory that records every change, and gives the states that a crash of the machine may leave.

It stands in for `cnrfmt.storage.fs.PosixFs`::

    fs = RecordingFs()
    cnrfmt.save("/crash/model.cnr", tables, threads=1, fs=fs)
    after = fs.crash(Random(7))  # one state that a crash at this moment may leave, on a file system of its own

Paths are absolute and lie in `FOLDER`. There are no symbolic links, and one process: its record locks never meet
another's.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import StorageError
from cnrfmt.storage import locks
from cnrfmt.storage.fs import FileStat, OpenMode, byte_view
from cnrfmt.storage.mapping import MapNeed
from tools.crash._memory import ROOT, Disk, Event, File, Folder, Naming, Resize, Write
from tools.crash.states import CrashSpace

FOLDER = "/crash"
"""The one directory that is there from the start."""


@dataclass
class _Handle:
    file: File
    path: str
    writable: bool


def _new_disk() -> Disk:
    disk = Disk()
    folder = disk.new_folder()
    root = disk.folder(ROOT)
    root.name(Naming(FOLDER[1:], folder.number))
    root.sync()
    return disk


class RecordingFs:
    """The calls of `cnrfmt.storage.fs.Fs` on a `Disk`; `log` holds what they changed, syncs among it."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or _new_disk()
        self.log: list[Event] = []
        self.points: list[str] = []
        """The named points that were passed."""
        self.watch: Callable[[Event], None] | None = None
        """Called before each change."""
        self._handles: dict[int, _Handle] = {}
        self._locked: dict[int, int] = {}
        # A number is never used again, so that a call on a closed handle is found out.
        self._numbers = itertools.count(3)

    def crash(self, random: Random) -> RecordingFs:
        """A file system with one of the states that a crash at this moment may leave; all of it is durable."""
        space = CrashSpace(self.disk)
        return RecordingFs(space.disk(space.sample(random)))

    def end_process(self) -> None:
        """What the operating system does when a process has ended: its handles and locks are gone."""
        self._handles.clear()
        self._locked.clear()
        locks._forget()

    @property
    def open_handles(self) -> list[str]:
        """The paths of the handles that are open."""
        return sorted(handle.path for handle in self._handles.values())

    def find(self, path: str) -> File | Folder | None:
        """What is at the path."""
        try:
            return self._find(path, "look at")
        except StorageError:
            return None

    # What a subclass may want to know: all that an answer depends on.

    def _saw_name(self, folder: Folder, name: str) -> None:
        """An answer depends on what the name stands for."""

    def _saw_names(self, folder: Folder) -> None:
        """An answer depends on which names there are."""

    def _saw_bytes(self, file: File, start: int, stop: int) -> None:
        """An answer depends on these bytes, and on whether they are there."""

    def _saw_size(self, file: File) -> None:
        """An answer depends on the file's length."""

    # Handles

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        """A handle of a regular file."""
        folder, name = self._parent(path, "open")
        node = self._child(folder, name)
        if isinstance(node, Folder):
            code = {"read": errno.EINVAL, "create": errno.EEXIST}.get(mode, errno.EISDIR)
            raise _refusal(code, path, "open")
        if node is None:
            if mode in ("read", "write"):
                raise _refusal(errno.ENOENT, path, "open")
            node = self.disk.new_file()
            self._name("create", folder, Naming(name, node.number))
        elif mode == "create":
            raise _refusal(errno.EEXIST, path, "open")
        return self._handle(node, path, writable=mode != "read")

    def close(self, handle: int) -> None:
        """Lets go of a handle and of its lock."""
        self._opened(handle, "close")
        del self._handles[handle]
        self._locked = {number: by for number, by in self._locked.items() if by != handle}

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        """Fills the buffer with what is there."""
        file, view = self._opened(handle, "read").file, byte_view(buffer)
        self._saw_bytes(file, offset, offset + len(view))
        found = file.data[offset : offset + len(view)]
        if found:
            view[: len(found)] = found
        return len(found)

    def pread_ranges(self, handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
        """One after the other."""
        for number, offset in enumerate(offsets.tolist()):
            piece = buffer[number * length : (number + 1) * length]
            if self.pread_into(handle, offset, piece) < len(piece):
                return number
        return len(offsets)

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        """Writes the whole buffer; it is pending."""
        piece = bytes(byte_view(data))
        if not piece:
            return
        opened = self._opened(handle, "write")
        if not opened.writable:
            raise _refusal(errno.EBADF, opened.path, "write")
        self._saw_size(opened.file)
        self._note(Event("pwrite", opened.file.number, Write(offset, piece)))

    def truncate(self, handle: int, size: int) -> None:
        """Cuts or extends the file; it is pending."""
        opened = self._opened(handle, "set the length of")
        if not opened.writable:
            raise _refusal(errno.EINVAL, opened.path, "set the length of")
        self._saw_size(opened.file)
        self._note(Event("truncate", opened.file.number, Resize(size)))

    def sync(self, handle: int) -> None:
        """Makes the file's bytes and length durable, not its name."""
        self._note(Event("sync", self._opened(handle, "sync").file.number, None))

    def sync_directory(self, path: str) -> None:
        """Makes the names in the directory durable, not its own."""
        self._note(Event("sync_directory", self._folder(path, "sync").number, None))

    def stat_handle(self, handle: int) -> FileStat:
        """What the handle refers to."""
        return self._stat(self._opened(handle, "look at").file)

    def copy_mode(self, handle: int, mode: int) -> None:
        """Gives the file these permission bits. No promise hangs on them: they aren't recorded."""
        self._opened(handle, "set the permissions of").file.mode = mode

    def map(self, handle: int, length: int) -> mmap.mmap:
        """A map of a copy."""
        opened = self._opened(handle, "map")
        self._saw_bytes(opened.file, 0, length or len(opened.file.data))
        found = opened.file.data[: length or None]
        if len(found) < max(length, 1):
            raise _refusal(errno.EINVAL, opened.path, "map")
        with tempfile.TemporaryFile() as copy:
            copy.write(found)
            copy.flush()
            return mmap.mmap(copy.fileno(), len(found), access=mmap.ACCESS_READ)

    def prepare_map(self, handle: int, found: mmap.mmap, start: int, length: int, need: MapNeed) -> None:
        """It is in memory."""
        self._opened(handle, "prepare a map of")

    def lock_record(self, handle: int) -> bool:
        """Nobody else could have it."""
        opened = self._opened(handle, "lock")
        if not opened.writable:
            raise _refusal(errno.EBADF, opened.path, "lock")
        return True

    def lock_handle(self, handle: int, *, shared: bool = False) -> bool:
        """False if another handle has locked the file. Shared locks, which last for moments, aren't kept."""
        if shared:
            return self._locked.get(self._opened(handle, "lock").file.number, handle) == handle
        return self._locked.setdefault(self._opened(handle, "lock").file.number, handle) == handle

    # Paths

    def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
        """What is at the path; None if nothing is."""
        try:
            node = self._find(path, "look at")
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return None if node is None else self._stat(node)

    def free_bytes(self, path: str) -> int | None:
        """None: there is room for all that memory holds."""
        if self._find(path, "look at") is None:
            raise _refusal(errno.ENOENT, path, "look at")
        return None

    def rename(self, source: str, target: str) -> None:
        """Puts a file in the place of another, within one directory."""
        folder, old = self._parent(source, "rename to")
        node = self._child(folder, old)
        if node is None:
            raise _refusal(errno.ENOENT, target, "rename to")
        to_folder, new = self._parent(target, "rename to")
        there = self._child(to_folder, new)
        if isinstance(node, Folder) or to_folder is not folder:
            # Containers do neither; this is how one says so.
            raise _refusal(errno.EXDEV, target, "rename to")
        if isinstance(there, Folder):
            raise _refusal(errno.EISDIR, target, "rename to")
        # Two names of one file stay as they are: POSIX wants it so.
        if there is not node:
            self._name("rename", folder, Naming(new, node.number, old))

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name."""
        node = self._find(source, "link to")
        if node is None:
            raise _refusal(errno.ENOENT, target, "link to")
        folder, name = self._parent(target, "link to")
        if self._child(folder, name) is not None:
            raise _refusal(errno.EEXIST, target, "link to")
        if isinstance(node, Folder):
            raise _refusal(errno.EPERM, target, "link to")
        self._name("link", folder, Naming(name, node.number))

    def unlink(self, path: str) -> None:
        """Removes a name of a file."""
        folder, name = self._parent(path, "remove")
        node = self._child(folder, name)
        if not isinstance(node, File):
            raise _refusal(errno.ENOENT if node is None else errno.EISDIR, path, "remove")
        self._name("unlink", folder, Naming(name, None))

    def mkdir(self, path: str) -> None:
        """Makes one directory."""
        folder, name = self._parent(path, "make the directory")
        if self._child(folder, name) is not None:
            raise _refusal(errno.EEXIST, path, "make the directory")
        self._name("mkdir", folder, Naming(name, self.disk.new_folder().number))

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        folder, name = self._parent(path, "remove the directory")
        node = self._child(folder, name)
        if not isinstance(node, Folder):
            raise _refusal(errno.ENOENT if node is None else errno.ENOTDIR, path, "remove the directory")
        self._saw_names(node)
        if node.entries:
            raise _refusal(errno.ENOTEMPTY, path, "remove the directory")
        self._name("rmdir", folder, Naming(name, None))

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory."""
        folder = self._folder(path, "list")
        self._saw_names(folder)
        return sorted(folder.entries)

    def point(self, name: str) -> None:
        """Writes the name down."""
        self.points.append(name)

    # Within

    def _note(self, event: Event) -> None:
        if self.watch is not None:
            self.watch(event)
        self.log.append(event)
        self.disk.replay(event)

    def _name(self, call: str, folder: Folder, change: Naming) -> None:
        self._note(Event(call, folder.number, change))

    def _stat(self, node: File | Folder) -> FileStat:
        if isinstance(node, Folder):
            return FileStat("directory", (1, node.number), 0, node.mode)
        self._saw_size(node)
        return FileStat("file", (1, node.number), len(node.data), node.mode, node.modified)

    def _handle(self, file: File, path: str, *, writable: bool) -> int:
        handle = next(self._numbers)
        self._handles[handle] = _Handle(file, path, writable)
        return handle

    def _opened(self, handle: int, doing: str) -> _Handle:
        if handle not in self._handles:
            raise _refusal(errno.EBADF, None, doing)
        return self._handles[handle]

    def _child(self, folder: Folder, name: str) -> File | Folder | None:
        self._saw_name(folder, name)
        number = folder.entries.get(name)
        return None if number is None else self.disk.nodes[number]

    def _find(self, path: str, doing: str) -> File | Folder | None:
        node: File | Folder | None = self.disk.folder(ROOT)
        for name in path.strip("/").split("/") if path.strip("/") else ():
            if node is None:
                raise _refusal(errno.ENOENT, path, doing)
            if isinstance(node, File):
                raise _refusal(errno.ENOTDIR, path, doing)
            node = self._child(node, name)
        return node

    def _folder(self, path: str, doing: str) -> Folder:
        node = self._find(path, doing)
        if not isinstance(node, Folder):
            raise _refusal(errno.ENOENT if node is None else errno.ENOTDIR, path, doing)
        return node

    def _parent(self, path: str, doing: str) -> tuple[Folder, str]:
        above, name = os.path.split(path)
        node = self._find(above, doing)
        if not isinstance(node, Folder):
            raise _refusal(errno.ENOENT if node is None else errno.ENOTDIR, path, doing)
        return node, name


def _refusal(code: int, path: str | None, doing: str) -> StorageError:
    return StorageError(code, f"{os.strerror(code)} (could not {doing} it)", path)
