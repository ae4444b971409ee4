"""Which files of a directory may go, and how they go: refusals, crashes, writers at the same time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cnrfmt.errors import DamagedError, StorageError
from cnrfmt.format.digests import digest
from cnrfmt.format.manifest import Manifest, parse_manifest
from cnrfmt.storage.container import begin, open_container
from cnrfmt.storage.directory_collect import (
    ManifestFile,
    SegmentFile,
    Survey,
    Waiting,
    plan,
    remove,
    store_time,
    survey,
)
from cnrfmt.storage.directory_commit import DirectoryTransaction
from cnrfmt.storage.fs import FileStat, Fs
from tests.storage.support import (
    KillAt,
    Killed,
    Points,
    QuickFs,
    ScriptedFs,
    check_whole,
    commit,
    finish,
    leftovers,
    manifest_file,
    next_manifest,
    payload,
)
from tools.crash.recording import FOLDER, RecordingFs

HOUR = 3600 * 10**9
A, B, C, D = (bytes([n]) * 16 for n in range(1, 5))


def give_up(path: Path | str, *versions: int, fs: Fs | None = None) -> int:
    """Commits the head once more without these versions."""
    with begin(path, replace=False, fs=fs or QuickFs()) as tx:
        manifest = next_manifest(tx, None)
        kept = tuple(r for r in manifest.versions if r.version not in versions)
        return finish(tx, replace(manifest, versions=kept))


@pytest.fixture
def run(folder: Path) -> Path:
    """Versions 0 to 4: two baselines with a delta each; then 4 gives up 0 and 1, which alone need the first two."""
    commit(folder, payload(2), fresh=True, fs=QuickFs())
    commit(folder, payload(3), fs=QuickFs())
    assert give_up(folder, 0, 1) == 4
    return folder


def collect(path: Path | str, grace: int = 0, fs: Fs | None = None) -> tuple[list[int], int]:
    """Removes what may go; the versions whose manifests went, and the number of segments."""
    system = fs or QuickFs()
    found = survey(system, str(path))
    done = remove(system, str(path), plan(found, store_time(system, str(path)) or 0, grace))
    return [file.version for file in done.manifests], len(done.segments)


def names(path: Path) -> tuple[list[int], int]:
    return sorted(int(p.stem) for p in path.glob("manifests/*.cnrm")), len(list(path.glob("segments/*.cnrs")))


def written(path: Path, version: int) -> int:
    """When a manifest was written."""
    return manifest_file(path, version).stat().st_mtime_ns


def age(path: Path, seconds: int) -> None:
    """Makes a file older."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - seconds * 10**9))


# --- the plan ----------------------------------------------------------------------------------------------------


def manifest(version: int, *segments: bytes, unnamed: int | None = None) -> ManifestFile:
    return ManifestFile(version, 100, version, frozenset(segments), None, unnamed)


def test_what_goes_at_which_moment() -> None:
    files = Survey(
        (manifest(0, A, unnamed=40), manifest(1, A, B, unnamed=50), manifest(2, C)),
        (SegmentFile(A, 1, 10), SegmentFile(B, 2, 20), SegmentFile(C, 4, 30), SegmentFile(D, 8, 60)),
    )
    first, second = (f"manifests/{v:020}.cnrm" for v in (0, 1))
    a, b, d = (f"segments/{segment.hex()}.cnrs" for segment in (A, B, D))
    early = plan(files, 139, 100)
    assert (early.manifests, early.segments, early.nbytes) == ((), (), 0)
    assert set(early.waiting) == {
        Waiting(first, 100, 140),
        Waiting(second, 100, 150),
        Waiting(a, 1, 150),
        Waiting(b, 2, 150),
        Waiting(d, 8, 160),
    }
    between = plan(files, 140, 100)
    assert ([f.version for f in between.manifests], between.segments, between.nbytes) == ([0], (), 100)
    later = plan(files, 150, 100)
    assert ([f.version for f in later.manifests], [f.segment for f in later.segments]) == ([0, 1], [A, B])
    assert later.waiting == (Waiting(d, 8, 160),)
    last = plan(files, 160, 100)
    assert ([f.segment for f in last.segments], last.waiting, last.nbytes) == ([A, B, D], (), 211)
    # With no period, times don't count.
    assert plan(files, 0, 0) == replace(last)


