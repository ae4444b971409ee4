"""One writer at a time for a single file: between threads, processes and forked children, and after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cnrfmt.errors import ConflictError, LockedError, StorageError, UsageError
from cnrfmt.storage.container import begin
from cnrfmt.storage.fs import POSIX, PosixFs
from cnrfmt.storage.locks import WriterLock
from tests.storage.support import FORKS, QuickFs, check_whole, commit, finish, next_manifest, payload, run_in_child

# Begins a transaction, says so, and waits to be ended or to be told to go on.
HOLDER = """
import sys
from cnrfmt.storage.container import begin
with begin(sys.argv[1], replace=False) as tx:
    if tx.head_bytes is not None:
        tx.segment(b"0123456789abcdef").write(bytes(100_000))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.cnr"
    commit(path, payload(0), fresh=True, fs=QuickFs())
    return path


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the container's lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_second_process_is_refused_and_told_who(path: Path) -> None:
    with holder(path) as process:
        with pytest.raises(LockedError, match=f"process {process.pid} on .* is writing to it"):
            commit(path, payload(1))
        process.communicate()
        assert process.returncode == 0
    assert commit(path, payload(1), fs=QuickFs()) == 1


def test_killed_holder_blocks_nobody_and_leaves_nothing(path: Path) -> None:
    size = path.stat().st_size
    with holder(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert path.stat().st_size > size
    assert check_whole(path).version == 0
    with begin(path, replace=False, fs=QuickFs()):
        assert path.stat().st_size == size
    assert commit(path, payload(1), fs=QuickFs()) == 1
    assert check_whole(path).version == 1


def test_killed_holder_of_a_new_container(tmp_path: Path) -> None:
    path = tmp_path / "new.cnr"
    with holder(path) as process:
        process.kill()
        process.wait()
    assert not path.exists()
    assert len(list(tmp_path.glob(".tmp-new.cnr-*"))) == 1
    assert commit(path, payload(1), fresh=True, fs=QuickFs()) == 0
    assert not list(tmp_path.glob(".tmp-*"))


def test_second_thread_is_refused(path: Path) -> None:
    refused: list[str] = []

    def attempt() -> None:
        try:
            commit(path, payload(1))
        except LockedError as error:
            refused.append(str(error))

    with begin(path, replace=False):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert "thread 'MainThread' of this process" in refused[0]


def test_refused_thread_does_not_release_the_lock_for_other_processes(path: Path) -> None:
    # Closing any handle of the lock file would.
    with begin(path, replace=False):
        with pytest.raises(LockedError):
            begin(path, replace=False)
        with pytest.raises(LockedError):
            begin(path, replace=True)
        result = subprocess.run(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert result.returncode == 1
        assert f"LockedError: {path}: process {os.getpid()} on" in result.stderr


def test_many_threads_commit_one_after_the_other(path: Path) -> None:
    refused = threading.Semaphore(0)

    def work(seed: int) -> None:
        while True:
            try:
                commit(path, payload(seed, rows=40), fs=QuickFs())
                return
            except LockedError:
                refused.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = check_whole(path)
    assert head.version == 8
    assert len(head.chain) == 9


@FORKS
def test_forked_child_neither_holds_nor_undoes(path: Path) -> None:
    with begin(path, replace=False, fs=QuickFs()) as tx:
        manifest = next_manifest(tx, payload(1))
        size = path.stat().st_size

        def child() -> None:
            # What a data loader does at its end: it leaves the parent's with-block by an exception.
            with pytest.raises(UsageError, match="belongs to process"):
                tx.segment(b"0123456789abcdef")
            tx.abort()
            with pytest.raises(LockedError):
                commit(path, payload(2))

        assert run_in_child(child) == 0
        assert path.stat().st_size == size
        assert finish(tx, manifest) == 1
    assert check_whole(path).version == 1


@FORKS
def test_child_that_outlives_the_transaction_does_not_block(path: Path) -> None:
    read_end, write_end = os.pipe()
    with begin(path, replace=False):
        child = os.fork()
        if child == 0:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
    os.close(read_end)
    try:
        assert commit(path, payload(1), fs=QuickFs()) == 1
        # Nor does the child have what its parent registered.
        assert run_in_child(lambda: commit(path, payload(2), fs=QuickFs())) == 0
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
    assert check_whole(path).version == 2


def test_lock_is_one_for_all_links_to_a_file(path: Path) -> None:
    link = path.parent / "latest.cnr"
    link.symlink_to(path.name)
    with begin(path, replace=False), pytest.raises(LockedError):
        begin(link, replace=False)
    assert commit(link, payload(1), fresh=True, fs=QuickFs()) == 1
    assert link.is_symlink()
    assert check_whole(path).version == 1
    assert [p.name for p in sorted(path.parent.iterdir())] == ["latest.cnr", "model.cnr", "model.cnr.lock"]


def test_removed_lock_file_is_noticed_before_the_commit(path: Path) -> None:
    lock_file = path.with_name("model.cnr.lock")
    with begin(path, replace=False, fs=QuickFs()) as tx:
        lock_file.unlink()
        # Within the process the path keeps a second writer out.
        with pytest.raises(LockedError):
            begin(path, replace=False)
        manifest = next_manifest(tx, payload(1))
        with pytest.raises(ConflictError, match="lock file was removed"):
            finish(tx, manifest)
    assert check_whole(path).version == 0
    assert commit(path, payload(1), fs=QuickFs()) == 1


def test_lock_file_that_is_a_link_is_refused(path: Path) -> None:
    lock_file = path.with_name("model.cnr.lock")
    victim = path.with_name("victim")
    victim.write_text("precious")
    lock_file.unlink()
    lock_file.symlink_to(victim)
    with pytest.raises(StorageError):
        begin(path, replace=False)
    assert victim.read_text() == "precious"


def test_lock_file_exchanged_before_it_is_locked(path: Path) -> None:
    lock_file = str(path) + ".lock"

    class Exchanging(PosixFs):
        rounds = 0

        def lock_record(self, handle: int) -> bool:
            if self.rounds < 3:
                self.rounds += 1
                os.unlink(lock_file)
            return super().lock_record(handle)

    fs = Exchanging()
    lock = WriterLock.acquire(fs, str(path))
    assert fs.rounds == 3
    lock.check()
    lock.release()

    fs.rounds = -(10**6)
    with pytest.raises(LockedError, match="again and again"):
        WriterLock.acquire(fs, str(path))
    WriterLock.acquire(POSIX, str(path)).release()


def test_full_disk_does_not_keep_the_lock_from_being_taken(path: Path) -> None:
    class Full(PosixFs):
        def pwrite(self, handle: int, offset: int, data: object) -> None:
            raise StorageError(28, "No space left on device")

    lock = WriterLock.acquire(Full(), str(path))
    with pytest.raises(LockedError, match="of this process"):
        WriterLock.acquire(POSIX, str(path))
    lock.release()


def test_unreadable_note_is_not_printed(path: Path) -> None:
    with holder(path):
        Path(str(path) + ".lock").write_bytes(b"\x1b[2Jpid\x00\xff")
        with pytest.raises(LockedError, match="another process is writing"):
            begin(path, replace=False)
