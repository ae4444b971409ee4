"""Readers of containers that change under them, that were exchanged, or that say less than was asked for."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Quantize, Rows, TableData
from cnrfmt.errors import DamagedError, StorageError, VersionNotFoundError
from cnrfmt.format.manifest import Retained, pack_manifest, parse_manifest
from cnrfmt.storage import fs as fs_module
from cnrfmt.storage.container import open_container
from cnrfmt.storage.fs import POSIX, FileStat, PosixFs

VALUES = np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.fixture(params=["model.cnr", "run"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    cnrfmt.save(path, {"t": VALUES})
    cnrfmt.append(path, {"t": Rows([1], VALUES[:1])})
    return path


def test_a_version_that_is_no_longer_retained_is_named_with_those_that_are(path: Path) -> None:
    cnrfmt.save(path, {"t": VALUES + 1})
    if path.suffix:
        with pytest.raises(VersionNotFoundError, match=r"version 0 isn't retained; retained are 2$"):
            cnrfmt.open(path, version=0)
    else:
        with cnrfmt.open(path, version=0) as ck:
            assert ck.versions == (0, 1, 2)
    with pytest.raises(VersionNotFoundError, match="no version 3; the newest is 2"):
        cnrfmt.open(path, version=3)


def test_a_checkpoint_says_what_it_is(path: Path) -> None:
    with cnrfmt.open(path) as ck:
        assert repr(ck) == f"<cnrfmt.Checkpoint {str(path)!r}: version 1, 1 tables>"


def test_a_retained_version_of_another_container(tmp_path: Path) -> None:
    """The head vouches for the digest of the manifest, and yet it is another container's."""
    path = tmp_path / "run"
    cnrfmt.save(path, {"t": VALUES})
    cnrfmt.append(path, {"t": Rows([1], VALUES[:1])})
    files = [path / "manifests" / f"{version:020}.cnrm" for version in (0, 1)]
    old, head = (parse_manifest(file.read_bytes(), "x") for file in files)
    files[0].write_bytes(pack_manifest(replace(old, container_id=b"another's id, 16")))
    other = parse_manifest(files[0].read_bytes(), "x")
    named = Retained(0, None, other.length, other.digest)
    files[1].write_bytes(pack_manifest(replace(head, parent=(0, other.digest), versions=(named,))))
    with cnrfmt.open(path) as ck:
        assert ck.versions == (0, 1)
    with pytest.raises(DamagedError) as caught:
        cnrfmt.open(path, version=0)
    assert caught.value.rule == "manifest-identity"
    assert "version 0" in caught.value.place
    assert not cnrfmt.verify(path).sound


def test_a_container_that_was_exchanged_is_not_taken_for_the_same(path: Path, tmp_path: Path) -> None:
    other = tmp_path / f"other{path.suffix}"
    cnrfmt.save(other, {"t": VALUES + 1})
    for _ in range(5):
        cnrfmt.append(other, {}, metadata={})
    with cnrfmt.open(path) as ck:
        before = ck["t"][...]
        if path.suffix:
            os.replace(other, path)
        else:
            shutil.rmtree(path)
            other.rename(path)
        with pytest.raises(DamagedError, match="another container was put in its place"):
            ck.refresh()
        # What was open stays what it was.
        assert ck.version == 1
        assert (ck["t"][...] == before).all()


