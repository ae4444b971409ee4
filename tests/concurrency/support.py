"""Containers that tell by themselves whether a reader sees one version whole: all rows of version `v` are `v`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Rows, TableData
from cnrfmt.storage.fs import Fs
from tests.storage.support import QuickFs

ROOT = Path(__file__).parents[2]
KINDS = ["model.cnr", "run"]
ROWS, DIM = 300, 5
KEYS = np.arange(-50, 250, dtype=np.int64) * 3


def _values(version: int) -> np.ndarray:
    return np.full((ROWS, DIM), version, np.float32)


def save(path: Path, version: int = 0, fs: Fs | None = None) -> None:
    """A baseline of a dense and of a keyed table."""
    tables = {"dense": _values(version), "keyed": TableData(_values(version), keys=KEYS)}
    assert cnrfmt.save(path, tables, threads=1, fs=fs or QuickFs()) == version


def append(path: Path, version: int, fs: Fs | None = None) -> None:
    """A delta that writes every row of both tables, in a random order, so that a half of it would show."""
    order = np.random.default_rng(version).permutation(ROWS)
    tables = {"dense": Rows(order, _values(version)), "keyed": Rows(KEYS[order], _values(version))}
    assert cnrfmt.append(path, tables, threads=1, fs=fs or QuickFs()) == version


def version_of(table: cnrfmt.Table, way: int) -> int:
    """The version that a table's rows say, read in one of several ways; raises `AssertionError` if they differ."""
    found = _WAYS[way % len(_WAYS)](table)
    values = np.unique(found)
    assert found.size, "nothing was read"
    assert len(values) == 1, f"rows of several versions at once: {values}"
    return int(values[0])


def _out(table: cnrfmt.Table) -> np.ndarray:
    out = np.full((ROWS, DIM), np.nan, np.float32)
    return table.read(out=out)


def _ids(table: cnrfmt.Table) -> np.ndarray:
    return KEYS if table.keyed else np.arange(ROWS)


_WAYS: list[Callable[[cnrfmt.Table], np.ndarray]] = [
    lambda table: table.read(),
    lambda table: table.at[40:260:3],
    lambda table: table.read(_ids(table)[::-7]),
    lambda table: table.read(int(_ids(table)[123])),
    lambda table: table.read(np.arange(ROWS) % 5 == 2),
    _out,
    lambda table: np.stack(list(table)),
]
WAYS = len(_WAYS)


class Threads:
    """Threads that start at once; what one of them raises is raised by `join`."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._start = threading.Event()

    def add(self, body: Callable[..., Any], *args: Any) -> None:
        """A thread that waits for the start."""

        def run() -> None:
            self._start.wait()
            try:
                body(*args)
            except BaseException as error:
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def go(self) -> None:
        """Starts them."""
        self._start.set()

    def join(self) -> None:
        """Waits for their end."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


@contextmanager
def running(text: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that runs a program of the checkout; it doesn't outlive the block."""
    command = [sys.executable, "-c", text, *map(str, args)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()
