"""A disk that fails: the kinds of `Fault`, and `FaultyFs`, which meets one of them at a chosen call.

The files are real ones; what a fault adds is the refusal, and what the operating system makes of it.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import StorageError
from cnrfmt.storage import locks
from cnrfmt.storage.fs import Fs, PosixFs, byte_view

PAGE = 4096

OPENING = frozenset({"open-read", "open-write", "open-create", "open-lock"})
CALLS = frozenset(n for n in vars(Fs) if not n.startswith("_")) - {"open", "point"} | OPENING
"""Every call of the protocol `Fs`, opening by its mode: a call that is added joins by itself."""
LOOKING = frozenset({"open-read", "pread_into", "stat", "stat_handle", "list_directory"})
"""What a writer does to see what became of a step that was refused."""
REMOVING = frozenset({"unlink", "rmdir"})
NAMING = frozenset({"rename", "link"})
CHANGING = NAMING | REMOVING | {"pwrite", "truncate", "copy_mode", "mkdir"}
READING = frozenset({"pread_into", "pread_ranges"})
SYNCING = frozenset({"sync", "sync_directory"})
SPACE = NAMING | SYNCING | {"open-create", "open-lock", "pwrite", "truncate", "mkdir"}
"""What may ask for space."""

Moment = Literal["before", "torn", "after", "half", "byte"]
Pages = Literal["kept", "lost", "lost later"]


@dataclass(frozen=True)
class Fault:
    """One way in which a disk fails.

    Attributes
    ----------
    name
        What reports call it.
    code
        The error number that a call which meets it gives; 0 if it isn't refused.
    calls
        Those that may meet it.
    moment
        A refused call does nothing (``"before"``), writes a part of its bytes (``"torn"``), or does all and its answer
        is lost (``"after"``). ``"half"`` and ``"byte"``: the kernel moves half of what it is asked for or one byte.
    pages
        What a failed sync does to the pages that it couldn't write, which the kernel holds for clean from then on:
        they stay in memory, or their old content is read from the disk again at once, or at some later time.
    """

    name: str
    code: int
    calls: frozenset[str]
    moment: Moment = "before"
    pages: Pages = "kept"


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("EIO", errno.EIO, CALLS),
        Fault("EINTR", errno.EINTR, CALLS),
        Fault("ESTALE", errno.ESTALE, CALLS),
        Fault("ENOSPC", errno.ENOSPC, SPACE),
        Fault("EDQUOT", errno.EDQUOT, SPACE),
        Fault("EROFS", errno.EROFS, CHANGING | {"open-write", "open-create", "open-lock"}),
        Fault("EMFILE", errno.EMFILE, OPENING | {"sync_directory", "list_directory"}),
        Fault("ENOMEM", errno.ENOMEM, frozenset({"map"})),
        Fault("ENOLCK", errno.ENOLCK, frozenset({"lock_record", "lock_handle"})),
        Fault("EACCES on removing", errno.EACCES, REMOVING),
        Fault("EIO on writing", errno.EIO, frozenset({"pwrite"})),
        Fault("torn write", errno.EIO, frozenset({"pwrite"}), "torn"),
        Fault("sync, pages kept", errno.EIO, SYNCING),
        Fault("sync, pages lost", errno.EIO, SYNCING, pages="lost"),
        Fault("sync, pages lost later", errno.EIO, SYNCING, pages="lost later"),
        Fault("EIO on naming", errno.EIO, NAMING),
        Fault("EXDEV", errno.EXDEV, NAMING),
        Fault("EACCES", errno.EACCES, NAMING),
        Fault("ENOENT", errno.ENOENT, NAMING),
        Fault("answer lost", errno.EIO, CHANGING, "after"),
        Fault("answer lost, repeated", errno.EEXIST, frozenset({"link", "mkdir"}), "after"),
        Fault("half moved", 0, READING | {"pwrite"}, "half"),
        Fault("one byte moved", 0, READING | {"pwrite"}, "byte"),
    )
}


@dataclass
class Call:
    """A call as it was made: its kind, the path it was about (with the offset of a write), and how it went.

    `code` is the error number that it gave; `done` tells whether it took effect nevertheless, whole or in part.
    """

    kind: str
    where: str
    code: int = 0
    done: bool = True


class Killed(BaseException):
    """The end of a process, in the engine's own."""


