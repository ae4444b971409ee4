"""Following on a disk that fails: each call by which live tables or a follower go on meets each fault.

Either they come to it whole, or they raise one of the library's errors, which names a file, and have the old version as
it was, bit for bit; once the disk is well they go on. What was taken for the new version is given back, and nothing of
the container is held when they are closed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import cnrfmt
from cnrfmt import Deleted, Dropped, Rows, TableData, VersionNotFoundError
from cnrfmt.errors import DamagedError, StorageError
from cnrfmt.segment_reader import Backend
from cnrfmt.testing import Model
from cnrfmt.testing.followers import Copied, Served
from tools.crash.aftermath import LockProbe, Outcome, check_error, check_let_go, names_in
from tools.crash.faulty_fs import FAULTS, Call, Fault, FaultyFs
from tools.crash.operations import PATHS
from tools.crash.read_faults import BACKENDS

F32 = np.float32
ROWS = 90
GONE = Fault("ENOENT on opening", errno.ENOENT, frozenset({"open-read"}))
"""What somebody removed. To who follows it is an error like others, where elsewhere it is an answer."""
_WAYS = ("live, deltas", "live, tables anew", "live, back", "follow, deltas", "follow, tables anew")


def _make(path: str, seed: int, *, anew: bool) -> Model:
    """A container with a delta, or with one and then tables that begin anew, come and go; and what it says."""
    random, fs, model = np.random.default_rng(seed), FaultyFs(), Model()
    keys, some = np.arange(ROWS, dtype=np.int64) - 20, np.arange(0, ROWS, 5)

    def rows(count: int, dim: int) -> np.ndarray:
        return random.random((count, dim), F32)

    tables = {"item": rows(ROWS, 8), "query": rows(ROWS, 4), "visitor": TableData(rows(ROWS, 4), keys=keys)}
    model.save(cnrfmt.save(path, tables, threads=1, fs=fs), tables)
    changes: dict[str, Any] = {
        "item": Rows(some, rows(len(some), 8), rows=ROWS + 5),
        "query": Rows(some, rows(len(some), 4)),
        "visitor": (Deleted(keys[1:4]), Rows(keys[some], rows(len(some), 4))),
    }
    model.append(cnrfmt.append(path, changes, threads=1, fs=fs), changes)
    if anew:
        changes = {
            "item": TableData(rows(ROWS, 8)),
            "query": Dropped(),
            "session": rows(9, 2),
            "visitor": Rows(keys[some] + 1, rows(len(some), 4)),
        }
        model.append(cnrfmt.append(path, changes, threads=1, fs=fs), changes)
    return model


class FollowWork:
    """One way to go on from one version to another, ready to be tried again and again."""

    faults: ClassVar = {**FAULTS, GONE.name: GONE}

    def __init__(self, path: str, kind: str, way: str, backend: Backend, model: Model) -> None:
        self.name = f"{way}, {kind}, {backend}"
        self.path, self.folder = path, os.path.dirname(path)
        self._backend, self._model = backend, model
        self._is_live, self._target = way.startswith("live"), 0 if way == "live, back" else None
        self._names = names_in(self.folder)
        fs = FaultyFs()
        following = self._begun(fs)
        before = len(fs.log)
        self._go_on(following)
        self.log: list[Call] = fs.log[before:]
        following.close()

    def _begun(self, fs: FaultyFs) -> Served | Copied:
        make = Served if self._is_live else Copied
        return make(self.path, self._model, self._backend, fs, version=self._begins)

    @property
    def _begins(self) -> int:
        return self._model.head if self._target == 0 else 0

    def _go_on(self, following: Served | Copied) -> None:
        if isinstance(following, Served):
            following.advance(self._model, self._target)
        else:
            following.advance(self._model)

    def try_fault(self, fault: Fault, k: int, lasting: bool, probe: LockProbe) -> Outcome:
        """One attempt that meets a fault, and all that must hold afterwards; raises `AssertionError`."""
        fs = FaultyFs()
        following = self._begun(fs)
        try:
            taken, start, outcome = _taken(following), len(fs.log), Outcome("returned")
            fs.begin(fault, k, lasting=lasting)
            try:
                self._go_on(following)
            except StorageError as error:
                outcome = Outcome("failed", error.errno, str(error))
            except (VersionNotFoundError, DamagedError) as error:
                # A file that isn't there is given up, or lost; a refusal is neither.
                if fault is not GONE:
                    raise
                outcome = Outcome("failed", fault.code, str(error))
            assert fs.met, "the fault wasn't met"
            fs.heal()
            if outcome.name == "failed":
                if fault is not GONE:
                    check_error(outcome, self.folder, fs.log[start:], says=False)
                assert self.folder in outcome.text, f"names no file: {outcome.text}"
                following.check(self._model, self._begins)
                assert _taken(following) == taken, f"had taken {taken}, and {_taken(following)} after a failure"
                self._go_on(following)
            if isinstance(following, Served):
                assert following.live.wait(0), "what it began with isn't there"
        finally:
            following.close()
        del following
        assert not fs.handles, f"handles left open: {fs.handles}"
        check_let_go(self.path, probe)
        assert names_in(self.folder) == self._names, "following changed the container"
        return outcome


def _taken(following: Served | Copied) -> Any:
    """Rows that are waited for, and of each table the slots that are taken."""
    if isinstance(following, Copied):
        return None
    live = following.live
    slots = {name: table.slots for name, table in live._tables.items()}
    return live.progress, {name: one._end - one.free for name, one in slots.items()}


def followings(scratch: Path, seed: int) -> Iterator[FollowWork]:
    """Every way to follow, on both kinds of container."""
    for kind, name in PATHS.items():
        for anew in (False, True):
            folder = scratch / f"follow-{kind}-{anew}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            model = _make(str(folder / name), seed, anew=anew)
            for way in _WAYS:
                if way.endswith("anew") == anew:
                    for backend in BACKENDS:
                        yield FollowWork(str(folder / name), kind, way, backend, model)
