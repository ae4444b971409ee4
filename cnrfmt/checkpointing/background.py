"""What a manager does behind the trainer's back: one thread, one job after the other."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future


class CommitFuture(Future[int]):
    """The version that a checkpoint becomes; remembers whether anybody asked for it."""

    was_asked = False

    def result(self, timeout: float | None = None) -> int:
        """The version, once it is durable; raises why it isn't."""
        found = self.exception(timeout)
        if found is not None:
            raise found
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the version isn't durable; None once it is."""
        found = super().exception(timeout)
        self.was_asked = True
        return found


class Pending:
    """A checkpoint that was begun.

    Attributes
    ----------
    step
        The trainer's step.
    snapshot
        Resolves, to None, as soon as the tables may change again.
    commit
        Resolves to the version when that is durable, or raises why it isn't: then nothing of it counts, and the rows
        are marked as they were (`CommitUnknownError` aside).
    skipped
        Whether it was left out because another was being written.
    failed_behind
        Whether it failed although the tables could be read: `save` returns then, and `commit` says why.
    """

    def __init__(self, step: int | None, *, skipped: bool = False) -> None:
        self.step, self.skipped = step, skipped
        self.failed_behind = False
        self.snapshot: Future[None] = Future()
        self.commit = CommitFuture()

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits until the version is durable, and gives it; None for a checkpoint that was skipped."""
        return None if self.skipped else self.commit.result(timeout)


Job = Callable[[], None]


class Worker:
    """A thread that runs jobs in the order in which they come. It is there only while there are some.

    It isn't a daemon: an interpreter that ends waits for the jobs that it has.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._running = False

    def submit(self, job: Job) -> None:
        """Runs a job, which doesn't raise, after those that were submitted before."""
        with self._changed:
            self._jobs.append(job)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name=self._name, daemon=False).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._running = False
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:
                # A job settles its own errors; one that didn't mustn't take those behind it along.
                logging.getLogger("cnrfmt").exception("a checkpoint's background failed")

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there is nothing to do; gives whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout)
