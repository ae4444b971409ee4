"""Fork after use, as data loaders do: children read, and neither finish nor undo what their parent has begun."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import cnrfmt
from cnrfmt import UsageError
from cnrfmt.storage.fs import POSIX
from tests.concurrency.support import DIM, KINDS, ROWS, WAYS, append, save, version_of
from tests.storage.support import FORKS, leftovers, run_in_child

pytestmark = FORKS


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    save(path)
    append(path, 1)
    return path


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_reader_opened_before_the_fork(path: Path, backend: Any, threads: int) -> None:
    with cnrfmt.open(path, backend=backend, threads=threads) as ck:
        table = ck["keyed"]
        assert version_of(table, 0) == 1

        def child(number: int) -> None:
            for way in range(WAYS):
                assert version_of(ck["dense"], way) == version_of(table, way) == 1
            append(path, 2 + number)
            refreshed = ck.refresh()
            assert refreshed is not None
            assert version_of(ck["dense"], 0) == ck.version == 2 + number
            # What a child closes is its own.
            ck.close()

        for number in range(3):
            assert run_in_child(lambda number=number: child(number)) == 0
            for way in range(WAYS):
                assert version_of(table, way) == version_of(ck["dense"], way) == 1
        assert ck.refresh() is not None
        assert version_of(ck["dense"], 0) == ck.version == 4


def test_children_at_once(path: Path) -> None:
    with cnrfmt.open(path, threads=1) as ck:
        children = []
        for seed in range(6):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for way in range(3 * WAYS):
                        assert version_of(ck["dense"], way + seed) == version_of(ck["keyed"], way) == 1
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6
        assert version_of(ck["dense"], 0) == 1


class Forking:
    """A table that forks while it is read in the midst of a commit; `in_child` says where we are."""

    read_by_slices: ClassVar[bool] = True
    shape = (ROWS, DIM)
    dtype = np.dtype(np.float32)

    def __init__(self) -> None:
        self.child: int | None = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, rows: Any) -> np.ndarray:
        if self.child is None:
            self.child = os.fork()
        return np.full(self.shape, 2, np.float32)[rows]


@pytest.mark.parametrize("call", [cnrfmt.append, cnrfmt.save])
def test_child_of_a_commit_neither_commits_nor_undoes(path: Path, call: Callable[..., int]) -> None:
    source = Forking()
    parent = os.getpid()
    try:
        version = call(path, {"dense": source}, threads=1)
    except UsageError as error:
        if os.getpid() == parent:
            raise
        # Here is the child, which has left the with-block of the parent's commit by this error.
        os._exit(0 if "belongs to process" in str(error) else 1)
    finally:
        if os.getpid() != parent:
            os._exit(2)
    assert source.child is not None
    assert os.waitstatus_to_exitcode(os.waitpid(source.child, 0)[1]) == 0
    assert version == 2
    with cnrfmt.open(path, threads=1) as ck:
        assert ck.version == version_of(ck["dense"], 0) == 2
    assert cnrfmt.verify(path).verdict == "sound"
    assert not leftovers(path)


def test_fork_while_another_thread_reads(path: Path) -> None:
    """The lock of the counter is the one that all readers of a process share."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with POSIX._counting:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child() -> None:
        with cnrfmt.open(path, backend="pread", threads=1) as ck:
            assert version_of(ck["dense"], 0) == 1

    try:
        process = os.fork()
        if process == 0:
            status = 1
            try:
                child()
                status = 0
            finally:
                os._exit(status)
        for _ in range(600):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                break
            threading.Event().wait(0.1)
        else:
            os.kill(process, 9)
            os.waitpid(process, 0)
            status = None
    finally:
        release.set()
        thread.join()
    assert status == 0, "the child waited for a lock that nobody in it holds"