def test_an_older_state_that_was_put_back_is_named(path: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (shutil.copyfile if path.suffix else shutil.copytree)(path, kept)
    cnrfmt.append(path, {"t": Rows([2], VALUES[:1])})
    with cnrfmt.open(path) as ck:
        if path.suffix:
            os.replace(kept, path)
        else:
            shutil.rmtree(path)
            kept.rename(path)
        with pytest.raises(DamagedError, match="an older state was put in its place"):
            ck.refresh()
        assert ck.version == 2


def test_a_history_that_was_put_back_and_went_another_way(path: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (shutil.copyfile if path.suffix else shutil.copytree)(path, kept)
    cnrfmt.append(path, {"t": Rows([2], VALUES[:1])})
    with cnrfmt.open(path) as ck:
        assert ck.version == 2
        if path.suffix:
            os.replace(kept, path)
        else:
            shutil.rmtree(path)
            kept.rename(path)
        with pytest.raises(DamagedError, match="at version 1"):
            ck.refresh()
        for seed in (5, 6):
            cnrfmt.append(path, {"t": Rows([3], VALUES[:1] + seed)})
        with pytest.raises(DamagedError, match="went another way"):
            ck.refresh()
        assert ck.version == 2


def test_a_refresh_that_is_refused_changes_nothing(path: Path) -> None:
    class Refusing(PosixFs):
        refuse = False

        def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
            if self.refuse:
                raise StorageError(errno.EIO, "Input/output error", str(path))
            return super().pread_into(handle, offset, buffer)

    fs = Refusing()
    with cnrfmt.open(path, fs=fs) as ck:
        cnrfmt.append(path, {"t": Rows([2], VALUES[:1])})
        fs.refuse = True
        with pytest.raises(StorageError):
            ck.refresh()
        fs.refuse = False
        assert ck.version == 1
        refreshed = ck.refresh()
        assert refreshed is not None
        assert (refreshed.before, refreshed.version, ck.version) == (1, 2, 2)
        assert ck.refresh() is None


@pytest.mark.parametrize(("code", "same"), [(errno.ESTALE, False), (errno.EIO, None)])
def test_a_file_that_a_server_has_removed(tmp_path: Path, code: int, same: bool | None) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"t": VALUES})

    class Stale(PosixFs):
        def stat_handle(self, handle: int) -> FileStat:
            raise StorageError(code, os.strerror(code))

    with open_container(path) as found, open_container(path, Stale()) as gone:
        if same is None:
            with pytest.raises(StorageError):
                found.same_as(gone)
        else:
            assert found.same_as(gone) is same


def test_a_lock_that_is_refused_for_another_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    handle = POSIX.open(str(tmp_path / "file"), "write")
    POSIX.close(handle)
    for lock in (POSIX.lock_record, POSIX.lock_handle):
        with pytest.raises(StorageError) as caught:
            lock(handle)
        assert caught.value.errno == errno.EBADF


def test_a_lock_of_another_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    handles = [POSIX.open(str(tmp_path / "file"), "write") for _ in range(2)]
    try:
        assert POSIX.lock_handle(handles[0])
        assert not POSIX.lock_handle(handles[1])
        for code in (errno.EACCES, errno.EAGAIN):

            def refuse(handle: int, flags: int, code: int = code) -> None:
                raise OSError(code, os.strerror(code))

            monkeypatch.setattr(fcntl, "lockf", refuse)
            assert not POSIX.lock_record(handles[0])
    finally:
        for handle in handles:
            POSIX.close(handle)


def test_a_child_that_was_forked_while_bytes_were_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    handle = POSIX.open(str(tmp_path / "file"), "read")
    try:
        with POSIX._counting:
            # What a child does first: the thread that holds the lock isn't there to give it back.
            fs_module._after_fork()
            buffer = bytearray(10)
            assert POSIX.pread_into(handle, 0, buffer) == 10
    finally:
        POSIX.close(handle)
    assert buffer == b"some bytes"


def test_the_encoding_of_a_column_is_that_of_its_oldest_part(path: Path) -> None:
    """It is looked for past segments that say nothing of the table, of the column, or delete rows alone."""
    keys = np.arange(6)
    cnrfmt.append(path, {"k": TableData(VALUES, keys=keys, columns={"g": np.ones(6, np.float32)})})
    cnrfmt.append(path, {"k": Deleted([5])})
    cnrfmt.append(path, {"e": TableData(VALUES[:0], keys=keys[:0])}, quantize={"e": Quantize(4)})
    cnrfmt.append(path, {"e": Deleted([7])})
    # Nothing was stored of it yet, so it is stored as it comes.
    more = Rows([9], VALUES[:1], columns={"g": np.full(1, 2, np.float32)})
    cnrfmt.append(path, {"e": Rows([3], VALUES[:1]), "k": more})
    with cnrfmt.open(path) as ck:
        assert ck["e"][3].tolist() == VALUES[0].tolist()
        assert ck["k"].read([9, 0], column="g").tolist() == [2, 1]
    assert cnrfmt.verify(path).findings == []
