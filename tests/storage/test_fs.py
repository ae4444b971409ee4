"""The real file system calls, and the paths that containers are named by."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnrfmt.errors import CnrError, StorageError, UsageError
from cnrfmt.storage import container as container_module
from cnrfmt.storage import fs as fs_module
from cnrfmt.storage.container import begin, open_container
from cnrfmt.storage.fs import PosixFs, byte_view
from tests.storage.support import QuickFs, check_whole, commit, payload


@pytest.fixture
def fs() -> PosixFs:
    return PosixFs()


def test_short_reads_and_writes_go_on(fs: PosixFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: write(handle, data[:1000], offset))
    monkeypatch.setattr(os, "preadv", lambda handle, buffers, offset: read(handle, [buffers[0][:777]], offset))
    data = payload(3)
    handle = fs.open(str(tmp_path / "file"), "create")
    fs.pwrite(handle, 5, data)
    found = np.empty_like(data)
    assert fs.pread_into(handle, 5, found) == data.nbytes
    assert np.array_equal(found, data)
    assert fs.pread_into(handle, 5 + data.nbytes - 10, np.empty(30, np.uint8)) == 10
    assert fs.bytes_read == data.nbytes + 10
    fs.close(handle)


def test_views_of_buffers_are_no_copies() -> None:
    data = payload(0)
    assert np.shares_memory(np.asarray(byte_view(data)), data)
    assert byte_view(np.empty((0, 4))).nbytes == 0
    assert bytes(byte_view(np.float64(1.5))) == np.float64(1.5).tobytes()
    with pytest.raises(UsageError, match="contiguous"):
        byte_view(data[:, 1:])


def test_refusals_say_what_and_where(fs: PosixFs, tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "file")
    with pytest.raises(StorageError, match="could not open it") as caught:
        fs.open(path, "create")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, path)
    assert isinstance(caught.value, CnrError)
    assert isinstance(caught.value, OSError)

    path = str(tmp_path / "file")
    handle = fs.open(path, "create")
    with pytest.raises(StorageError) as caught:
        fs.map(handle, 4096)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, path)
    with pytest.raises(StorageError):
        fs.truncate(handle, -1)
    fs.close(handle)
    with pytest.raises(StorageError) as caught:
        fs.sync(handle)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda fs, path: fs.open(path, "read"), "open it"),
        (lambda fs, path: fs.sync_directory(path), "sync it"),
        (lambda fs, path: fs.stat(path + "x" * 300), "look at it"),
        (lambda fs, path: fs.free_bytes(path), "look at it"),
        (lambda fs, path: fs.rename(path + "a", path), "put a file in its place"),
        (lambda fs, path: fs.link(path + "a", path), "give a file this name"),
        (lambda fs, path: fs.unlink(path), "remove it"),
        (lambda fs, path: fs.mkdir(path + "/a"), "make this directory"),
        (lambda fs, path: fs.rmdir(path), "remove this directory"),
        (lambda fs, path: fs.list_directory(path), "list it"),
    ],
)
def test_refusals_of_paths_read_well(fs: PosixFs, tmp_path: Path, call: Any, says: str) -> None:
    with pytest.raises(StorageError, match=rf"\] [\w ]+ \(could not {says}\): '{tmp_path}/none"):
        call(fs, str(tmp_path / "none"))


def test_refusals_of_handles_read_well(fs: PosixFs, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    handle = fs.open(path, "create")
    os.close(handle)
    buffer = bytearray(8)
    calls: dict[str, Any] = {
        "read it": lambda: fs.pread_into(handle, 0, buffer),
        "write it": lambda: fs.pwrite(handle, 0, buffer),
        "set its length": lambda: fs.truncate(handle, 5),
        "sync it": lambda: fs.sync(handle),
        "look at it": lambda: fs.stat_handle(handle),
        "set its permissions": lambda: fs.copy_mode(handle, 0o600),
        "map it": lambda: fs.map(handle, 5),
        "lock it": lambda: fs.lock_handle(handle),
        "close it": lambda: fs.close(handle),
    }
    for says, call in calls.items():
        with pytest.raises(StorageError, match=rf"Bad file descriptor \(could not {says}\): '{path}'"):
            call()


def test_sync_of_directories(fs: PosixFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.sync_directory(str(tmp_path))
    with pytest.raises(StorageError):
        fs.sync_directory(str(tmp_path / "none"))
    for code, refused in ((errno.EINVAL, False), (errno.EIO, True)):

        def fail(handle: int, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fail)
        if refused:
            with pytest.raises(StorageError):
                fs.sync_directory(str(tmp_path))
        else:
            fs.sync_directory(str(tmp_path))


def test_handles_are_not_inherited(fs: PosixFs, tmp_path: Path) -> None:
    for mode in ("create", "read", "write", "lock"):
        handle = fs.open(str(tmp_path / "file"), mode)  # type: ignore[arg-type]
        assert not os.get_inheritable(handle)
        fs.close(handle)


def test_links_are_followed_only_where_asked(fs: PosixFs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    link = str(tmp_path / "link")
    os.symlink("file", link)
    for mode in ("read", "write", "lock"):
        with pytest.raises(StorageError):
            fs.open(link, mode)  # type: ignore[arg-type]
    fs.close(fs.open(link, "read", follow=True))
    assert fs.stat(link) != fs.stat(link, follow=True)
    found = fs.stat(link)
    assert found is not None
    assert found.kind == "link"
    assert fs.stat(str(tmp_path / "none")) is None


def test_pipes_and_sockets_are_refused_without_waiting(
    fs: PosixFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.cnr")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.cnr")
        for name in ("pipe.cnr", "socket.cnr"):
            with pytest.raises(StorageError):
                open_container(name)
            with pytest.raises(UsageError, match="neither a file nor a directory"):
                begin(name, replace=True)
            found = fs.stat(name)
            assert found is not None
            assert found.kind == "other"


def test_rename_link_and_directories(fs: PosixFs, tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for name in (a, b):
        handle = fs.open(name, "create")
        fs.pwrite(handle, 0, name.encode())
        fs.close(handle)
    with pytest.raises(StorageError) as caught:
        fs.link(a, b)
    assert caught.value.errno == errno.EEXIST
    assert Path(b).read_text() == b
    fs.rename(a, b)
    assert Path(b).read_text() == a
    with pytest.raises(StorageError):
        fs.open(b, "create")
    fs.mkdir(a)
    with pytest.raises(StorageError):
        fs.mkdir(a)
    assert sorted(fs.list_directory(str(tmp_path))) == ["a", "b"]
    fs.rmdir(a)
    fs.unlink(b)
    assert fs.list_directory(str(tmp_path)) == []


def test_locks_that_belong_to_handles(fs: PosixFs, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    one, two = fs.open(path, "lock"), fs.open(path, "lock")
    assert fs.lock_handle(one)
    assert not fs.lock_handle(two)
    fs.close(one)
    assert fs.lock_handle(two)
    fs.close(two)


def test_who_only_looks_does_not_find_others_who_look(fs: PosixFs, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    one, two, three = (fs.open(path, "lock") for _ in range(3))
    assert fs.lock_handle(one, shared=True)
    assert fs.lock_handle(two, shared=True)
    assert not fs.lock_handle(three)
    fs.close(one)
    fs.close(two)
    assert fs.lock_handle(three)
    four = fs.open(path, "lock")
    assert not fs.lock_handle(four, shared=True)
    for handle in (three, four):
        fs.close(handle)


def test_free_bytes(fs: PosixFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = fs.free_bytes(str(tmp_path))
    assert free is not None
    assert free > 0

    class Silent:
        f_blocks = f_bavail = f_frsize = 0

    # Some network file systems give no numbers: that isn't a full disk.
    monkeypatch.setattr(os, "statvfs", lambda path: Silent())
    assert fs.free_bytes(str(tmp_path)) is None


@pytest.mark.parametrize("path", ["", "a\0b", "s3://bucket/run7"])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(UsageError):
        open_container(path)
    with pytest.raises(UsageError):
        begin(path, replace=True)


def test_what_is_there_decides_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Names without a folder, too.
    commit("model.cnr", payload(0), fresh=True, fs=QuickFs())
    commit("run", payload(0), fresh=True, fs=QuickFs())
    os.rename("model.cnr", "plain")
    os.rename("run", "run.cnr")
    for name, kind in (("plain", "file"), ("run.cnr", "directory")):
        commit(name, payload(1), fs=QuickFs())
        assert check_whole(name).version == 1
        with open_container(name) as container:
            assert (container.kind, container.path) == (kind, name)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no container here; cnrfmt.save makes one") as caught:
        open_container(tmp_path / "none.cnr")
    assert caught.value.errno == errno.ENOENT
    for name in ("none.cnr", "run"):
        with pytest.raises(StorageError, match="no such directory; make it first"):
            begin(tmp_path / "missing" / name, replace=True)
    assert not list(tmp_path.iterdir())


def test_operating_system_that_only_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "model.cnr", payload(0), fresh=True, fs=QuickFs())
    monkeypatch.setattr(fs_module, "fcntl", None)
    with pytest.raises(UsageError, match="only reads on this operating system"):
        begin(tmp_path / "model.cnr", replace=False)
    assert container_module.open_container(tmp_path / "model.cnr").head().version == 0


def test_a_commit_that_really_syncs(tmp_path: Path) -> None:
    calls: list[Any] = []

    class Noting(PosixFs):
        def sync(self, handle: int) -> None:
            super().sync(handle)
            calls.append("file")

        def sync_directory(self, path: str) -> None:
            super().sync_directory(path)
            calls.append(os.path.basename(path))

    fs = Noting()
    for name in ("model.cnr", "run"):
        calls.clear()
        assert commit(tmp_path / name, payload(0), fresh=True, fs=fs) == 0
        assert calls[-1] == ("manifests" if name == "run" else tmp_path.name)
        calls.clear()
        assert commit(tmp_path / name, payload(1), fs=fs) == 1
        assert "file" in calls
        assert check_whole(tmp_path / name).version == 1


@pytest.mark.parametrize("interpreted", [False, True])
def test_scattered_ranges_are_read_as_one_by_one(
    tmp_path: Path, interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cnrfmt.storage import scattered

    monkeypatch.setattr(scattered, "INTERPRETED", interpreted or scattered.INTERPRETED)
    data = np.random.default_rng(3).integers(0, 256, 10_000, np.uint8)
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    fs = PosixFs()
    handle = fs.open(str(path), "read")
    offsets = np.array([4096, 0, 9900, 512])
    buffer = np.zeros(3 * 512 + 100, np.uint8)
    # The third range meets the file's end, and the last one ends with the buffer.
    assert fs.pread_ranges(handle, offsets, 512, buffer) == 2
    assert (buffer[:512] == data[4096:4608]).all()
    assert (buffer[512:1024] == data[:512]).all()
    assert fs.pread_ranges(handle, offsets[[0, 1, 3]], 512, buffer[:1124]) == 3
    assert (buffer[1024:1124] == data[512:612]).all()
    assert fs.pread_ranges(handle, np.array([-5]), 512, buffer) == 0
    fs.close(handle)
