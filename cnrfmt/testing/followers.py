"""Live tables and a follower that live beside a container, and are held against a model after each step."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.errors import DamagedError, MissingKeyError
from cnrfmt.segment_reader import Backend
from cnrfmt.serving.following import Update, follow
from cnrfmt.serving.live import LiveTables
from cnrfmt.serving.snapshot import Snapshot
from cnrfmt.storage.fs import Fs
from cnrfmt.testing.checks import check_bits
from cnrfmt.testing.model import Model, ModelTable

_KEPT = 3
"""Snapshots that are kept at the most."""
REFUSED = "followed, another history refused"
"""What became of followers that go on no more."""
_Said = Mapping[str, ModelTable]


class Served:
    """Live tables that hold two versions, and snapshots of them that are kept for a while.

    `version` is the one that they begin with, the newest if None. Every check raises `AssertionError`.
    """

    def __init__(self, path: str, model: Model, backend: Backend, fs: Fs | None, version: int | None = None) -> None:
        self._said: dict[int, _Said] = {}
        self._kept: list[Snapshot] = []
        self.live = LiveTables(path, version=version, hold=2, backend=backend, threads=1, fs=fs)
        try:
            self.live.wait()
            self.check(model, model.head if version is None else version)
        except BaseException:
            self.live.close()
            raise

    def advance(self, model: Model, version: int | None = None) -> None:
        """They go on to the newest version, which must be the model's, or to another; what is held stays as it is."""
        expected, before = model.head if version is None else version, self.live.version
        moved = self.live.advance(version)
        assert moved == (expected != before), f"from version {before} to {self.live.version}: moved is {moved}"
        self.check(model, expected)

    def check(self, model: Model, version: int) -> None:
        """They serve this version; what is held says what it said."""
        self._said |= model.versions
        snapshot = self.live.snapshot()
        assert snapshot.version == version, f"version {snapshot.version} is served, expected {version}"
        self._kept.append(snapshot)
        self.check_kept()

    def check_kept(self) -> None:
        """What is held says what its version said, whatever became of that."""
        for snapshot in (*self._kept, *map(self.live.snapshot, self.live.versions)):
            check_served(snapshot, self._said[snapshot.version])

    def let_go(self, random: Random) -> None:
        """Some of the snapshots are kept no longer."""
        random.shuffle(self._kept)
        del self._kept[random.randint(0, _KEPT) :]

    def close(self) -> None:
        """They let go of everything."""
        self._kept.clear()
        self.live.close()


class Copied:
    """A follower, whose updates are applied to a copy of all rows. It begins with a version as `Served` does."""

    def __init__(self, path: str, model: Model, backend: Backend, fs: Fs | None, version: int | None = None) -> None:
        self.follower = follow(path, version=version, backend=backend, threads=1, fs=fs)
        self._update: Update | None = None
        try:
            checkpoint = self.follower.checkpoint
            self.version = checkpoint.version
            self._copy = {
                name: _by_id(np.arange(len(table)) if table.keys is None else table.keys, table.read())
                for name, table in checkpoint.items()
            }
            self.check(model, self.version)
        except BaseException:
            self.follower.close()
            raise

    def advance(self, model: Model) -> None:
        """It goes on to the newest version, which must be the model's.

        After an error, the same update is applied when it is called again.
        """
        before, head = self.version, model.head
        if self._update is None:
            self._update = self.follower.next_update()
        update = self._update
        assert (update is not None) == (head != before), f"from version {before} to {head}: the update is {update}"
        if update is not None:
            assert (update.before, update.version) == (before, head)
            self._apply(update)
            self.version, self._update = head, None
        self.check(model, head)

    def check(self, model: Model, version: int) -> None:
        """Its copy says what this version says."""
        said = model.versions[version]
        assert self._copy.keys() == said.keys(), f"a follower has tables {sorted(self._copy)}, expected {sorted(said)}"
        for name, table in said.items():
            expected = _by_id(np.array(table.ids, np.int64), table.array("weight"))
            assert self._copy[name] == expected, f"what a follower has of {name} differs"

    def close(self) -> None:
        """It lets go of everything."""
        self.follower.close()

    def _apply(self, update: Update) -> None:
        copy = {name: rows for name, rows in self._copy.items() if name not in update.dropped}
        for name, changes in update.changed.items():
            rows = _by_id(changes.rows, update.checkpoint[name].read(changes.rows))
            known = copy.get(name)
            assert (known is None) == (name in update.added), f"{name} came or went, and nobody was told"
            if known is not None and changes.exact:
                gone = set(changes.deleted.tolist())
                rows = {row: values for row, values in known.items() if row not in gone} | rows
            copy[name] = rows
        self._copy = copy