def test_a_manifest_that_stays_and_is_not_readable_keeps_everything() -> None:
    damage = DamagedError("manifest-digest", "here", expected="a", found="b")
    unread = ManifestFile(1, 100, 1, None, damage, 50)
    files = Survey((manifest(0, A, unnamed=40), unread, manifest(2, C)), (SegmentFile(A, 1, 10), SegmentFile(D, 8, 0)))
    early = plan(files, 149, 100)
    assert (early.manifests, early.segments, early.waiting, early.obstacles) == ((), (), (), (damage,))
    # It goes itself when its time has come, and then nothing needs anything for its sake.
    late = plan(files, 150, 100)
    assert [f.version for f in late.manifests] == [0, 1]
    assert ([f.segment for f in late.segments], late.obstacles) == ([A, D], ())


# --- what is there -----------------------------------------------------------------------------------------------


def test_a_survey_says_since_when_manifests_are_not_named(run: Path) -> None:
    for version in range(5):
        age(manifest_file(run, version), 100 - version)
    found = survey(QuickFs(), str(run))
    assert [file.unnamed_since for file in found.manifests] == [written(run, 4)] * 2 + [None] * 3
    assert [file.nbytes for file in found.manifests] == [manifest_file(run, v).stat().st_size for v in range(5)]
    assert [len(file.segments or ()) for file in found.manifests] == [1, 2, 1, 2, 2]
    assert sum(file.nbytes for file in found.segments) == sum(payload(n).nbytes for n in range(4))
    assert found.newest_time == max(file.modified for file in found.segments)
    # A later version doesn't make it younger, and a witness that is gone makes it no older.
    commit(run, None, fs=QuickFs())
    assert survey(QuickFs(), str(run)).manifests[0].unnamed_since == written(run, 4)
    give_up(run, 4)
    manifest_file(run, 4).unlink()
    assert survey(QuickFs(), str(run)).manifests[0].unnamed_since == written(run, 5)


def test_a_manifest_that_cannot_be_read_may_name_all_before_it(run: Path) -> None:
    commit(run, None, fs=QuickFs())
    give_up(run, 4)
    for version in range(5):
        age(manifest_file(run, version), 4000)
    found = survey(QuickFs(), str(run)).manifests
    assert [found[v].unnamed_since for v in (0, 1, 4)] == [written(run, 4), written(run, 4), written(run, 6)]
    manifest_file(run, 4).write_bytes(b"rotten")
    found = survey(QuickFs(), str(run)).manifests
    assert [found[v].unnamed_since for v in (0, 1, 4)] == [written(run, 5), written(run, 5), written(run, 6)]
    assert found[4].segments is None
    assert isinstance(found[4].obstacle, DamagedError)
    assert collect(run, HOUR) == ([], 0)
    # The head doesn't need it, so it isn't in the way for longer than the period.
    age(manifest_file(run, 6), 4000)
    age(manifest_file(run, 5), 4000)
    for file in run.glob("segments/*"):
        age(file, 4000)
    assert collect(run, HOUR) == ([0, 1, 4], 2)
    check_whole(run)


@pytest.mark.parametrize("what", ["rotten", "missing", "a folder"])
def test_a_retained_manifest_that_cannot_be_read_keeps_everything(run: Path, what: str) -> None:
    file = manifest_file(run, 2)
    data = file.read_bytes()
    file.unlink()
    if what == "rotten":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif what == "a folder":
        file.mkdir()
    before = names(run)
    removal = plan(survey(QuickFs(), str(run)), 0, 0)
    (obstacle,) = removal.obstacles
    assert isinstance(obstacle, DamagedError)
    assert obstacle.rule == ("manifest-digest" if what == "rotten" else "file-missing")
    assert remove(QuickFs(), str(run), removal) == removal
    assert names(run) == before


def test_what_is_not_a_file_of_the_container_is_not_touched(run: Path) -> None:
    strange = [
        run / "notes.txt",
        run / "segments" / "0123.cnrs",
        run / "segments" / f"{'ab' * 16}.cnrs.bak",
        run / "manifests" / "1.cnrm",
    ]
    for file in strange:
        file.write_text("mine")
    folders = [run / "segments" / f"{'cd' * 16}.cnrs", run / "manifests" / f"{0:020}.cnrm"]
    manifest_file(run, 0).unlink()
    for folder in folders:
        folder.mkdir()
    assert collect(run) == ([1], 2)
    assert all(file.read_text() == "mine" for file in strange)
    assert all(folder.is_dir() for folder in folders)
    check_whole(run)


def test_a_container_without_a_version_has_no_files_to_judge(tmp_path: Path) -> None:
    for name in ("manifests", "segments"):
        (tmp_path / name).mkdir()
    with pytest.raises(DamagedError) as caught:
        survey(QuickFs(), str(tmp_path))
    assert caught.value.rule == "directory-layout"


