"""Real system calls that fail: each call of each operation is refused by strace, once and from then on.

A child process, forked off once everything is loaded, waits until strace has attached to it, then does one operation on
a real file system; so its calls are those of the operation alone. Afterwards this process checks what
`aftermath.py` asks for. Disks that are really full, and some that are lost, are in `real_disks.py`.

    python -m tools.crash.system_calls --seed 1 --json tools/crash/results/system_calls.json

tries all; with ``--trials N``, a sample of them that the seed chooses; with ``--only TEXT``, those whose name has it.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnrfmt.storage import locks
from tools.crash import real_disks
from tools.crash.aftermath import LockProbe, Outcome, check_error
from tools.crash.faults import Workload, workloads
from tools.crash.faulty_fs import Call, FaultyFs
from tools.crash.read_faults import ReadWork, readings
from tools.crash.tally import Trial, command
from tools.progress import run_program

ERRORS: dict[str, tuple[int, ...]] = {
    "openat": (errno.EIO, errno.EMFILE, errno.EACCES, errno.EROFS, errno.EINTR),
    "fstat": (errno.EIO, errno.ESTALE),
    "newfstatat": (errno.EIO, errno.ESTALE),
    "getdents64": (errno.EIO,),
    "statfs": (errno.EIO,),
    "pread64": (errno.EIO, errno.ESTALE, errno.EINTR),
    "preadv": (errno.EIO, errno.ESTALE, errno.EINTR),
    "preadv2": (errno.EIO, errno.ESTALE, errno.EINTR),
    "pwrite64": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "ftruncate": (errno.EIO, errno.EFBIG, errno.EINTR),
    "fchmod": (errno.EPERM,),
    "fdatasync": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "fsync": (errno.EIO, errno.EINTR),
    "rename": (errno.EIO, errno.EXDEV, errno.EACCES),
    "renameat": (errno.EIO, errno.EXDEV, errno.EACCES),
    "renameat2": (errno.EIO, errno.EXDEV, errno.EACCES),
    "link": (errno.EIO, errno.EACCES),
    "linkat": (errno.EIO, errno.EACCES),
    "unlink": (errno.EIO, errno.EACCES),
    "unlinkat": (errno.EIO, errno.EACCES),
    "mkdir": (errno.EIO, errno.ENOSPC),
    "mkdirat": (errno.EIO, errno.ENOSPC),
    "fcntl": (errno.ENOLCK, errno.EINTR),
    "flock": (errno.ENOLCK, errno.EINTR),
    "close": (errno.EIO, errno.EINTR),
}
"""What each system call may be refused with. A machine has one of each family; strace skips those that it lacks."""

RESUMED = {"openat", "pread64", "preadv", "preadv2", "pwrite64", "ftruncate", "fdatasync", "fsync", "fcntl", "flock"}
"""Calls that Python makes again after EINTR: the operation goes on as if nothing had been ..."""
NOT_RESUMED = ("(could not list it)", "(could not map it)")
"""... but where they are a part of these."""
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\(.*?(\(INJECTED\))?$")


class StraceError(Exception):
    """strace isn't allowed to attach to a process here, or said something unexpected."""


@dataclass(frozen=True)
class Answer:
    """What a child process tells of its attempt: its outcome, its calls, what it still held, and what strace saw."""

    outcome: Outcome
    calls: list[Call]
    held: list[str]
    traced: list[tuple[str, bool]]

    @property
    def injected(self) -> bool:
        """Whether any system call was refused."""
        return any(refused for _, refused in self.traced)


def _held(before: set[int]) -> list[str]:
    """What this process has open that it hadn't, by calls that are never refused."""
    found = [f"descriptor {handle}" for handle in _descriptors() - before]
    return found + [f"lock {key!r}" for key in locks._registry.held]


def _descriptors() -> set[int]:
    found = set()
    for handle in range(64):
        try:
            os.lseek(handle, 0, os.SEEK_CUR)
        except OSError as error:
            if error.errno == errno.EBADF:
                continue
        found.add(handle)
    return found


def _child(work: Workload | ReadWork, start: int, answer: int) -> None:
    """The child process: waits, does the operation, and tells of it."""
    # What is imported here first would be compiled and written by one child, and read by the next.
    sys.dont_write_bytecode = True
    before = _descriptors()
    os.read(start, 1)
    fs = FaultyFs(waits=True)
    try:
        outcome = work.attempt(fs)
    except BaseException as error:
        outcome = Outcome("broken", None, f"{type(error).__name__}: {error}")
    found = {"outcome": vars(outcome), "calls": [vars(call) for call in fs.log], "held": _held(before)}
    data = json.dumps(found).encode()
    while data:
        data = data[os.write(answer, data) :]


