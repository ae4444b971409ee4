"""How the ranks of a job wait for each other and tell each other what they have: the protocol, and two of its kind."""

from __future__ import annotations

import errno
import json
import os
import re
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from cnrfmt.errors import LockedError, RankLostError, StorageError, UsageError
from cnrfmt.storage.base import LEFTOVER, temporary_token
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import POSIX, Fs

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_RUN = re.compile(r"run-[0-9a-f]{16}", re.ASCII)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05
"""Seconds between two looks at the directory."""


class Coordinator(Protocol):
    """What the ranks of a job need of each other. Every rank makes the same calls in the same order.

    Attributes
    ----------
    rank
        The number of this process, from 0.
    world_size
        How many there are.
    """

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def world_size(self) -> int:
        """How many processes there are."""

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Every rank's payload, in the order of the ranks, on every rank.

        Raises `RankLostError` only where it is certain that no rank gets the payloads of this call; who can't be
        certain raises something else.
        """
        ...

    def barrier(self, name: str) -> None:
        """Returns when every rank has called it. Raises what `gather` raises."""
        ...


class SingleRank:
    """The coordinator of a process that is alone."""

    rank, world_size = 0, 1

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Its own payload."""
        return [payload]

    def barrier(self, name: str) -> None:
        """Returns at once."""