# --- removing ----------------------------------------------------------------------------------------------------


def test_nothing_goes_that_a_retained_version_needs(run: Path) -> None:
    head = check_whole(run)
    assert collect(run, HOUR) == ([], 0)
    assert names(run) == ([0, 1, 2, 3, 4], 4)
    assert collect(run) == ([0, 1], 2)
    assert names(run) == ([2, 3, 4], 2)
    assert check_whole(run) == head
    assert collect(run) == ([], 0)
    assert not leftovers(run)


def test_the_period_starts_when_a_version_is_given_up(run: Path) -> None:
    for file in [*run.glob("segments/*"), manifest_file(run, 0), manifest_file(run, 1)]:
        age(file, 4000)
    # That they are old themselves doesn't count: they were named until a moment ago.
    assert collect(run, HOUR) == ([], 0)
    age(manifest_file(run, 4), 3000)
    assert collect(run, HOUR) == ([], 0)
    age(manifest_file(run, 4), 1000)
    assert collect(run, HOUR) == ([0, 1], 2)
    check_whole(run)


def test_a_segment_that_no_manifest_names_waits_for_its_commit(run: Path) -> None:
    class Collecting(Points):
        """Another process collects while segments are there and their manifest isn't."""

        def point(self, name: str) -> None:
            if name == "segments-synced":
                self.passed.append(f"{collect(run, HOUR)}")

    fs = Collecting()
    assert commit(run, payload(5), fs=fs) == 5
    assert fs.passed == ["([], 0)"]
    check_whole(run)
    # One of a dead writer goes when it is old.
    dead = run / "segments" / f"{'ef' * 16}.cnrs"
    dead.write_bytes(b"x")
    assert collect(run, HOUR) == ([], 0)
    age(dead, 3601)
    assert collect(run, HOUR) == ([], 1)
    assert not dead.exists()


@pytest.mark.parametrize("moment", ["segment-published", "segments-synced", "manifest-synced", "manifest-published"])
def test_no_grace_period_is_too_short_for_a_commit_under_way(run: Path, moment: str) -> None:
    class Collecting(QuickFs):
        done: tuple[list[int], int] | None = None

        def point(self, name: str) -> None:
            if name == moment:
                self.done = collect(run)

    fs = Collecting()
    assert commit(run, payload(5), fs=fs) == 5
    assert fs.done == ([0, 1], 2)
    check_whole(run)


def test_what_was_handed_over_stays_while_its_writer_waits(run: Path) -> None:
    with begin(run, replace=False, fs=QuickFs()) as tx:
        assert isinstance(tx, DirectoryTransaction)
        next_manifest(tx, payload(5))
        tx.hand_over()
        before = names(run)[1]
        assert collect(run) == ([0, 1], 2)
        assert names(run)[1] == before - 2
        tx.take_back()
    assert collect(run) == ([], 0)


def test_a_commit_that_ends_before_its_segment_is_looked_at(run: Path) -> None:
    with begin(run, replace=False, fs=QuickFs()) as tx:
        assert isinstance(tx, DirectoryTransaction)
        manifest = next_manifest(tx, payload(5))
        tx.publish()

        def before(name: str, arguments: tuple[Any, ...]) -> None:
            if name == "open" and arguments[0].endswith(".cnrs") and arguments[1] == "write":
                finish(tx, manifest)

        assert collect(run, fs=ScriptedFs(before)) == ([0, 1], 2)
    assert check_whole(run).version == 5


@pytest.mark.parametrize("refused", ["open", "lock_handle", "close"])
def test_an_abandoned_segment_that_cannot_be_locked_stays(run: Path, refused: str) -> None:
    dead = run / "segments" / f"{'ef' * 16}.cnrs"
    dead.write_bytes(b"x")

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == refused and (name != "open" or arguments[1] == "write"):
            raise StorageError(errno.ENOLCK, "refused", "x")

    found = survey(QuickFs(), str(run))
    fs = ScriptedFs(before)
    done = remove(fs, str(run), plan(found, store_time(QuickFs(), str(run)) or 0, 0))
    assert dead.exists() == (refused != "close")
    assert len(done.segments) == 2 + (refused == "close")
    assert not fs.handles


