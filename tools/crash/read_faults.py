"""Reading on a disk that fails: each call of each way to read meets each fault.

A reader then gives what it should or raises `StorageError`: it never takes a refusal for damage, for another version
or for nothing at all, and holds nothing of the container when it is done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Deleted, Quantize, Rows, TableData
from cnrfmt.errors import StorageError
from cnrfmt.mapped_rows import StoredRows, private_map, stored_rows, verify
from cnrfmt.memory import Budget
from cnrfmt.segment_reader import Backend
from cnrfmt.storage.fs import Fs
from tools.crash.aftermath import LockProbe, Outcome, check_error, check_let_go, names_in
from tools.crash.faulty_fs import Call, Fault, FaultyFs
from tools.crash.operations import PATHS

F32 = np.float32
ROWS = 3000
Reading = Callable[[str, Backend, Fs], Any]
"""Reads, and gives what it read, to be compared."""


def _make(path: str, seed: int) -> None:
    """A container of four versions, with rows enough to be read in several pieces."""
    random = np.random.default_rng(seed)
    keys = np.sort(random.choice(10**9, ROWS, replace=False))
    tables = {
        "item": TableData(random.random((ROWS, 32), F32), columns={"momentum": random.random(ROWS, F32)}),
        "visitor": TableData(random.random((ROWS, 8), F32), keys=keys),
        "query": random.random((ROWS, 16), F32),
        "fused": random.random((ROWS, 8), F32),
    }
    fs, some = FaultyFs(), np.arange(0, ROWS, 7)
    # Codebooks are a section of their own, and codes of 12 bits share bytes.
    quantize = {
        "query": Quantize(2, method="kmeans", block=8),
        ("item", "momentum"): Quantize(one_valued="log12"),
        "fused": Quantize(8),
    }
    cnrfmt.save(path, tables, quantize=quantize, dense={"bias": np.arange(9)}, threads=1, fs=fs)
    item = Rows(some, random.random((len(some), 32), F32), rows=ROWS + 5)
    cnrfmt.append(path, {"item": item, "visitor": Rows(keys[some], random.random((len(some), 8), F32))}, fs=fs)
    cnrfmt.append(path, {"visitor": Deleted(keys[:9])}, dense={"bias": np.arange(3)}, threads=1, fs=fs)
    cnrfmt.append(path, {"query": Rows(some, random.random((len(some), 16), F32))}, threads=1, fs=fs)


def _bytes(value: Any) -> Any:
    """The same as bytes, to be compared bit for bit."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, TableData):
        columns = {name: _bytes(v) for name, v in value.columns.items()}
        return _bytes(value.values), columns, _bytes(value.keys)
    if isinstance(value, dict):
        return {name: _bytes(v) for name, v in value.items()}
    return value


def _load(path: str, backend: Backend, fs: Fs) -> Any:
    return _bytes(cnrfmt.load(path, columns=True, backend=backend, threads=1, fs=fs))


def _some_rows(ck: cnrfmt.Checkpoint) -> Any:
    rows = Random(0).sample(range(ROWS - 20), 40)
    found = {name: _bytes(t.read(rows, by="position")) for name, t in ck.items()}
    return found, _bytes(ck["item"].read(rows, column="momentum")), _bytes(ck["visitor"].keys), _bytes(ck.dense)


def _rows(path: str, backend: Backend, fs: Fs) -> Any:
    with cnrfmt.open(path, backend=backend, threads=1, fs=fs) as ck:
        try:
            return ck.version, _some_rows(ck)
        except StorageError:
            # The disk may be well again: what was refused must not be taken for verified.
            return ck.version, _some_rows(ck)


def _old_version(path: str, backend: Backend, fs: Fs) -> Any:
    with cnrfmt.open(path, version=1, backend=backend, verify="all", threads=1, fs=fs) as ck:
        return ck.version, ck.versions, _some_rows(ck)


def _refresh(path: str, backend: Backend, fs: Fs) -> Any:
    with cnrfmt.open(path, version=1, backend=backend, threads=1, fs=fs) as ck:
        before = _bytes(ck["query"][7])
        try:
            ck.refresh()
        except StorageError:
            # It stays where it is, or has moved on and couldn't list what changed; then it is asked for again below.
            ck.refresh()
        changed = {name: [_bytes(rows) for rows in t.changed(1)] for name, t in ck.items()}
        return before, ck.version, changed, _some_rows(ck)


def _in_memory(path: str, backend: Backend, fs: Fs) -> Any:
    with cnrfmt.open(path, backend=backend, populate=True, advise="random", threads=1, fs=fs) as ck:
        return ck.version, _some_rows(ck)


def _private(path: str, backend: Backend, fs: Fs) -> Any:
    with cnrfmt.open(path, backend=backend, threads=1, fs=fs) as ck:
        stored = stored_rows(ck["fused"], Budget(None))
        assert isinstance(stored, StoredRows)
        verify([stored.span], ck["fused"], None)
        found = private_map([stored.span])
        assert found is not None
        rows = found[0].copy()
        found[0][:] = 0
        return ck.version, _bytes(rows), _bytes(ck["fused"][:9])


def _verify(path: str, backend: Backend, fs: Fs) -> Any:
    return cnrfmt.verify(path, threads=1, fs=fs).verdict


READINGS: dict[str, Reading] = {
    "load": _load,
    "rows": _rows,
    "old version": _old_version,
    "refresh": _refresh,
    "in memory": _in_memory,
    "private map": _private,
    "verify": _verify,
}
BACKENDS: tuple[Backend, ...] = ("pread", "mmap")
ONLY: dict[str, Backend] = {"in memory": "mmap", "private map": "mmap", "verify": "pread"}
"""What reads by one of them alone."""


class ReadWork:
    """One way to read one container, ready to be tried again and again."""

    def __init__(self, path: str, kind: str, name: str, backend: Backend) -> None:
        self.name = f"{name}, {kind}, {backend}"
        self.path, self.folder = path, os.path.dirname(path)
        self._reading, self._backend = READINGS[name], backend
        self._names = names_in(self.folder)
        fs = FaultyFs()
        self._expected = self._reading(path, backend, fs)
        self.log: list[Call] = fs.log

    def attempt(self, fs: FaultyFs) -> Outcome:
        """Reads; raises `AssertionError` if what was read is wrong. Any other error goes on its way."""
        try:
            assert self._reading(self.path, self._backend, fs) == self._expected, "wrong values"
        except StorageError as error:
            return Outcome("failed", error.errno, str(error))
        return Outcome("returned")

    def try_fault(self, fault: Fault, k: int, lasting: bool, probe: LockProbe) -> Outcome:
        """One attempt that meets a fault, and all that must hold afterwards; raises `AssertionError`."""
        fs = FaultyFs(fault, k, lasting=lasting)
        outcome = self.attempt(fs)
        assert fs.met, "the fault wasn't met"
        assert not fs.handles, f"handles left open: {fs.handles}"
        check_error(outcome, self.folder, fs.log, says=False)
        check_let_go(self.path, probe)
        assert names_in(self.folder) == self._names, "a reader changed the container"
        assert self.attempt(FaultyFs()).name == "returned", "the next reader"
        return outcome


def readings(scratch: Path, seed: int) -> Iterator[ReadWork]:
    """Every way to read, on both kinds of container."""
    for kind, name in PATHS.items():
        folder = scratch / f"read-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _make(str(folder / name), seed)
        for reading in READINGS:
            for backend in (ONLY[reading],) if reading in ONLY else BACKENDS:
                yield ReadWork(str(folder / name), kind, reading, backend)
