"""The lock that keeps a second writer from a single file.

It is an fcntl record lock on a file of its own beside the container, named with ``.lock`` behind its name.
Such a lock belongs to one process: a forked data loader doesn't inherit it, and it ends with the process,
however that ends. Two properties of it are dealt with here. It doesn't exclude threads of the process that
holds it, hence the registry. And it is lost when the process closes *any* handle of the file, so the file is
never opened while the registry says that it is held, and nothing else opens it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

from cnrfmt.errors import ConflictError, LockedError, StorageError
from cnrfmt.storage.fs import Fs

_MAX_NOTE = 1024
_TRIES = 100


class _Registry:
    """The locks of this process: by file, and by path, should somebody have removed the lock file."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.held: dict[object, str] = {}


_registry = _Registry()


def _forget() -> None:
    """A forked child holds no locks: those that it finds here are its parent's."""
    global _registry
    _registry = _Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class WriterLock:
    """The lock of one container, held from `acquire` to `release`."""

    def __init__(self, fs: Fs, path: str, handle: int, identity: tuple[int, int]) -> None:
        self._fs, self._path, self._handle, self._identity = fs, path, handle, identity
        self._registry, self._process = _registry, os.getpid()

    @classmethod
    def acquire(cls, fs: Fs, container: str) -> WriterLock:
        """Takes the lock of the container at this resolved path, at once or not at all.

        Raises
        ------
        LockedError
            Another writer has it: a thread of this process, or another process, which is named.
        StorageError
            The lock file can't be made, or the file system has no such locks.
        """
        path = container + ".lock"
        registry = _registry
        with registry.mutex:
            for _ in range(_TRIES):
                found = fs.stat(path)
                holder = registry.held.get(path)
                if holder is None and found is not None:
                    holder = registry.held.get(found.identity)
                if holder is not None:
                    raise LockedError(f"{container}: {holder} of this process is writing to it; wait until it is done")
                handle = fs.open(path, "lock")
                try:
                    lock = cls._take(fs, container, path, handle)
                except BaseException:
                    fs.close(handle)
                    raise
                if lock is not None:
                    name = f"thread {threading.current_thread().name!r}"
                    registry.held[path] = registry.held[lock._identity] = name
                    return lock
                # The file was removed or exchanged before it was locked: this lock would exclude nobody.
                fs.close(handle)
        raise LockedError(f"{path}: the lock file is removed again and again; leave it alone")

    @classmethod
    def _take(cls, fs: Fs, container: str, path: str, handle: int) -> WriterLock | None:
        if not fs.lock_record(handle):
            raise LockedError(f"{container}: {_holder(fs, handle)} is writing to it; wait until it is done, or end it")
        identity = fs.stat_handle(handle).identity
        at_path = fs.stat(path)
        if at_path is None or at_path.identity != identity:
            return None
        note = f"process {os.getpid()} on {socket.gethostname()}, since {_now()}\n".encode()
        # The lock is what counts: on a full disk it goes without the note.
        with suppress(StorageError):
            fs.truncate(handle, 0)
            fs.pwrite(handle, 0, note)
        return cls(fs, path, handle, identity)

    def check(self) -> None:
        """Raises `ConflictError` if the lock file was removed, so that others may hold a lock, too."""
        found = self._fs.stat(self._path)
        if found is None or found.identity != self._identity:
            raise ConflictError(
                f"{self._path}: the lock file was removed or exchanged while it was held, so another "
                "writer may have been here; nothing was committed: try again, and leave lock files alone"
            )

    def release(self) -> None:
        """Gives the lock back; in a forked child, closes the copy of the handle alone."""
        # The handle is closed in any case, and with it the lock is gone.
        with suppress(StorageError):
            self._fs.close(self._handle)
        if self._process == os.getpid():
            with self._registry.mutex:
                for key in (self._path, self._identity):
                    self._registry.held.pop(key, None)


def _holder(fs: Fs, handle: int) -> str:
    """Who wrote the note in a lock file: for the message alone, the lock is what counts."""
    buffer = bytearray(_MAX_NOTE)
    try:
        note = bytes(buffer[: fs.pread_into(handle, 0, buffer)])
    except StorageError:
        note = b""
    text = note.decode("ascii", "replace").strip()
    return text if text.isprintable() and text else "another process"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
