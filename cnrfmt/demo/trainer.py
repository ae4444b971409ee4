"""The trainer of the interrupted run: trains, checkpoints, dies when it is told to.

It is also an example of how to use `cnrfmt.CheckpointManager`: it says which rows it looked up, hands over its live
tables from time to time, and begins with whatever the newest checkpoint has.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnrfmt import CheckpointManager, Event
from cnrfmt.demo.model import Model
from cnrfmt.demo.orders import Dataset
from cnrfmt.demo.quality import judge
from cnrfmt.demo.store import MADE_BY, Store, written

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
    die_at: int | None = None,
) -> Model:
    """Trains to the end of the stream, from its start or from the newest checkpoint if there is one, and reports.

    Each report is a dict that JSON can say, its kind under ``"event"``: ``restored``, ``progress``,
    ``checkpoint``, ``dying``, ``finished``. At the order `die_at` the process kills itself.
    """
    model = Model(data, seed)
    with store.manager(_Listener(store.path, model, report)) as manager:
        resume(manager, model, report)
        for _ in train(manager, model, every, len(data.stream), die_at):
            report({"event": "progress", "order": model.order})
            if model.order == die_at:
                # The last checkpoint may still be on its way to disk. Waiting for it makes the
                # demo lose the same orders each time it is run.
                manager.wait()
                report({"event": "dying", "order": model.order})
                os.kill(os.getpid(), signal.SIGKILL)
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


def resume(manager: CheckpointManager, model: Model, report: Report) -> None:
    """Has a new model go on from the newest checkpoint, if there is one."""
    began = time.perf_counter()
    restored = manager.restore(into=model.targets())
    if restored is not None:
        model.take_over(restored)
        seconds = time.perf_counter() - began
        report({"event": "restored", "version": restored.version, "order": model.order, "seconds": seconds})


def train(
    manager: CheckpointManager, model: Model, every: int, end: int, pause_at: int | None = None
) -> Iterator[None]:
    """Trains to the order `end` with a checkpoint at every so many orders and at the end, in steps.

    After each step, and before the checkpoint that may be due then, the caller has its turn.
    """
    while model.order < end:
        checkpoint_at = min((model.order // every + 1) * every, end)
        stops = (checkpoint_at, model.order + BLOCK, pause_at or end)
        loss = model.train(min(stop for stop in stops if stop > model.order))
        for table, ids in model.take_touched().items():
            manager.track(table, ids)
        yield
        if model.order == checkpoint_at:
            manager.save(
                model.order,
                model.tables(),
                dense=model.dense_state(),
                reader=model.order,
                metrics={"log_loss": loss},
                metadata=MADE_BY,
            )


def rehearse(store: Store, data: Dataset, every: int) -> None:
    """Makes two checkpoints and restores them, in a file that is thrown away.

    So what has to be compiled, or loaded, is so before anything is measured.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rehearsal.cnr"
        for end in (2 * every, 3 * every):
            model = Model(data)
            with replace(store, path=path).manager(_Listener(path, model, _ignore)) as manager:
                resume(manager, model, _ignore)
                for _ in train(manager, model, every, min(end, len(data.stream))):
                    pass


def _ignore(told: dict[str, Any]) -> None:
    pass


class _Listener:
    """Makes one report of what a manager tells of a checkpoint, of what it wrote, and of the model that it has."""

    def __init__(self, path: Path, model: Model, report: Report) -> None:
        self._path, self._model, self._report = path, model, report
        self._begun: dict[int | None, dict[str, Any]] = {}

    def __call__(self, event: Event) -> None:
        if event.kind == "snapshot":
            # Told by the thread that saves, before it trains on.
            self._begun[event.step] = {
                "existing": self._model.existing,
                "full_bytes": self._model.nbytes,
                "stall": event.stall_seconds,
            }
        elif event.kind == "committed":
            assert event.version is not None
            self._report(
                {
                    "event": "checkpoint",
                    "version": event.version,
                    "order": event.step,
                    "kind": event.checkpoint,
                    **written(self._path, event.version),
                    **self._begun.pop(event.step),
                    "seconds": event.write_seconds + event.commit_seconds,
                }
            )
