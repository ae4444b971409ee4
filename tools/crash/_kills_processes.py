"""The processes of the kills: writers, readers, and how they are forked, watched and ended."""

from __future__ import annotations

import errno
import mmap
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import cnrfmt
from cnrfmt import ConflictError, DamagedError, LockedError, StorageError, UsageError, VersionNotFoundError
from cnrfmt.storage.fs import POSIX, Fs
from tools.crash._kills_oracle import Attempt, Journal, Oracle, look, signed, token_of
from tools.crash.operations import OPERATIONS, Doing

PATIENCE = 120.0
"""Seconds after which a process that doesn't end is taken to hang."""


@dataclass(frozen=True)
class Place:
    """A container's folder: the container, the journal beside it, a byte that ends its processes, and their parent."""

    kind: str
    path: str
    journal: Path
    stop: mmap.mmap
    parent: int

    def oracle(self) -> Oracle:
        """An oracle of its own for each process."""
        return Oracle(self.kind, Journal(self.journal))

    @property
    def stopped(self) -> bool:
        """Whether a forked process shall come to its end: it is told to, or its parent is gone."""
        return self.stop[0] != 0 or os.getppid() != self.parent


class DyingFs:
    """The real calls of a process that kills itself: at a named point, or before or behind some call."""

    def __init__(self, point: str | None = None, call: int | None = None, *, behind: bool = False) -> None:
        self._point, self._call, self._behind = point, call, behind
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        target = getattr(POSIX, name)

        def call(*args: Any, **options: Any) -> Any:
            if name == "point":
                if args[0] == self._point:
                    _die()
                return target(*args)
            self._calls += 1
            if self._calls == self._call and not self._behind:
                _die()
            result = target(*args, **options)
            if self._calls == self._call:
                _die()
            return result

        return call


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_fs(point: str | None = None, call: int | None = None, *, behind: bool = False) -> Fs:
    """A `DyingFs`, as the library takes it."""
    return cast(Fs, DyingFs(point, call, behind=behind))


def fork(place: Place, body: Callable[[Oracle], None], children: list[int]) -> int:
    """A process that runs `body` and ends; what it raises goes to the journal, and its status is 1 then.

    It is added to `children` before this process can be stopped, so that none is forgotten.
    """
    # Ctrl-C goes to all processes; the parent alone clears up. Until it is ignored, the child mustn't act on it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    child = os.fork()
    if child:
        children.append(child)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return child
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = 1
    oracle = place.oracle()
    try:
        body(oracle)
        status = 0
    except BaseException:
        oracle.journal.write(error=traceback.format_exc())
    finally:
        os._exit(status)


def wait(child: int, seconds: float = PATIENCE) -> int:
    """The exit status of a process, negative for the signal that ended it; raises `AssertionError` if it hangs."""
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended, f"process {child} didn't end within {seconds} s"
    return status


def end(child: int) -> None:
    """Ends a process, if nobody has waited for its end yet."""
    with suppress(ChildProcessError):
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def head(place: Place, oracle: Oracle) -> tuple[int, int] | None:
    """Version and token of the head, checked whole; None where no version was ever committed."""
    oracle.update()
    floor = oracle.floor
    try:
        with cnrfmt.open(place.path, backend="pread", threads=1) as found:
            assert found.version >= floor, f"version {floor} was acknowledged, and the head is {found.version}"
            look(place.path, oracle, found)
            return found.version, token_of(found.manifest)
    except (StorageError, DamagedError) as error:
        if not nothing_yet(error) or floor >= 0:
            raise
    return None


def nothing_yet(error: StorageError | DamagedError) -> bool:
    """Whether an error of opening says that no version was ever committed."""
    if isinstance(error, DamagedError):
        return error.rule == "directory-layout"
    return error.errno == errno.ENOENT


def attempt(
    place: Place, oracle: Oracle, token: int, names: list[str], random: Random, fs: Fs | None, rivals: bool
) -> bool:
    """Makes one attempt on the head as it is now; returns whether it was acknowledged."""
    base = _head_again(place, oracle)
    before = None if base is None else oracle.model(base[0])
    name = "create"
    if before is not None:
        # What can't be done to what is there is left out for once.
        name = random.choice([n for n in names if OPERATIONS[n].fits(before, place.kind)] or ["append"])
    made = Attempt(name, random.getrandbits(32), base and base[0])
    operation, given = OPERATIONS[name], oracle.given(made)
    oracle.journal.write(pending=token, operation=name, seed=made.seed, base=base)

    def tell(version: int) -> None:
        oracle.journal.write(done=token, version=version)

    with signed(token) as ids:
        try:
            version = operation.run(place.path, given, Doing(token, fs, tell, -1))
        except (LockedError, ConflictError, UsageError, VersionNotFoundError) as error:
            # A rival may have cut away the rows that were to be changed, or merged what was to be merged.
            refusals = (
                (LockedError,) if place.kind == "file" and not operation.looks_first else (ConflictError, LockedError)
            )
            if not rivals or not isinstance(error, (*refusals, UsageError, VersionNotFoundError)):
                raise
            oracle.journal.write(refused=token)
            return False
    if not ids:
        # There was nothing to be done.
        oracle.journal.write(refused=token)
    elif version is not None:
        version = version if version >= 0 else _version_of(place, token)
        if version is not None:
            tell(version)
    return True


def _version_of(place: Place, token: int) -> int | None:
    """The version of an attempt that didn't say it; None where a rival has given it up by now."""
    with cnrfmt.open(place.path, backend="pread", threads=1) as newest:
        for version in reversed(newest.versions):
            with suppress(VersionNotFoundError), cnrfmt.open(place.path, version=version, threads=1) as found:
                if token_of(found.manifest) == token:
                    return version
    return None


def _head_again(place: Place, oracle: Oracle) -> tuple[int, int] | None:
    """The head. While it was looked at, a rival may have put another file there, which lacks the older versions."""
    for _ in range(99):
        try:
            return head(place, oracle)
        except cnrfmt.VersionNotFoundError:
            continue
    raise AssertionError("the head changes again and again")


def write(place: Place, oracle: Oracle, number: int, names: list[str], seed: str, fs: Fs | None, most: int) -> None:
    """A writer: attempts, one after the other, until it shall stop, is killed, or has made so many."""
    random = Random(seed)
    for count in range(most):
        if place.stopped:
            return
        if not attempt(place, oracle, number * 1000 + count, names, random, fs, rivals=True):
            time.sleep(random.random() * 0.002)


def read(place: Place, oracle: Oracle, seed: str, backend: Any) -> None:
    """A reader: opens, refreshes, reads and compares, until it shall stop. Versions never go backward."""
    random, reader, looks, before = Random(seed), None, 0, -1
    while not place.stopped:
        try:
            if reader is None or random.random() < 0.2:
                oracle.update()
                floor = max(oracle.floor, before)
                reader = cnrfmt.open(place.path, backend=backend, verify="touched", threads=1)
                assert reader.version >= floor, f"opened version {reader.version} after {floor}"
            elif random.random() < 0.8:
                reader.refresh()
                assert reader.version >= before, f"refreshed to version {reader.version} after {before}"
            # Otherwise it reads once more what it has open, whatever became of it.
            look(place.path, oracle, reader)
            looks, before = looks + 1, reader.version
        except cnrfmt.VersionNotFoundError:
            # The file was written anew between the head and an older version of it.
            reader = None
        except (StorageError, DamagedError) as error:
            if not nothing_yet(error) or before >= 0:
                raise
        time.sleep(random.random() * 0.02)
    oracle.journal.write(looks=looks)
