"""What the tests of storage share: small containers that tell whether they are whole, and faulty disks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnrfmt.errors import StorageError
from cnrfmt.format.digests import digest, new_id
from cnrfmt.format.manifest import ChainEntry, Manifest, Retained, pack_manifest, parse_manifest
from cnrfmt.storage import locks
from cnrfmt.storage.container import Container, Transaction, begin, open_container
from cnrfmt.storage.fs import Fs, OpenMode, PosixFs


def payload(seed: int, rows: int = 700) -> np.ndarray:
    """Rows that look like a trained table: smooth, with a few rows that stand out. Not a multiple of a page."""
    row, column = np.mgrid[:rows, :8]
    values = np.sin(row / 50 + seed) * np.cos(column + 1.0)
    values[:: 97 + seed] *= 30
    return values.astype(np.float32)


def next_manifest(tx: Transaction, data: np.ndarray | None, *, fresh: bool = False) -> Manifest:
    """Writes a segment, if there are data, and gives the manifest of the version that has it."""
    head = None if tx.head_bytes is None else parse_manifest(tx.head_bytes, tx.path)
    chain = () if head is None or fresh else head.chain
    state = new_id()
    if data is not None:
        segment_id = new_id()
        sink = tx.segment(segment_id, size_hint=data.nbytes)
        half = len(data) // 2
        sink.write(data[:half])
        sink.write(data[half:])
        sink.finish()
        from_state = chain[-1].to_state if chain else None
        # Storage doesn't look into segments, so these have no trailer: its digest is that of all bytes.
        chain += (ChainEntry(segment_id, from_state, state, sink.offset, data.nbytes, digest(data)),)
    else:
        state = chain[-1].to_state
    versions: tuple[Any, ...] = ()
    if head is not None and not (fresh and tx.kind == "file"):
        own = Retained(head.version, tx.head_offset, head.length, head.digest)
        versions = (*head.versions, own)
    return Manifest(
        container_id=tx.container_id,
        version=0 if head is None else head.version + 1,
        state=state,
        commit_id=new_id(),
        step=None,
        created="2024-02-29T12:00:00Z",
        created_by="tests",
        parent=None if head is None else (head.version, head.digest),
        tables=(),
        chain=chain,
        versions=versions,
    )


def finish(tx: Transaction, manifest: Manifest) -> int:
    """Commits the manifest."""
    data = pack_manifest(manifest)
    mark = int.from_bytes(data[-8:], "little")
    tx.commit(data, version=manifest.version, commit_id=manifest.commit_id, digest=mark)
    return manifest.version


def commit(path: Path | str, data: np.ndarray | None, *, fresh: bool = False, fs: Fs | None = None) -> int:
    """One version: a baseline if `fresh`, else a delta."""
    with begin(path, replace=fresh, fs=fs) as tx:
        return finish(tx, next_manifest(tx, data, fresh=fresh))


def two_versions(path: Path) -> Path:
    """A container with a baseline and a delta."""
    commit(path, payload(0), fresh=True, fs=QuickFs())
    commit(path, payload(1), fs=QuickFs())
    return path


def manifest_file(path: Path, version: int) -> Path:
    """Where a directory has the manifest of a version."""
    return path / "manifests" / f"{version:020}.cnrm"


def contents(container: Container, manifest: Manifest) -> list[bytes]:
    """The payloads of a version, after a check that each is what was written."""
    found = []
    for entry in manifest.chain:
        source = container.segment(entry)
        buffer = np.empty(source.length, np.uint8)
        source.pread_into(0, buffer)
        assert digest(buffer) == entry.trailer_digest
        assert np.array_equal(buffer, source.map())
        found.append(buffer.tobytes())
    return found


def check_whole(path: Path | str) -> Manifest:
    """Reads the head and every version that it retains, whole; gives the head's manifest."""
    with open_container(path) as container:
        data, version, _ = container.head()
        head = parse_manifest(data, str(path))
        assert head.version == version
        contents(container, head)
        for retained in head.versions:
            old = parse_manifest(container.read_manifest(retained), str(path))
            assert (old.version, old.digest) == (retained.version, retained.digest)
            contents(container, old)
        return head


def leftovers(path: Path) -> list[Path]:
    """Unfinished files of a container."""
    return [p for p in [*path.parent.rglob(".tmp-*")] if p.exists()]


# Other tests may have left threads waiting in a pool; the children here use nothing of theirs.
FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def run_in_child(body: Callable[[], object]) -> int:
    """Runs a function in a forked child; gives its exit status, 0 if it returned."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class QuickFs(PosixFs):
    """Doesn't wait for a disk: for tests that look at what the calls do, not at what survives a crash."""

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class ClosedOnce(QuickFs):
    """Finds a handle that is closed twice, or never: by the second time it may be another file's."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: set[int] = set()

    def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
        handle = super().open(path, mode, follow=follow)
        self.handles.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self.handles.remove(handle)
        super().close(handle)


class Killed(BaseException):
    """The end of a process, in the test's own process."""


class ScriptedFs:
    """Calls a function before each call; keeps count of the handles that are open."""

    def __init__(self, before: Callable[[str, tuple[Any, ...]], None] | None = None) -> None:
        self.inner = QuickFs()
        self.before = before
        self.handles: set[int] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        target = getattr(self.inner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            try:
                if self.before is not None:
                    self.before(name, args)
            except StorageError:
                # A close that fails has closed the handle all the same.
                if name == "close":
                    self.handles.discard(args[0])
                    target(*args)
                raise
            if name == "close":
                self.handles.discard(args[0])
            result = target(*args, **options)
            if name == "open":
                self.handles.add(result)
            return result

        return call

    def end_process(self) -> None:
        """What the operating system does when a process has ended: its handles and locks are gone."""
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()
        locks._forget()


class FailAt:
    """Refuses call number k, and all later ones if `lasting`."""

    def __init__(self, k: int, code: int, *, lasting: bool) -> None:
        self.k, self.code, self.lasting = k, code, lasting
        self.count = 0
        self.failed: list[str] = []

    def __call__(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "point":
            return
        self.count += 1
        if self.count == self.k or (self.lasting and self.count > self.k):
            self.failed.append(name)
            raise StorageError(self.code, os.strerror(self.code))


class KillAt:
    """Ends the process before call number k."""

    def __init__(self, k: int) -> None:
        self.k, self.count = k, 0

    def __call__(self, name: str, args: tuple[Any, ...]) -> None:
        self.count += 1
        # The operating system closes what a process leaves open.
        if self.count >= self.k and name != "close":
            raise Killed


class ExitAt(QuickFs):
    """Ends the process, really, at a named point."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def point(self, name: str) -> None:
        if name == self.name:
            os._exit(77)


class Points(QuickFs):
    """Writes down the points that a commit passes."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []

    def point(self, name: str) -> None:
        self.passed.append(name)
