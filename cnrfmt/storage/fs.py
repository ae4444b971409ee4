"""All file-system calls that containers make: the protocol `Fs`, and the real one."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import StorageError, UsageError
from cnrfmt.storage import mapping

try:
    import fcntl
except ImportError:  # Windows, where cnrfmt reads and doesn't write.
    fcntl = None  # type: ignore[assignment]

Kind = Literal["file", "directory", "link", "other"]
OpenMode = Literal["read", "write", "create", "lock"]

# Windows would translate line ends without O_BINARY, and lacks the others.
_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# A reader that opens what turns out to be a pipe must not wait for somebody to write into it.
_NO_BLOCK = getattr(os, "O_NONBLOCK", 0)
_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY | _NO_BLOCK,
    "write": os.O_RDWR | _NO_BLOCK,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "lock": os.O_RDWR | os.O_CREAT | _NO_BLOCK,
}


class FileStat(NamedTuple):
    """What is at a path: its kind, which file it is, its size in bytes and its permission bits.

    `modified` is when it was last written, as the file system says it, in nanoseconds since 1970.
    """

    kind: Kind
    identity: tuple[int, int]
    size: int
    mode: int
    modified: int = 0


class Fs(Protocol):
    """The calls that containers make; handles are integers.

    Every method raises `StorageError` where the operating system refuses. Tests put faults, records and
    crashes in the place of the real calls, so each method is one step of the commit protocol and no more.
    """

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        """A handle of a regular file; `create` makes it, and fails if something is there."""
        ...

    def close(self, handle: int) -> None:
        """Lets go of a handle, and of the locks that hang on it."""
        ...

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        """Fills the buffer from `offset` on; returns how many bytes there were before the file's end."""
        ...

    def pread_ranges(self, handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
        """Reads the ranges of `length` bytes at these offsets, one behind the other; the last ends with the buffer.

        Returns how many were read whole before the first that wasn't: fewer than all is no error yet.
        """
        ...

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        """Writes the whole buffer at `offset`."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cuts the file, or extends it with zero bytes."""
        ...

    def sync(self, handle: int) -> None:
        """Returns when the file's bytes and size are durable. A failure is final for this handle."""
        ...

    def sync_directory(self, path: str) -> None:
        """Returns when the names in the directory are durable."""
        ...

    def stat_handle(self, handle: int) -> FileStat:
        """What the handle refers to."""
        ...

    def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
        """What is at the path; None if nothing is."""
        ...

    def free_bytes(self, path: str) -> int | None:
        """How many bytes may still be written to the file system of `path`; None if it doesn't say."""
        ...

    def copy_mode(self, handle: int, mode: int) -> None:
        """Gives the file these permission bits."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Puts a file in the place of another, atomically."""
        ...

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name, atomically; fails with EEXIST if something has that name."""
        ...

    def unlink(self, path: str) -> None:
        """Removes a name of a file."""
        ...

    def mkdir(self, path: str) -> None:
        """Makes one directory; fails with EEXIST if something is there."""
        ...

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        ...

    def map(self, handle: int, length: int) -> mmap.mmap:
        """The first `length` bytes of the file, mapped for reading."""
        ...

    def map_private(self, handle: int, offset: int, length: int) -> mmap.mmap:
        """Bytes from a multiple of `mmap.ALLOCATIONGRANULARITY` on, mapped so that what is written stays in memory."""
        ...

    def prepare_map(self, handle: int, found: mmap.mmap, start: int, length: int, need: mapping.MapNeed) -> None:
        """Gives bytes of a map of the file what they need; `start` is a multiple of `mmap.PAGESIZE`."""
        ...

    def lock_record(self, handle: int) -> bool:
        """Takes a lock that belongs to this process; False if another process holds it."""
        ...

    def lock_handle(self, handle: int, *, shared: bool = False) -> bool:
        """Takes a lock that belongs to this handle and its copies; False if another handle holds it.

        Several handles may have `shared` ones at a time: so those who only look don't find each other.
        """
        ...

    def point(self, name: str) -> None:
        """Says how far a commit has come. Does nothing; tests end a process here."""
        ...


def byte_view(data: Any) -> memoryview:
    """A contiguous buffer as bytes, without a copy."""
    view = memoryview(data)
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise UsageError("only a contiguous buffer can be read into or written")
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


class PosixFs:
    """The operating system's calls. Short reads and writes go on; interrupted ones are repeated."""

    def __init__(self) -> None:
        self.bytes_read = 0
        """Bytes that `pread_into` has read so far; mapped bytes aren't counted."""
        self._counting = threading.Lock()
        # For errors: a call on a handle should name the file all the same.
        self._paths: dict[int, str] = {}

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        """``open`` with O_CLOEXEC, and with O_NOFOLLOW unless links may be followed."""
        flags = _FLAGS[mode] | _BINARY | (0 if follow else _NO_FOLLOW)
        with _Refusals("open it", path):
            # Python opens with O_CLOEXEC.
            handle = os.open(path, flags, 0o666)
            try:
                # What was made just now is a regular file.
                if mode != "create" and not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise OSError(errno.EINVAL, "Not a regular file")
            except OSError:
                with suppress(OSError):
                    os.close(handle)
                raise
        self._paths[handle] = path
        return handle

    def close(self, handle: int) -> None:
        """``close``."""
        with _Refusals("close it", self._paths.pop(handle, None)):
            os.close(handle)

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        """``preadv`` until the buffer is full or the file ends."""
        view = byte_view(buffer)
        done = 0
        with _Refusals("read it", self._paths.get(handle)):
            while done < len(view):
                count = _pread(handle, offset + done, view[done:])
                if count == 0:
                    break
                done += count
        with self._counting:
            self.bytes_read += done
        return done

    def pread_ranges(self, handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
        """All of them by compiled code, where there is a ``pread``."""
        if sys.platform == "win32":
            return 0
        # Loaded when the first reader needs it, since numba takes its time.
        from cnrfmt.storage.scattered import read_ranges

        done = read_ranges(handle, offsets, length, buffer)
        with self._counting:
            self.bytes_read += min(done * length, len(buffer))
        return done

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        """``pwrite`` until all is written."""
        view = byte_view(data)
        done = 0
        with _Refusals("write it", self._paths.get(handle)):
            while done < len(view):
                done += os.pwrite(handle, view[done:], offset + done)

    def truncate(self, handle: int, size: int) -> None:
        """``ftruncate``."""
        with _Refusals("set its length", self._paths.get(handle)):
            os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """``fdatasync``; on macOS ``F_FULLFSYNC``, which empties the drive's cache, too."""
        with _Refusals("sync it", self._paths.get(handle)):
            _sync(handle)

    def sync_directory(self, path: str) -> None:
        """``fsync`` of the directory."""
        with _Refusals("sync it", path):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            except OSError as error:
                # So a file system says that its directories can't be synced: names are as durable as it makes them.
                if error.errno not in (errno.EINVAL, errno.EBADF):
                    raise
            finally:
                # It was opened for the sync alone, whose answer is what counts.
                with suppress(OSError):
                    os.close(handle)

    def stat_handle(self, handle: int) -> FileStat:
        """``fstat``."""
        with _Refusals("look at it", self._paths.get(handle)):
            return _file_stat(os.fstat(handle))

    def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
        """``stat`` or ``lstat``."""
        with _Refusals("look at it", path):
            try:
                return _file_stat(os.stat(path, follow_symlinks=follow))
            except FileNotFoundError:
                return None

    def free_bytes(self, path: str) -> int | None:
        """``statvfs``."""
        with _Refusals("look at it", path):
            found = os.statvfs(path)
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def copy_mode(self, handle: int, mode: int) -> None:
        """``fchmod``."""
        with _Refusals("set its permissions", self._paths.get(handle)):
            os.fchmod(handle, mode)

    def rename(self, source: str, target: str) -> None:
        """``rename``."""
        with _Refusals("put a file in its place", target):
            os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """``link``."""
        with _Refusals("give a file this name", target):
            os.link(source, target)

    def unlink(self, path: str) -> None:
        """``unlink``."""
        with _Refusals("remove it", path):
            os.unlink(path)

    def mkdir(self, path: str) -> None:
        """``mkdir``."""
        with _Refusals("make this directory", path):
            os.mkdir(path)

    def rmdir(self, path: str) -> None:
        """``rmdir``."""
        with _Refusals("remove this directory", path):
            os.rmdir(path)

    def list_directory(self, path: str) -> list[str]:
        """``readdir``."""
        with _Refusals("list it", path):
            return os.listdir(path)

    def map(self, handle: int, length: int) -> mmap.mmap:
        """``mmap``, shared and read-only."""
        with _Refusals("map it", self._paths.get(handle)):
            return mapping.map_shared(handle, length)

    def map_private(self, handle: int, offset: int, length: int) -> mmap.mmap:
        """``mmap``, private and copied on write."""
        with _Refusals("map it", self._paths.get(handle)):
            return mapping.map_private(handle, offset, length)

    def prepare_map(self, handle: int, found: mmap.mmap, start: int, length: int, need: mapping.MapNeed) -> None:
        """``madvise`` or ``mlock``."""
        with _Refusals(mapping.DOING.get(need, "tell how it is read"), self._paths.get(handle)):
            mapping.meet(found, start, length, need)

    def lock_record(self, handle: int) -> bool:
        """An ``fcntl`` record lock on the whole file."""
        return self._lock(handle, fcntl.lockf)

    def lock_handle(self, handle: int, *, shared: bool = False) -> bool:
        """A ``flock``."""
        return self._lock(handle, fcntl.flock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def _lock(self, handle: int, call: Any, kind: int = fcntl.LOCK_EX) -> bool:
        with _Refusals("lock it", self._paths.get(handle)):
            try:
                call(handle, kind | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                raise
        return True

    def point(self, name: str) -> None:
        """Does nothing."""


POSIX = PosixFs()
"""The file system that is used where none is given."""


def _after_fork() -> None:
    """The thread that counted at the moment of a fork isn't in the child to give the lock back."""
    POSIX._counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Refusals:
    """Turns what the operating system refuses into our own error, which says what was tried."""

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: str, path: str | None = None) -> None:
        self._doing, self._path = doing, path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            text = f"{error.strerror or error} (could not {self._doing})"
            raise StorageError(error.errno, text, self._path) from error


_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


def _file_stat(found: os.stat_result) -> FileStat:
    return FileStat(
        _KINDS.get(stat.S_IFMT(found.st_mode), "other"),
        (found.st_dev, found.st_ino),
        found.st_size,
        stat.S_IMODE(found.st_mode),
        found.st_mtime_ns,
    )


if sys.platform == "win32":
    _seeking = threading.Lock()

    def _pread(handle: int, offset: int, view: memoryview) -> int:
        with _seeking:
            os.lseek(handle, offset, os.SEEK_SET)
            data = os.read(handle, min(len(view), 1 << 30))
        view[: len(data)] = data
        return len(data)

else:

    def _pread(handle: int, offset: int, view: memoryview) -> int:
        # A single call moves less than 2 GiB.
        return os.preadv(handle, [view[: 1 << 30]], offset)


if sys.platform == "darwin":

    def _sync(handle: int) -> None:
        # fsync leaves the bytes in the drive's own cache there.
        try:
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
            os.fsync(handle)

else:

    def _sync(handle: int) -> None:
        os.fdatasync(handle)


def can_write() -> bool:
    """Whether this operating system has what a commit needs."""
    return fcntl is not None
