"""A model in training, an oracle that remembers it at every checkpoint, and disks that wait or fail."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import TableData
from cnrfmt.arrays import Array, Ids
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.checkpointing.resuming.restored import Restored
from cnrfmt.encodings.checks import Flags
from cnrfmt.errors import StorageError
from cnrfmt.run_record import CheckpointRecord
from cnrfmt.stored_integers import Stored
from tests.storage.support import QuickFs


def needed_by(checkpoints: Sequence[CheckpointRecord], number: int) -> list[int]:
    """The versions that a restore reads of one of these checkpoints, ascending, as plainly as it can be said."""
    kinds = [c.kind for c in checkpoints[: number + 1]]
    last = max(n for n, kind in enumerate(kinds) if kind == "baseline")
    below = {"baseline": [], "since-baseline": [checkpoints[last].version]}
    before = below[kinds[number]] if kinds[number] in below else needed_by(checkpoints, number - 1)
    return [*before, checkpoints[number].version]


class Trainer:
    """Two dense tables and a keyed one, with one optimizer value per row; each step changes some rows."""

    def __init__(self, seed: int = 0, rows: int = 40, dim: int = 5) -> None:
        self.random = np.random.default_rng(seed)
        self.user = self._values(rows, dim)
        self.user_state = self._values(rows)
        self.item = self._values(2 * rows, 3)
        self.keys = np.array([-7, 3, 11, 400], np.int64)
        self.visitor = self._values(len(self.keys), 2)
        self.step = 0
        self.restored: Restored | None = None

    def _values(self, *shape: int) -> np.ndarray:
        return self.random.normal(0, 1, shape).astype(np.float32)

    def tables(self) -> dict[str, Any]:
        """The live tables as `save` takes them: the arrays themselves."""
        return {
            "user": TableData(self.user, columns={"state": self.user_state}),
            "item": self.item,
            "visitor": TableData(self.visitor, keys=self.keys),
        }

    def train(self, manager: CheckpointManager | None, share: float = 0.2) -> None:
        """Changes rows, and says which."""
        self.step += 1
        for name, array in (("user", self.user), ("item", self.item)):
            ids = self.random.integers(0, len(array), max(1, int(share * len(array))))
            # Rows that are restored lazily are there once they are tracked.
            if manager is not None:
                manager.track(name, ids)
            array[ids] += 1
            if name == "user":
                self.user_state[ids] += 1
        if len(self.keys):
            chosen = self.random.integers(0, len(self.keys), 2)
            if manager is not None:
                manager.track("visitor", self.keys[chosen])
            self.visitor[chosen] -= 1

    def admit(self, manager: CheckpointManager, key: int) -> None:
        """A new key."""
        if key not in self.keys:
            self._wait()
            self.keys = np.append(self.keys, np.int64(key))
            self.visitor = np.concatenate([self.visitor, self._values(1, 2)])
            manager.track("visitor", [key])

    def evict(self, manager: CheckpointManager, key: int) -> None:
        """A key goes."""
        self._wait()
        stays = self.keys != key
        self.keys, self.visitor = self.keys[stays], self.visitor[stays]
        manager.forget("visitor", [key])

    def grow(self, manager: CheckpointManager, rows: int) -> None:
        """More rows of `item`, or fewer."""
        self._wait()
        more = self._values(max(0, rows - len(self.item)), 3)
        self.item = np.concatenate([self.item[:rows], more])
        manager.resize("item", rows)

    def copy(self) -> dict[str, Any]:
        """All that a checkpoint of this moment must say."""
        order = np.argsort(self.keys)
        return {
            "user": self.user.copy(),
            "user.state": self.user_state.copy(),
            "item": self.item.copy(),
            "keys": self.keys[order].copy(),
            "visitor": self.visitor[order].copy(),
        }

    def _wait(self) -> None:
        """Waits for rows that are still being restored, before arrays are copied."""
        if self.restored is not None:
            assert self.restored.wait(60)

    def take_over(self, restored: Restored) -> None:
        """Goes on with what was restored."""
        self.restored = restored
        self.user = restored.tables["user"].values
        self.user_state = restored.tables["user"].columns["state"]
        self.item = restored.tables["item"].values
        self.keys, self.visitor = restored.tables["visitor"].keys, restored.tables["visitor"].values
        self.step = restored.step or 0


def check(path: Path, version: int, expected: dict[str, Any]) -> None:
    """Raises `AssertionError` unless the version says just that, bit for bit."""
    with cnrfmt.open(path, version=version, verify="all") as ck:
        found = {
            "user": ck["user"][...],
            "user.state": ck["user"].read(column="state"),
            "item": ck["item"][...],
            "keys": ck["visitor"].keys,
            "visitor": ck["visitor"][...] if len(ck["visitor"]) else np.empty((0, 2), np.float32),
        }
    # Tables that shrink and grow again, and rows of every kind: their order is that of the ids.
    for name, values in expected.items():
        assert found[name].shape == values.shape, f"{name} of version {version}: {found[name].shape}"
        assert found[name].tobytes() == values.tobytes(), f"{name} of version {version} differs"


def sound(path: Path) -> None:
    """Raises `AssertionError` unless the container breaks no rule."""
    report = cnrfmt.verify(path)
    assert report.sound, [str(finding) for finding in report.findings]


class Disk(QuickFs):
    """A disk that can be told to wait, or to fail, at the next calls of some kind."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: str | None = None
        self.reached = threading.Event()
        self._go_on = threading.Event()
        self._go_on.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is made durable within."""
        self.reached.clear()
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()

    def sync(self, handle: int) -> None:
        """Waits while the disk is held; fails if it is to."""
        self.reached.set()
        assert self._go_on.wait(60)
        if self.failing == "sync":
            raise StorageError(errno.EIO, "the disk failed", "disk")
        super().sync(handle)

    def sync_directory(self, path: str) -> None:
        """Fails if it is to: of the folder of manifests, when one has its name already."""
        if self.failing == "names" and path.endswith("manifests") and self.armed:
            raise StorageError(errno.EIO, "the disk failed", path)
        super().sync_directory(path)

    armed = False

    def link(self, source: str, target: str) -> None:
        """After a manifest has its name, the sync of the names fails."""
        super().link(source, target)
        self.armed = self.failing == "names" and target.endswith(".cnrm")


def integers_of(store: Stored, table: str, column: str, ids: Ids) -> tuple[Array, Flags]:
    """The integers that rows are stored as, zeros where there are none, and of which rows there are any."""
    rows, positions = store.integers(table, [column], ids)[column]
    known = positions >= 0
    found = np.zeros((len(ids), rows.shape[1]), np.int32)
    found[known] = rows[positions[known]]
    return found, known
