"""Faults of the disk at the calls of operations and readers, and that the engine finds writers that err."""

from __future__ import annotations

import errno
import gc
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt.errors import CommitUnknownError, StorageError
from cnrfmt.storage import fs as storage_fs
from cnrfmt.storage import locks
from cnrfmt.storage.base import Transaction
from cnrfmt.storage.container import open_container
from cnrfmt.storage.directory_commit import DirectoryTransaction
from cnrfmt.storage.fs import PosixFs
from cnrfmt.storage.locks import WriterLock
from cnrfmt.storage.single_file_commit import Appending, NewFile
from tools.crash import tally
from tools.crash.faults import FaultTrial, Workload, trials
from tools.crash.faulty_fs import CALLS, FAULTS, SYNCING, Fault, FaultyFs
from tools.crash.follow_faults import GONE
from tools.crash.operations import OPERATIONS, PATHS
from tools.progress import Kept, code_digest

SEED = 1
SAMPLE = 250


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[FaultTrial]:
    return trials(SEED, tmp_path_factory.mktemp("faults"))


def _check(todo: list[FaultTrial]) -> tally.Tally:
    found = tally.run(todo, tally.Tally(SEED))
    assert not found.failures, "\n".join(["python -m tools.crash.faults, each with:", *found.failures])
    assert found.trials == len(todo)
    return found


def test_eio_at_every_call(every: list[FaultTrial]) -> None:
    starts = ("create", "append", "replace")
    todo = [t for t in every if t.fault.name == "EIO" and t.work.startswith(starts) and "tidy" in t.work]
    # Once at every call; a disk that fails from then on, at some of them.
    todo = [t for number, t in enumerate(todo) if not t.lasting or Random(number).random() < 0.25]
    found = _check(todo)
    assert len(found.by_work) == len(starts) * len(PATHS)
    # A failed sync after the version may count, for one, leaves every one of them in doubt.
    assert set(found.unknown) == set(found.by_work)


def test_sample_of_all_faults(every: list[FaultTrial]) -> None:
    _check(Random(SEED).sample(every, SAMPLE))


def test_every_operation_and_every_fault_is_tried(every: list[FaultTrial]) -> None:
    works = {t.work for t in every}
    for name, operation in OPERATIONS.items():
        assert {f"{name}, {kind}, {start}" for kind in operation.kinds for start in ("tidy", "interrupted")} <= works
    assert {t.fault.name for t in every} == {*FAULTS, GONE.name}
    called = {call.kind for t in every for call in t.on.log}
    # Only what fails takes its new folders away again.
    assert called == CALLS - {"rmdir"}


def _no_lock_is_let_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriterLock, "release", lambda self: None)


def _handles_stay_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewFile, "_close", lambda self: None)


def _temporaries_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewFile, "_undo", lambda self: None)


def _doubts_are_failures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "_unknown", lambda self, version, error: StorageError(error.errno, "x", self.path))


def _failures_are_doubts(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Appending, *args: Any) -> None:
        try:
            real(self, *args)
        except StorageError as error:
            raise CommitUnknownError(f"{self.path}: {error}; 1 may or may not be committed") from error

    real = Appending._commit
    patch.setattr(Appending, "_commit", commit)


def _syncs_are_tried_again(patch: pytest.MonkeyPatch) -> None:
    """The mistake of many a database: the second sync succeeds and has written nothing of what the first gave up."""

    def sync(self: FaultyFs, handle: int) -> None:
        try:
            real(self, handle)
        except StorageError:
            real(self, handle)

    real = FaultyFs.sync
    patch.setattr(FaultyFs, "sync", sync)


def _nothing_is_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DirectoryTransaction, "_settle_link", lambda self, version, commit_id: "ours")


MISTAKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str, str]] = {
    "no lock is let go": (_no_lock_is_let_go, "append, file, tidy", "EIO, once", "descriptors left open"),
    "handles stay open": (_handles_stay_open, "create, file, tidy", "ENOSPC, once", "handles left open"),
    "temporaries stay": (_temporaries_stay, "create, file, tidy", "ENOSPC, once", "left over"),
    "doubts are failures": (_doubts_are_failures, "append, file, tidy", "EIO, once", "unknown is right"),
    "failures are doubts": (_failures_are_doubts, "append, file, tidy", "ENOSPC, once", "failed is right"),
    "syncs are tried again": (_syncs_are_tried_again, "append, file, tidy", "sync, pages lost, once", "verify finds"),
    "nothing is settled": (_nothing_is_settled, "append, directory, tidy", "EACCES, once", "failed is right"),
}


