"""A read-only `Fs` whose files are bytes in memory: a container is opened from a fuzzer's input without a disk."""

from __future__ import annotations

import errno
import mmap
import posixpath
from typing import Any, NoReturn

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import StorageError
from cnrfmt.storage.fs import FileStat, OpenMode, byte_view
from cnrfmt.storage.mapping import MapNeed


class MemoryFs:
    """Files by absolute path. Whatever would change something is refused, as a read-only disk refuses it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files
        self._folders = {"/"}
        for path in files:
            while path != "/":
                path = posixpath.dirname(path)
                self._folders.add(path)
        self._paths = sorted(files)
        self.bytes_read = 0
        """Bytes that were read so far, for counts of work."""

    def _refuse(self, number: int, path: str) -> NoReturn:
        raise StorageError(number, errno.errorcode[number], path)

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        """A handle: the number of the path."""
        if mode != "read":
            self._refuse(errno.EROFS, path)
        if path not in self._files:
            self._refuse(errno.ENOENT, path)
        return self._paths.index(path)

    def close(self, handle: int) -> None:
        """Handles cost nothing."""

    def _data(self, handle: int) -> bytes:
        return self._files[self._paths[handle]]

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        """Copies what is there."""
        view = byte_view(buffer)
        found = self._data(handle)[offset : offset + len(view)]
        if found:
            view[: len(found)] = found
        self.bytes_read += len(found)
        return len(found)

    def pread_ranges(self, handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
        """Leaves it to `pread_into`, range by range."""
        return 0

    def stat_handle(self, handle: int) -> FileStat:
        """A file of that size."""
        return FileStat("file", (0, handle), len(self._data(handle)), 0o444)

    def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
        """A file, a folder or nothing."""
        if path in self._files:
            return self.stat_handle(self._paths.index(path))
        if path in self._folders:
            return FileStat("directory", (1, hash(path)), 0, 0o555)
        return None

    def list_directory(self, path: str) -> list[str]:
        """The names below a folder."""
        if path not in self._folders:
            self._refuse(errno.ENOENT, path)
        start = path.rstrip("/") + "/"
        inner = (name[len(start) :] for name in (*self._files, *self._folders) if name.startswith(start))
        return sorted({name.split("/")[0] for name in inner if name})

    def map(self, handle: int, length: int) -> mmap.mmap:
        """An anonymous map with a copy of the file."""
        found = mmap.mmap(-1, length)
        found[:] = self._data(handle)[:length]
        return found

    def prepare_map(self, handle: int, found: mmap.mmap, start: int, length: int, need: MapNeed) -> None:
        """It is in memory."""

    def free_bytes(self, path: str) -> int | None:
        """Nothing can be written."""
        return 0

    def point(self, name: str) -> None:
        """Does nothing."""

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        """Refused."""
        self._refuse(errno.EROFS, self._paths[handle])

    def truncate(self, handle: int, size: int) -> None:
        """Refused."""
        self._refuse(errno.EROFS, self._paths[handle])

    def sync(self, handle: int) -> None:
        """Refused."""
        self._refuse(errno.EROFS, self._paths[handle])

    def copy_mode(self, handle: int, mode: int) -> None:
        """Refused."""
        self._refuse(errno.EROFS, self._paths[handle])

    def lock_record(self, handle: int) -> bool:
        """Refused."""
        self._refuse(errno.EROFS, self._paths[handle])

    def lock_handle(self, handle: int, *, shared: bool = False) -> bool:
        """Refused."""
        self._refuse(errno.EROFS, self._paths[handle])

    def sync_directory(self, path: str) -> None:
        """Refused."""
        self._refuse(errno.EROFS, path)

    def rename(self, source: str, target: str) -> None:
        """Refused."""
        self._refuse(errno.EROFS, target)

    def link(self, source: str, target: str) -> None:
        """Refused."""
        self._refuse(errno.EROFS, target)

    def unlink(self, path: str) -> None:
        """Refused."""
        self._refuse(errno.EROFS, path)

    def mkdir(self, path: str) -> None:
        """Refused."""
        self._refuse(errno.EROFS, path)

    def rmdir(self, path: str) -> None:
        """Refused."""
        self._refuse(errno.EROFS, path)
