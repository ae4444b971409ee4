"""A disk that writes down what happens to it: a file under FUSE, for a loop device to stand on.

Every write is recorded with its bytes, every flush and every mark that the one who works above sets, each
with the moments at which the disk took it and at which it said that it was done. The disk is served by a
process of its own, which touches nothing of the file system above it:

    python -m tools.crash.disk FOLDER

serves `FOLDER/image` as `FOLDER/fuse/disk`, and appends to `FOLDER/log` until `FOLDER/fuse` is unmounted.
"""

from __future__ import annotations

import argparse
import errno
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tools.crash._disk_mounts import die_with_parent, unmount

ROOT = Path(__file__).resolve().parents[2]
# What happened (a letter), which request it was, its offset and the length of the bytes that follow.
_RECORD = struct.Struct("<c7xQQQ")
# How long a request stays under way at least. It makes requests overlap where the file system doesn't wait for
# one before it sends another, so that the log tells which writes a flush promises nothing about.
_UNDER_WAY = 0.0003


@dataclass
class Write:
    """One write. `ended` is None while the disk hasn't said that it was done."""

    offset: int
    data: bytes
    begun: int
    ended: int | None = None


@dataclass
class Flush:
    """One flush: with its end, what had ended when it began is durable."""

    begun: int
    ended: int | None = None


@dataclass
class Log:
    """What happened to a disk, in order; a moment is the number of what happened then."""

    writes: list[Write] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0


def read_log(data: bytes) -> Log:
    """Takes a log apart."""
    log = Log()
    under_way: dict[int, Write | Flush] = {}
    at = 0
    while at < len(data):
        what, request, offset, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        content = data[at : at + length]
        at += length
        if what == b"w":
            log.writes.append(Write(offset, content, log.end))
            under_way[request] = log.writes[-1]
        elif what == b"f":
            log.flushes.append(Flush(log.end))
            under_way[request] = log.flushes[-1]
        elif what == b"e":
            under_way.pop(request).ended = log.end
        else:
            log.marks.append((log.end, content.decode()))
        log.end += 1
    return log


class RecordedDisk:
    """The disk of a folder, served while the context lasts; `path` is the file for a loop device."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "fuse" / "disk"
        self._marks = -1

    def __enter__(self) -> RecordedDisk:
        (self._folder / "fuse").mkdir(exist_ok=True)
        (self._folder / "log").write_bytes(b"")
        command = [sys.executable, "-m", "tools.crash.disk", str(self._folder)]
        # In a session of its own: Ctrl-C is for the one who unmounts, and who needs the disk to answer until then.
        self._server = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._server.stdout is not None
        # The server says a line when the kernel talks to it, or ends.
        if not self._server.stdout.readline():
            _, text = self._server.communicate()
            raise OSError(errno.EIO, f"the recorded disk wasn't served: {text.decode(errors='replace').strip()}")
        self._marks = os.open(self._folder / "fuse" / "marks", os.O_WRONLY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._marks)
        unmount(self._folder / "fuse")
        _, text = self._server.communicate(timeout=30)
        if kind is None and self._server.returncode:
            raise OSError(errno.EIO, f"the recorded disk failed: {text.decode(errors='replace').strip()}")

    def mark(self, text: str) -> None:
        """Puts a mark into the log; it is there when this returns."""
        os.pwrite(self._marks, text.encode(), 0)

    def log(self) -> Log:
        """What has happened so far."""
        return read_log((self._folder / "log").read_bytes())


def serve(folder: Path) -> None:
    """Serves the disk of a folder until it is unmounted."""
    import mfusepy

    die_with_parent()
    image = os.open(folder / "image", os.O_RDWR)
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND)
    size = os.fstat(image).st_size
    lock = threading.Lock()
    requests = 0

    def record(what: bytes, request: int | None = None, offset: int = 0, data: bytes = b"") -> int:
        nonlocal requests
        with lock:
            if request is None:
                request = requests
                requests += 1
            os.writev(log, [_RECORD.pack(what, request, offset, len(data)), data])
        return request

    class Disk(mfusepy.Operations):  # type: ignore[misc, unused-ignore]
        """Two files: `disk`, whose bytes are the image's, and `marks`, which takes what is written there as marks."""

        use_ns = True

        def init(self, path: str) -> None:
            print("serving", flush=True)

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path not in ("/disk", "/marks"):
                raise mfusepy.FuseOSError(errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size if path == "/disk" else 0}

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(image, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            if path == "/marks":
                record(b"m", data=data)
                return len(data)
            request = record(b"w", offset=offset, data=data)
            time.sleep(_UNDER_WAY)
            done = os.pwrite(image, data, offset)
            record(b"e", request)
            return done

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            request = record(b"f")
            time.sleep(_UNDER_WAY)
            record(b"e", request)
            return 0

    mfusepy.FUSE(Disk(), str(folder / "fuse"), foreground=True, fsname="cnrfmt-recorded-disk")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server."""
    parser = argparse.ArgumentParser(prog="python -m tools.crash.disk", description="Serve a recorded disk.")
    parser.add_argument("folder", type=Path)
    serve(parser.parse_args(arguments).folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
