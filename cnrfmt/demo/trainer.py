"""The trainer of the interrupted run: trains, checkpoints, dies when it is told to.

It checkpoints as Check-N-Run does: training stands still while touched rows are copied, and what was
copied is encoded and written by another thread while training goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cnrfmt.demo.model import Model, Snapshot
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.quality import judge
from cnrfmt.demo.store import Store

Report = Callable[[dict[str, Any]], None]

BLOCK = 250
"""Orders between two reports of progress."""


def run(
    store: Store,
    data: Dataset,
    report: Report,
    *,
    every: int,
    seed: int,
    resume: bool,
    die_at: int | None = None,
) -> Model:
    """Trains to the end of the stream, from its start or from the newest checkpoint, and reports.

    Each report is a dict that JSON can say, its kind under ``"event"``: ``restored``, ``progress``,
    ``checkpoint``, ``dying``, ``finished``. At the order `die_at` the process kills itself.
    """
    if resume:
        start = time.perf_counter()
        version, model = store.restore(data, seed)
        seconds = time.perf_counter() - start
        report({"event": "restored", "version": version, "order": model.order, "seconds": seconds})
    else:
        model = Model(data, seed)
    end = len(data.stream)
    with ThreadPoolExecutor(1, "checkpoint") as background:
        checkpointer = _Checkpointer(store, background, report, baseline=not resume)
        while model.order < end:
            checkpoint_at = min((model.order // every + 1) * every, end)
            stops = [checkpoint_at, model.order + BLOCK, *([die_at] if die_at else [])]
            model.train(min(stop for stop in stops if stop > model.order))
            report({"event": "progress", "order": model.order})
            if model.order == die_at:
                # The last checkpoint may still be on its way to disk. Waiting for it makes the
                # demo lose the same orders each time it is run.
                checkpointer.wait()
                report({"event": "dying", "order": model.order})
                os.kill(os.getpid(), signal.SIGKILL)
            if model.order == checkpoint_at:
                checkpointer.checkpoint(model)
        checkpointer.wait()
    quality = judge(model, seed)
    report(
        {
            "event": "finished",
            "recall": quality.recall.tolist(),
            "loss": quality.loss.tolist(),
            "terms": quality.terms.tolist(),
        }
    )
    return model


class _Checkpointer:
    """Checkpoints in the background, one at a time."""

    def __init__(self, store: Store, background: ThreadPoolExecutor, report: Report, *, baseline: bool) -> None:
        self._store, self._background, self._report = store, background, report
        self._baseline = baseline
        self._pending: Future[None] | None = None

    def checkpoint(self, model: Model) -> None:
        """Stalls training for as long as it takes to copy rows, and if need be for the last write."""
        start = time.perf_counter()
        self.wait()
        snapshot = model.snapshot(full=self._baseline)
        stall = time.perf_counter() - start
        self._pending = self._background.submit(self._write, snapshot, self._baseline, stall)
        self._baseline = False

    def wait(self) -> None:
        """Waits until the last checkpoint is durable; raises what went wrong with it."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _write(self, snapshot: Snapshot, baseline: bool, stall: float) -> None:
        start = time.perf_counter()
        version = self._store.save(snapshot) if baseline else self._store.append(snapshot)
        seconds = time.perf_counter() - start
        self._report(
            {
                "event": "checkpoint",
                "version": version,
                "order": snapshot.order,
                "rows": {name: len(rows.ids) for name, rows in snapshot.tables.items()},
                "existing": snapshot.existing,
                "bytes": self._store.bytes_by_part(version),
                "full_bytes": snapshot.full_bytes,
                "seconds": seconds,
                "stall": stall,
            }
        )
