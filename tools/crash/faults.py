"""I/O faults: each operation on a disk that fails at its first call, at its second, and so on to its last.

Every call of every operation of `OPERATIONS`, on both kinds of container, tidy ones and ones that a dead writer left,
meets each fault of `FAULTS` once and from then on; so does every call of the readers, and of those who follow
(`read_faults.py`, `follow_faults.py`). What must hold afterwards is in `aftermath.py`; here too, that an outcome is
unknown just where `spec/commit.md` says that it is.

    python -m tools.crash.faults --seed 1 --json tools/crash/results/faults.json

tries all; with ``--trials N``, a sample of them that the seed chooses; with ``--only TEXT``, those whose name has it.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tools.crash.aftermath import (
    LockProbe,
    Outcome,
    attempt,
    check_container,
    check_error,
    check_let_go,
    check_names,
    head_version,
    names_in,
)
from tools.crash.expected import Expected
from tools.crash.faulty_fs import FAULTS, LOOKING, REMOVING, Call, Fault, FaultyFs, Killed
from tools.crash.follow_faults import FollowWork, followings
from tools.crash.operations import OPERATIONS, PATHS, Step, step
from tools.crash.read_faults import readings
from tools.crash.tally import Trial, Work, command
from tools.progress import run_program

INTERRUPTIONS = {
    # What a dead writer left: slots that disagree and an unfinished file, or files that no manifest names.
    ("file", False): [("append", "slot-a-written"), ("replace", "file-written")],
    ("file", True): [("create", "file-written")],
    ("directory", False): [
        ("collect", "manifests-removed"),
        ("append", "segment-published"),
        ("append", "segment-synced"),
    ],
    ("directory", True): [("create", "segment-synced")],
}
ANSWER = ("open-read", errno.ENOENT)
"""That nothing is there is an answer, too."""
TOLERATED = REMOVING | {"close"}
"""Once a version may count, a writer that can't do these has lost nothing."""


@dataclass(frozen=True)
class Visible:
    """The call that may make the version visible: its kind and place, and which such call of the operation it is."""

    kind: str
    where: str
    number: int

    def find(self, log: Sequence[Call]) -> int | None:
        """Its position among the calls of an attempt; None if it didn't come so far."""
        places = [n for n, call in enumerate(log) if (call.kind, call.where) == (self.kind, self.where)]
        return places[self.number] if len(places) > self.number else None