def attempt_traced(work: Workload | ReadWork, injection: str = "") -> Answer:
    """Does the operation in a child process under strace, which refuses what `injection` says (its ``inject=``)."""
    start_read, start_write = os.pipe()
    answer_read, answer_write = os.pipe()
    # What waits here for the collector of cycles is closed by this process, and not by one child and not by the next.
    gc.collect()
    child = os.fork()
    if child == 0:
        try:
            _child(work, start_read, answer_write)
        finally:
            os._exit(0)
    os.close(start_read)
    os.close(answer_write)
    with tempfile.NamedTemporaryFile() as log:
        trace = "trace=" + ",".join(f"?{name}" for name in ERRORS)
        options = ["-e", trace, *(["-e", f"inject={injection}"] if injection else [])]
        strace = subprocess.Popen(
            ["strace", "-f", "-p", str(child), "-o", log.name, *options], stderr=subprocess.PIPE, text=True
        )
        assert strace.stderr is not None
        said = ""
        try:
            said = strace.stderr.readline()
            if "attached" in said:
                os.write(start_write, b"x")
            os.close(start_write)
            with os.fdopen(answer_read, "rb") as stream:
                data = stream.read()
        except KeyboardInterrupt:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            os.waitpid(child, 0)
            said += strace.communicate()[1]
        if "attached" not in said:
            raise StraceError(said.strip())
        matches = map(_LINE.match, Path(log.name).read_text(encoding="utf-8", errors="replace").splitlines())
    found: dict[str, Any] = json.loads(data)
    return Answer(
        Outcome(**{**found["outcome"], "told": tuple(found["outcome"]["told"])}),
        [Call(**call) for call in found["calls"]],
        found["held"],
        [(match[1], match[2] is not None) for match in matches if match],
    )


@dataclass(frozen=True)
class SystemCallTrial(Trial):
    """The `k`-th such system call is refused with the error `code`, and so are later ones."""

    on: Workload | ReadWork
    call: str
    code: int
    k: int
    lasting: bool

    @property
    def mode(self) -> str:
        """The system call and its error."""
        return f"{self.call}, {errno.errorcode[self.code]}, {'lasting' if self.lasting else 'once'}"

    @property
    def at(self) -> str:
        """The call."""
        return f"at call {self.k}"

    def go(self, probe: LockProbe) -> Outcome:
        """Does it."""
        resumed = self.code == errno.EINTR and self.call in RESUMED
        when = f"{self.k}+" if self.lasting else str(self.k)
        if self.lasting and resumed:
            when = f"{self.k}..{self.k + 3}"  # For good, it would be made again for good.
        if isinstance(self.on, Workload):
            self.on.reset()
        answer = attempt_traced(self.on, f"{self.call}:error={errno.errorcode[self.code]}:when={when}")
        outcome = answer.outcome
        assert answer.injected, "no call was refused"
        assert outcome.name != "broken", outcome.text
        if resumed and not any(what in outcome.text for what in NOT_RESUMED):
            assert outcome.name == "returned", f"not resumed: {outcome.text}"
        # A refused close has closed nothing here: the call was never made.
        if self.call != "close":
            assert not answer.held, f"still held: {answer.held}"
        if isinstance(self.on, Workload):
            self.on.judge(answer.calls, outcome, probe)
            self.on.go_on(outcome, FaultyFs())
        else:
            check_error(outcome, self.on.folder, answer.calls, says=False)
        return outcome


def _calls(work: Workload | ReadWork) -> Counter[str]:
    """How many system calls of each kind the operation makes where none is refused."""
    if isinstance(work, Workload):
        work.reset()
    answer = attempt_traced(work)
    assert answer.outcome.name == "returned", answer.outcome.text
    assert not answer.held, answer.held
    return Counter(name for name, _ in answer.traced)


def traced_trials(seed: int, scratch: Path) -> list[SystemCallTrial]:
    """All that strace can refuse."""
    works: list[Workload | ReadWork] = [*workloads(scratch, seed), *readings(scratch, seed)]
    return [
        SystemCallTrial(work, call, code, k, lasting)
        for work in works
        for call, count in sorted(_calls(work).items())
        for code in ERRORS[call]
        for k in range(1, count + 1)
        for lasting in (False, True)
    ]


def trials(seed: int, scratch: Path) -> Sequence[Trial]:
    """All that there is to try."""
    return [*traced_trials(seed, scratch), *real_disks.trials(seed, scratch / "disks")]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return command("tools.crash.system_calls", __doc__, trials, arguments)


if __name__ == "__main__":
    run_program(main)
