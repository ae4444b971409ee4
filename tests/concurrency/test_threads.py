"""Many threads on one reader, and readers while a writer appends: each sees one version, whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import cnrfmt
from cnrfmt import UsageError
from tests.concurrency.support import KINDS, WAYS, Threads, append, save, version_of
from tests.storage.support import FORKS

BACKENDS = ["mmap", "pread"]


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    save(path)
    for version in range(1, 6):
        append(path, version)
    return path


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_ways_of_reading_at_once(path: Path, backend: Any) -> None:
    # What is verified, decoded and kept at the first use is raced for anew in each round.
    for round_ in range(6):
        with cnrfmt.open(path, backend=backend, verify="touched", threads=1 + round_ % 3) as ck:
            threads = Threads()

            def work(seed: int, ck: cnrfmt.Checkpoint = ck) -> None:
                for way in range(WAYS):
                    for name in ("dense", "keyed"):
                        assert version_of(ck[name], way + seed) == 5

            for seed in range(8):
                threads.add(work, seed)
            threads.go()
            threads.join()


@pytest.mark.parametrize("replaces", [False, True], ids=["appends", "replaces, too"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_readers_while_a_writer_commits(path: Path, backend: Any, replaces: bool) -> None:
    last = 45
    committed = 5
    threads = Threads()

    def write() -> None:
        nonlocal committed
        for version in range(6, last + 1):
            if replaces and version % 10 == 0:
                save(path, version)
            else:
                append(path, version)
            committed = version

    def read(seed: int) -> None:
        seen, way = 0, seed
        with cnrfmt.open(path, backend=backend, threads=1) as own:
            while seen < last:
                least, way = committed, way + 1
                if way % 4 == 0:
                    with cnrfmt.open(path, backend=backend, threads=1) as other:
                        assert other.version >= max(least, seen)
                        assert version_of(other["dense"], way) == version_of(other["keyed"], way) == other.version
                # One reader alone refreshes this one, so its version and its tables belong together.
                own.refresh()
                assert own.version >= max(least, seen)
                seen = own.version
                assert version_of(own["dense"], way) == version_of(own["keyed"], way) == seen

    threads.add(write)
    for seed in range(4):
        threads.add(read, seed)
    threads.go()
    threads.join()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_reader_refreshed_by_many_threads(path: Path, backend: Any) -> None:
    last, done = 30, threading.Event()
    threads = Threads()
    with cnrfmt.open(path, backend=backend, threads=1) as ck:

        def write() -> None:
            for version in range(6, last + 1):
                append(path, version)
            done.set()

        def read(seed: int) -> None:
            seen = 5
            finished = False
            while not finished:
                finished = done.is_set()
                if seed % 2:
                    refreshed = ck.refresh()
                    assert refreshed is None or refreshed.version > refreshed.before
                table = ck["dense" if seed % 3 else "keyed"]
                found = version_of(table, seed)
                assert found >= seen
                # A table stays at its version, whoever moves the reader on.
                assert version_of(table, seed + 1) == found
                seen = found

        threads.add(write)
        for seed in range(6):
            threads.add(read, seed)
        threads.go()
        threads.join()
        ck.refresh()
        assert ck.version == version_of(ck["dense"], 0) == last


@pytest.mark.parametrize("refreshing", [False, True], ids=["reading", "refreshing"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_close_under_readers(path: Path, backend: Any, refreshing: bool) -> None:
    for version in range(6, 12):
        ck = cnrfmt.open(path, backend=backend, threads=1)
        threads = Threads()
        ended: list[tuple[int, bool]] = []

        def read(seed: int, ck: cnrfmt.Checkpoint = ck, ended: list[tuple[int, bool]] = ended) -> None:
            way = seed
            while True:
                way += 1
                try:
                    if refreshing:
                        ck.refresh()
                    assert version_of(ck["keyed" if seed % 2 else "dense"], way) >= 5
                except UsageError as error:
                    ended.append((seed, "closed" in str(error)))
                    return

        for seed in range(6):
            threads.add(read, seed)
        threads.go()
        append(path, version)
        ck.close()
        threads.join()
        assert sorted(ended) == [(seed, True) for seed in range(6)]


@FORKS
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_processes_read_while_this_one_appends(path: Path, backend: Any) -> None:
    last = 40

    def read() -> None:
        seen, way = 0, 0
        with cnrfmt.open(path, backend=backend, threads=1) as ck:
            while seen < last:
                ck.refresh()
                assert ck.version >= seen
                seen, way = ck.version, way + 1
                assert version_of(ck["dense"], way) == version_of(ck["keyed"], way) == seen

    # Forked first: a child of a process with threads could wait for what one of them holds.
    child = os.fork()
    if child == 0:
        status = 1
        try:
            read()
            status = 0
        finally:
            os._exit(status)
    for version in range(6, last + 1):
        append(path, version)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
