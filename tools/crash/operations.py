"""What the engines interrupt: the operations on a container, and what it must say before and after each.

An operation joins every engine by one entry of `OPERATIONS`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import Deleted, Quantize, Rows, TableData
from cnrfmt.storage.fs import Fs
from cnrfmt.testing import Model, ModelTable

F32 = np.float32
PATHS = {"file": "model.cnr", "directory": "run"}
"""The two kinds of container, and what one is called in an engine's folder."""


QUANTIZE = {"item": Quantize(2, method="kmeans", params="float32", block=2, max_error=0, one_valued="log12")}
"""Rows share codebooks, codes share bytes; with an error of 0, what isn't held exactly becomes an exception."""


def _values(random: Random, rows: int, dim: int) -> np.ndarray:
    """Rows that no other call gives: a row of another version is never taken for this one's."""
    return np.array([[random.uniform(-1, 1) for _ in range(dim)] for _ in range(rows)], F32).reshape(rows, dim)


def _weights(random: Random, rows: int) -> np.ndarray:
    """The same of 3 elements, most of which a codebook of 4 numbers for two rows holds."""
    values = _values(random, rows, 3)
    for row in values:
        row[2] = row[0] if random.randrange(4) else row[2]
    return values


def _sums(random: Random, rows: int) -> dict[str, np.ndarray]:
    """A column of one value per row: logarithmic codes of 12 bits hold those that aren't negative."""
    some = [random.randrange(256, 512) * 2.0 ** random.randrange(8) for _ in range(rows)]
    return {"accumulator": np.array([x if random.randrange(4) else -x for x in some], F32)}


def _baseline(model: Model, random: Random) -> dict[str, Any]:
    keys = np.array(random.sample(range(-9, 40), 4), np.int64)
    item = TableData(_weights(random, 6), columns=_sums(random, 6))
    return {"item": item, "visitor": TableData(_values(random, 4, 2), keys=keys)}


def _save(path: str | os.PathLike[str], tables: dict[str, Any], **options: Any) -> int:
    """A baseline; the versions after it are quantised in the same way."""
    return cnrfmt.save(path, tables, quantize=QUANTIZE, **options)


def _rows(model: Model, random: Random) -> dict[str, Any]:
    count = model.versions[model.head]["item"].rows or 0
    ids = np.array(sorted(random.sample(range(count), 2)), np.int64)
    return {
        "item": Rows(ids, _weights(random, 2), columns=_sums(random, 2)),
        "visitor": Rows(np.array([random.randrange(40, 60)], np.int64), _values(random, 1, 2)),
    }


def _deletion(model: Model, random: Random) -> dict[str, Any]:
    known = model.versions[model.head]["visitor"].ids
    return {"visitor": Deleted(np.array(random.sample(known, min(2, len(known))), np.int64))}


def _growth(model: Model, random: Random) -> dict[str, Any]:
    count = model.versions[model.head]["item"].rows or 0
    last = np.array([count + 2], np.int64)
    return {"item": Rows(last, _weights(random, 1), columns=_sums(random, 1), rows=count + 3)}


@dataclass(frozen=True)
class Operation:
    """One thing that is done to a container.

    `tables` makes what `commit` is given from what the container says and a source of chance; both are None for
    an operation that only reads. `first` tells whether it makes the container, or needs one.
    """

    name: str
    commit: Callable[..., int] | None
    tables: Callable[[Model, Random], dict[str, Any]] | None
    first: bool = False


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("create", _save, _baseline, first=True),
        Operation("append", cnrfmt.append, _rows),
        Operation("delete", cnrfmt.append, _deletion),
        Operation("grow", cnrfmt.append, _growth),
        Operation("replace", _save, _baseline),
        Operation("open-old", None, None),
    )
}


@dataclass(frozen=True)
class Step:
    """An operation with its input; `before` and `after` are what the container says if it doesn't happen or does.

    `before` has no versions where there is no container yet. `after` is `before` for an operation that only reads.
    """

    operation: Operation
    tables: dict[str, Any] | None
    before: Model
    after: Model

    def run(self, path: str | os.PathLike[str], fs: Fs | None = None) -> int | None:
        """Does it, on one thread. Returns the version that it committed; None if it only reads.

        A reading operation opens the oldest version there is and raises `AssertionError` if it reads anything wrong.
        """
        if self.operation.commit is not None:
            return self.operation.commit(path, self.tables, step=len(self.before.versions), threads=1, fs=fs)
        check_version(path, self.before, min(self.before.versions), fs)
        return None


def step(name: str, before: Model, seed: int, kind: str) -> Step:
    """The operation `name` on what `before` says, with what `seed` makes of it, on a container of this kind."""
    operation = OPERATIONS[name]
    if operation.commit is None or operation.tables is None:
        return Step(operation, None, before, before)
    tables = operation.tables(before, Random(seed))
    after = Model()
    after.versions = copy.copy(before.versions)
    version = before.head + 1 if before.versions else 0
    if operation.commit is cnrfmt.append:
        after.append(version, tables)
    else:
        if kind == "file":
            # A single file is written anew with this version alone.
            after.versions = {}
        after.save(version, tables)
    return Step(operation, tables, before, after)


def check_tables(found: cnrfmt.Checkpoint, expected: Mapping[str, ModelTable]) -> None:
    """Raises `AssertionError` unless every row of every column is what it should be, bit for bit."""
    assert set(found) == set(expected), f"tables {sorted(found)}, expected {sorted(expected)}"
    for name, table in expected.items():
        if table.rows is None:
            keys = found[name].keys
            assert keys is not None, f"{name} has no keys"
            assert keys.tolist() == table.ids, f"keys of {name} differ"
        assert len(found[name]) == len(table.ids), f"rows of {name} differ"
        for column in table.dtypes:
            values = found[name].read(column=column)
            assert values.tobytes() == table.array(column).tobytes(), f"values of {name}.{column} differ"


def check_version(path: str | os.PathLike[str], model: Model, version: int, fs: Fs | None = None) -> None:
    """Raises `AssertionError` unless this version opens and says what the model says."""
    with cnrfmt.open(path, version=version, backend="pread", verify="all", threads=1, fs=fs) as ck:
        check_tables(ck, model.versions[version])


def check_head(path: str | os.PathLike[str], model: Model, fs: Fs | None = None) -> None:
    """Raises `AssertionError` unless the container has just these versions, each of them whole."""
    with cnrfmt.open(path, backend="pread", verify="all", threads=1, fs=fs) as ck:
        assert list(ck.versions) == sorted(model.versions), f"versions {ck.versions}, expected {sorted(model.versions)}"
        check_tables(ck, model.versions[model.head])
    for version in sorted(model.versions)[:-1]:
        check_version(path, model, version, fs)
