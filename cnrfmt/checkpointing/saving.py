"""One checkpoint at a time: begun by the trainer's thread, finished behind it, and what failed told to somebody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from cnrfmt.checkpointing.background import Pending, Worker
from cnrfmt.checkpointing.checkpointer import Checkpointer
from cnrfmt.checkpointing.events import Event, EventKind, tell
from cnrfmt.checkpointing.ranks.together import fail_together
from cnrfmt.checkpointing.request import Request
from cnrfmt.checkpointing.snapshot import Snapshot
from cnrfmt.checkpointing.writing import Work
from cnrfmt.errors import CnrError, SupersededError


class Saving:
    """The checkpoint that is under way, and the thread behind it.

    `lock` is held by whoever begins a checkpoint or a restore.
    """

    def __init__(self, run: Checkpointer) -> None:
        self._run, self._listener = run, run.settings.on_event
        self.lock = threading.RLock()
        self._worker = Worker("cnrfmt-checkpoint")
        self._current: tuple[Pending, Snapshot] | None = None
        self._failure: tuple[Pending | None, BaseException] | None = None

    def save(self, step: int | None, ask: Callable[[], Request]) -> Pending:
        """Begins a checkpoint of what is asked for; the tables may change when it returns. See the manager's `save`."""
        with self.lock:
            began = time.perf_counter()
            try:
                asked = ask()
                if not self._make_room(step):
                    return _skipped(step)
                self._run.begin()
                work = self._run.plan(asked)
            except BaseException as error:
                self._tell_ranks(error)
                raise
            pending, encoding = Pending(step), time.perf_counter()
            self._current = pending, work.snapshot
            self._worker.submit(lambda: self._finish(pending, work))
            try:
                work.snapshot.take()
                ended = time.perf_counter()
                self._tell("snapshot", work, stall_seconds=ended - began, encode_seconds=ended - encoding)
            except BaseException as error:
                # The background, which waits for rows, gives the marks back.
                work.snapshot.cancel(error)
                pending.snapshot.set_result(None)
                wait([pending.commit])
                if not pending.failed_behind:
                    self._failure = None
                    raise
            else:
                pending.snapshot.set_result(None)
        return pending

    def _tell_ranks(self, error: BaseException) -> None:
        """Lets the other ranks know that this one doesn't save, so that they don't wait for it."""
        coordinator = self._run.coordinator
        if coordinator is not None and isinstance(error, Exception):
            self._worker.submit(lambda: fail_together(coordinator, error))

    def _make_room(self, step: int | None) -> bool:
        """Sees to it that no other checkpoint is being written; False if this one is to be left out."""
        if self._current is not None:
            before, snapshot = self._current
            busy = self._run.settings.when_busy
            if not before.commit.done() and busy == "skip":
                tell(self._listener, Event("skipped", step))
                return False
            if busy == "replace":
                reason = f"{self._run.path}: a newer checkpoint took the place of step {before.step}"
                snapshot.cancel(SupersededError(reason))
            wait([before.commit])
            self._current = None
        self.raise_failure()
        return True

    def _finish(self, pending: Pending, work: Work) -> None:
        """What is done in the background."""
        try:
            written = self._run.commit(work)
        except BaseException as error:
            pending.failed_behind = work.snapshot.error is not error
            work.snapshot.cancel(error)
            replaced = isinstance(error, SupersededError)
            if not replaced:
                self._failure = pending, error
            self._tell("replaced" if replaced else "failed", work, error=error)
            pending.commit.set_exception(error)
            return
        # Small checkpoints are durable before `save` has come to say that they were begun.
        wait([pending.snapshot])
        self._tell(
            "committed",
            work,
            version=written.manifest.version,
            nbytes=written.checkpoint.nbytes,
            write_seconds=written.write_seconds,
            commit_seconds=written.commit_seconds,
        )
        try:
            self._run.remember()
        except CnrError as error:
            # The version is durable; what was asked for beside it can't be had.
            self._failure = None, error
        pending.commit.set_result(written.manifest.version)
        self._run.keep_house()

    def _tell(self, kind: EventKind, work: Work, **facts: Any) -> None:
        tell(self._listener, Event(kind, work.asked.step, checkpoint=work.kind, rows=work.rows, **facts))

    def raise_failure(self) -> None:
        """Raises, once, what kept a checkpoint from being written, unless somebody asked its future."""
        if self._failure is not None:
            (pending, error), self._failure = self._failure, None
            # Who has asked knows already.
            if pending is None or not pending.commit.was_asked:
                raise error

    def wait(self) -> None:
        """Waits until nothing is under way; doesn't raise."""
        self._worker.wait()


def _skipped(step: int | None) -> Pending:
    pending = Pending(step, skipped=True)
    pending.snapshot.set_result(None)
    pending.commit.set_exception(SupersededError("the checkpoint was skipped: another was being written"))
    return pending
