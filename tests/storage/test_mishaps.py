"""Mishaps on top of mishaps: refusals while something is undone, and writers that meet where few look."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cnrfmt.errors import CommitUnknownError, ConflictError, LockedError, StorageError
from cnrfmt.format.limits import PAGE
from cnrfmt.storage.container import begin
from cnrfmt.storage.fs import FileStat
from cnrfmt.storage.locks import WriterLock
from tests.storage.support import ClosedOnce, QuickFs, check_whole, commit, finish, next_manifest, payload
from tests.storage.test_protocol import Tracing


@pytest.fixture(params=["model.cnr", "run"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    commit(path, payload(0), fresh=True, fs=QuickFs())
    return path


class Undoing(QuickFs):
    """Refuses the first call of one kind, and from then on whatever undoes."""

    def __init__(self, first: str) -> None:
        super().__init__()
        self.first, self.refused = first, 0

    def refuse(self, name: str) -> None:
        if name == self.first or self.refused:
            self.refused += 1
            code = errno.ENOSPC if self.refused == 1 else errno.EIO
            raise StorageError(code, os.strerror(code))

    def sync(self, handle: int) -> None:
        self.refuse("sync")

    def sync_directory(self, path: str) -> None:
        self.refuse(f"sync {os.path.basename(path)}")

    def unlink(self, path: str) -> None:
        if self.refused:
            self.refuse("unlink")
        super().unlink(path)

    def truncate(self, handle: int, size: int) -> None:
        if self.refused:
            self.refuse("truncate")
        super().truncate(handle, size)

    def close(self, handle: int) -> None:
        super().close(handle)
        if self.refused:
            self.refuse("close")

    def rmdir(self, path: str) -> None:
        self.refuse("rmdir")


@pytest.mark.parametrize("fresh", [False, True])
def test_what_cannot_be_undone_does_not_hide_what_happened(path: Path, fresh: bool) -> None:
    fs = Undoing("sync")
    with pytest.raises(StorageError, match="nothing was committed") as caught:
        commit(path, payload(1), fresh=fresh, fs=fs)
    assert caught.value.errno == errno.ENOSPC
    assert fs.refused > 1
    assert check_whole(path).version == 0
    # And the next writer cleans up.
    assert commit(path, payload(1), fresh=fresh, fs=QuickFs()) == 1


def test_what_cannot_be_undone_of_a_first_version(tmp_path: Path) -> None:
    for name in ("new.cnr", "new"):
        fs = Undoing("sync")
        with pytest.raises(StorageError) as caught:
            commit(tmp_path / name, payload(1), fresh=True, fs=fs)
        assert caught.value.errno == errno.ENOSPC
        assert fs.refused > 1
        assert commit(tmp_path / name, payload(1), fresh=True, fs=QuickFs()) == 0


def test_what_cannot_be_undone_once_segments_are_published(tmp_path: Path) -> None:
    path = tmp_path / "run"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    fs = Undoing("sync segments")
    with pytest.raises(StorageError, match="nothing was committed") as caught:
        commit(path, payload(1), fs=fs)
    assert caught.value.errno == errno.ENOSPC
    assert fs.refused > 1
    # A segment that no manifest names is garbage, and in nobody's way.
    assert len(list((path / "segments").glob("*.cnrs"))) == 2
    assert check_whole(path).version == 0
    assert commit(path, payload(1), fs=QuickFs()) == 1


def test_a_conflict_that_is_seen_early_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    fs = Tracing(tmp_path)
    with begin(path, replace=False, fs=fs) as tx:
        manifest = next_manifest(tx, payload(2))
        commit(path, payload(3), fs=QuickFs())
        with pytest.raises(ConflictError):
            finish(tx, manifest)
    assert not [step for step in fs.steps if step.startswith("link")]
    assert fs.steps[-1] == "unlink run/segments/.tmp-*"


def test_a_lock_file_that_was_exchanged_is_held_by_its_path_too(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    lock_file = path.with_name("model.cnr.lock")
    with begin(path, replace=False, fs=QuickFs()):
        lock_file.unlink()
        lock_file.write_text("another file")
        with pytest.raises(LockedError, match="of this process"):
            begin(path, replace=False, fs=QuickFs())
    assert commit(path, payload(1), fs=QuickFs()) == 1


def test_a_file_that_is_replaced_is_looked_at_where_it_is(tmp_path: Path) -> None:
    """Its identity is that of the file that was opened, not of whatever the path names later."""
    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())

    class Moved(QuickFs):
        moved = False

        def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
            if self.moved and path.endswith(".cnr"):
                return None
            return super().stat(path, follow=follow)

    for fresh in (False, True):
        fs = Moved()
        with begin(path, replace=fresh, fs=fs) as tx:
            manifest = next_manifest(tx, payload(1), fresh=fresh)
            fs.moved = True
            with pytest.raises(ConflictError, match="another writer was here"):
                finish(tx, manifest)
        assert check_whole(path).version == 0


class RefusedPublication(QuickFs):
    """Refuses to publish a manifest, having done it or not, and then maybe to look at what is there."""

    def __init__(self, *, done: bool, then: int | None) -> None:
        super().__init__()
        self.done, self.then, self.refused = done, then, False

    def link(self, source: str, target: str) -> None:
        if not target.endswith(".cnrm"):
            super().link(source, target)
            return
        if self.done:
            super().link(source, target)
        self.refused = True
        raise StorageError(errno.EIO, "Input/output error", target)

    def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
        if self.refused and self.then is not None and path.endswith(".cnrm"):
            raise StorageError(self.then, os.strerror(self.then), path)
        return super().stat(path, follow=follow)


def test_a_refused_publication_is_settled_by_looking(tmp_path: Path) -> None:
    path = tmp_path / "run"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    before = sorted(path.rglob("*"))
    with pytest.raises(StorageError, match="nothing was committed, the newest version is still 0") as caught:
        commit(path, payload(1), fs=RefusedPublication(done=False, then=None))
    assert caught.value.errno == errno.EIO
    assert sorted(path.rglob("*")) == before
    # Whoever can't look doesn't know, and undoes nothing.
    for done in (False, True):
        with pytest.raises(CommitUnknownError, match="may or may not be committed"):
            commit(path, payload(1), fs=RefusedPublication(done=done, then=errno.EIO))
        assert check_whole(path).version == done
    assert commit(path, payload(2), fs=RefusedPublication(done=True, then=None)) == 2
    assert check_whole(path).version == 2


class RefusedRename(QuickFs):
    """The same for a file that is put in its place."""

    def __init__(self, *, done: bool, then: int | None) -> None:
        super().__init__()
        self.done, self.then, self.refused = done, then, False

    def rename(self, source: str, target: str) -> None:
        if self.done:
            super().rename(source, target)
        self.refused = True
        raise StorageError(errno.EIO, "Input/output error", target)

    def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
        if self.refused and self.then is not None:
            raise StorageError(self.then, os.strerror(self.then), path)
        return super().stat(path, follow=follow)


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_rename_is_settled_by_looking(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "model.cnr"
    if there:
        commit(path, payload(0), fresh=True, fs=QuickFs())
    newest = check_whole(path).version if there else -1
    with pytest.raises(StorageError, match="nothing was committed"):
        commit(path, payload(1), fresh=True, fs=RefusedRename(done=False, then=None))
    assert path.exists() == there
    assert not list(tmp_path.glob(".tmp-*"))
    with pytest.raises(CommitUnknownError):
        commit(path, payload(1), fresh=True, fs=RefusedRename(done=False, then=errno.EIO))
    assert path.exists() == there
    with pytest.raises(CommitUnknownError):
        commit(path, payload(1), fresh=True, fs=RefusedRename(done=True, then=errno.EIO))
    assert check_whole(path).version == newest + 1
    assert commit(path, payload(2), fresh=True, fs=RefusedRename(done=True, then=None)) == newest + 2


def test_a_refused_sync_of_the_folder_leaves_a_new_file_in_doubt(tmp_path: Path) -> None:
    class NoSync(QuickFs):
        def sync_directory(self, path: str) -> None:
            raise StorageError(errno.EIO, "Input/output error", path)

    path = tmp_path / "model.cnr"
    with pytest.raises(CommitUnknownError, match="may or may not") as caught:
        commit(path, payload(0), fresh=True, fs=NoSync())
    # By these the caller finds out.
    assert caught.value.version == check_whole(path).version == 0
    assert caught.value.commit_id == check_whole(path).commit_id


@pytest.mark.parametrize(("point", "outcome"), [("manifest-written", False), ("slot-a-synced", True)])
def test_a_refused_write_of_slot_b(tmp_path: Path, point: str, outcome: bool) -> None:
    """Before slot A is written nothing counts; behind it the version is there, and the caller is told to look."""

    class NoSlotB(QuickFs):
        at = ""

        def point(self, name: str) -> None:
            self.at = name

        def pwrite(self, handle: int, offset: int, data: object) -> None:
            if offset == 2 * PAGE and self.at == point:
                raise StorageError(errno.EIO, "Input/output error")
            super().pwrite(handle, offset, data)

    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    error = CommitUnknownError if outcome else StorageError
    with pytest.raises(error):
        commit(path, payload(1), fs=NoSlotB())
    assert check_whole(path).version == outcome
    assert commit(path, payload(2), fs=QuickFs()) == outcome + 1


def test_a_lock_file_that_is_exchanged_before_it_is_locked(tmp_path: Path) -> None:
    lock_file = tmp_path / "model.cnr.lock"

    class Exchanging(QuickFs):
        rounds = 0

        def lock_record(self, handle: int) -> bool:
            taken = super().lock_record(handle)
            if self.rounds < 2:
                self.rounds += 1
                lock_file.rename(tmp_path / f"moved-{self.rounds}")
                lock_file.write_text("another file")
            return taken

    fs = Exchanging()
    lock = WriterLock.acquire(fs, str(tmp_path / "model.cnr"))
    assert fs.rounds == 2
    lock.check()
    lock_file.rename(tmp_path / "moved-3")
    lock_file.write_text("another file")
    with pytest.raises(ConflictError, match="removed or exchanged"):
        lock.check()
    lock.release()


@pytest.mark.parametrize("point", ["manifest-written", "manifest-synced"])
def test_a_writer_that_comes_between_manifest_and_slot(tmp_path: Path, point: str) -> None:
    """Where locks don't hold: what it wrote stays, and the slots are looked at as late as can be."""
    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    copy = tmp_path / "copy.cnr"
    copy.write_bytes(path.read_bytes())
    commit(copy, payload(9), fs=QuickFs())
    other = copy.read_bytes()

    class Interrupted(QuickFs):
        def point(self, name: str) -> None:
            if name == point:
                path.write_bytes(other)

    if point == "manifest-synced":
        with pytest.raises(ConflictError, match="another writer was here"):
            commit(path, payload(1), fs=Interrupted())
        assert path.read_bytes() == other
        assert check_whole(path).version == 1
    else:
        # Slot B is written again before the second look, so the other's head is in slot A alone.
        with pytest.raises(ConflictError):
            commit(path, payload(1), fs=Interrupted())
        assert path.read_bytes()[: 2 * PAGE] == other[: 2 * PAGE]
        assert check_whole(path).version == 1


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["model.cnr", "run"])
def test_handles_are_closed_once(tmp_path: Path, name: str, fresh: bool) -> None:
    path = tmp_path / name
    fs = ClosedOnce()
    commit(path, payload(0), fresh=True, fs=fs)
    assert not fs.handles
    if name == "run":
        (path / "segments" / ".tmp-0123456789abcdef").write_bytes(b"begun")
    commit(path, payload(1), fresh=fresh, fs=fs)
    assert not fs.handles
    with begin(path, replace=fresh, fs=fs) as tx:
        next_manifest(tx, payload(2), fresh=fresh)
    assert not fs.handles
    tx.abort()
    assert not list(path.parent.rglob(".tmp-*"))


