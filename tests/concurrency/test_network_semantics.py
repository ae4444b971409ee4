"""File systems over a network: answers that get lost, locks that are none, handles that go stale."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from cnrfmt import CommitUnknownError, ConflictError, StorageError
from cnrfmt.storage.directory import MANIFESTS
from tests.concurrency.support import KINDS, append, save, version_of
from tests.storage.support import QuickFs, leftovers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.cnr"
    save(path)
    append(path, 1)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    save(path)
    append(path, 1)
    return path


def check_head(path: Path, version: int) -> None:
    """The head is this version, whole, and the next writer goes on from it."""
    with cnrfmt.open(path, verify="all", threads=1) as ck:
        assert version_of(ck["dense"], 0) == version_of(ck["keyed"], 0) == ck.version == version
    append(path, version + 1)
    assert cnrfmt.verify(path).verdict == "sound"
    assert not leftovers(path)


class LostAnswer(QuickFs):
    """A call that does its work (or doesn't), and whose answer is an error all the same."""

    def __init__(self, call: str, code: int, *, done: bool = True, where: str = "", blind: bool = False) -> None:
        super().__init__()
        self._call, self._code, self._done, self._where, self._blind = call, code, done, where, blind
        self.lost = 0

    def _answer(self, call: str, source: str, target: str, real: Callable[[str, str], None]) -> None:
        if call != self._call or self._where not in target:
            return real(source, target)
        if self._done:
            real(source, target)
        self.lost += 1
        raise StorageError(self._code, os.strerror(self._code), target)

    def link(self, source: str, target: str) -> None:
        self._answer("link", source, target, super().link)

    def rename(self, source: str, target: str) -> None:
        self._answer("rename", source, target, super().rename)

    def stat(self, path: str, *, follow: bool = False) -> Any:
        self._see(path)
        return super().stat(path, follow=follow)

    def open(self, path: str, mode: Any, *, follow: bool = False) -> int:
        self._see(path)
        return super().open(path, mode, follow=follow)

    def _see(self, path: str) -> None:
        """With `blind`, the server can't be asked any more once an answer got lost."""
        if self._blind and self.lost:
            raise StorageError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)


LINK_CODES = [errno.EEXIST, errno.EIO, errno.ENOENT, errno.ETIMEDOUT]


@pytest.mark.parametrize("where", ["manifests", "segments"])
@pytest.mark.parametrize("code", LINK_CODES, ids=lambda code: errno.errorcode[code])
def test_link_that_happened_and_reports_a_failure(directory: Path, code: int, where: str) -> None:
    """The request was repeated, or its answer got lost: the commit id under the name tells that it is ours."""
    fs = LostAnswer("link", code, where=where)
    append(directory, 2, fs=fs)
    assert fs.lost == 1
    check_head(directory, 2)


@pytest.mark.parametrize("where", ["manifests", "segments"])
def test_link_that_did_not_happen(directory: Path, where: str) -> None:
    with pytest.raises(StorageError, match="nothing was committed"):
        append(directory, 2, fs=LostAnswer("link", errno.EIO, done=False, where=where))
    assert not leftovers(directory)
    check_head(directory, 1)


def test_link_of_which_nothing_can_be_learned(directory: Path) -> None:
    with pytest.raises(CommitUnknownError, match="version 2 may or may not be committed"):
        append(directory, 2, fs=LostAnswer("link", errno.EIO, where="manifests", blind=True))
    check_head(directory, 2)


def test_link_lost_to_another_writer(directory: Path) -> None:
    class Overtaken(QuickFs):
        def link(self, source: str, target: str) -> None:
            if MANIFESTS in target:
                append(directory, 2)
            super().link(source, target)

    with pytest.raises(ConflictError):
        append(directory, 2, fs=Overtaken())
    check_head(directory, 2)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ETIMEDOUT], ids=lambda code: errno.errorcode[code])
def test_rename_that_happened_and_reports_a_failure(file: Path, code: int) -> None:
    """A repeated rename finds its source gone (ENOENT); which file the path names tells what became of it."""
    fs = LostAnswer("rename", code)
    save(file, 2, fs=fs)
    assert fs.lost == 1
    check_head(file, 2)


def test_rename_that_did_not_happen(file: Path) -> None:
    with pytest.raises(StorageError, match="nothing was committed"):
        save(file, 2, fs=LostAnswer("rename", errno.EIO, done=False))
    assert not leftovers(file)
    check_head(file, 1)


def test_rename_of_which_nothing_can_be_learned(file: Path) -> None:
    with pytest.raises(CommitUnknownError, match="version 2 may or may not be committed"):
        save(file, 2, fs=LostAnswer("rename", errno.EIO, blind=True))
    check_head(file, 2)


