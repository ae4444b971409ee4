"""What is to be taken from the live tables, in the order in which it is written, by threads that wait for room."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from cnrfmt.arrays import Bytes
from cnrfmt.checkpointing.slabs import Slabs
from cnrfmt.errors import UsageError


class Job(Protocol):
    """Some rows to be taken.

    `size` is what they take in memory once they are; it may be a guess until then.
    """

    size: int

    @property
    def room(self) -> int:
        """Bytes of the buffer that `take` is handed."""

    @property
    def goes_on(self) -> bool:
        """Whether it belongs to what the job before it began, and nothing of that can be written without it."""

    def take(self, room: Bytes) -> tuple[Any, int]:
        """Reads the rows, for the only time; gives what is handed to the writer, and its size."""


def work(queue: JobQueue) -> None:
    """What a thread does that encodes."""
    try:
        while (given := queue.admit()) is not None:
            job, room = given
            queue.bring(job, *job.take(room))
            del given, room
    except BaseException as error:
        # Whoever waits raises it.
        queue.cancel(error)


class JobQueue:
    """The jobs between those who encode and the one who writes; safe to use from all of them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.held = self.peak = 0
        self.seconds = 0.0
        self._todo: deque[Job] = deque()
        self._done: dict[Job, Any] = {}
        self._left = self._out = 0
        self._full = False
        self.error: BaseException | None = None
        self._began: float | None = None
        lock = threading.Lock()
        self._room, self._ended, self._arrived = (threading.Condition(lock) for _ in range(3))

    def fill(self, jobs: Sequence[Job], limit_bytes: int | None) -> None:
        """Sets what is to be encoded, in the order in which it is written."""
        self._todo.extend(jobs)
        self._left = len(jobs)
        self._slabs = Slabs([job.room for job in jobs], limit_bytes)

    def begin(self) -> int:
        """How many jobs there are to encode from now on."""
        with self._ended:
            if self._began is not None:
                raise UsageError("the snapshot was started already; make another")
            self._began = time.perf_counter()
            return self._left

    def wait(self, *, or_full: bool) -> None:
        """Waits until all is encoded, or until no more may be held."""
        with self._ended:
            if self._began is None and not or_full:
                raise UsageError("the snapshot wasn't started; call start() first")
            while self._left and not (or_full and self._full) and self.error is None:
                self._ended.wait()
            self._check()

    def cancel(self, error: BaseException) -> None:
        """Lets go what is held; jobs that are being encoded or written go with their threads."""
        with self._ended:
            if self.error is None:
                self.error = error
            self._todo.clear()
            self._done.clear()
            self.held = 0
            for condition in (self._room, self._ended, self._arrived):
                condition.notify_all()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def admit(self) -> tuple[Job, Bytes] | None:
        """The next job and room for it, as soon as it may be held; None if there is no more.

        Jobs are admitted in the order in which they are written, those that go on with another together with it. So the
        one that the writer waits for is always among those that are admitted, and what stands in its way is written
        before it.
        """
        with self._room:
            while self._todo:
                job = self._todo[0]
                if job.goes_on or self._out < self._threads or self._slabs.fits(self.held + job.size):
                    self._todo.popleft()
                    self._out += 1
                    self.held += job.size
                    self.peak = max(self.peak, self.held)
                    return job, self._slabs.take(job.room)
                self._full = True
                self._ended.notify_all()
                self._room.wait()
        return None

    def bring(self, job: Job, taken: Any, size: int) -> None:
        """A job is done: what was taken, and how many bytes of memory that has come to."""
        with self._arrived:
            if self.error is not None:
                return
            self.held += size - job.size
            job.size = size
            self.peak = max(self.peak, self.held)
            self._done[job] = taken
            self._arrived.notify_all()
            self._left -= 1
            if not self._left:
                assert self._began is not None
                self.seconds = time.perf_counter() - self._began
                self._ended.notify_all()

    def hand_out(self, job: Job, *, keep: bool = False) -> Any:
        """What was taken, as soon as it is there; for the only time unless it is kept."""
        with self._arrived:
            while job not in self._done and self.error is None:
                self._arrived.wait()
            self._check()
            return self._done[job] if keep else self._done.pop(job)

    def let_go(self, job: Job) -> None:
        """What was taken takes no memory any more."""
        with self._room:
            if self.error is None:
                self._out -= 1
                self.held -= job.size
                self._room.notify_all()
