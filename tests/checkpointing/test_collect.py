"""`collect`: what it gives up and removes, what it leaves, and what becomes of it when it is interrupted."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.checkpointing.keeping.collect import GRACE, collect, time_text
from cnrfmt.checkpointing.keeping.retention import Keep
from cnrfmt.checkpointing.keeping.tags import tag
from cnrfmt.commits import attempt
from cnrfmt.errors import (
    CommitUnknownError,
    ConflictError,
    DamagedError,
    StorageError,
    UsageError,
    VersionExpiredError,
    VersionNotFoundError,
)
from cnrfmt.plan import plan_baseline
from cnrfmt.run_record import CheckpointRecord, RunRecord, metadata_with, record_of
from cnrfmt.storage import locks
from cnrfmt.storage.container import open_container
from tests.storage.support import FailAt, KillAt, Killed, QuickFs, ScriptedFs, manifest_file

ROWS = 40


def values(version: int) -> np.ndarray[Any, Any]:
    """What version 3 b + i of `grown` reads as: baseline b, and i rows of it changed since."""
    found = np.full((ROWS, 4), version // 3, np.float32)
    found[: version % 3] = 100 + version // 3
    return found


def grow(path: Path, count: int) -> None:
    """Versions 0 to count - 1: each third one a baseline, with a delta of one row on each of the others."""
    for version in range(count):
        step = 10 * version
        if version % 3 == 0:
            cnrfmt.save(path, {"t": values(version)}, step=step, fs=QuickFs())
        else:
            row = version % 3 - 1
            cnrfmt.append(path, {"t": cnrfmt.Rows([row], values(version)[row : row + 1])}, step=step, fs=QuickFs())


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collect") / "run"
    grow(path, 8)
    return path


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    """Versions 0 to 7 in three chains."""
    return Path(shutil.copytree(template, tmp_path / "run"))


def versions(path: Path) -> tuple[int, ...]:
    with cnrfmt.open(path) as ck:
        return ck.versions


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    files = (p for p in sorted(path.rglob("*")) if p.is_file())
    return {str(p.relative_to(path)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def check(path: Path, *readable: int) -> None:
    """The container is sound, and these versions read as what they were."""
    report = cnrfmt.verify(path, threads=1)
    assert report.verdict == "sound", report.findings
    for version in readable:
        assert np.array_equal(cnrfmt.load(path, version=version)["t"], values(version))


def age(path: Path, seconds: int) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            found = file.stat()
            os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns - seconds * 10**9))


# --- what goes ---------------------------------------------------------------------------------------------------


def test_versions_are_given_up_first_and_their_files_go_later(run: Path) -> None:
    before = tree(run)
    done = collect(run, keep=2)
    assert (done.version, done.given_up) == (8, (0, 1, 2, 3, 4, 5))
    assert (done.manifests, done.segments, done.nbytes, done.obstacles) == ((), (), 0, ())
    assert len(done.waiting) == 6 + 6
    assert done.waiting_bytes == sum(len(before[file.name][1]) for file in done.waiting)
    assert set(before) < set(tree(run))
    with pytest.raises(VersionNotFoundError, match="version 5 isn't retained; retained are 6, 7, 8"):
        cnrfmt.open(run, version=5)
    check(run, 6, 7)
    assert np.array_equal(cnrfmt.load(run)["t"], values(7))
    with cnrfmt.open(run) as ck:
        assert ck.step == 70
    age(run, int(GRACE.total_seconds()) + 1)
    done = collect(run)
    assert (done.version, done.given_up, done.waiting) == (None, (), ())
    assert (done.manifests, len(done.segments)) == ((0, 1, 2, 3, 4, 5), 6)
    assert done.nbytes == sum(len(data) for name, (_, data) in before.items() if name not in tree(run))
    report = cnrfmt.verify(run)
    assert (report.verdict, report.findings) == ("sound", [])
    check(run, 6, 7)


def test_a_chain_keeps_what_it_needs(run: Path) -> None:
    # Version 4 is a delta on version 3, which nobody wants for itself.
    done = collect(run, keep=Keep(where=lambda c: c.version == 4), grace=0)
    assert (done.given_up, done.manifests, len(done.segments)) == ((0, 1, 2, 3, 5, 6), (0, 1, 2, 3, 5, 6), 4)
    check(run, 4, 7)
    assert versions(run) == (4, 7, 8)


def test_giving_up_comes_to_an_end(run: Path) -> None:
    assert collect(run, keep=3).version == 8
    for keep in (3, 4, Keep(last=3, where=lambda c: False)):
        before = tree(run)
        done = collect(run, keep=keep, dry_run=True)
        assert (done.version, done.given_up) == (None, ())
        assert collect(run, keep=keep).version is None
        assert tree(run) == before
    assert versions(run) == (5, 6, 7, 8)
    # The repetition takes no place from a checkpoint.
    cnrfmt.append(run, {"t": cnrfmt.Rows([30], np.ones((1, 4), np.float32))}, fs=QuickFs())
    done = collect(run, keep=3)
    assert (done.version, done.given_up) == (10, (5, 7))
    assert versions(run) == (6, 8, 9, 10)


def test_steps_and_times_are_known_of_versions_without_a_record(run: Path) -> None:
    assert collect(run, keep=Keep(every_steps=40), dry_run=True).given_up == (1, 2, 3, 5, 6)
    assert collect(run, keep=Keep(every_minutes=10**9), dry_run=True).given_up == (1, 2, 3, 4, 5, 6)
    # Where a manifest can't be read, its version counts as a checkpoint all the same.
    manifest_file(run, 5).write_bytes(b"rotten")
    done = collect(run, keep=3)
    assert done.given_up == (0, 1, 2, 3, 4)
    (obstacle,) = done.obstacles
    assert isinstance(obstacle, DamagedError)
    assert done.to_json()["obstacles"] == [str(obstacle)]
    # What is damaged may be given up like any other, and is then in nobody's way.
    done = collect(run, keep=2, grace=0)
    assert (done.given_up, done.manifests, done.obstacles) == ((5, 7), (0, 1, 2, 3, 4, 5, 7), ())
    check(run, 6)


def test_a_dry_run_says_what_happens_and_changes_nothing(run: Path) -> None:
    tag(run, "prod", 1, fs=QuickFs())
    (run / "segments" / ".tmp-0123456789abcdef").write_bytes(b"a dead writer's")
    before = tree(run)
    for grace in (0, 3600):
        said = collect(run, keep=2, grace=grace, dry_run=True)
        assert said.dry_run
        assert tree(run) == before
        copy = run.parent / f"copy{grace}"
        shutil.copytree(run, copy)
        done = collect(copy, keep=2, grace=grace)
        assert not done.dry_run
        assert {file.name: file.nbytes for file in said.waiting} == {f.name: f.nbytes for f in done.waiting}
        assert replace(done, path=said.path, dry_run=True, waiting=said.waiting) == said
        assert versions(copy) == (1, 6, 8, 9)
        check(copy, 1, 6)
    said = collect(run, dry_run=True)
    assert (said.version, said.given_up, said.manifests, said.segments, said.waiting) == (None, (), (), (), ())


def test_a_full_disk_does_not_keep_anybody_from_making_room(run: Path) -> None:
    class Full(QuickFs):
        def open(self, path: str, mode: Any, *, follow: bool = False) -> int:
            if mode == "create":
                raise StorageError(errno.ENOSPC, "No space left on device", path)
            return super().open(path, mode, follow=follow)

    collect(run, keep=1)
    assert len(collect(run, fs=Full()).waiting) == 7 + 6
    assert collect(run, grace=0, fs=Full()).manifests == tuple(range(7))
    check(run, 7)


def test_the_words_of_a_result(run: Path) -> None:
    done = collect(run, keep=1, grace=timedelta(minutes=30))
    said = done.to_json()
    assert (said["version"], said["given_up"], said["bytes"]) == (8, list(range(7)), 0)
    assert said["waiting"][0]["name"] == f"manifests/{0:020}.cnrm"
    until = manifest_file(run, 8).stat().st_mtime_ns + 1800 * 10**9
    assert said["waiting"][0]["until"] == time_text(until)
    assert time_text(10**9) == "1970-01-01T00:00:01Z"
    assert time_text(10**9 + 1) == "1970-01-01T00:00:02Z"


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf"), True, "1h", None, timedelta(seconds=-1)])
def test_periods_that_are_none(run: Path, grace: Any) -> None:
    with pytest.raises(UsageError, match="grace is a timedelta or a number of seconds"):
        collect(run, grace=grace)


def test_a_single_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    grow(path, 2)
    with pytest.raises(UsageError, match="save a baseline, or compact it"):
        collect(path, keep=1)
    with pytest.raises(StorageError):
        collect(tmp_path / "nothing", keep=1)
    assert not (tmp_path / "nothing").exists()


# --- a run's record ----------------------------------------------------------------------------------------------


def checkpoint(path: Path, value: float, kind: str = "baseline", **metrics: float) -> None:
    """A version that is in the record of its run."""
    planned = plan_baseline({"t": np.full((3, 2), value, np.float32)}, None)
    with attempt(str(path), replace=True, fs=QuickFs()) as one:
        record = (None if one.head is None else record_of(one.head)) or RunRecord("ab" * 16)
        manifest = one.write(one.next(None, tables=planned.tables), planned.writes, None, threads=1)
        own = CheckpointRecord(manifest.version, None, manifest.created, kind, 3, 24, 32, 1, metrics)
        record = replace(record, checkpoints=(*record.checkpoints, own))
        one.commit(replace(manifest, metadata=metadata_with({"mine": 1}, record)))


def recorded(path: Path) -> RunRecord:
    with cnrfmt.open(path) as ck:
        assert ck.metadata == {"mine": 1}
        record = record_of(ck.manifest)
    assert record is not None
    return record


def test_metrics_are_known_of_a_runs_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for number, auc in enumerate([0.5, 0.9, 0.7, 0.8]):
        checkpoint(path, number, auc=auc)
    done = collect(path, keep=Keep(best=("auc", 2, "max")), grace=0)
    assert (done.version, done.given_up) == (4, (0, 2))
    # The version that gave them up repeats a checkpoint; the record says which, and forgets what is gone.
    record = recorded(path)
    assert [(c.version, c.kind, c.nbytes) for c in record.checkpoints] == [
        (1, "baseline", 24),
        (3, "baseline", 24),
        (4, "merge", 0),
    ]
    assert record.checkpoints[-1].metrics == {"auc": 0.8}
    assert collect(path, keep=Keep(best=("auc", 2, "max"))).version is None
    checkpoint(path, 4, auc=0.6)
    # Version 3 alone isn't worth a commit: version 4 has the same segments.
    assert collect(path, keep=Keep(best=("auc", 1, "max"), last=2)).version is None
    assert collect(path, keep=Keep(best=("auc", 1, "max"), last=1)).given_up == (3, 4)
    assert versions(path) == (1, 5, 6)


def test_what_was_appended_beside_a_run_is_not_in_its_record(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for number in range(3):
        checkpoint(path, number)
    cnrfmt.append(path, {"t": cnrfmt.Rows([0], np.ones((1, 2), np.float32))}, fs=QuickFs())
    assert collect(path, keep=2).given_up == (0, 1)
    # Only the newest baseline is there still, for the policies.
    assert [c.version for c in recorded(path).checkpoints] == [2]
    assert collect(path, keep=2).version is None
    assert versions(path) == (2, 3, 4)


# --- readers and writers at the same time ------------------------------------------------------------------------


def test_a_reader_keeps_what_it_has_open(run: Path) -> None:
    with cnrfmt.open(run, version=1) as old, cnrfmt.open(run) as newest, open_container(run) as container:
        collect(run, keep=1, grace=0)
        assert np.array_equal(old["t"].read(), values(1))
        assert not (run / "manifests" / f"{1:020}.cnrm").exists()
        # What it would open only now has expired; that is no damage.
        with pytest.raises(VersionExpiredError):
            container.read_manifest(newest.manifest.versions[3])
        with pytest.raises(VersionExpiredError):
            container.segment(old.manifest.chain[-1])
        moved = newest.refresh()
        assert moved is not None
        assert (moved.before, moved.version) == (7, 8)
        # The version that it was at is there, so that it knows that nothing changed.
        assert (len(moved.changed["t"].rows), moved.changed["t"].exact) == (0, True)
        assert old.refresh() is not None
        assert np.array_equal(old["t"].read(), values(7))
    check(run, 7)


class Racing(QuickFs):
    """Others commit when somebody is about to publish a manifest, so many times."""

    def __init__(self, path: Path, times: int) -> None:
        super().__init__()
        self.path, self.times = path, times

    def point(self, name: str) -> None:
        if name == "manifest-synced" and self.times:
            self.times -= 1
            cnrfmt.append(self.path, {}, step=self.times, fs=QuickFs())


def test_a_commit_at_the_same_moment_is_built_on(run: Path) -> None:
    done = collect(run, keep=2, fs=Racing(run, 2))
    assert (done.version, done.given_up) == (10, (0, 1, 2, 3, 4, 5, 7, 8))
    assert versions(run) == (6, 9, 10)
    cnrfmt.append(run, {"t": cnrfmt.Rows([0], np.ones((1, 4), np.float32))}, fs=QuickFs())
    with pytest.raises(ConflictError):
        collect(run, keep=1, fs=Racing(run, 99))
    check(run, 6)


# --- interruptions -----------------------------------------------------------------------------------------------


# What ends before a call that only looks ends before the next one that changes something.
CHANGING = {"pwrite", "sync", "sync_directory", "link", "unlink"}


def attempts(tmp_path: Path, calls: set[str] | None = None) -> Iterator[tuple[int, int, Path]]:
    """A copy of a small container for each call that collecting makes; of its two chains it is to keep a part.

    With it come the call's number, and its number among those that can be refused.
    """
    original, copy = tmp_path / "original", tmp_path / "copy"
    grow(original, 5)
    tag(original, "prod", 1, fs=QuickFs())
    shutil.copytree(original, copy)
    fs = ScriptedFs()
    collect(copy, keep=1, grace=0, fs=fs)
    refusable = 0
    for k, name in enumerate(fs.calls, 1):
        refusable += name != "point"
        if name != "point" and (calls is None or name in calls):
            shutil.rmtree(copy)
            shutil.copytree(original, copy)
            yield k, refusable, copy


def goes_on(path: Path) -> None:
    """All that is wanted is there, and the next call finishes."""
    check(path, 1)
    assert np.array_equal(cnrfmt.load(path)["t"], values(4))
    collect(path, keep=1, grace=0)
    assert len(list(path.glob("segments/*.cnrs"))) == 4
    cnrfmt.append(path, {}, fs=QuickFs())
    report = cnrfmt.verify(path, level="structure", threads=1)
    assert (report.verdict, report.findings) == ("sound", [])


def test_a_process_that_ends_at_every_call(tmp_path: Path) -> None:
    for k, _, path in attempts(tmp_path, CHANGING):
        fs = ScriptedFs(KillAt(k))
        with suppress(Killed):
            collect(path, keep=1, grace=0, fs=fs)
        fs.end_process()
        goes_on(path)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_that_refuses_at_every_call(tmp_path: Path, lasting: bool) -> None:
    for _, k, path in attempts(tmp_path, CHANGING if lasting else None):
        fs = ScriptedFs(FailAt(k, errno.EIO, lasting=lasting))
        with suppress(StorageError, CommitUnknownError):
            collect(path, keep=1, grace=0, fs=fs)
        assert not fs.handles
        locks._forget()
        goes_on(path)


@pytest.mark.parametrize("how", ["gone", "short"])
def test_nothing_is_given_up_for_a_newest_version_that_is_not_whole(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run"
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    for _ in range(3):
        cnrfmt.save(path, {"t": table})
    with cnrfmt.open(path) as ck:
        file = path / "segments" / f"{ck.manifest.chain[0].segment.hex()}.cnrs"
    before = sorted(path.rglob("*.cnr?"))
    if how == "gone":
        file.unlink()
    else:
        os.truncate(file, 100)
    with pytest.raises(cnrfmt.DamagedError):
        cnrfmt.collect(path, keep=1, grace=0)
    assert set(before) - set(path.rglob("*.cnr?")) == ({file} if how == "gone" else set())
    assert np.array_equal(cnrfmt.load(path, version=1)["t"], table)
