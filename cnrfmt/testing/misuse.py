"""Calls that can't be done: each is refused with its own error, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np

from cnrfmt.errors import CnrError, DamagedError, MissingKeyError, UsageError, VersionNotFoundError
from cnrfmt.reader import load
from cnrfmt.reader import open as open_checkpoint
from cnrfmt.storage.fs import Fs
from cnrfmt.tabledata import Deleted, Dropped, Rows, TableData
from cnrfmt.testing.model import Model, ModelTable
from cnrfmt.writer import append, save

_ABSENT = "a table that nobody wrote"
Change = Callable[[str, ModelTable], Mapping[str, Any]]
"""Makes of a table and its name what `append` can't do."""


def _rows(table: ModelTable, ids: list[int], **options: Any) -> Rows:
    dtype, _ = table.dtypes["weight"]
    return Rows(np.array(ids, np.int64), np.zeros((len(ids), table.dim), dtype), **options)


_CHANGES: Mapping[str, Change] = {
    "rows of no table": lambda name, table: {_ABSENT: _rows(table, [0])},
    "drop of no table": lambda name, table: {_ABSENT: Dropped()},
    "a row twice": lambda name, table: {name: _rows(table, [0, 0])},
    "too wide": lambda name, table: {name: Rows(np.array([0]), np.zeros((1, table.dim + 1), np.float32))},
    "rows and values": lambda name, table: {name: Rows(np.array([0]), np.zeros((2, table.dim), np.float32))},
    "past the end, or rows of keys": lambda name, table: {
        name: _rows(table, [1], rows=9) if table.rows is None else _rows(table, [table.rows])
    },
    "half of it can't be done": lambda name, table: {"a new table": np.zeros((1, 1)), _ABSENT: Dropped()},
    "a key twice": lambda name, table: {_ABSENT: TableData(np.zeros((2, 1)), keys=np.array([7, 7]))},
    "keys deleted by number": lambda name, table: {name: Deleted(np.array([0.5] if table.rows is None else [0]))},
    "no values": lambda name, table: {_ABSENT: TableData(np.zeros(3, np.float32))},
}


def _metadata(path: str, fs: Fs, model: Model, random: Random) -> None:
    append(path, {}, metadata={"value": object()}, fs=fs)


def _step(path: str, fs: Fs, model: Model, random: Random) -> None:
    save(path, {}, step=random.choice([True, 0.5, 1 << 60]), fs=fs)  # type: ignore[arg-type]


def _newer(path: str, fs: Fs, model: Model, random: Random) -> None:
    open_checkpoint(path, version=model.head + random.randint(1, 3), fs=fs)


def _pinned(path: str, fs: Fs, model: Model, random: Random) -> None:
    open_checkpoint(path, digest="0" * 16, fs=fs)


def _absent(path: str, fs: Fs, model: Model, random: Random) -> None:
    load(path, [_ABSENT], fs=fs)


def _out(path: str, fs: Fs, model: Model, random: Random) -> None:
    load(path, [], out={_ABSENT: np.zeros((1, 1), np.float32)}, fs=fs)


def _column(path: str, fs: Fs, model: Model, random: Random) -> None:
    with open_checkpoint(path, threads=1, fs=fs) as ck:
        names = sorted(ck)
        ck[random.choice(names) if names else _ABSENT].read(column="no such column")


_OTHERS: Mapping[str, tuple[type[CnrError], Callable[[str, Fs, Model, Random], None]]] = {
    "metadata": (UsageError, _metadata),
    "step": (UsageError, _step),
    "newer version": (VersionNotFoundError, _newer),
    "pinned digest": (DamagedError, _pinned),
    "load of no table": (MissingKeyError, _absent),
    "out of no table": (MissingKeyError, _out),
    "no column": (MissingKeyError, _column),
}

MISUSES = (*_CHANGES, *_OTHERS)
"""Their names."""


def refuse(name: str, path: str, fs: Fs, model: Model, random: Random) -> None:
    """Makes the call on a container that says what the model says.

    Raises `AssertionError` if it isn't refused; whether it changed anything is for the caller to see.
    """
    tables = model.versions[model.head]
    error: type[CnrError] = UsageError
    try:
        if name in _OTHERS:
            error, call = _OTHERS[name]
            call(path, fs, model, random)
        elif tables:
            table = random.choice(sorted(tables))
            append(path, _CHANGES[name](table, tables[table]), threads=1, fs=fs)
        else:
            return
    except error:
        return
    raise AssertionError(f"misuse {name!r} was done")