class _Pages:
    """What the disk has of the pages that differ in memory: dirty ones, and those that a failed sync gave up."""

    def __init__(self) -> None:
        self._dirty: dict[tuple[tuple[int, int], int], bytes] = {}
        self._given_up: dict[tuple[tuple[int, int], int], bytes] = {}

    def writing(self, handle: int, offset: int, length: int) -> None:
        """Some bytes are about to be written."""
        file = _identity(os.fstat(handle))
        for number in range(offset // PAGE, -(-(offset + length) // PAGE)):
            # A page that was given up is dirty again, whole, once a byte of it is written.
            old = self._given_up.pop((file, number), None)
            if (file, number) not in self._dirty:
                self._dirty[file, number] = os.pread(handle, PAGE, number * PAGE) if old is None else old

    def cut(self, handle: int, size: int) -> None:
        """The pages behind this size are gone."""
        file = _identity(os.fstat(handle))
        for pages in (self._dirty, self._given_up):
            for key in [k for k in pages if k[0] == file and k[1] * PAGE >= size]:
                del pages[key]

    def synced(self, handle: int, ok: bool) -> None:
        """A sync of the file has ended."""
        file = _identity(os.fstat(handle))
        for key in [k for k in self._dirty if k[0] == file]:
            old = self._dirty.pop(key)
            if not ok:
                self._given_up[key] = old

    def forget(self, folder: str) -> None:
        """Memory drops its clean pages: those that were given up read as what the disk has."""
        for path in _files(folder):
            found = os.stat(path)
            for (file, number), old in self._given_up.items():
                if file == _identity(found):
                    with open(path, "r+b") as stream:
                        stream.seek(number * PAGE)
                        stream.write(old.ljust(PAGE, b"\0")[: max(0, found.st_size - number * PAGE)])
        self._given_up.clear()


class FaultyFs(PosixFs):
    """Real files on a disk that meets `fault` at the `k`-th call that may meet it, and at all later ones if `lasting`.

    `log` has all calls, those that the operating system itself refused included.

    Parameters
    ----------
    folder
        Where the container is; needed for faults that lose pages.
    die_at
        The point (`Fs.point`) at which the process ends by raising `Killed`.
    waits
        Whether a sync really waits for the disk; what a failed one does is played by the pages that are kept track of.
    """

    def __init__(
        self,
        fault: Fault | None = None,
        k: int = 1,
        *,
        lasting: bool = False,
        folder: str = "",
        die_at: str = "",
        waits: bool = False,
    ) -> None:
        super().__init__()
        self._waits = waits
        self.fault, self.k, self.lasting = fault, k, lasting
        self.log: list[Call] = []
        self.handles: set[int] = set()
        self._met = 0
        self._dead, self._die_at = False, die_at
        self._pages, self._folder = _Pages(), folder

    @property
    def met(self) -> bool:
        """Whether a call has met the fault."""
        return self._met >= self.k

    def begin(self, fault: Fault, k: int, *, lasting: bool) -> None:
        """From now on the disk fails: the `k`-th call from here on that may meet the fault meets it."""
        self.fault, self.k, self.lasting, self._met = fault, k, lasting, 0

    def heal(self) -> None:
        """From now on the disk is well; pages that were given up stay so."""
        self.fault = None

    def lose_pages(self) -> None:
        """Lets memory drop the pages that a failed sync gave up."""
        self._pages.forget(self._folder)

    def end_process(self) -> None:
        """What the operating system does when a process has ended: its handles and locks are gone."""
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()
        locks._forget()

    def point(self, name: str) -> None:
        """Ends the process where that was asked for."""
        self._dead = self._dead or name == self._die_at
        if self._dead:
            raise Killed

    def _meets(self, kind: str) -> Fault | None:
        if self.fault is None or kind not in self.fault.calls:
            return None
        self._met += 1
        return self.fault if self._met == self.k or (self.lasting and self._met > self.k) else None

    def _call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._dead:
            if name == "close":
                return None  # Of an object that is collected: `end_process` closes the handle.
            raise Killed
        call = Call(f"open-{args[1]}" if name == "open" else name, self._where(name, args))
        self.log.append(call)
        fault = self._meets(call.kind)
        if fault is None:
            try:
                return self._do(name, real, args, options)
            except StorageError as error:
                call.code, call.done = error.errno or 0, False
                raise
        if fault.moment in ("half", "byte"):
            with short_transfers(fault.moment == "byte"):
                return self._do(name, real, args, options)
        call.code, call.done = fault.code, fault.moment != "before" or name == "close"
        if fault.moment == "torn":
            handle, offset, data = args
            view = byte_view(data)
            self._do(name, real, (handle, offset, view[: min(len(view) // 2, 50)]), {})
        elif call.done:
            # A handle is closed even if closing it gives an error.
            self._do(name, real, args, options)
        elif name == "sync":
            self._pages.synced(args[0], ok=False)
            if fault.pages == "lost":
                self.lose_pages()
        text = f"{os.strerror(fault.code)} (could not {name} it)"
        raise StorageError(fault.code, text, call.where.partition("@")[0])

    def _do(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name == "close":
            self.handles.discard(args[0])
        if not self._waits:
            if name == "sync_directory":
                return None
            if name == "sync":
                return self._pages.synced(args[0], ok=True)
            if name == "pwrite":
                self._pages.writing(args[0], args[1], byte_view(args[2]).nbytes)
            elif name == "truncate":
                self._pages.cut(args[0], args[1])
        result = real(self, *args, **options)
        if name == "open":
            self.handles.add(result)
            if args[1] == "create" and not self._waits:
                # The number of a file that was removed may be given to another.
                self._pages.cut(result, 0)
        return result

    def _where(self, name: str, args: tuple[Any, ...]) -> str:
        if name in NAMING:
            return str(args[1])
        if isinstance(args[0], str):
            return args[0]
        path = self._paths.get(args[0], "")
        return f"{path}@{args[1]}" if name == "pwrite" else path


def _wrapped(name: str) -> Callable[..., Any]:
    real = getattr(PosixFs, name)

    @functools.wraps(real)
    def call(self: FaultyFs, *args: Any, **options: Any) -> Any:
        return self._call(name, real, args, options)

    return call


for _name in sorted(CALLS - OPENING | {"open"}):
    setattr(FaultyFs, _name, _wrapped(_name))


@contextmanager
def short_transfers(one_byte: bool) -> Iterator[None]:
    """The kernel moves one byte, or half of what it is asked for and at least one byte, at each read and write."""

    def few(length: int) -> int:
        return min(length, 1 if one_byte else max(1, length // 2))

    def preadv(handle: int, buffers: list[memoryview], offset: int) -> int:
        return real_preadv(handle, [buffers[0][: few(len(buffers[0]))]], offset)

    def pwrite(handle: int, data: memoryview, offset: int) -> int:
        return real_pwrite(handle, data[: few(len(data))], offset)

    def read_ranges(handle: int, offsets: Ids, length: int, buffer: Bytes) -> int:
        # A range that comes short ends the batch: the caller asks for it by itself.
        whole = len(offsets) if length == few(length) else few(len(offsets)) - 1
        return int(real_ranges(handle, offsets[:whole], length, buffer[: whole * length]))

    from cnrfmt.storage import scattered

    real_preadv, real_pwrite, real_ranges = os.preadv, os.pwrite, scattered.read_ranges
    with (
        mock.patch.object(os, "preadv", preadv),
        mock.patch.object(os, "pwrite", pwrite),
        mock.patch.object(scattered, "read_ranges", read_ranges),
    ):
        yield


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _files(folder: str) -> list[str]:
    return [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names]
