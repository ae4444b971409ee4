"""What must hold after an operation that met a fault, whatever engine brought it about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import cnrfmt
from cnrfmt.errors import CommitUnknownError, DamagedError, StorageError
from cnrfmt.storage import locks
from cnrfmt.storage.base import LEFTOVER
from cnrfmt.storage.container import open_container
from cnrfmt.storage.fs import Fs
from tools import cnrcheck
from tools.crash.expected import Expected, check_head
from tools.crash.faulty_fs import REMOVING, Call
from tools.crash.operations import Step


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: ``"returned"``, ``"failed"`` or ``"unknown"``, and its error's number and text.

    `told` has the versions that were acknowledged, whatever came after them.
    """

    name: str
    code: int | None = None
    text: str = ""
    told: tuple[int, ...] = ()


def attempt(step: Step, path: str, fs: Fs | None) -> Outcome:
    """Does the operation. An error that a fault mustn't give goes on its way."""
    told: list[int] = []
    try:
        version = step.run(path, fs, told.append)
    except CommitUnknownError as error:
        return Outcome("unknown", None, str(error), tuple(told))
    except StorageError as error:
        return Outcome("failed", error.errno, str(error), tuple(told))
    if step.operation.keeps_house and version is not None:
        # What comes after a checkpoint is done another time if it can't be done now.
        assert version in (model.head for model in step.stages), f"version {version}"
        return Outcome("returned", told=(*told, version))
    assert version == step.version, f"version {version}"
    return Outcome("returned", told=tuple(model.head for model in step.stages))


def head_version(path: str) -> int | None:
    """The newest version; None where nothing was ever committed."""
    try:
        with open_container(path) as container:
            return container.head().version
    except StorageError as error:
        if error.filename is None or os.path.exists(path):
            raise
        return None
    except DamagedError as error:
        if error.rule != "directory-layout" or os.path.exists(os.path.join(path, "manifests", "0" * 20 + ".cnrm")):
            raise
        return None


def check_error(outcome: Outcome, folder: str, log: Sequence[Call], *, says: bool) -> None:
    """That the message says which file, what was refused of these calls, and (where it `says` so) what is safe."""
    if outcome.name == "returned":
        return
    assert folder in outcome.text, f"names no file: {outcome.text}"
    if "doesn't fit" not in outcome.text:  # A disk that is too full is looked at before anything is refused.
        codes = {call.code for call in log if call.code}
        assert any(os.strerror(code) in outcome.text for code in codes), f"doesn't say what was refused: {outcome.text}"
        assert "(could not " in outcome.text, f"doesn't say what was tried: {outcome.text}"
        assert outcome.name == "unknown" or outcome.code in codes, f"errno {outcome.code}"
    if says:
        safe = "nothing was committed" if outcome.name == "failed" else "may or may not be committed"
        assert safe in outcome.text, f"doesn't say what is safe: {outcome.text}"


def check_let_go(path: str, probe: LockProbe) -> None:
    """That this process has no descriptor, map or lock of the container any more."""
    folder = os.path.dirname(path)
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # The one that lists them.
    assert not [t for t in targets if t.startswith(folder)], f"descriptors left open: {targets}"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found = [line.strip() for line in maps if folder in line]
    assert not found, f"maps left: {found}"
    assert not locks._registry.held, f"locks left in the registry: {locks._registry.held}"
    assert probe.can_lock(path + ".lock"), "another process can't take the lock"


def check_container(path: str, model: Expected, *, torn: bool = False) -> None:
    """That the container says what the model says, and that both validators find it sound.

    With `torn`, one slot may be damaged: a torn one looks like a rotten one until the next writer renews it.
    """
    ours, damage = "", []
    if os.path.exists(path):
        report, findings = cnrfmt.verify(path, threads=1), cnrcheck.check_path(path)
        ours, theirs = report.verdict, cnrcheck.verdict(findings)
        damage = [f for f in report.findings if f.severity == "damage" and not (torn and ": slot " in f.place)]
        assert ours == theirs, f"verify finds it {ours}, cnrcheck {theirs}: {report.findings} {findings}"
    if not model.versions:
        assert head_version(path) is None, "something was committed"
        return
    assert ours == "sound" or (torn and not damage), f"verify finds it {ours or 'gone'}: {report.findings}"
    check_head(path, model)


def names_in(folder: str) -> Mapping[str, int]:
    """What is in a folder, with sizes; lock files aside, which are there to stay."""
    found = {}
    for base, folders, names in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(base, name), folder)] = 0
        for name in names:
            if not name.endswith(".lock"):
                found[os.path.relpath(os.path.join(base, name), folder)] = os.path.getsize(os.path.join(base, name))
    return found


def check_names(folder: str, allowed: Mapping[str, int], log: Sequence[Call], *, done: bool) -> None:
    """That nothing is left over, but where removing it was refused.

    After a failure (`done` false), nothing is there that wasn't before, and no file is longer; after a success,
    no unfinished file that wasn't.
    """
    refused = {call.kind for call in log if call.code}
    found = names_in(folder)
    if refused & REMOVING or any(call.kind == "mkdir" and call.code and call.done for call in log):
        return
    if done:
        left = [name for name in set(found) - set(allowed) if os.path.basename(name).startswith(LEFTOVER)]
    else:
        left = sorted(set(found) - set(allowed))
        if "truncate" not in refused:
            left += [name for name, size in found.items() if size > allowed.get(name, size)]
    assert not left, f"left over: {left}"


_PROBE = """
import fcntl, os, sys
for line in sys.stdin:
    try:
        handle = os.open(line[:-1], os.O_RDWR)
    except FileNotFoundError:
        print("free", flush=True)
        continue
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer = "free"
    except OSError:
        answer = "held"
    os.close(handle)
    print(answer, flush=True)
"""


class LockProbe:
    """Another process, which tries to lock files for us. A context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def can_lock(self, path: str) -> bool:
        """Whether it can take the record lock on this file, or there is no such file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(path + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline() == "free\n"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
