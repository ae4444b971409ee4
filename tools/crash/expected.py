"""What a container must say after each operation: its versions, their tags, and how long the newest one's chain is."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping
from typing import Any, Self

import cnrfmt
from cnrfmt import Deleted
from cnrfmt.storage.fs import Fs
from cnrfmt.testing import Model, ModelTable


class Expected(Model):
    """The tables of every version that stays readable, and what decides which of them are given up later.

    Each method gives what the container says after one more commit, and changes nothing here.

    Attributes
    ----------
    tags
        Versions by their names.
    chain
        How many segments the newest version reads.
    on_grid
        Whether its tables are on a grid from the baseline of a run on, and no other run went on with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.chain = 0
        self.on_grid = False
        # Of versions that read the same segments, the first.
        self._first: dict[int, int] = {}

    @property
    def next_version(self) -> int:
        """The one that the next commit makes."""
        return self.head + 1 if self.versions else 0

    def saved(self, tables: Mapping[str, Any], kind: str) -> Expected:
        """After a baseline."""
        after = self._anew(kind)
        after.save(self.next_version, dict(tables))
        after.on_grid = False
        return after._with(chain=1)

    def appended(self, changes: Mapping[str, Any]) -> Expected:
        """After a delta; one that says nothing has no segment."""
        after = self._copy()
        after.append(self.next_version, dict(changes))
        is_empty = all(isinstance(change, Deleted) and not len(change.keys) for change in changes.values())
        return after._with(like=self.head) if is_empty else after._with(chain=self.chain + 1)

    def merged(self, first: int, last: int) -> Expected:
        """After one segment has taken the place of these of the newest version's, `last` not among them."""
        after = self._repeated(self._copy())
        return after._with(chain=self.chain - (last - first) + 1)

    def compacted(self, kind: str) -> Expected:
        """The same where all of them were merged and, in a single file, earlier versions went with their bytes."""
        after = self._repeated(self._anew(kind))
        return after._with(chain=1)

    def tagged(self, name: str, version: int | None) -> Expected:
        """After a version was given a name, or the name was taken away."""
        after = self._repeated(self._copy())
        after.tags.pop(name, None)
        if version is not None:
            after.tags[name] = version
        return after._with(like=self.head)

    def collected(self) -> Expected | None:
        """After all but the newest and tagged versions were given up; None where that isn't worth a commit.

        It isn't where those that go read the same segments as one that stays.
        """
        stay = {self.head, *self.tags.values()}
        there = {self._first[version] for version in stay}
        if all(self._first[version] in there for version in self.versions if version not in stay):
            return None
        after = self._repeated(self._copy())
        return after._with(like=self.head).only({*stay, after.head})

    def checkpointed(self, changes: Mapping[str, Any], *, on_grid: bool = False) -> Expected:
        """After a delta of a training run that keeps no other checkpoints than the newest."""
        after = self.appended(changes)
        after.on_grid = on_grid
        return after.only({after.head, *self.tags.values()})

    def based_on_grid(self, changes: Mapping[str, Any]) -> Expected:
        """After the baseline of such a run on a grid, of all tables as they are after some changes."""
        return self.checkpointed(changes, on_grid=True)._with(chain=1)

    def only(self, versions: Collection[int]) -> Self:
        """Forgets all other versions, here; gives itself."""
        self.versions = {version: tables for version, tables in self.versions.items() if version in versions}
        self._first = {version: first for version, first in self._first.items() if version in versions}
        return self

    def _copy(self) -> Expected:
        after = copy.copy(self)
        after.versions, after.tags = dict(self.versions), dict(self.tags)
        after._first = dict(self._first)
        return after

    def _anew(self, kind: str) -> Expected:
        """Before a commit that in a single file leaves nothing of what was there."""
        return self._copy().only(()) if kind == "file" else self._copy()

    def _repeated(self, after: Expected) -> Expected:
        after.versions[self.next_version] = self.versions[self.head]
        return after

    def _with(self, chain: int | None = None, like: int | None = None) -> Self:
        """With what is known of the newest version, whose chain is this long or which repeats an older one."""
        self.chain = self.chain if chain is None else chain
        self._first[self.head] = self.head if like is None else self._first[like]
        return self


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


def check_newest(found: cnrfmt.Checkpoint, model: Expected) -> None:
    """Raises `AssertionError` unless the newest version, which is open, says what the model says of it."""
    assert list(found.versions) == sorted(model.versions), f"versions {found.versions}, not {sorted(model.versions)}"
    assert found.tags == model.tags, f"tags {found.tags}, expected {model.tags}"
    chain = len(found.manifest.chain)
    assert chain == model.chain, f"a chain of {chain}, expected {model.chain}"
    check_tables(found, model.versions[model.head])


def check_version(path: str | os.PathLike[str], model: Model, version: int, fs: Fs | None = None) -> None:
    """Raises `AssertionError` unless this version opens and says what the model says."""
    with cnrfmt.open(path, version=version, backend="pread", verify="all", threads=1, fs=fs) as ck:
        check_tables(ck, model.versions[version])


def check_head(path: str | os.PathLike[str], model: Expected, fs: Fs | None = None) -> None:
    """Raises `AssertionError` unless the container has just these versions, each of them whole."""
    with cnrfmt.open(path, backend="pread", verify="all", threads=1, fs=fs) as ck:
        check_newest(ck, model)
    for version in sorted(model.versions)[:-1]:
        check_version(path, model, version, fs)