class FileCoordinator:
    """Processes of one machine that meet in a directory.

    Parameters
    ----------
    path
        A directory on a local file system that has `flock`; it is made if it isn't there, and used for nothing else.
        One job uses it at a time; another may use it after that, and whatever an earlier one left doesn't count.
    rank, world_size
        The number of this process, and how many there are.
    timeout
        Seconds to wait for a process that lives, or that hasn't started yet. One that has ended is noticed at once.

    Each process holds a lock on a file of its own, which ends with the process, however that ends. Rank 0 begins a
    *run*: a folder with a random name, in which a process takes part once. A `gather` ends alike for all that take
    part in it: the first who knows how it ended writes that down, under a name that can be taken once. So where one
    gets a `RankLostError`, no other gets the payloads. A gather with a lost rank waits for all others first.

    Names may be used again. Threads of one process may wait for different names at the same time.

    Raises
    ------
    UsageError
        Rank or world size make no sense, or aren't those of rank 0's run.
    LockedError
        Rank 0 of another job holds the directory.
    RankLostError
        Rank 0 didn't begin a run that this process could join, in time.
    StorageError
        The operating system refused.
    """

    def __init__(
        self, path: str | os.PathLike[str], rank: int, world_size: int, *, timeout: float = 600.0, fs: Fs | None = None
    ) -> None:
        _check_numbers(rank, world_size, timeout)
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self.path, self._fs = os.path.abspath(path_text(path)), fs or POSIX
        self._process = os.getpid()
        self._numbers: dict[str, int] = {}
        self._handles: list[int] = []
        try:
            self._make_folder()
            self._run = self._begin() if rank == 0 else self._join()
        except BaseException:
            self.close()
            raise
        _alive.add(self)

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Every rank's payload, in the order of the ranks.

        Raises
        ------
        RankLostError
            Processes have ended or are too late; no rank gets the payloads of this call.
        StorageError
            The operating system refused; then others may have got them.
        """
        self._check_usable()
        if not _NAME.fullmatch(name):
            raise UsageError(f"a name of a gather is lower-case letters, digits and hyphens, found {name!r}")
        number = self._numbers.get(name, 0)
        self._numbers[name] = number + 1
        stem = f"{name}.{number}."
        self._put(f"{stem}{self.rank}", payload, replace=True)
        self._await_end(stem)
        lost = {int(rank): str(why) for rank, why in json.loads(self._get(f"{stem}end")).items()}
        present = [rank for rank in range(self.world_size) if rank not in lost]
        payloads = {rank: self._get(f"{stem}{rank}") for rank in present}
        if lost:
            raise RankLostError(f"{self.path}: {name}", lost, payloads)
        # Whoever spoke here has read all that was said the time before.
        self._forget(f"{name}.{number - 1}.{self.rank}")
        if self.rank == 0:
            self._forget(f"{name}.{number - 1}.end")
        return [payloads[rank] for rank in present]

    def barrier(self, name: str) -> None:
        """Returns when every rank has called it; raises what `gather` raises."""
        self.gather(name, b"")

    def close(self) -> None:
        """Leaves the run: for the others this process is gone."""
        if self._process == os.getpid():
            for handle in self._handles:
                with suppress(StorageError):
                    self._fs.close(handle)
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._process != os.getpid():
            raise UsageError(f"{self.path}: this coordinator belongs to process {self._process}")
        if not self._handles:
            raise UsageError(f"{self.path}: this coordinator was closed; make another")

    # The run

    def _make_folder(self) -> None:
        try:
            self._fs.mkdir(self.path)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise

    def _begin(self) -> str:
        leader = os.path.join(self.path, "leader")
        self._handles.append(self._fs.open(leader, "lock"))
        waiting = _Patience(self.timeout)
        while not self._fs.lock_handle(self._handles[0]):
            if not waiting.pause():
                raise LockedError(f"{self.path}: rank 0 of another job is using it; end that, or give another path")
        for name in self._fs.list_directory(self.path):
            if _RUN.fullmatch(name):
                self._remove_if_over(os.path.join(self.path, name))
        run = os.path.join(self.path, f"run-{temporary_token()}")
        self._fs.mkdir(run)
        self._claim(run)
        self._run = run
        told = json.dumps({"run": os.path.basename(run), "world_size": self.world_size}).encode()
        self._put(os.path.join(os.pardir, "current"), told, replace=True)
        return run

    def _remove_if_over(self, run: str) -> None:
        """Removes the folder of a run of which no process lives: those that live may still have to read it."""
        names = self._fs.list_directory(run)
        members = [name for name in names if name.startswith("rank-")]
        if not any(self._holds(os.path.join(run, name)) for name in members):
            with suppress(StorageError):
                for name in names:
                    self._fs.unlink(os.path.join(run, name))
                self._fs.rmdir(run)

    def _join(self) -> str:
        """Joins the run of a rank 0 that lives."""
        waiting, taken = _Patience(self.timeout), False
        while True:
            run, world_size = self._current()
            if run is not None and self._holds(_member(run, 0)):
                if world_size != self.world_size:
                    raise UsageError(
                        f"{self.path}: rank 0 says that there are {world_size} ranks, and rank {self.rank} says that "
                        f"there are {self.world_size}; start all with the same number"
                    )
                if self._claim(run):
                    return run
                taken = True
            if not waiting.pause():
                if taken:
                    raise UsageError(
                        f"{self.path}: another process is, or was, rank {self.rank} of this job; a rank that ended "
                        "can't come back by itself: start all ranks together, each with its own number"
                    )
                raise RankLostError(f"{self.path}: joining as rank {self.rank}", {0: "late"}, {})

    def _current(self) -> tuple[str | None, int]:
        try:
            told = json.loads(self._read(os.path.join(self.path, "current")))
            return os.path.join(self.path, told["run"]), int(told["world_size"])
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        except (ValueError, KeyError, TypeError):
            # A crash may have left it empty; rank 0 of this job writes it anew.
            pass
        return None, 0

    def _claim(self, run: str) -> bool:
        """Takes this rank's place in a run; False where somebody had it before, or the run is over."""
        temporary = os.path.join(run, LEFTOVER + temporary_token())
        try:
            handle = self._fs.open(temporary, "create")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        try:
            # Nobody looks at it before it has its name, so nobody else can have the lock.
            self._fs.lock_handle(handle)
            self._fs.link(temporary, _member(run, self.rank))
        except StorageError as error:
            self._fs.close(handle)
            if error.errno not in (errno.EEXIST, errno.ENOENT):
                raise
            return False
        finally:
            with suppress(StorageError):
                self._fs.unlink(temporary)
        self._handles.append(handle)
        return True

    def _holds(self, path: str) -> bool:
        """Whether a process that lives holds the lock on a file."""
        try:
            handle = self._fs.open(path, "write")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        try:
            # Of a process that ended, several may look at the same time.
            return not self._fs.lock_handle(handle, shared=True)
        finally:
            self._fs.close(handle)

    # One gather

    def _await_end(self, stem: str) -> None:
        """Returns when it is written down how the gather ended, by whomever."""
        waiting = _Patience(self.timeout)
        gone: set[int] = set()
        while True:
            names = set(self._fs.list_directory(self._run))
            if f"{stem}end" in names:
                return
            missing = {rank for rank in range(self.world_size) if f"{stem}{rank}" not in names}
            # Who was gone before the directory was listed can't have said anything since.
            if missing <= gone:
                self._end(stem, dict.fromkeys(missing, "gone"))
                return
            if not waiting.pause():
                self._end(stem, {rank: "gone" if rank in gone else "late" for rank in missing})
                return
            gone = self._gone(missing, names)

    def _gone(self, ranks: Iterable[int], names: Iterable[str]) -> set[int]:
        """Those of these ranks that have joined and whose processes have ended since."""
        return {r for r in ranks if f"rank-{r}" in names and not self._holds(_member(self._run, r))}

    def _end(self, stem: str, lost: Mapping[int, str]) -> None:
        """Writes down how a gather ended, unless another did."""
        self._put(f"{stem}end", json.dumps(lost).encode(), replace=False)

    # Files of the run

    def _put(self, name: str, data: bytes, *, replace: bool) -> None:
        """Puts a file there as a whole; where one is there already, it takes its place or stays away."""
        temporary = os.path.join(self._run, LEFTOVER + temporary_token())
        target = os.path.join(self._run, name)
        handle = self._fs.open(temporary, "create")
        try:
            self._fs.pwrite(handle, 0, data)
        finally:
            self._fs.close(handle)
        if replace:
            self._fs.rename(temporary, target)
            return
        try:
            self._fs.link(temporary, target)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        finally:
            with suppress(StorageError):
                self._fs.unlink(temporary)

    def _get(self, name: str) -> bytes:
        return self._read(os.path.join(self._run, name))

    def _read(self, path: str) -> bytes:
        handle = self._fs.open(path, "read")
        try:
            data = bytearray(self._fs.stat_handle(handle).size)
            self._fs.pread_into(handle, 0, data)
        finally:
            self._fs.close(handle)
        return bytes(data)

    def _forget(self, name: str) -> None:
        with suppress(StorageError):
            self._fs.unlink(os.path.join(self._run, name))

    def _leave_to_parent(self) -> None:
        """In a forked child: closes its copies of the handles, so that the locks end with the parent."""
        for handle in self._handles:
            with suppress(StorageError):
                self._fs.close(handle)
        self._handles.clear()


def _member(run: str, rank: int) -> str:
    return os.path.join(run, f"rank-{rank}")


def _check_numbers(rank: int, world_size: int, timeout: float) -> None:
    for what, number in (("rank", rank), ("world_size", world_size)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"{what} must be an integer, found {number!r}")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank goes from 0 to world_size - 1, found rank {rank} of {world_size}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise UsageError(f"timeout must be a number of seconds above 0, found {timeout!r}")


class _Patience:
    """Pauses that grow, for so many seconds in all."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._next = _FIRST_PAUSE

    def pause(self) -> bool:
        """Sleeps a moment; False once the time is over."""
        if time.monotonic() >= self._end:
            return False
        time.sleep(self._next)
        self._next = min(1.5 * self._next, _LONGEST_PAUSE)
        return True


_alive: weakref.WeakSet[FileCoordinator] = weakref.WeakSet()
"""Those of this process, for the children that it forks: data loaders would keep its locks when it is dead."""


def _after_fork() -> None:
    for coordinator in list(_alive):
        coordinator._leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