def test_a_commit_while_segments_go_keeps_what_it_needs(run: Path) -> None:
    """Even one that builds on a version that nobody may build on any more."""
    chain = parse_manifest(manifest_file(run, 1).read_bytes(), "x").chain

    class Late(QuickFs):
        rotten = False

        def point(self, name: str) -> None:
            if name == "removal-synced":
                with begin(run, replace=False, fs=QuickFs()) as tx:
                    head = next_manifest(tx, None)
                    finish(tx, replace(head, chain=chain, state=chain[-1].to_state))
                if self.rotten:
                    manifest_file(run, 2).write_bytes(b"rotten")

    assert collect(run, fs=Late()) == ([0, 1], 0)
    assert check_whole(run).chain == chain
    # Nothing is known of what a manifest needs that can't be read.
    late = Late()
    late.rotten = True
    (run / "segments" / f"{'ef' * 16}.cnrs").write_bytes(b"x")
    assert collect(run, fs=late) == ([], 0)
    assert (run / "segments" / f"{'ef' * 16}.cnrs").exists()


def test_two_may_collect_at_once(run: Path) -> None:
    class Twice(QuickFs):
        done: tuple[list[int], int] | None = None

        def unlink(self, path: str) -> None:
            if self.done is None and path.endswith(".cnrm"):
                self.done = collect(run)
            super().unlink(path)

    fs = Twice()
    assert collect(run, fs=fs) == ([], 0)
    assert fs.done == ([0, 1], 2)
    check_whole(run)


def test_a_head_that_moves_while_it_is_looked_at(run: Path) -> None:
    class Moving(QuickFs):
        """Others collect between the names and the files: `what` vanishes after it was listed or read."""

        def __init__(self, call: str, what: str, action: Callable[[], object]) -> None:
            super().__init__()
            self.call, self.what, self.action = call, what, action

        def _meet(self, call: str, path: str) -> None:
            if call == self.call and path.endswith(self.what):
                self.call = ""
                self.action()

        def open(self, path: str, mode: Any, *, follow: bool = False) -> int:
            self._meet("open", path)
            return super().open(path, mode, follow=follow)

        def stat(self, path: str, *, follow: bool = False) -> FileStat | None:
            self._meet("stat", path)
            return super().stat(path, follow=follow)

        def close(self, handle: int) -> None:
            path = self._paths[handle]
            super().close(handle)
            self._meet("close", path)

    def two_collects() -> None:
        give_up(run, 2)
        collect(run)

    # What the head doesn't name is gone: it was read, or wasn't.
    assert collect(run, fs=Moving("open", f"{0:020}.cnrm", lambda: collect(run))) == ([], 0)
    assert names(run) == ([2, 3, 4], 2)
    # What the head names is given up by another head, and gone.
    assert collect(run, fs=Moving("stat", f"{2:020}.cnrm", two_collects)) == ([], 0)
    assert names(run) == ([3, 4, 5], 2)
    commit(run, None, fs=QuickFs())
    assert collect(run, fs=Moving("close", f"{3:020}.cnrm", lambda: (give_up(run, 3), collect(run)))) == ([], 0)
    assert names(run) == ([4, 5, 6, 7], 2)
    # A new head comes when all is read.
    assert collect(run, fs=Moving("close", f"{7:020}.cnrm", lambda: give_up(run, 4, 5))) == ([4, 5], 0)
    assert check_whole(run).version == 8


def test_a_head_that_never_rests(run: Path) -> None:
    class Restless(QuickFs):
        def list_directory(self, path: str) -> list[str]:
            if path.endswith("segments"):
                self.version = commit(run, None, fs=QuickFs())
            found = super().list_directory(path)
            commit(run, None, fs=QuickFs())
            return found

    with pytest.raises(StorageError, match="changes again and again") as caught:
        survey(Restless(), str(run))
    assert caught.value.errno == errno.EAGAIN


# --- refusals and crashes ----------------------------------------------------------------------------------------


def test_a_time_that_is_refused_is_none(run: Path) -> None:
    def refuse(name: str, args: tuple[Any, ...]) -> None:
        if name == "open":
            raise StorageError(errno.ENOSPC, "No space left on device")

    assert store_time(ScriptedFs(refuse), str(run)) is None
    for failing in ("unlink", "close"):
        fs = ScriptedFs(lambda name, args, failing=failing: fail(name, failing))
        found = store_time(fs, str(run))
        assert found is not None
        assert not fs.handles
    assert len(leftovers(run)) == 1
    assert commit(run, None, fs=QuickFs()) == 5
    assert not leftovers(run)


def fail(name: str, failing: str) -> None:
    if name == failing:
        raise StorageError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("failing", ["list_directory", "open", "stat", "unlink", "sync_directory"])
