"""Trying mutants: a forked child for each, a few at once, each within limits of its own."""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.mutants.mutate import Mutant

Outcome = Literal["killed", "survived", "timeout", "uncovered", "broken"]

_KILLED, _SURVIVED, _BROKEN = 10, 11, 12
_MEMORY = 24 << 30
# What waits instead of working is stopped by the clock, which allows for a busy machine.
_PATIENCE = 70.0


@dataclass(frozen=True)
class Result:
    """How a mutant fared; `by` is the test that killed it, or what else ended it.

    "broken" says that something went wrong here, outside the tests: nothing is known of the mutant.
    """

    mutant: Mutant
    outcome: Outcome
    by: str = ""


@dataclass
class _Child:
    mutant: Mutant
    told: int
    deadline: float
    folder: str


def kill(by: str, tell: int) -> None:
    """Ends the child: a test has failed."""
    os.write(tell, by.encode()[:4000])
    os._exit(_KILLED)


def run_trials(
    trials: Iterable[tuple[Mutant, float, Callable[[int, Path], None]]],
    *,
    jobs: int,
    done: Callable[[Result], None],
) -> None:
    """Runs the trials, `jobs` at once.

    A trial is a mutant, the seconds that its tests take without it, and a function that is called in the child with a
    pipe and a folder of its own: it changes the code, runs tests, calls `kill` at the first that fails and returns
    if none does. A child that uses five times as long, and ten seconds, is stopped.
    """
    children: dict[int, _Child] = {}
    waiting = iter(trials)
    more = True
    while more or children:
        while more and len(children) < jobs:
            trial = next(waiting, None)
            if trial is None:
                more = False
            else:
                pid, child = _start(*trial)
                children[pid] = child
        for pid, child in list(children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            late = not ended and time.monotonic() > child.deadline
            if late:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if ended or late:
                del children[pid]
                done(_result(child, pid, None if late else status))
        time.sleep(0.002)


def _start(mutant: Mutant, seconds: float, body: Callable[[int, Path], None]) -> tuple[int, _Child]:
    read_end, write_end = os.pipe()
    folder = tempfile.mkdtemp(prefix="mutant-")
    limit = 10 + 5 * seconds
    pid = os.fork()
    if pid == 0:
        os.setsid()
        # A crash is a result like another, and no news.
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        try:
            body(write_end, Path(folder))
            os._exit(_SURVIVED)
        except Exception as error:
            os.write(write_end, repr(error).encode()[:4000])
            os._exit(_BROKEN)
        except BaseException as error:
            # pytest lets these out of tests: the end of the program, and the user's interruption.
            kill(f"{type(error).__name__} in a test", write_end)
    os.close(write_end)
    return pid, _Child(mutant, read_end, time.monotonic() + _PATIENCE + 20 * seconds, folder)


def _result(child: _Child, pid: int, status: int | None) -> Result:
    with os.fdopen(child.told, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        by = (pipe.read() or b"").decode("utf-8", "replace")
    # What a test has started itself ends with it.
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(child.folder, ignore_errors=True)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    if code == _SURVIVED:
        return Result(child.mutant, "survived")
    if code == _BROKEN:
        return Result(child.mutant, "broken", by)
    if code in (None, -signal.SIGXCPU, -signal.SIGKILL):
        return Result(child.mutant, "timeout", "time or memory")
    return Result(child.mutant, "killed", by or f"exit status {code}")