class NoLocks(QuickFs):
    """A mount whose server knows no locks."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code = code

    def lock_record(self, handle: int) -> bool:
        raise StorageError(self._code, os.strerror(self._code))

    lock_handle = lock_record


NO_LOCKS = pytest.mark.parametrize(
    "code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS], ids=lambda code: errno.errorcode[code]
)


@NO_LOCKS
@pytest.mark.parametrize("commit", [append, save])
def test_single_file_without_locks_is_refused(file: Path, code: int, commit: Callable[..., None]) -> None:
    with pytest.raises(StorageError, match="nothing was committed") as caught:
        commit(file, 2, fs=NoLocks(code))
    assert caught.value.errno == code
    assert not leftovers(file)
    check_head(file, 1)


@NO_LOCKS
def test_directory_needs_no_locks(directory: Path, code: int) -> None:
    dead = directory / MANIFESTS / ".tmp-0123456789abcdef"
    dead.write_bytes(b"left by a dead writer")
    append(directory, 2, fs=NoLocks(code))
    # Nobody can tell whether its writer is alive, so it stays; a client with locks removes it.
    assert dead.exists()
    check_head(directory, 2)
    assert not dead.exists()


class Stale(QuickFs):
    """A server that has removed the files of these handles: the client's handles go stale."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: set[int] = set()
        self.stale: set[int] = set()

    def open(self, path: str, mode: Any, *, follow: bool = False) -> int:
        handle = super().open(path, mode, follow=follow)
        self.handles.add(handle)
        self.stale.discard(handle)
        return handle

    def close(self, handle: int) -> None:
        self.handles.discard(handle)
        super().close(handle)

    def _check(self, handle: int) -> None:
        if handle in self.stale:
            raise StorageError(errno.ESTALE, os.strerror(errno.ESTALE))

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        self._check(handle)
        return super().pread_into(handle, offset, buffer)

    def pread_ranges(self, handle: int, offsets: Any, length: int, buffer: Any) -> int:
        return 0 if handle in self.stale else super().pread_ranges(handle, offsets, length, buffer)

    def stat_handle(self, handle: int) -> Any:
        self._check(handle)
        return super().stat_handle(handle)


@pytest.mark.parametrize("name", KINDS)
def test_stale_handles(tmp_path: Path, name: str) -> None:
    """They are told from damage, and a refresh leaves them behind."""
    path = tmp_path / name
    save(path)
    fs = Stale()
    with cnrfmt.open(path, backend="pread", threads=1, fs=fs) as ck:
        old = ck["dense"]
        save(path, 1)
        fs.stale |= fs.handles
        with pytest.raises(StorageError) as caught:
            old.read()
        assert caught.value.errno == errno.ESTALE
        refreshed = ck.refresh()
        assert refreshed is not None
        assert refreshed.version == version_of(ck["dense"], 0) == version_of(ck["keyed"], 2) == 1


def test_stale_handle_whose_number_the_new_file_has(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    save(path)

    class Reused(Stale):
        def stat_handle(self, handle: int) -> Any:
            found = super().stat_handle(handle)
            return type(found)(found.kind, (0, 0), found.size, found.mode)

    fs = Reused()
    with cnrfmt.open(path, backend="pread", threads=1, fs=fs) as ck:
        save(path, 1)
        fs.stale |= fs.handles
        assert ck.refresh() is not None
        assert version_of(ck["dense"], 0) == ck.version == 1


class OldListing(QuickFs):
    """A client that still sees the names that were there a while ago."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def list_directory(self, path: str) -> list[str]:
        return list(self._names) if path.endswith(MANIFESTS) else super().list_directory(path)


def test_writer_with_an_old_listing_loses(directory: Path) -> None:
    """The name of the next version is taken, whatever the client believes."""
    fs = OldListing(os.listdir(directory / MANIFESTS))
    append(directory, 2)
    with pytest.raises(ConflictError, match="another writer committed version 2 first"):
        append(directory, 2, fs=fs)
    check_head(directory, 2)


def test_reader_with_an_old_listing_reads_what_was_acknowledged_before(directory: Path) -> None:
    fs = OldListing(os.listdir(directory / MANIFESTS))
    with cnrfmt.open(directory, threads=1, fs=fs) as ck:
        append(directory, 2)
        assert ck.refresh() is None
        assert version_of(ck["dense"], 0) == ck.version == 1


def test_listing_that_goes_back_is_refused(directory: Path) -> None:
    """Another replica of the server, say: a reader that has seen a version doesn't go back behind it."""
    old = os.listdir(directory / MANIFESTS)
    append(directory, 2)
    fs = OldListing(os.listdir(directory / MANIFESTS))
    with cnrfmt.open(directory, threads=1, fs=fs) as ck:
        fs._names = old
        with pytest.raises(cnrfmt.DamagedError) as caught:
            ck.refresh()
        assert caught.value.rule == "manifest-identity"
        assert version_of(ck["dense"], 0) == 2
        fs._names = os.listdir(directory / MANIFESTS)
        assert ck.refresh() is None


@pytest.mark.parametrize("folder", ["", "segments", MANIFESTS])
def test_files_that_a_client_renames_instead_of_removing(directory: Path, folder: str) -> None:
    """A client keeps an open file that is removed under a name of its own; nobody takes it for a part of it."""
    silly = directory / folder / ".nfs0000000012345678000000ab"
    shutil.copy(next((directory / MANIFESTS).iterdir()), silly)
    check_head(directory, 1)
    assert silly.exists()


def test_directory_that_can_not_be_removed_for_such_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run"

    class Full(QuickFs):
        def pwrite(self, handle: int, offset: int, data: object) -> None:
            raise StorageError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        def unlink(self, name: str) -> None:
            os.rename(name, Path(name).with_name(".nfs0123"))

    with pytest.raises(StorageError) as caught:
        save(path, fs=Full())
    assert caught.value.errno == errno.EDQUOT
    save(path)
    check_head(path, 0)
