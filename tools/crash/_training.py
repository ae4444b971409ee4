"""Training runs that an engine interrupts: checkpoints, the merges behind them, and a save that fails."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

import cnrfmt
from cnrfmt import Grid, TableData
from cnrfmt.errors import StorageError
from cnrfmt.storage.fs import POSIX, Fs
from tools.crash._inputs import F32, QUANTIZE, STEP
from tools.crash.expected import Expected

PathLike = str | os.PathLike[str]
Changes = dict[str, Any]
Tell = Callable[[int], None]
_MOST_SEGMENTS = 4
_ROWWISE: dict[str, Any] = {"bits": 32, "quantize": QUANTIZE}
# All steps are equal, and every value of the engines is a multiple of them: what is stored is what is trained.
_GRID: dict[str, Any] = {"encoding": Grid(step=STEP, by=None)}
# What a manager can't do behind a checkpoint it only logs, and here that is what is tried.
logging.getLogger("cnrfmt").addHandler(logging.NullHandler())


def checkpoint(path: PathLike, given: Sequence[Changes], step: int, fs: Fs | None, tell: Tell) -> int:
    """A run goes on for two checkpoints; each is followed by what merges the chain, and by a collection."""
    return _Run(path, fs, tell, _ROWWISE).train(given, step)


def after_checkpoints(model: Expected, given: Sequence[Changes], kind: str) -> tuple[Expected, ...]:
    """Two checkpoints, and a merge of all there is as soon as there are four segments."""
    found: list[Expected] = []
    for changes in given:
        model = model.checkpointed(changes, on_grid=False)
        found += _merged(model)
        model = found[-1]
    return tuple(found)


def grid(path: PathLike, given: Sequence[Changes], step: int, fs: Fs | None, tell: Tell, *, begins: bool) -> int:
    """A run on a grid, which `begins` with a baseline where the container isn't on one, for two checkpoints.

    The second is first tried in vain; what the run is taken up from is what a run before it has left.
    """
    failing = _FailingFs(fs or POSIX)
    return _Run(path, cast(Fs, failing), tell, _GRID, failing).train(given, step, begins=begins)


def after_grid(model: Expected, given: Sequence[Changes], kind: str) -> tuple[Expected, ...]:
    """A checkpoint for each of the changes, the first one a baseline unless the container is on the grid."""
    found: list[Expected] = []
    for changes in given:
        model = model.checkpointed(changes, on_grid=True) if model.on_grid else model.based_on_grid(changes)
        found += _merged(model)
        model = found[-1]
    return tuple(found)


def _merged(model: Expected) -> list[Expected]:
    return [model, model.merged(0, model.chain)] if model.chain >= _MOST_SEGMENTS else [model]


class _Run:
    """A process that trains."""

    def __init__(
        self, path: PathLike, fs: Fs | None, tell: Tell, encoding: Mapping[str, Any], failing: _FailingFs | None = None
    ) -> None:
        self._path, self._fs, self._tell, self._encoding, self._failing = path, fs, tell, encoding, failing
        self._committed = -1

    def train(self, given: Sequence[Changes], step: int, *, begins: bool = False) -> int:
        """A checkpoint for each of the changes, the last of them first tried in vain; gives the last version.

        With `begins`, the first of them is a baseline.
        """
        with self._manager() as manager:
            restored = manager.restore()
            assert restored is not None
            live = restored.tables
            for number, changes in enumerate(given):
                live = {name: _trained(manager, name, data, changes[name]) for name, data in live.items()}
                if self._failing is not None and number == len(given) - 1:
                    # What comes behind the checkpoint before it isn't what is to fail.
                    manager.flush()
                    self._failing.fail(partial(_save, manager, step + number, live))
                kind = "baseline" if begins and not number else "delta"
                self._note(manager.save(step + number, live, kind=kind).wait())
        # The merge behind a checkpoint may be told of first.
        return self._committed

    def _manager(self) -> cnrfmt.CheckpointManager:
        return cnrfmt.CheckpointManager(
            self._path,
            policy="consecutive",
            keep=1,
            grace=0,
            most_segments=_MOST_SEGMENTS,
            merge_share=None,
            save_threads=1,
            flush_on_sigterm=False,
            on_event=self._listen,
            fs=self._fs,
            **self._encoding,
        )

    def _listen(self, event: cnrfmt.Event) -> None:
        if event.kind == "merged":
            self._note(event.version)

    def _note(self, version: int | None) -> None:
        assert version is not None
        self._committed = max(self._committed, version)
        self._tell(version)


def _save(manager: cnrfmt.CheckpointManager, step: int, live: Mapping[str, TableData]) -> None:
    manager.save(step, live, kind="delta").wait()


class _FailingFs:
    """The calls of another file system, of which a sync fails where it is told to."""

    def __init__(self, fs: Fs) -> None:
        self._fs, self._left, self._failed = fs, 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def fail(self, save: Callable[[], object]) -> None:
        """Does something whose first sync fails; raises what else goes wrong with it."""
        self._left, self._failed = 1, False
        try:
            save()
        except StorageError:
            if not self._failed:
                raise
        else:
            raise AssertionError("a save whose sync failed succeeded")
        finally:
            self._left = 0

    def sync(self, handle: int) -> None:
        """Syncs a file, or fails."""
        if self._left:
            self._left, self._failed = 0, True
            raise StorageError(errno.EIO, "a sync fails here")
        self._fs.sync(handle)


def _trained(manager: cnrfmt.CheckpointManager, name: str, data: TableData, changes: Any) -> TableData:
    """A live table after these changes, of which the manager was told."""
    rows, gone = changes if isinstance(changes, tuple) else (changes, None)
    manager.track(name, rows.ids)
    if data.keys is None:
        data.values[rows.ids] = rows.values
        for column, values in rows.columns.items():
            data.columns[column][rows.ids] = values
        return data
    assert gone is not None
    manager.forget(name, gone.keys)
    cells = dict(zip(data.keys.tolist(), data.values, strict=True)) | dict(
        zip(rows.ids.tolist(), rows.values, strict=True)
    )
    cells = {key: values for key, values in cells.items() if key not in gone.keys}
    return TableData(np.array(list(cells.values()), F32).reshape(len(cells), 2), keys=np.array(list(cells), np.int64))
