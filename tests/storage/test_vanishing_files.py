"""What hardly ever happens to a directory, to a lock or to whoever reads: files that vanish between two calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.errors import (
    CommitUnknownError,
    ConflictError,
    DamagedError,
    LockedError,
    StorageError,
    UnsupportedError,
    UsageError,
    VersionExpiredError,
)
from cnrfmt.format.blocks import Features
from cnrfmt.format.manifest import parse_manifest
from cnrfmt.storage import directory, directory_commit, locks
from cnrfmt.storage.base import DirectoryFacts
from cnrfmt.storage.container import begin, open_container
from cnrfmt.storage.directory import Directory
from cnrfmt.storage.fs import POSIX, FileStat, OpenMode
from cnrfmt.storage.locks import WriterLock
from tests.storage.support import (
    QuickFs,
    check_whole,
    commit,
    finish,
    leftovers,
    manifest_file,
    next_manifest,
    payload,
    two_versions,
)

# --- the directory -----------------------------------------------------------------------------------------------


def test_a_missing_segment_that_a_damaged_manifest_may_need_is_damage(folder: Path) -> None:
    entry = replace(check_whole(folder).chain[0], segment=os.urandom(16))
    with open_container(folder) as container, pytest.raises(VersionExpiredError):
        container.segment(entry)
    manifest_file(folder, 0).write_bytes(b"rotten")
    # Nobody can say any more that no retained version names it.
    with open_container(folder) as container, pytest.raises(DamagedError) as caught:
        container.segment(entry)
    assert caught.value.rule == "file-missing"


def test_a_head_that_is_removed_again_and_again(folder: Path) -> None:
    class Vanishing(QuickFs):
        tries = 0

        def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
            if path.endswith(".cnrm"):
                self.tries += 1
                return None
            return super().stat(path, follow=follow)

        def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
            if path.endswith(".cnrm"):
                raise StorageError(errno.ENOENT, "No such file or directory", path)
            return super().open(path, mode, follow=follow)

    fs = Vanishing()
    with open_container(folder, fs) as container, pytest.raises(StorageError, match="again and again") as caught:
        container.head()
    assert caught.value.errno == errno.EAGAIN
    assert fs.tries == directory._TRIES


def test_a_directory_that_is_gone_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        Directory(POSIX, str(tmp_path / "gone"))
    assert caught.value.errno == errno.ENOENT
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        Directory(POSIX, str(tmp_path / "file"))
    assert caught.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("missing", ["segment", "manifest"])
def test_a_missing_file_of_a_container_without_any_version_has_expired(folder: Path, missing: str) -> None:
    head = check_whole(folder)
    with open_container(folder) as container:
        for file in [*folder.glob("manifests/*"), *folder.glob("segments/*")]:
            file.unlink()
        calls: dict[str, Callable[[], object]] = {
            "segment": lambda: container.segment(head.chain[0]),
            "manifest": lambda: container.read_manifest(head.versions[0]),
        }
        with pytest.raises(VersionExpiredError):
            calls[missing]()


def test_a_segment_that_only_an_older_version_needs_is_missed(folder: Path) -> None:
    """A file is damage if the head or any version that it retains needs it."""
    commit(folder, payload(5), fresh=True, fs=QuickFs())
    head = check_whole(folder)
    assert len(head.chain) == 1
    with open_container(folder) as container:
        old = parse_manifest(container.read_manifest(head.versions[-1]), "x").chain[0]
        (folder / "segments" / f"{old.segment.hex()}.cnrs").unlink()
        with pytest.raises(DamagedError) as caught:
            container.segment(old)
        assert caught.value.rule == "file-missing"
        with pytest.raises(VersionExpiredError):
            container.segment(replace(old, segment=b"nobody's segment"))


def test_another_refusal_than_a_missing_file_is_passed_on(folder: Path) -> None:
    class Refusing(QuickFs):
        refused = ""

        def open(self, path: str, mode: OpenMode, *, follow: bool = False) -> int:
            if path.endswith(self.refused):
                raise StorageError(errno.EACCES, "Permission denied", path)
            return super().open(path, mode, follow=follow)

    head = check_whole(folder)
    fs = Refusing()
    with open_container(folder, fs) as container:
        calls: dict[str, Callable[[], object]] = {
            "1.cnrm": container.head,
            ".cnrs": lambda: container.segment(head.chain[0]),
            "0.cnrm": lambda: container.read_manifest(head.versions[0]),
        }
        for fs.refused, call in calls.items():
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == errno.EACCES


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(folder: Path) -> None:
    class Refusing(QuickFs):
        def list_directory(self, path: str) -> list[str]:
            raise StorageError(errno.EACCES, "Permission denied", path)

    with open_container(folder, Refusing()) as container, pytest.raises(StorageError) as caught:
        container.head()
    assert caught.value.errno == errno.EACCES


def test_a_name_that_vanishes_while_names_are_listed(folder: Path) -> None:
    class Vanishing(QuickFs):
        def list_directory(self, path: str) -> list[str]:
            return [*super().list_directory(path), "gone"]

    with open_container(folder, Vanishing()) as container:
        facts = container.inspect()
    assert isinstance(facts, DirectoryFacts)
    assert facts.manifests is not None
    assert facts.segments is not None
    assert [n.name for n in facts.names] == ["manifests", "segments"]
    assert [n.name for n in facts.manifests] == [f"{v:020}.cnrm" for v in (0, 1)]
    assert {n.size for n in facts.segments} == {payload(0).nbytes}


def test_the_same_directory_is_the_same(folder: Path, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    other = two_versions(tmp_path / "other")
    with open_container(folder) as a, open_container(link) as b, open_container(other) as c, open_container(file) as d:
        assert a.same_as(b)
        assert not a.same_as(c)
        assert not a.same_as(d)
        assert not d.same_as(a)
        assert a.container_id is None


def test_a_first_writer_that_another_overtakes(tmp_path: Path) -> None:
    class Overtaken(QuickFs):
        def mkdir(self, path: str) -> None:
            super().mkdir(path)
            raise StorageError(errno.EEXIST, "File exists", path)

    path = tmp_path / "run"
    with begin(path, replace=True, fs=Overtaken()) as tx:
        next_manifest(tx, payload(0))
    # The folders are the other's, so they stay.
    assert sorted(p.name for p in path.iterdir()) == ["manifests", "segments"]
    assert commit(path, payload(0), fresh=True, fs=Overtaken()) == 0


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    class Refusing(QuickFs):
        def mkdir(self, path: str) -> None:
            if path.endswith("manifests"):
                raise StorageError(errno.ENOSPC, "No space left on device", path)
            super().mkdir(path)

    with pytest.raises(StorageError) as caught:
        begin(tmp_path / "run", replace=True, fs=Refusing())
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "run").exists()


def test_hidden_names_and_segments_do_not_make_a_directory_foreign(tmp_path: Path) -> None:
    path = tmp_path / "run"
    (path / "segments").mkdir(parents=True)
    (path / ".directory").write_text("")
    assert commit(path, payload(0), fresh=True, fs=QuickFs()) == 0


def test_new_files_that_are_removed_again_and_again(folder: Path) -> None:
    class Removing(QuickFs):
        removed = 0

        def lock_handle(self, handle: int) -> bool:
            for left in leftovers(folder):
                left.unlink()
                self.removed += 1
            return super().lock_handle(handle)

    fs = Removing()
    with begin(folder, replace=False, fs=fs) as tx, pytest.raises(StorageError, match="again and again") as caught:
        tx.segment(os.urandom(16))
    assert caught.value.errno == errno.EAGAIN
    assert fs.removed == directory_commit._TRIES
    assert not fs._paths


def test_a_segment_that_is_there_already_is_another_writers(folder: Path) -> None:
    """Ids are random, so a name that is taken is a fault of the file system, or of whoever made the id."""
    taken = folder / "segments" / f"{'ab' * 16}.cnrs"
    taken.write_bytes(b"precious")
    with begin(folder, replace=False, fs=QuickFs()) as tx:
        sink = tx.segment(b"\xab" * 16)
        sink.write(payload(2))
        sink.finish()
        manifest = next_manifest(tx, None)
        with pytest.raises(StorageError) as caught:
            finish(tx, manifest)
    assert caught.value.errno == errno.EEXIST
    assert taken.read_bytes() == b"precious"
    assert check_whole(folder).version == 1


def test_lost_answer_of_the_first_link_is_a_success(folder: Path) -> None:
    class LostAnswer(QuickFs):
        def link(self, source: str, target: str) -> None:
            super().link(source, target)
            if target.endswith(".cnrs"):
                raise StorageError(errno.EEXIST, "File exists", target)

    assert commit(folder, payload(2), fs=LostAnswer()) == 2
    assert check_whole(folder).version == 2
    assert not leftovers(folder)


@pytest.mark.parametrize("damaged", ["following", "newest"])
def test_a_version_that_others_followed_with_damage_is_unknown(folder: Path, damaged: str) -> None:
    class Followed(QuickFs):
        def point(self, name: str) -> None:
            if name == "manifests-synced":
                for seed in (3, 4):
                    commit(folder, payload(seed), fs=QuickFs())
                victim = manifest_file(folder, 3)
                if damaged == "newest":
                    victim.unlink()
                    victim = manifest_file(folder, 4)
                data = bytearray(victim.read_bytes())
                data[200] ^= 1
                victim.write_bytes(data)

    with pytest.raises(CommitUnknownError, match="newest is 4"):
        commit(folder, payload(2), fs=Followed())
    # Nothing is undone: the version may be needed.
    assert manifest_file(folder, 2).exists()


def test_an_attempt_that_lost_leaves_the_others_files_alone(folder: Path) -> None:
    class Losing(QuickFs):
        def point(self, name: str) -> None:
            if name == "segments-synced":
                commit(folder, payload(3), fs=QuickFs())

    with pytest.raises(ConflictError, match="committed version 2 first"):
        commit(folder, payload(2), fs=Losing())
    head = check_whole(folder)
    assert len(list((folder / "segments").iterdir())) == len(head.chain) == 3
    assert not leftovers(folder)


# --- the lock ----------------------------------------------------------------------------------------------------


def test_a_lock_is_given_back_by_the_process_that_took_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = WriterLock.acquire(POSIX, str(file))
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        lock.release()
    # The child has closed its copy; the registry is its parent's.
    with pytest.raises(LockedError, match="of this process"):
        WriterLock.acquire(POSIX, str(file))
    with suppress(StorageError):
        lock.release()
    WriterLock.acquire(POSIX, str(file)).release()


def test_a_lock_file_whose_note_cannot_be_read(file: Path) -> None:
    class Unreadable(QuickFs):
        def lock_record(self, handle: int) -> bool:
            return False

        def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
            raise StorageError(errno.EIO, "Input/output error")

    fs = Unreadable()
    with pytest.raises(LockedError, match="another process is writing to it"):
        WriterLock.acquire(fs, str(file))
    assert not fs._paths


def test_a_lock_by_another_name_of_the_lock_file(file: Path, tmp_path: Path) -> None:
    """The registry knows the file as well as its path."""
    other = tmp_path / "other.cnr.lock"
    with begin(file, replace=False, fs=QuickFs()):
        os.link(file.with_name("model.cnr.lock"), other)
        with pytest.raises(LockedError, match="of this process"):
            WriterLock.acquire(POSIX, str(tmp_path / "other.cnr"))
    WriterLock.acquire(POSIX, str(tmp_path / "other.cnr")).release()


def test_the_note_says_who_holds_the_lock(file: Path) -> None:
    lock_file = file.with_name("model.cnr.lock")
    lock_file.write_text("x" * 500)
    lock = WriterLock.acquire(POSIX, str(file))
    try:
        note = lock_file.read_text()
        assert note.startswith(f"process {os.getpid()} on ")
        assert note.endswith("Z\n")
        assert "x" * 10 not in note
    finally:
        lock.release()


def test_a_lock_that_cannot_be_taken_leaves_nothing_open(file: Path) -> None:
    class NoLocks(QuickFs):
        def lock_record(self, handle: int) -> bool:
            raise StorageError(errno.ENOLCK, "No locks available")

    fs = NoLocks()
    with pytest.raises(StorageError):
        begin(file, replace=False, fs=fs)
    assert not fs._paths
    assert locks._registry.held == {}


# --- sources -----------------------------------------------------------------------------------------------------


def test_ranges_of_a_source(path: Path) -> None:
    head = check_whole(path)
    with open_container(path) as container:
        source = container.segment(head.chain[0])
        whole = np.frombuffer(payload(0).tobytes(), np.uint8)
        offsets = np.array([0, 4096, 1], np.int64)
        buffer = np.empty(250, np.uint8)
        source.pread_ranges(offsets, 100, buffer)
        expected = np.concatenate([whole[:100], whole[4096:4196], whole[1:51]])
        assert np.array_equal(buffer, expected)
        source.pread_ranges(np.array([], np.int64), 100, buffer[:0])
        source.pread_ranges(np.array([source.length]), 100, buffer[:0])
        for wrong in ([-1], [0, source.length + 1]):
            with pytest.raises(UsageError, match="ranges outside"):
                source.pread_ranges(np.array(wrong), 100, buffer)
        # The last range ends behind the segment.
        with pytest.raises(UsageError, match="asked for"):
            source.pread_ranges(np.array([source.length - 10]), 100, buffer[:100])


@pytest.mark.parametrize("cut", [0, 1])
def test_a_file_that_is_cut_while_it_is_read(path: Path, cut: int) -> None:
    head = check_whole(path)
    with open_container(path) as container:
        source = container.segment(head.chain[-1])
        entry = head.chain[-1]
        segment = path if path.suffix else path / "segments" / f"{entry.segment.hex()}.cnrs"
        os.truncate(segment, (entry.offset or 0) + source.length - cut)
        buffer = np.empty(source.length, np.uint8)
        calls: list[Callable[[], object]] = [
            lambda: source.pread_into(0, buffer),
            lambda: source.pread_ranges(np.array([source.length - 8]), 8, buffer[:8]),
            source.map,
        ]
        for call in calls:
            if cut:
                with pytest.raises(DamagedError) as caught:
                    call()
                assert caught.value.rule == ("file-length" if path.suffix else "segment-length")
            else:
                call()


# --- the writer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.cnr", "run"])
def test_a_version_with_an_unknown_ro_compat_bit_is_read_and_not_built_upon(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    values = np.ones((4, 2), np.float32)
    cnrfmt.save(path, {"t": values})
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, None)
        head = parse_manifest(tx.head_bytes or b"", "x")
        kept = replace(
            head,
            version=1,
            commit_id=manifest.commit_id,
            parent=manifest.parent,
            versions=manifest.versions,
            features=Features(0, 1 << 3, 0),
        )
        finish(tx, kept)
    assert (cnrfmt.load(path)["t"] == values).all()
    with pytest.raises(UnsupportedError, match="ro_compat bit 3"):
        cnrfmt.append(path, {})
    with cnrfmt.open(path) as ck:
        assert ck.version == 1


def test_an_older_manifest_is_the_one_that_the_head_names(path: Path) -> None:
    head = check_whole(path)
    (retained,) = head.versions
    with open_container(path) as container:
        assert len(container.read_manifest(retained)) == retained.length
        with pytest.raises(DamagedError) as caught:
            container.read_manifest(replace(retained, digest=retained.digest ^ 1))
        assert caught.value.rule == "manifest-digest"
        if path.suffix:
            with pytest.raises(DamagedError) as caught:
                container.read_manifest(replace(retained, version=1))
            assert caught.value.rule == "manifest-identity"
        else:
            os.replace(manifest_file(path, 0), manifest_file(path, 7))
            with pytest.raises(DamagedError) as caught:
                container.read_manifest(replace(retained, version=7))
            assert caught.value.rule == "manifest-identity"
