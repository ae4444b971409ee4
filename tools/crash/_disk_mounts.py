"""Mounts and loop devices by system calls, and a folder for them that is cleared whatever happens."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.progress import undisturbed

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_MNT_DETACH = 2
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LOOP_CLR_FD = 0x4C82, 0x4C0A, 0x4C01
_LO_FLAGS_DIRECT_IO = 16
# struct loop_config: the file, the block size, struct loop_info64 and what is reserved.
_LOOP_CONFIG = struct.Struct("=II QQQQQIIII64s64s32sQQ 64x")
_PREFIX = "cnrfmt-recorded-disk-"
_SHARED_MEMORY = Path("/dev/shm")
# How long the kernel gets to let go of what was in use a moment ago.
_PATIENCE = 20.0


def die_with_parent() -> None:
    """Has the kernel kill this process when the one that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def mount(source: Path, target: Path, filesystem: str) -> None:
    """``mount`` with the file system's own options."""
    if _LIBC.mount(os.fsencode(source), os.fsencode(target), filesystem.encode(), 0, None):
        _raise(f"mount {filesystem} at", target)


def unmount(target: Path) -> None:
    """``umount``; waits a while for others to let go."""
    end = time.monotonic() + _PATIENCE
    while _LIBC.umount2(os.fsencode(target), 0):
        if ctypes.get_errno() != errno.EBUSY or time.monotonic() > end:
            _raise("unmount", target)
        # A map that waits for the collector keeps its file in use.
        if not gc.collect():
            time.sleep(0.001)


def sync_file_system(handle: int) -> None:
    """``syncfs`` of the file system that a handle is on."""
    if _LIBC.syncfs(handle):
        _raise("sync the file system of", Path(f"handle {handle}"))


def start_writeback(handle: int) -> None:
    """``sync_file_range``: the kernel writes what it has of a file, without any promise."""
    everything = ctypes.c_longlong(0)
    if _LIBC.sync_file_range(handle, everything, everything, 7):
        _raise("write back", Path(f"handle {handle}"))


def _raise(doing: str, path: Path) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{os.strerror(code)} (could not {doing} it)", str(path))


@contextmanager
def loop_device(path: Path, *, direct: bool) -> Iterator[Path]:
    """A loop device on a file; `direct` passes every write on at once, past the page cache.

    The device isn't held open, so that the kernel forgets what it cached of it at each unmount.
    """
    with open(path, "r+b", buffering=0) as backing:
        device = _attach(backing.fileno(), direct)
    try:
        yield device
    finally:
        _detach(device)


def _attach(backing: int, direct: bool) -> Path:
    flags = _LO_FLAGS_DIRECT_IO if direct else 0
    config = _LOOP_CONFIG.pack(backing, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"", 0, 0)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            device = Path(f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}")
            handle = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(handle, _LOOP_CONFIGURE, config)
                return device
            except OSError as error:
                # Another process was quicker to take this one.
                if error.errno != errno.EBUSY:
                    raise
            finally:
                os.close(handle)
    finally:
        os.close(control)


def _detach(device: Path) -> None:
    handle = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, _LOOP_CLR_FD)
    finally:
        os.close(handle)


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder in memory for images and mounts.

    It is cleared at the end, and so are those of earlier runs that were killed: each is locked by its owner.
    """
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        if (lock := _take(folder)) is not None:
            _clear(folder)
            os.close(lock)
    folder, lock = _new_folder(parent)
    try:
        yield folder
    finally:
        _clear(folder)
        os.close(lock)


def _new_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _take(folder)
        if lock is not None:
            if folder.exists():
                return folder, lock
            os.close(lock)
        # Another run took it for a dead one's before it was locked, and clears it.


def _take(folder: Path) -> int | None:
    """The lock on a folder; None if its owner is alive."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def mounts_under(folder: Path) -> list[Path]:
    """What is mounted in a folder, the newest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    # The kernel writes a blank in a name as \040.
    names = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4]) for line in lines]
    return [Path(name) for name in reversed(names) if Path(name).is_relative_to(folder)]


def loops_under(folder: Path) -> list[Path]:
    """The loop devices whose files are in a folder."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        # A device may vanish while one looks.
        try:
            name = backing.read_text().rstrip("\n").removesuffix(" (deleted)")
        except OSError:
            continue
        if Path(name).is_relative_to(folder):
            found.append(Path("/dev") / backing.parts[3])
    return found


@undisturbed()
def _clear(folder: Path) -> None:
    # Each may be gone in between, or refuse because its disk is; whatever stays is seen by the next run.
    for target in mounts_under(folder):
        if target.name != "fuse":
            _LIBC.umount2(os.fsencode(target), _MNT_DETACH)
    for device in loops_under(folder):
        try:
            _detach(device)
        except OSError as error:
            print(f"{device} couldn't be detached: {error}", file=sys.stderr)
    for target in mounts_under(folder):
        _LIBC.umount2(os.fsencode(target), _MNT_DETACH)
    shutil.rmtree(folder, ignore_errors=True)
