"""One checkpoint at a time: begun by the trainer's thread, finished behind it, and what failed told to somebody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from typing import Any

from cnrfmt.checkpointing.background import Pending, Worker
from cnrfmt.checkpointing.checkpointer import Checkpointer
from cnrfmt.checkpointing.events import Event, EventKind, tell
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.ranks.together import fail_together
from cnrfmt.checkpointing.request import Request
from cnrfmt.checkpointing.resuming.lazy_restore import LazyRestore
from cnrfmt.checkpointing.snapshot import Snapshot
from cnrfmt.checkpointing.writing import Work
from cnrfmt.errors import SupersededError, UsageError


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
        self._has_told = False
        self._told = threading.Event()
        self._told.set()

    def save(self, step: int | None, ask: Callable[[], Request]) -> Pending:
        """Begins a checkpoint of what is asked for; the tables may change when it returns. See the manager's `save`."""
        with self.lock:
            began = time.perf_counter()
            with self._telling_ranks():
                asked = ask()
                self._settle(asked)
                if not self._make_room(step):
                    return _skipped(step)
                self._run.begin()
                begun = self._run.look(asked)
            # What failed before is told first: ranks meet in one order.
            self._told.wait()
            begun = self._run.agree(begun)
            with self._telling_ranks():
                work = self._run.plan(begun)
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

    def restored(self) -> None:
        """Goes on behind with what was restored lazily, and then with its stored values."""
        lazy = self._run.lazy
        if lazy is not None:
            self._worker.submit(lambda: self._finish_restore(lazy))

    def _finish_restore(self, lazy: LazyRestore) -> None:
        try:
            if not lazy.finish():
                return
        except BaseException:
            # Whoever touches the tables next is told.
            return
        if self._run.coordinator is None:
            try:
                self._run.remember()
            except BaseException as error:
                self._failure = None, error

    def _settle(self, asked: Request) -> None:
        """Waits until all rows of the tables are there, and what is stored of them is known."""
        if (lazy := self._run.lazy) is not None:
            lazy.settle({name: table.data for name, table in asked.tables.items() if table.data is not None})
            self._worker.wait()
            self._run.lazy = None

    @contextmanager
    def _telling_ranks(self) -> Iterator[None]:
        """Lets the other ranks know of an error within: this one doesn't save, and they needn't wait for it."""
        try:
            yield
        except Exception as error:
            if (coordinator := self._run.coordinator) is not None:
                self._told = told = threading.Event()
                self._worker.submit(partial(_tell, coordinator, error, told))
            raise

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
            if self._run.settings.policy.needs_since_baseline and self._run.settings.rule.may_be_grid:
                # A merge may make another baseline, which differences are taken from.
                self._worker.wait()
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
        if written.kept_all is not None:
            self._note_kept_all(written.kept_all)
        self._note_lost(work)
        try:
            self._run.remember()
        except BaseException as error:
            # The version is durable, and who waits for it has to hear that, whatever can't be had beside it.
            self._failure = None, error
        pending.commit.set_result(written.manifest.version)
        self._run.keep_house()

    def _note_kept_all(self, error: UsageError) -> None:
        """Tells that the caller's rule of what to keep fails: each time in the log, and once by raising it."""
        logging.getLogger("cnrfmt").warning("%s: no version was given up: %s", self._run.path, str(error))
        # Of several ranks, one alone knows: where it raised that, the others would go on and wait for it.
        if not self._has_told and self._run.coordinator is None:
            self._has_told = True
            self._failure = None, error

    def _note_lost(self, work: Work) -> None:
        """Tells of tables whose rows are lost in the steps of their grids: in the log, since the version is durable."""
        for table, mean in work.lost_in_steps.items():
            logging.getLogger("cnrfmt").warning(
                "%s: table %r is stored as zeros, or nearly: its values are below half a step (%s; a mean relative "
                "error of %.3g). Give a smaller learning_rate, c or step, or save(kind='baseline') once it is trained",
                self._run.path,
                table,
                work.chosen.words[table],
                mean,
            )

    def _tell(self, kind: EventKind, work: Work, **facts: Any) -> None:
        tell(self._listener, Event(kind, work.asked.step, checkpoint=work.kind, rows=work.rows, **facts))

    def raise_failure(self) -> None:
        """Raises, once, what kept a checkpoint from being written, unless somebody asked its future."""
        if self._failure is not None:
            (pending, error), self._failure = self._failure, None
            # Who has asked knows already.
            if pending is None or not pending.commit.was_asked:
                try:
                    raise error
                finally:
                    # A frame that holds the error that it raised would keep the files open that this came from.
                    del pending, error

    def wait(self) -> None:
        """Waits until nothing is under way; doesn't raise."""
        self._worker.wait()


def _tell(coordinator: Coordinator, error: Exception, told: threading.Event) -> None:
    try:
        fail_together(coordinator, error)
    finally:
        told.set()


def _skipped(step: int | None) -> Pending:
    pending = Pending(step, skipped=True)
    pending.snapshot.set_result(None)
    pending.commit.set_exception(SupersededError("the checkpoint was skipped: another was being written"))
    return pending