def test_manifests_that_somebody_removes_right_after_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "run"
    commit(path, payload(0), fresh=True, fs=QuickFs())

    class Removed(QuickFs):
        def point(self, name: str) -> None:
            if name == "manifests-synced":
                for file in path.glob("manifests/*"):
                    file.unlink()

    # It was durable, and what became of it then isn't this commit's doing.
    assert commit(path, payload(1), fs=Removed()) == 1
    assert list(path.glob("manifests/*")) == []


@pytest.mark.parametrize("call", ["stat_handle", "copy_mode"])
def test_a_new_file_that_cannot_be_prepared_leaves_nothing(tmp_path: Path, call: str) -> None:
    class Refusing(ClosedOnce):
        def refuse(self, name: str, handle: int) -> None:
            if name == call and ".tmp-" in self._paths[handle]:
                raise StorageError(errno.EPERM, "Operation not permitted")

        def stat_handle(self, handle: int) -> FileStat:
            self.refuse("stat_handle", handle)
            return super().stat_handle(handle)

        def copy_mode(self, handle: int, mode: int) -> None:
            self.refuse("copy_mode", handle)
            super().copy_mode(handle, mode)

    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    before = sorted(tmp_path.iterdir())
    fs = Refusing()
    with pytest.raises(StorageError) as caught:
        begin(path, replace=True, fs=fs)
    assert caught.value.errno == errno.EPERM
    assert not fs.handles
    assert sorted(tmp_path.iterdir()) == before
    assert commit(path, payload(1), fresh=True, fs=QuickFs()) == 1


def test_a_temporary_name_that_stays_is_no_failure(tmp_path: Path) -> None:
    class Staying(QuickFs):
        def unlink(self, path: str) -> None:
            raise StorageError(errno.EACCES, "Permission denied", path)

    path = tmp_path / "run"
    for version in range(2):
        assert commit(path, payload(version), fresh=not version, fs=Staying()) == version
    assert len(list(path.rglob(".tmp-*"))) == 4
    assert commit(path, payload(2), fs=QuickFs()) == 2
    assert not list(path.rglob(".tmp-*"))
    assert check_whole(path).version == 2


def test_a_lock_file_that_is_removed_while_the_first_version_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    with begin(path, replace=True, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(0))
        path.with_name("model.cnr.lock").unlink()
        with pytest.raises(ConflictError, match="lock file was removed"):
            finish(tx, manifest)
    assert not path.exists()
