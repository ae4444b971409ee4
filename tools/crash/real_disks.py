"""Disks that really fail: one that is full, one on which no file may grow, and one that is lost in the midst of it.

A tmpfs is filled up to its last pages or its last inodes; a limit of the process (``RLIMIT_FSIZE``) cuts writes short,
and refuses the next; an ext4 on a loop device gives up its journal and is read-only from a given call on, and is then
mounted anew, which brings back what was durable and no more.

Mounting needs rights: `reason_against` says why it can't be done here.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tools.crash.aftermath import LockProbe, Outcome
from tools.crash.faults import Workload, workloads
from tools.crash.faulty_fs import FaultyFs
from tools.crash.tally import Trial

TMPFS_BYTES, EXT4_BYTES = 1 << 20, 8 << 20
SIZE_STEP = 1100
"""Limits on the size of a file are tried in such steps, most of which end within a page."""


class MountError(Exception):
    """Mounting was refused."""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MountError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """Something mounted at a folder: the options of ``mount`` but the folder."""
    place.mkdir(parents=True, exist_ok=True)
    _run("mount", *options, str(place))
    try:
        yield
    finally:
        for pause in (0.01, 0.1, 1.0, 0.0):
            try:
                _run("umount", str(place))
                break
            except MountError as error:
                # The kernel may look at a new mount for a moment. A handle that was left open is found by the last try.
                if not pause:
                    raise AssertionError(f"something is still open: {error}") from error
                time.sleep(pause)


@functools.cache
def reason_against(kind: str) -> str:
    """Why a disk of this kind (``"tmpfs"`` or ``"ext4"``) can't be mounted here; empty if it can."""
    with tempfile.TemporaryDirectory() as folder:
        place, image = Path(folder, "disk"), Path(folder, "image")
        try:
            if kind == "tmpfs":
                with mounted(place, "-t", "tmpfs", "none"):
                    pass
            else:
                make_ext4(image)
                with mounted(place, "-o", "loop", str(image)):
                    _run("mount", "-o", "remount,abort", str(place))
        except (MountError, FileNotFoundError) as error:
            return f"no {kind} can be mounted here: {error}"
    return ""


def make_ext4(image: Path) -> None:
    """A file with an empty ext4."""
    with image.open("wb") as file:
        file.truncate(EXT4_BYTES)
    _run("mkfs.ext4", "-q", "-F", str(image))


