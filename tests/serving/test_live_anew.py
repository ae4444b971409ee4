"""Tables that begin anew while they are served, and reads of the first rows that are refused."""

from __future__ import annotations

import errno
import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import LiveTables, Rows, TableData
from cnrfmt.serving.hydrating import Hydration
from cnrfmt.storage.fs import PosixFs
from tests.serving.support import F32, QUICK

ROWS = 6


def test_a_table_that_began_anew_moves_on_like_others(tmp_path: Path) -> None:
    """What snapshots say stays, and what is served is right, whichever version its slots began with."""
    path, chance = tmp_path / "run", np.random.default_rng(0)
    cnrfmt.save(path, {"a": np.zeros((ROWS, 2), F32)}, fs=QUICK)
    with LiveTables(path, threads=1) as live:
        for number in range(1, 5):
            cnrfmt.append(path, {"a": Rows([0], np.full((1, 2), number, F32))}, fs=QUICK)
            live.advance()
        values = np.full((ROWS, 2), 100, F32)
        cnrfmt.append(path, {"a": TableData(values.copy())}, fs=QUICK)
        live.advance()
        held = [(live.snapshot(), values.copy())]
        for number in range(6):
            ids = np.sort(chance.choice(ROWS, 2, replace=False))
            values[ids] = 200 + number
            cnrfmt.append(path, {"a": Rows(ids, values[ids])}, fs=QUICK)
            live.advance()
            held.append((live.snapshot(), values.copy()))
            if number % 2:
                del held[1]
            for snapshot, expected in held:
                found = snapshot["a"].lookup(np.arange(ROWS))
                assert (found == expected).all(), f"version {snapshot.version} of {live.versions}"


def test_what_a_table_had_before_it_began_anew_is_let_go_of(tmp_path: Path) -> None:
    path, rows = tmp_path / "run", 100_000
    cnrfmt.save(path, {"a": np.zeros((rows, 8), F32)}, fs=QUICK)
    with LiveTables(path, threads=1) as live:
        live.wait()
        taken = []
        tracemalloc.start()
        try:
            for number in range(4):
                cnrfmt.append(path, {"a": TableData(np.full((rows, 8), number, F32))}, fs=QUICK)
                live.advance()
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        # Before the next step, what was served last is still there.
        assert taken[-1] - taken[1] < rows * 8 * 4
        assert live.progress.of_rows == rows


class Refusing(PosixFs):
    """Refuses one read, after so many."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def pread_into(self, handle: int, offset: int, buffer: Any) -> int:
        self.after -= 1
        if not self.after:
            raise cnrfmt.StorageError(errno.EIO, "refused once", "a file")
        return super().pread_into(handle, offset, buffer)


def begun_with_a_refused_read(path: Path, begin: Any) -> Any:
    """What began, and met the refusal behind: the first that `begin` itself gets over."""
    for after in range(1, 60):
        try:
            found = begin(Refusing(after))
        except cnrfmt.StorageError:
            continue
        try:
            found.wait()
        except cnrfmt.StorageError:
            return found
        found.close()
    raise AssertionError("no read was refused behind")


def test_a_read_that_is_refused_once_is_no_end_of_look_ups(tmp_path: Path) -> None:
    """Once a newer version was taken in, what is served can be looked up, or the server says what is wrong."""
    path = tmp_path / "run"
    cnrfmt.save(path, {"a": np.zeros((2000, 8), F32)}, fs=QUICK)
    live = begun_with_a_refused_read(path, lambda fs: LiveTables(path, backend="pread", threads=1, fs=fs))
    cnrfmt.append(path, {"a": Rows([1], np.ones((1, 8), F32))}, fs=QUICK)
    assert live.advance()
    assert live["a"].lookup([1, 2]).sum() == 8
    live.close()


def test_a_hydration_that_failed_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "model.cnr"
    cnrfmt.save(path, {"a": np.zeros((2000, 8), F32)}, fs=QUICK)
    opened: list[cnrfmt.Checkpoint] = []

    def begin(fs: Refusing) -> Hydration:
        opened.append(cnrfmt.open(path, backend="pread", threads=1, fs=fs))
        return opened[-1].hydrate()

    gc.collect()
    gc.disable()
    try:
        found = begun_with_a_refused_read(path, begin)
        found.close()
        for checkpoint in opened:
            checkpoint.close()
        links = []
        for name in os.listdir("/proc/self/fd"):
            if os.path.islink(f"/proc/self/fd/{name}"):
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        assert not [link for link in links if link.startswith(str(tmp_path))]
    finally:
        gc.enable()