def test_a_refusal_is_passed_on_and_harms_nothing(run: Path, failing: str) -> None:
    fs = ScriptedFs(lambda name, args: fail(name, failing))
    call: Callable[[], object] = partial(survey, fs, str(run))
    if failing in ("unlink", "sync_directory"):
        call = partial(remove, fs, str(run), plan(survey(QuickFs(), str(run)), 0, 0))
    with pytest.raises(StorageError) as caught:
        call()
    assert caught.value.errno == errno.EIO
    check_whole(run)
    collect(run)
    assert names(run) == ([2, 3, 4], 2)


def test_an_unnamed_manifest_that_is_refused_is_not_a_missing_one(run: Path) -> None:
    class Refusing(QuickFs):
        def open(self, path: str, mode: Any, *, follow: bool = False) -> int:
            if path.endswith(f"{0:020}.cnrm"):
                raise StorageError(errno.EACCES, "Permission denied", path)
            return super().open(path, mode, follow=follow)

    with pytest.raises(StorageError, match="Permission denied"):
        survey(Refusing(), str(run))


def test_the_points_are_passed_in_order(run: Path) -> None:
    fs = Points()
    collect(run, fs=fs)
    assert fs.passed == ["head-synced", "manifests-removed", "removal-synced", "segments-removed"]
    collect(run, fs=fs)
    assert len(fs.passed) == 4


def test_a_process_that_ends_at_every_call(run: Path, tmp_path: Path) -> None:
    original = tmp_path / "original"
    shutil.copytree(run, original)
    fs = ScriptedFs()
    collect(run, fs=fs)
    for k in range(1, len(fs.calls) + 1):
        shutil.rmtree(run)
        shutil.copytree(original, run)
        killed = ScriptedFs(KillAt(k))
        with suppress(Killed):
            collect(run, fs=killed)
        killed.end_process()
        assert [r.version for r in check_whole(run).versions] == [2, 3]
        collect(run)
        assert names(run) == ([2, 3, 4], 2)
        commit(run, payload(5), fs=QuickFs())
        check_whole(run)
        assert not leftovers(run)


def whole(fs: RecordingFs) -> Manifest:
    """The head of a directory in memory, after a check that each version is whole."""
    with open_container(RUN, fs) as container:
        head = parse_manifest(container.head().data, RUN)
        for retained in head.versions:
            read(container, parse_manifest(container.read_manifest(retained), RUN))
        read(container, head)
    # A manifest that nobody needs has its segments, too, for whoever tries to salvage what there is.
    found = survey(fs, RUN)
    there = {file.segment for file in found.segments}
    assert all(file.segments is not None and file.segments <= there for file in found.manifests)
    return head


def read(container: Any, manifest: Manifest) -> None:
    for entry in manifest.chain:
        assert digest(container.segment(entry).map()) == entry.trailer_digest


RUN = f"{FOLDER}/run"


def memory(pending: bool) -> RecordingFs:
    """Versions 0 to 2, of which 2 gives up 0; its writer may have died before its name was durable."""
    disk = RecordingFs()
    commit(RUN, payload(0, 20), fresh=True, fs=disk)
    commit(RUN, payload(1, 20), fresh=True, fs=disk)
    writer = ScriptedFs()
    writer.inner = disk  # type: ignore[assignment]
    passed = []

    def die(name: str, args: tuple[Any, ...]) -> None:
        passed.append(name)
        if pending and name == "sync_directory" and "link" in passed:
            raise Killed

    writer.before = die
    with suppress(Killed):
        give_up(RUN, 0, fs=writer)  # type: ignore[arg-type]
    disk.end_process()
    return disk


@pytest.mark.parametrize("pending", [False, True])
def test_a_machine_that_stops_at_every_call(pending: bool) -> None:
    calls = ScriptedFs()
    calls.inner = memory(pending)  # type: ignore[assignment]
    assert collect(RUN, fs=calls) == ([0], 1)  # type: ignore[arg-type]
    heads = set()
    for k in range(1, len(calls.calls) + 2):
        disk = memory(pending)
        stopped = ScriptedFs(KillAt(k))
        stopped.inner = disk  # type: ignore[assignment]
        with suppress(Killed):
            collect(RUN, fs=stopped)  # type: ignore[arg-type]
        for seed in range(6):
            after = disk.crash(Random(seed))
            head = whole(after)
            heads.add(head.version)
            assert [r.version for r in head.versions] == ([1] if head.version == 2 else [0])
            # The next ones go on from there.
            commit(RUN, payload(3, 20), fs=after)
            collect(RUN, fs=after)
            whole(after)
    assert heads == ({1, 2} if pending else {2})