class Workload:
    """One operation on one container, ready to be tried again and again in the same folder."""

    def __init__(self, scratch: Path, folder: Path, kind: str, operation: str, start: str, seed: int) -> None:
        self.name = f"{operation}, {kind}, {start}"
        self.kind, self.seed = kind, seed
        self._image = scratch / f"{operation}-{kind}-{start}"
        self.folder = folder
        self.path = str(self.folder / PATHS[kind])
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._prepare(operation, start)
        shutil.copytree(self.folder, self._image)
        self.names = names_in(str(self.folder))
        self.log = self._clean_run()
        self.visible = self._find_visible() if self.step.stages else None

    def _prepare(self, operation: str, start: str) -> None:
        model, first = Expected(), OPERATIONS[operation].first
        for number, name in enumerate(OPERATIONS[operation].start):
            done = step(name, model, self.seed + number, self.kind)
            done.run(self.path, FaultyFs())
            model = done.after
        for number, (name, point) in enumerate(INTERRUPTIONS[self.kind, first] if start == "interrupted" else ()):
            done = step(name, model, self.seed + 10 + number, self.kind)
            fs = FaultyFs(die_at=point)
            with suppress(Killed):
                done.run(self.path, fs)
                raise AssertionError(f"{self.name}: {name} never came to {point}")
            fs.end_process()
            if head_version(self.path) in set(done.after.versions) - set(done.before.versions):
                model = done.after
        self.step = step(operation, model, self.seed + 20, self.kind)
        assert self.step.operation.name == operation, f"{self.name}: nothing to be done"

    def reset(self) -> None:
        """The container as it is before the operation."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._image, self.folder)

    def _clean_run(self) -> list[Call]:
        self.reset()
        fs = FaultyFs()
        self.step.run(self.path, fs)
        return fs.log

    def _find_visible(self) -> Visible:
        """Looks at the head before each call: the version is there for the first time after the visible one."""
        new = self.step.stages[0].head
        seen: list[bool] = []

        class Looking(FaultyFs):
            def _call(self, *args: Any) -> Any:
                head = head_version(path)
                seen.append(head is not None and head >= new)
                return super()._call(*args)

        path = self.path
        self.reset()
        fs = Looking()
        self.step.run(path, fs)
        at = seen.index(True) - 1
        call = fs.log[at]
        same = [c for c in fs.log[:at] if (c.kind, c.where) == (call.kind, call.where)]
        return Visible(call.kind, call.where, len(same))

    def expected(self, log: Sequence[Call]) -> Collection[str]:
        """How an attempt with these calls must end: just so, by `spec/commit.md`, where there is one commit in it."""
        if not self.step.operation.several:
            return {self._expected(log)}
        at = None if self.visible is None else self.visible.find(log)
        refused = [n for n, call in enumerate(log) if call.code and (call.kind, call.code) != ANSWER]
        if not refused:
            return {"returned"}
        if self.visible is not None and at is None:
            return {"failed"}
        # What can't be removed fails a collection; the first commit may have been in doubt, and so may a second.
        return {"returned", "failed", "unknown"}

    def _expected(self, log: Sequence[Call]) -> str:
        refused = [n for n, call in enumerate(log) if call.code and (call.kind, call.code) != ANSWER]
        if self.visible is None:
            return "failed" if any(log[n].kind != "close" for n in refused) else "returned"
        at = self.visible.find(log)
        if at is None:
            return "failed"
        later = {log[n].kind for n in refused if n > at}
        if not log[at].code:
            return "unknown" if later - TOLERATED else "returned"
        # A refused call is settled by looking, if that isn't refused, too.
        if later & LOOKING:
            return "unknown"
        if log[at].kind == "pwrite":
            # What was written of a slot can't be taken back: a reader may have seen it.
            return "unknown" if log[at].done else "failed"
        if not log[at].done:
            return "failed"
        return "unknown" if later - TOLERATED else "returned"

    def next_step(self, outcome: Outcome) -> Step:
        """What a caller does then: goes on after a success, and tries again after a failure."""
        now, operation = self.now(outcome), self.step.operation
        if not operation.writes or (now is self.step.after and outcome.name == "returned"):
            return step("append", now, self.seed + 30, self.kind)
        again = operation.several or now is self.step.before
        return step(operation.name if again else "append", now, self.seed + 40, self.kind)

    def try_fault(self, fault: Fault, k: int, lasting: bool, probe: LockProbe) -> Outcome:
        """One attempt that meets a fault, and all that must hold afterwards; raises `AssertionError`."""
        self.reset()
        fs = FaultyFs(fault, k, lasting=lasting, folder=str(self.folder))
        outcome = self.attempt(fs)
        assert fs.met, "the fault wasn't met"
        fs.heal()
        assert not fs.handles, f"handles left open: {fs.handles}"
        self.judge(fs.log, outcome, probe)
        following = self.go_on(outcome, fs)
        if fault.pages == "lost later":
            fs.lose_pages()
            check_container(self.path, following.after)
        return outcome

    def attempt(self, fs: FaultyFs) -> Outcome:
        """Does the operation, on the container as it is."""
        return attempt(self.step, self.path, fs)

    def judge(self, log: Sequence[Call], outcome: Outcome, probe: LockProbe, *, names: bool = True) -> None:
        """What must hold after an attempt with these calls; with `names`, also that nothing is left over.

        Raises `AssertionError`.
        """
        expected = self.expected(log)
        right = " or ".join(sorted(expected))
        assert outcome.name in expected, f"{outcome.name}, where {right} is right: {outcome.text}"
        says = self.step.operation.writes and (outcome.name == "unknown" or not self.step.operation.looks_first)
        check_error(outcome, str(self.folder), log, says=says)
        check_let_go(self.path, probe)
        torn = any(call.kind == "pwrite" and call.code and call.done for call in log)
        now = self.now(outcome)
        check_container(self.path, now, torn=torn)
        # A merge behind a checkpoint may be in doubt, and only the log tells.
        if names and outcome.name != "unknown" and not self.step.operation.keeps_house:
            check_names(str(self.folder), self.names, log, done=now is not self.step.before)

    def go_on(self, outcome: Outcome, fs: FaultyFs) -> Step:
        """Does what a caller does next, on a disk that is well; raises `AssertionError`."""
        following = self.next_step(outcome)
        assert following.run(self.path, fs) == following.version, "the next operation"
        check_container(self.path, following.after)
        check_names(str(self.folder), {}, (), done=True)
        return following

    def now(self, outcome: Outcome) -> Expected:
        """What the container must say after an attempt that ended so.

        Where that may be one thing or another, its head tells which. Raises `AssertionError` if it can be neither.
        """
        step = self.step
        if step.operation.several or outcome.name == "unknown":
            head = head_version(self.path)
            for model in step.possible(outcome.told):
                if max(model.versions, default=None) == head:
                    return model
            raise AssertionError(f"the head is {head} after {outcome}")
        return step.after if outcome.name == "returned" else step.before


def workloads(scratch: Path, seed: int, folder: Path | None = None) -> Iterator[Workload]:
    """Every operation on every container, done in `folder`."""
    for kind in PATHS:
        for name, operation in OPERATIONS.items():
            for start in ("tidy", "interrupted") if kind in operation.kinds else ():
                yield Workload(scratch, folder or scratch / "work", kind, name, start, seed)


class FaultWork(Work, Protocol):
    """What is tried here: it knows the calls that it makes on a disk that is well."""

    log: list[Call]

    def try_fault(self, fault: Fault, k: int, lasting: bool, probe: LockProbe) -> Outcome:
        """One attempt that meets a fault."""
        ...


@dataclass(frozen=True)
class FaultTrial(Trial):
    """The `k`-th call that may meet the fault meets it, and all later ones if `lasting`."""

    on: FaultWork
    fault: Fault
    k: int
    lasting: bool

    @property
    def mode(self) -> str:
        """The fault, and whether it lasts."""
        return f"{self.fault.name}, {'lasting' if self.lasting else 'once'}"

    @property
    def at(self) -> str:
        """The call."""
        return f"at call {self.k}"

    def go(self, probe: LockProbe) -> Outcome:
        """Does it."""
        return self.on.try_fault(self.fault, self.k, self.lasting, probe)


def trials(seed: int, scratch: Path) -> list[FaultTrial]:
    """All that there is to try."""
    works: list[FaultWork] = [*workloads(scratch, seed), *readings(scratch, seed), *followings(scratch, seed)]
    return [
        FaultTrial(work, fault, k, lasting)
        for work in works
        for fault in (work.faults if isinstance(work, FollowWork) else FAULTS).values()
        for k in range(1, 1 + sum(call.kind in fault.calls for call in work.log))
        for lasting in (False, True)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return command("tools.crash.faults", __doc__, trials, arguments, folder="/dev/shm")


if __name__ == "__main__":
    run_program(main)