def _close_leaks(folder: Path) -> None:
    """So that a mistake isn't taken for that of the next test."""
    gc.collect()
    locks._forget()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(folder)):
                os.close(int(name))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_a_writer_are_found(
    every: list[FaultTrial], mistake: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    break_it, work, mode, text = MISTAKES[mistake]
    with monkeypatch.context() as patch:
        break_it(patch)
        found = tally.run([t for t in every if (t.work, t.mode) == (work, mode)], tally.Tally(SEED))
    _close_leaks(tmp_path_factory.getbasetemp())
    assert any(text in failure for failure in found.failures), found.failures


def test_state_of_a_run_goes_on(every: list[FaultTrial], tmp_path: Path) -> None:
    todo, state = every[:5], tmp_path / "state"
    whole = tally.run(todo, tally.Tally(SEED))
    tally.run(todo[:3], tally.Tally(SEED), Kept(state, {"seed": SEED}))
    kept = Kept(state, {"seed": SEED})
    begun = tally.Tally.load(SEED, kept)
    assert begun.trials == 3
    rest = tally.run(todo, begun, kept)
    assert (rest.trials, rest.by_fault, rest.outcomes) == (5, whole.by_fault, whole.outcomes)
    assert tally.Tally.load(SEED, Kept(state, {"seed": SEED})) == rest


def test_command_refuses_a_selection_that_is_empty_and_says_when_nothing_is_left(
    every: list[FaultTrial], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*options: str) -> int:
        return tally.command("tools.crash.faults", "", lambda seed, scratch: every[:4], options)

    with pytest.raises(SystemExit, match="2"):
        run("--only", "nonsense")
    said = capsys.readouterr().err
    assert "no such trial: 'nonsense'" in said
    assert every[0].work in said.splitlines()
    assert every[0].mode in said.splitlines()
    with pytest.raises(SystemExit, match="2"):
        run("--trials", "0")
    options = ["--only", every[2].name, "--state", str(tmp_path / "state")]
    assert run(*options) == 0
    assert "seed 1: 1 faults" in capsys.readouterr().out
    assert run(*options, "--json", str(tmp_path / "result.json")) == 0
    assert "nothing left to try: the result of 20" in capsys.readouterr().out
    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["code"] == code_digest()
    # What was tried of some isn't a result of others.
    with pytest.raises(SystemExit, match="2"):
        run("--state", str(tmp_path / "state"))


def test_what_is_interrupted_is_untidy(tmp_path: Path) -> None:
    kinds = {kind: Workload(tmp_path, tmp_path / "work", kind, "append", "interrupted", SEED) for kind in PATHS}
    kinds["file"].reset()
    assert [n for n in os.listdir(kinds["file"].folder) if n.startswith(".tmp-")]
    assert {f.rule for f in cnrfmt.verify(kinds["file"].path).findings} == {"commit-unfinished", "leftover"}
    kinds["directory"].reset()
    assert [n for n in os.listdir(Path(kinds["directory"].path, "segments")) if n.startswith(".tmp-")]


# What the engines have found.


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _descriptors(folder: Path) -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return [found for found in [*links, *maps] if str(folder) in found]


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("kind", PATHS)
def test_close_lets_go_of_files_that_tables_have_read(tmp_path: Path, kind: str, backend: Any) -> None:
    path = tmp_path / PATHS[kind]
    cnrfmt.save(path, {"item": np.ones((4, 2), np.float32)})
    with _no_collection():
        ck = cnrfmt.open(path, backend=backend)
        table = ck["item"]
        assert table.read().sum() == 8
        assert _descriptors(tmp_path)
        ck.close()
        assert not _descriptors(tmp_path)
        with pytest.raises(cnrfmt.UsageError, match="the checkpoint was closed"):
            table.read()
        with pytest.raises(cnrfmt.UsageError, match="the checkpoint was closed"):
            _ = table.encoding


def test_a_rotten_slot_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / PATHS["file"]
    cnrfmt.save(path, {"item": np.ones((4, 2), np.float32)})
    with path.open("r+b") as file:
        file.seek(4096 + 40)
        file.write(b"\xff")
    with _no_collection():
        with open_container(path) as container:
            assert container.head().version == 0
        del container
        assert not _descriptors(tmp_path)


@pytest.mark.parametrize("k", [1, 2])
def test_an_error_that_is_kept_keeps_no_manifest_open(tmp_path: Path, k: int) -> None:
    """A manager's future keeps the error of its commit, whatever became of the checkpoint."""
    path = tmp_path / PATHS["directory"]
    cnrfmt.save(path, {"item": np.ones((4, 2), np.float32)})
    fs = FaultyFs()
    with _no_collection():
        manager = cnrfmt.CheckpointManager(path, bits=32, flush_on_sigterm=False, fs=fs)
        restored = manager.restore()
        assert restored is not None
        refuse = Fault("EIO", errno.EIO, frozenset({"stat_handle" if k == 1 else "pread_into"}))
        fs.fault, fs.lasting = refuse, True
        with pytest.raises(StorageError) as caught:
            manager.save(1, restored.tables, kind="baseline").wait()
        manager.close()
        assert caught.value.errno == errno.EIO
        assert not fs.handles
        assert not _descriptors(tmp_path)


def test_a_log_record_that_is_kept_keeps_no_file_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of what a manager couldn't do behind a checkpoint, its log tells and no error."""
    work = Workload(tmp_path, tmp_path / "work", "directory", "checkpoint", "tidy", SEED)
    last = sum(call.kind in FAULTS["EIO on writing"].calls for call in work.log)
    with _no_collection():
        for k in range(last - 8, last):
            work.reset()
            fs = FaultyFs(FAULTS["EIO on writing"], k, lasting=True, folder=str(work.folder))
            assert work.attempt(fs).name == "returned"
            assert not fs.handles
            assert not _descriptors(tmp_path)
    assert "keeping house failed" in caplog.text


@pytest.mark.parametrize("threads", [1, 2])
def test_verifying_what_is_damaged_keeps_no_file_open(tmp_path: Path, threads: int) -> None:
    path = tmp_path / PATHS["file"]
    cnrfmt.save(path, {"item": np.ones((1000, 8), np.float32)})
    with path.open("r+b") as file:
        file.seek(30000)
        file.write(b"\xff")
    with _no_collection():
        assert {f.rule for f in cnrfmt.verify(path, threads=threads).findings} == {"piece-digest"}
        assert not _descriptors(tmp_path)


def test_file_that_cannot_be_looked_at_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()

    def refuse(handle: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(storage_fs.os, "fstat", refuse)
        with pytest.raises(StorageError, match=r"Stale file handle \(could not open it\)") as caught:
            PosixFs().open(str(tmp_path / "file"), "read")
        assert caught.value.filename == str(tmp_path / "file")
        made = PosixFs().open(str(tmp_path / "new"), "create")
    assert stat.S_ISREG(os.fstat(made).st_mode)
    os.close(made)
    assert not _descriptors(tmp_path)


def test_closing_a_directory_that_was_synced_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(handle: int) -> None:
        real(handle)
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    real = os.close
    with monkeypatch.context() as patch:
        patch.setattr(storage_fs.os, "close", close)
        PosixFs().sync_directory(str(tmp_path))
    assert not _descriptors(tmp_path)


@pytest.mark.parametrize("kind", PATHS)
def test_messages_say_what_is_safe(tmp_path: Path, kind: str) -> None:
    """Read aloud: which file, what couldn't be done to it, and what that means for the container."""
    path, tables = tmp_path / PATHS[kind], {"item": np.ones((4, 2), np.float32)}
    with pytest.raises(StorageError, match=r"\(could not .+ it\); nothing was committed: '"):
        cnrfmt.save(path, tables, fs=FaultyFs(FAULTS["EIO"], 3))
    cnrfmt.save(path, tables)
    text = r"\(could not pwrite it\); nothing was committed, the newest version is still 0: '"
    with pytest.raises(StorageError, match=text):
        cnrfmt.append(path, tables, fs=FaultyFs(FAULTS["EIO on writing"], 5))
    fs = FaultyFs()
    cnrfmt.append(path, tables, fs=fs)
    last_sync = sum(call.kind in SYNCING for call in fs.log)
    with pytest.raises(CommitUnknownError) as caught:
        cnrfmt.append(path, tables, fs=FaultyFs(FAULTS["sync, pages kept"], last_sync))
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(
        "version 2 may or may not be committed: open the container to see, it is there whole, "
        "or everything is as it was before"
    )