class Followers:
    """Live tables and a follower of one container, which go on together."""

    def __init__(self, path: str, model: Model, *, backend: Backend = "mmap", fs: Fs | None = None) -> None:
        self.lost = False
        """Whether the version that they have seen is gone: what is in its place is another history."""
        self._served = Served(path, model, backend, fs)
        try:
            self._copied = Copied(path, model, backend, fs)
        except BaseException:
            self._served.close()
            raise

    @property
    def version(self) -> int:
        """The newest version that they have seen."""
        return self._copied.version

    def advance(self, model: Model, random: Random) -> bool:
        """Go on to the newest version, which must be the model's; say whether it is another than before.

        Now and then the tables go back to an older version first. Raises what the library raises.
        """
        before = self.version
        if random.random() < 0.1:
            self._served.advance(model, random.choice(sorted(model.versions)))
        self._served.advance(model)
        self._copied.advance(model)
        self._served.let_go(random)
        return model.head != before

    def follow(self, model: Model, random: Random) -> str:
        """As `advance`, also where what they saw was lost; says what came of it.

        A head that names the version that they saw, as another one or none, must be refused. One that is further on
        can't always be told from one that goes on: then they have what it says, or find it out by what else is there.
        """
        if self.lost and (model.head <= self.version or self.version in model.versions):
            self._check_refused()
            return REFUSED
        try:
            moved = self.advance(model, random)
        except DamagedError:
            if not self.lost:
                raise
            return REFUSED
        self.lost = False
        return "followed" if moved else "followed, nothing new"

    def _check_refused(self) -> None:
        for call in (self._served.live.advance, self._copied.follower.next_update):
            try:
                found = call()
            except DamagedError:
                continue
            raise AssertionError(f"another history was taken for the one with version {self.version}: {found}")
        self._served.check_kept()

    def close(self) -> None:
        """They let go of everything."""
        self._copied.close()
        self._served.close()


def check_served(found: Snapshot, expected: Mapping[str, ModelTable]) -> None:
    """Compares every row of every table that is served of a version, bit for bit, and asks for one that isn't there.

    Raises `AssertionError`.
    """
    what = f"served of version {found.version}"
    assert set(found) == set(expected), f"{what}: tables {sorted(found)}, expected {sorted(expected)}"
    for name, model in expected.items():
        rows = found[name]
        assert len(rows) == len(model.ids), f"{what}: {len(rows)} rows of {name}, expected {len(model.ids)}"
        check_bits(rows.lookup(np.array(model.ids, np.int64)), model.array("weight"), f"{what}: {name}")
        if model.rows is None:
            absent = [key for key in range(-99, 99) if key not in model.cells]
            check_bits(rows.lookup(absent), model.array("weight", absent), f"{what}: {name}, keys that it lacks")
            continue
        try:
            rows.lookup([model.rows])
        except MissingKeyError:
            continue
        raise AssertionError(f"{what}: {name} has a row {model.rows}")


def _by_id(ids: Ids, rows: Any) -> dict[int, bytes]:
    return {row: values.tobytes() for row, values in zip(ids.tolist(), rows, strict=True)}
