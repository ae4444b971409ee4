"""What must hold after a crash, on the file system that the crash left."""

from __future__ import annotations

import errno
import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import cnrfmt
from cnrfmt import DamagedError, StorageError
from cnrfmt.storage.fs import PosixFs
from tools import cnrcheck
from tools.crash._disk_mounts import loop_device, mount, unmount
from tools.crash._disk_states import Bytes, Image, read_pages
from tools.crash._disk_workload import FileSystem, Promise
from tools.crash.expected import Expected, check_head, check_newest
from tools.crash.operations import PATHS, step

# What a crash may leave ("What a crash leaves" in the commit protocol), as the validators note it. `verify` sees what
# lies beside a single file, too.
TRACES = {
    "file": {"slots-differ", "commit-unfinished", "bytes-after-end", "uncommitted", "leftover"},
    "directory": {"garbage", "other-file", "leftover"},
}
# Of these a container without a version is the only cause that a crash can be.
EMPTY = {"directory-layout"}
# What a file system answers that finds itself damaged.
_REFUSALS = {errno.EUCLEAN, errno.EBADMSG, errno.EIO, errno.EROFS}


class UnsyncedFs(PosixFs):
    """Waits for no disk."""

    def sync(self, handle: int) -> None:
        """Does nothing."""

    def sync_directory(self, path: str) -> None:
        """Does nothing."""


# For the commit that is tried after a crash: whether it would survive another one is a recording's business.
_UNSYNCED = UnsyncedFs()


class RefusedError(Exception):
    """The file system didn't cope with its own state: it couldn't be mounted, or calls itself damaged."""


class Bench:
    """A place where images of disks are mounted and looked at, one after the other."""

    def __init__(self, place: Path, filesystem: FileSystem, device: Path, handle: int) -> None:
        self.device = device
        self._filesystem, self._handle = filesystem, handle
        self._target = place / "mounted"
        self._target.mkdir(exist_ok=True)

    def check(self, image: Image, pages: Bytes, promise: Promise, seed: int) -> Expected:
        """Mounts an image and tries the container on it; gives what it says, before the append that is tried.

        Raises `AssertionError`, or what the library raised, if the container broke its promise, and `RefusedError`
        if the file system broke its own.
        """
        image.write(self._handle, pages)
        return self.check_written(promise, seed)

    def copy(self, path: Path) -> None:
        """Puts the image in a file on the bench."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            Image(size, pages := read_pages(file.fileno()), []).write(self._handle, np.stack(list(pages.values())))

    def check_written(self, promise: Promise, seed: int) -> Expected:
        """The same with the image that is there."""
        try:
            mount(self.device, self._target, self._filesystem.name)
        except OSError as error:
            raise RefusedError(f"mount: {error.strerror}") from error
        try:
            return check_container(self._target / PATHS[promise.kind], promise, seed)
        except BaseException as error:
            _let_go(error)
            if (refusal := _refusal(error)) is not None:
                raise RefusedError(str(refusal)) from error
            raise
        finally:
            try:
                unmount(self._target)
            except OSError as error:
                # Nothing could be tried after this one.
                raise SystemExit(f"a crashed image can't be unmounted: {error}") from error


@contextmanager
def bench(place: Path, filesystem: FileSystem) -> Iterator[Bench]:
    """A bench in a folder in memory."""
    path = place / "crashed"
    with path.open("wb") as file:
        file.truncate(filesystem.size)
    with path.open("r+b", buffering=0) as file, loop_device(path, direct=False) as device:
        # The validator's maps wait for the collector at each unmount; it needn't look at what is here already.
        gc.freeze()
        try:
            yield Bench(place, filesystem, device, file.fileno())
        finally:
            gc.unfreeze()


def _let_go(error: BaseException | None) -> None:
    """Clears the frames that an error came through: what they hold keeps the file system in use."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _refusal(error: BaseException | None) -> OSError | None:
    """The file system's complaint about itself that an error came from."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _REFUSALS:
            return error
        error = error.__cause__
    return None


def check_container(path: Path, promise: Promise, seed: int) -> Expected:
    """Raises `AssertionError` unless the container is as a crash may leave it, and can be written to.

    It says what was promised; both validators agree on it; the interrupted operation works when it is done again, and
    so does an append after it (the first `save`, where there is no version yet), and they leave a container without
    traces of the crash. Gives what it said before that.
    """
    kind, model = promise.kind, _survivor(path, promise)
    if model.versions:
        check_head(path, model)
    if os.path.lexists(path):
        _check_verdicts(path, kind, model)
    after = model
    names = [promise.interrupted, "append"] if model.versions else ["create"]
    for name in dict.fromkeys("append" if name == "create" and model.versions else name for name in names):
        following = step(name, after, seed, kind)
        assert following.run(path, _UNSYNCED) == following.version, f"{name} once more gave another version"
        after = following.after
    with cnrfmt.open(path, backend="pread", verify="all", threads=1) as ck:
        check_newest(ck, after)
    found = cnrcheck.check_path(path)
    # Segments that no manifest names stay; the writer takes all else away.
    assert {f.error for f in found} <= TRACES[kind] & {"garbage"}, f"the next commit left {[str(f) for f in found]}"
    left = [name for _, _, files in os.walk(path.parent) for name in files if name.startswith(".tmp-")]
    assert not left, f"the next commit left {left}"
    return model


def _survivor(path: Path, promise: Promise) -> Expected:
    """What the container turns out to say, by its head."""
    kind, acknowledged = promise.kind, promise.acknowledged
    allowed = [acknowledged, *promise.pending]
    try:
        with cnrfmt.open(path, backend="pread", threads=1) as ck:
            head = ck.version
    except (StorageError, DamagedError) as error:
        absent = isinstance(error, StorageError) and error.errno == errno.ENOENT
        empty = kind == "directory" and isinstance(error, DamagedError) and error.rule in EMPTY
        if acknowledged.versions:
            raise AssertionError(f"version {acknowledged.head} was acknowledged, and now: {error}") from error
        if not (absent or empty):
            raise
        return acknowledged
    for model in reversed(allowed):
        if model.versions and model.head == head:
            return model
    names = " or ".join(str(model.head) if model.versions else "none" for model in allowed)
    raise AssertionError(f"the head is version {head}, expected {names}")


def _check_verdicts(path: Path, kind: str, model: Expected) -> None:
    """Both validators say the same, and nothing but what a crash leaves."""
    found = cnrcheck.check_path(path)
    verdict = cnrcheck.verdict(found)
    report = cnrfmt.verify(path, threads=1)
    said = f"cnrcheck: {[str(f) for f in found]}, verify: {[str(f) for f in report.findings]}"
    assert verdict == report.verdict, f"the validators disagree: {said}"
    if not model.versions:
        assert {f.error for f in found if f.severity == "damage"} <= EMPTY, said
        return
    assert verdict == "sound", said
    assert {f.error for f in found} | {f.rule for f in report.findings} <= TRACES[kind], said
