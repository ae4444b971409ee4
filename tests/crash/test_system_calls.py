"""System calls that strace refuses, and disks that are full, limited or lost: samples of what the engines try."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.crash.support import forbidden
from tests.storage.support import FORKS
from tools.crash import real_disks, tally
from tools.crash.aftermath import LockProbe
from tools.crash.faults import Workload
from tools.crash.faulty_fs import FaultyFs
from tools.crash.operations import PATHS
from tools.crash.system_calls import ERRORS, StraceError, SystemCallTrial, attempt_traced, traced_trials

SEED = 1
NEEDS_STRACE = pytest.mark.needs_system("strace")


def _check(todo: Sequence[tally.Trial], count: int) -> tally.Tally:
    found = tally.run(tally.select(todo, SEED, count=count), tally.Tally(SEED))
    assert not found.failures, "\n".join(["python -m tools.crash.system_calls, each with:", *found.failures])
    assert found.trials == count
    return found


def _require(kind: str) -> None:
    if reason := real_disks.reason_against(kind):
        forbidden(reason)


def _work(folder: Path, kind: str, operation: str) -> Workload:
    folder.mkdir(exist_ok=True)
    work = Workload(folder, folder / "disk" / "work", kind, operation, "tidy", SEED)
    work.reset()
    return work


@NEEDS_STRACE
@FORKS
@pytest.mark.parametrize("kind", PATHS)
def test_refused_system_calls(tmp_path: Path, kind: str) -> None:
    work = _work(tmp_path, kind, "append")
    try:
        clean = attempt_traced(work)
    except StraceError as error:
        forbidden(f"strace may not attach to a process: {error}")
    assert clean.outcome.name == "returned"
    assert not clean.injected
    names = [name for name, _ in clean.traced]
    # As the C library calls it here.
    assert {"preadv", "preadv2"} & set(names)
    assert {"openat", "pwrite64", "fdatasync", "close"} <= set(names)
    todo = [
        SystemCallTrial(work, name, code, k, lasting)
        for name in sorted(set(names))
        for code in ERRORS[name]
        for k in range(1, 1 + names.count(name))
        for lasting in (False, True)
    ]
    found = _check(Random(SEED).sample(todo, 80), 80)
    assert set(found.outcomes) == {"returned", "failed", "unknown"}


@NEEDS_STRACE
@FORKS
def test_trials_are_those_of_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = _work(tmp_path, "file", "create")
    monkeypatch.setattr("tools.crash.system_calls.workloads", lambda scratch, seed: [work])
    monkeypatch.setattr("tools.crash.system_calls.readings", lambda scratch, seed: [])
    try:
        todo = traced_trials(SEED, tmp_path)
    except StraceError as error:
        forbidden(f"strace may not attach to a process: {error}")
    assert {t.call for t in todo} >= {"pwrite64", "fdatasync", "fsync", "openat"}
    assert len({t.name for t in todo}) == len(todo)


@NEEDS_STRACE
@FORKS
def test_errors_that_are_not_ours_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FaultyFs, path: str) -> int | None:
        raise OSError(errno.EIO, "not one of our own errors")

    work = _work(tmp_path, "file", "append")
    monkeypatch.setattr(FaultyFs, "free_bytes", refuse)
    try:
        answer = attempt_traced(work)
    except StraceError as error:
        forbidden(f"strace may not attach to a process: {error}")
    assert answer.outcome.name == "broken"
    assert "not one of our own errors" in answer.outcome.text


def test_limits_on_the_size_of_a_file(tmp_path: Path) -> None:
    found = _check([*real_disks.size_limits(SEED, tmp_path)], 40)
    assert set(found.outcomes) >= {"returned", "failed"}


def test_write_that_is_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    """The kernel writes up to the limit and says how much; the next write is refused."""
    work = _work(tmp_path, "file", "create")
    trial = real_disks.SizeLimit(work, 12288 + 4096 + 50)
    with LockProbe() as probe:
        outcome = trial.go(probe)
    assert (outcome.name, outcome.code) == ("failed", errno.EFBIG)


@pytest.mark.parametrize("kind", PATHS)
def test_full_disk(tmp_path: Path, kind: str) -> None:
    _require("tmpfs")
    work = _work(tmp_path, kind, "replace")
    outcomes = []
    with LockProbe() as probe:
        for what, most in (("pages", 12), ("inodes", 8)):
            for left in range(most):
                trial = real_disks.FullDisk(work, tmp_path / "disk", what, left)
                outcomes.append((what, left, trial.go(probe).name))
    assert {name for _, _, name in outcomes} == {"failed", "returned"}
    assert ("pages", 0, "failed") in outcomes
    assert ("inodes", 0, "failed") in outcomes
    assert ("pages", 11, "returned") in outcomes


@pytest.mark.needs_system("mkfs.ext4")
@pytest.mark.parametrize("kind", PATHS)
def test_disk_that_is_lost(tmp_path: Path, kind: str) -> None:
    _require("ext4")
    work, empty = _work(tmp_path, kind, "append"), tmp_path / "empty"
    real_disks.make_ext4(empty)
    assert work.visible is not None
    at = work.visible.find(work.log)
    assert at is not None
    outcomes = []
    with LockProbe() as probe:
        for k in (5, at // 2, at + 1, at + 2, at + 3, len(work.log)):
            outcomes.append(real_disks.LostDisk(work, tmp_path / "disk", empty, k).go(probe).name)
    assert outcomes[:3] == ["failed", "failed", "failed"]
    assert "unknown" in outcomes
    assert outcomes[-1] == "returned"


def test_reason_against_mounting_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real_disks.reason_against.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        assert real_disks.reason_against("tmpfs").startswith("no tmpfs can be mounted here: ")
        assert real_disks.reason_against("ext4").startswith("no ext4 can be mounted here: ")
    finally:
        real_disks.reason_against.cache_clear()


def test_leak_is_found_when_the_disk_is_unmounted(tmp_path: Path) -> None:
    _require("tmpfs")
    place = tmp_path / "disk"
    fs = FaultyFs()
    with pytest.raises(AssertionError, match="still open"), real_disks.mounted(place, "-t", "tmpfs", "none"):
        handle = fs.open(str(place / "file"), "create")
    fs.close(handle)
    real_disks._run("umount", str(place))
    shutil.rmtree(place)