def _free_pages(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_bsize // 4096


@dataclass(frozen=True)
class DiskTrial(Trial):
    """An operation on a disk that fails."""

    on: Workload
    mode: ClassVar[str]

    def judge(self, outcome: Outcome, fs: FaultyFs, probe: LockProbe, *, names: bool = True) -> Outcome:
        """What must hold afterwards, on a disk that is well again; also what a caller does next must work."""
        self.on.judge(fs.log, outcome, probe, names=names)
        self.on.go_on(outcome, FaultyFs(waits=True))
        return outcome


@dataclass(frozen=True)
class FullDisk(DiskTrial):
    """An operation on a tmpfs with so many pages or inodes left."""

    disk: Path
    what: str
    left: int
    mode = "tmpfs, full"

    @property
    def at(self) -> str:
        """What is left."""
        return f"{self.left} {self.what} left"

    def go(self, probe: LockProbe) -> Outcome:
        """Does it."""
        with mounted(self.disk, "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},nr_inodes=100", "none"):
            self.on.reset()
            ballast = self.disk / "ballast"
            ballast.mkdir()
            if self.what == "pages":
                (ballast / "pages").write_bytes(bytes(4096 * (_free_pages(self.disk) - self.left)))
            else:
                for number in range(os.statvfs(self.disk).f_ffree - self.left):
                    (ballast / str(number)).touch()
            fs = FaultyFs(waits=True)
            outcome = self.on.attempt(fs)
            shutil.rmtree(ballast)
            return self.judge(outcome, fs, probe)


@dataclass(frozen=True)
class SizeLimit(DiskTrial):
    """An operation of a process whose files mustn't be longer than `limit` bytes."""

    limit: int
    mode = "RLIMIT_FSIZE"

    @property
    def at(self) -> str:
        """The limit."""
        return f"{self.limit} bytes"

    def go(self, probe: LockProbe) -> Outcome:
        """Does it."""
        self.on.reset()
        fs = FaultyFs(waits=True)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Python ignores the signal, so a write beyond the limit is cut short or refused with EFBIG.
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, before[1]))
        try:
            outcome = self.on.attempt(fs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return self.judge(outcome, fs, probe)


class _LosingFs(FaultyFs):
    """Loses the disk before the call `k`: it is read-only from then on, and what wasn't durable is gone for good."""

    def __init__(self, disk: Path, k: int) -> None:
        super().__init__(waits=True)
        self._disk, self._at = disk, k

    def _call(self, *args: Any) -> Any:
        if len(self.log) + 1 == self._at:
            _run("mount", "-o", "remount,abort", str(self._disk))
        return super()._call(*args)


@dataclass(frozen=True)
class LostDisk(DiskTrial):
    """An operation on an ext4 that is read-only before its `k`-th call."""

    disk: Path
    empty: Path
    k: int
    mode = "ext4, lost"

    @property
    def at(self) -> str:
        """The call."""
        return f"at call {self.k}"

    def go(self, probe: LockProbe) -> Outcome:
        """Does it."""
        image = str(shutil.copyfile(self.empty, self.empty.with_name("image")))
        with mounted(self.disk, "-o", "loop", image):
            self.on.reset()
            _run("sync", "-f", str(self.disk))
            fs = _LosingFs(self.disk, self.k)
            outcome = self.on.attempt(fs)
        with mounted(self.disk, "-o", "loop", image):
            # What was removed just before may be there again.
            return self.judge(outcome, fs, probe, names=False)


def full_disks(seed: int, scratch: Path) -> Iterator[FullDisk]:
    """Every operation with 0, 1, 2, ... pages and inodes left, up to one more than it needs."""
    disk = scratch / "full"
    for work in workloads(scratch, seed, disk / "work"):
        with mounted(disk, "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "none"):
            work.reset()
            lowest = before = _free_pages(disk)

            class Watching(FaultyFs):
                def _call(self, *args: Any) -> Any:
                    nonlocal lowest
                    result = super()._call(*args)
                    lowest = min(lowest, _free_pages(disk))
                    return result

            work.attempt(Watching(waits=True))
            need = before - lowest
        yield from (FullDisk(work, disk, "pages", left) for left in range(need + 2))
        yield from (FullDisk(work, disk, "inodes", left) for left in range(8))


def size_limits(seed: int, scratch: Path) -> Iterator[SizeLimit]:
    """Every operation with every limit, up to one that is in nobody's way."""
    for work in workloads(scratch, seed):
        work.reset()
        work.attempt(FaultyFs())
        longest = max((size for size in _sizes(work.folder)), default=0)
        yield from (SizeLimit(work, limit) for limit in range(0, longest + SIZE_STEP, SIZE_STEP))


def _sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def lost_disks(seed: int, scratch: Path) -> Iterator[LostDisk]:
    """Every operation with the disk lost before each of its calls."""
    empty, disk = scratch / "empty", scratch / "lost"
    make_ext4(empty)
    for work in workloads(scratch, seed, disk / "work"):
        yield from (LostDisk(work, disk, empty, k) for k in range(1, len(work.log) + 1))


def trials(seed: int, scratch: Path) -> Sequence[Trial]:
    """All that can be tried here."""
    for name in ("limits", "full", "lost"):
        (scratch / name).mkdir(parents=True)
    found: list[Trial] = [*size_limits(seed, scratch / "limits")]
    if reason := reason_against("tmpfs"):
        print(f"left out: {reason}")
    else:
        found += full_disks(seed, scratch / "full")
    if reason := reason_against("ext4"):
        print(f"left out: {reason}")
    else:
        found += lost_disks(seed, scratch / "lost")
    return found
