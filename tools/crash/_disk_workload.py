"""What is recorded: operations on a container that lies on a file system, on a recorded disk."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cnrfmt.storage.fs import Fs, PosixFs
from tools.crash._disk_mounts import loop_device, mount, start_writeback, sync_file_system, unmount
from tools.crash._disk_states import Bytes, Epoch, read_pages
from tools.crash.disk import Log, RecordedDisk
from tools.crash.expected import Expected
from tools.crash.operations import PATHS, Step, fitting, step

_TOLD = "told of version "
"""The mark for a version that was acknowledged before its operation was done."""


@dataclass(frozen=True)
class FileSystem:
    """A file system with the options that it makes for itself; `blocks` are the sizes of block that are tried."""

    name: str
    size: int
    blocks: tuple[int, ...]
    program: tuple[str, ...]

    def make(self, path: Path, block: int) -> None:
        """Makes an empty one in a file."""
        with path.open("wb") as file:
            file.truncate(self.size)
        words = [word.format(block=block) for word in self.program]
        subprocess.run([*words, str(path)], check=True, stdout=subprocess.DEVNULL)


FILESYSTEMS = {
    filesystem.name: filesystem
    for filesystem in (
        # With lazy_itable_init, the kernel would go on with making it while the steps run.
        FileSystem("ext4", 16 << 20, (4096, 1024), ("mkfs.ext4", "-qF", "-E", "lazy_itable_init=0", "-b", "{block}")),
        FileSystem("xfs", 300 << 20, (4096,), ("mkfs.xfs", "-q", "-f")),
        FileSystem("btrfs", 128 << 20, (4096,), ("mkfs.btrfs", "-q", "-f")),
    )
}


@dataclass(frozen=True)
class Start:
    """What a recording begins with: a disk, and what the container on it says (nothing, where there is none)."""

    kind: str
    block: int
    pages: dict[int, Bytes]
    model: Expected


@dataclass(frozen=True)
class Promise:
    """What a container must say after a crash: what was acknowledged, or one of those that were pending.

    `interrupted` is the operation that the crash came into.
    """

    kind: str
    acknowledged: Expected
    pending: tuple[Expected, ...] = ()
    interrupted: str = "append"


@dataclass(frozen=True)
class Recording:
    """What was done to a container, and what that did to the disk."""

    start: Start
    steps: tuple[Step, ...]
    log: Log

    def promised(self, epoch: Epoch) -> Promise:
        """What the container says after a crash in an epoch."""
        begun, done = (sum(mark == what for mark in epoch.marks) for what in ("begun", "done"))
        kind = self.start.kind
        if begun == done:
            return Promise(kind, self.steps[done - 1].after if done else self.start.model)
        doing = self.steps[done]
        told = [int(mark.removeprefix(_TOLD)) for mark in epoch.marks if mark.startswith(_TOLD)]
        acknowledged, *pending = doing.possible(told)
        return Promise(kind, acknowledged, tuple(pending), doing.operation.name)


class RestlessFs(PosixFs):
    """Has the kernel write back what it holds at moments that nobody asked for, as it may."""

    def __init__(self, random: Random, root: Path) -> None:
        super().__init__()
        self._random, self._root = random, root

    def _perhaps(self, handle: int | None = None) -> None:
        what = self._random.random()
        if what < 0.15:
            root = os.open(self._root, os.O_RDONLY)
            try:
                sync_file_system(root)
            finally:
                os.close(root)
        elif what < 0.4 and handle is not None:
            start_writeback(handle)

    def pwrite(self, handle: int, offset: int, data: Any) -> None:
        super().pwrite(handle, offset, data)
        self._perhaps(handle)

    def truncate(self, handle: int, size: int) -> None:
        super().truncate(handle, size)
        self._perhaps(handle)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._perhaps()

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self._perhaps()

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._perhaps()

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self._perhaps()


def _flush(device: Path) -> None:
    handle = os.open(device, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fresh(place: Path, filesystem: FileSystem, random: Random) -> Start:
    """An empty file system, for either kind of container."""
    block = random.choice(filesystem.blocks)
    filesystem.make(place / "image", block)
    with open(place / "image", "rb") as file:
        return Start(random.choice(list(PATHS)), block, read_pages(file.fileno()), Expected())


def steps_from(model: Expected, kind: str, random: Random, count: int) -> tuple[Step, ...]:
    """Steps drawn by lot, the first one `create` where there is no container yet."""
    steps: list[Step] = []
    for _ in range(count):
        steps.append(step(random.choice(fitting(model, kind)), model, random.getrandbits(32), kind))
        model = steps[-1].after
    return tuple(steps)


def record(
    place: Path, filesystem: FileSystem, start: Start, steps: tuple[Step, ...], fs: Fs | None = None
) -> Recording:
    """Mounts the file system on a recorded disk in `place`, takes the steps and unmounts it."""
    with open(place / "image", "wb") as file:
        file.truncate(filesystem.size)
        for number, content in start.pages.items():
            os.pwrite(file.fileno(), content.tobytes(), number * len(content))
    target = place / "recorded"
    target.mkdir(exist_ok=True)
    with RecordedDisk(place) as disk:
        with loop_device(disk.path, direct=True) as device:
            mount(device, target, filesystem.name)
            try:
                # A flush, so that what the mount itself wrote is settled before the first step.
                _flush(device)
                disk.mark("ready")
                for one in steps:
                    disk.mark("begun")
                    one.run(target / PATHS[start.kind], fs, lambda version: disk.mark(f"{_TOLD}{version}"))
                    disk.mark("done")
            finally:
                unmount(target)
        return Recording(start, steps, disk.log())
