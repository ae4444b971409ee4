"""What must hold of a container after a crash: what it says, what validators say of it, and that work goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cnrfmt
from cnrfmt.errors import DamagedError, StorageError
from tools import cnrcheck
from tools.crash._memory import File, Folder
from tools.crash._probe import ProbedFs
from tools.crash.expected import Expected, check_newest, check_version
from tools.crash.operations import Step, step
from tools.crash.recording import RecordingFs

NO_CONTAINER = -1
"""Stands for the head where no version was ever committed."""


def head_of(model: Expected) -> int:
    """The newest version, or `NO_CONTAINER`."""
    return max(model.versions, default=NO_CONTAINER)


class Verdict(NamedTuple):
    """What a validator says: sound, damaged or that nothing is there, and where it found damage by which rule."""

    word: str
    damage: tuple[tuple[str, str], ...] = ()


class Outcome(NamedTuple):
    """Which version is the head, and what is wrong; nothing if `problem` is empty."""

    head: int
    problem: str = ""


@dataclass(frozen=True)
class Case:
    """A container after a crash: where it is, and what it may say at one moment or another.

    One of the models must hold; the one without versions stands for no container.
    """

    kind: str
    path: str
    models: tuple[Expected, ...]
    seed: int
    interrupted: str = "append"
    """The operation that the crash came into: it is done again."""
    _steps: dict[int, tuple[Step, ...]] = field(default_factory=dict, init=False)

    def by_library(self, fs: RecordingFs) -> Outcome:
        """Reads the head and what it retains, goes on with a commit, and reads all of that."""
        head = NO_CONTAINER
        try:
            model = read_whole(fs, self.path, self.models, self.kind)
            head = head_of(model)
            self._go_on(fs, model)
        except Exception as error:
            # Whatever a crash makes the library raise is a failure.
            return Outcome(head, f"{type(error).__name__}: {error}")
        return Outcome(head)

    def _go_on(self, fs: RecordingFs, model: Expected) -> None:
        for following in self._following(model):
            version = following.run(self.path, fs)
            assert version == following.version, f"committed as version {version}, expected {following.version}"
            read_whole(fs, self.path, (following.after,), self.kind)
            judged = self.by_cnrcheck(fs)
            name = following.operation.name
            assert judged.word == "sound", f"{name} once more left {judged}"
            folder = self.path if self.kind == "directory" else os.path.dirname(self.path)
            left = [name for name in _paths(fs, folder) if "/.tmp-" in f"/{name}"]
            assert not left or not following.operation.writes, f"{name} once more left {left}"

    def _following(self, model: Expected) -> tuple[Step, ...]:
        """The interrupted operation once more, and an append."""
        head = head_of(model)
        if head not in self._steps:
            again = [self.interrupted, "append"]
            names = ["append" if name == "create" else name for name in again] if model.versions else ["create"]
            steps: list[Step] = []
            for name in dict.fromkeys(names):
                steps.append(step(name, steps[-1].after if steps else model, self.seed, self.kind))
            self._steps[head] = tuple(steps)
        return self._steps[head]

    def by_cnrcheck(self, fs: RecordingFs) -> Verdict:
        """What the independent validator says."""
        node = fs.find(self.path)
        if node is None:
            return Verdict("nothing")
        if isinstance(node, File):
            checker = cnrcheck._judge(node.data)
            spans = [end for _, end in checker.spans]
            if isinstance(fs, ProbedFs):
                # What lies behind the committed end and every span is only counted.
                fs.saw_bytes(node.number, 0, max([cnrcheck.FIRST_SPAN, checker.end, *spans]))
                fs.saw_size(node.number)
        else:
            checker = cnrcheck._judge(_Files(fs, self.path))
        damage = {(finding.error, finding.place) for finding in checker.found if finding.severity != "note"}
        return Verdict(cnrcheck.verdict(checker.found), tuple(sorted(damage)))

    def by_verify(self, fs: RecordingFs) -> Verdict:
        """What the library's validator says."""
        try:
            report = cnrfmt.verify(self.path, threads=1, fs=fs)
        except StorageError:
            if fs.find(self.path) is not None:
                raise
            return Verdict("nothing")
        damage = {(f.rule, f.place) for f in report.findings if f.severity != "note"}
        return Verdict(report.verdict, tuple(sorted(damage)))

    def problem(
        self, allowed: tuple[Expected, ...], outcome: Outcome, cnrcheck_says: Verdict, verify_says: Verdict
    ) -> str:
        """What is wrong with a state of which this was found; nothing if that is empty."""
        if outcome.problem:
            return outcome.problem
        heads = [head_of(model) for model in allowed]
        if outcome.head not in heads:
            return f"the head is {outcome.head}, expected one of {heads} ({NO_CONTAINER} is no container)"
        if cnrcheck_says.word != verify_says.word:
            return f"cnrcheck says {cnrcheck_says}, verify says {verify_says}"
        for verdict in (cnrcheck_says, verify_says):
            if not self._may_say(verdict, outcome.head):
                return f"head {outcome.head}, and a validator says {verdict}"
        return ""

    def _may_say(self, verdict: Verdict, head: int) -> bool:
        rules = [rule for rule, _ in verdict.damage]
        if head != NO_CONTAINER:
            # One slot may be torn; then the other names the head.
            return verdict.word == "sound" or (self.kind == "file" and rules == ["slot"])
        # Of a directory's first version there may be folders, and segments that nothing names yet.
        return verdict.word == "nothing" or (self.kind == "directory" and set(rules) == {"directory-layout"})


def read_whole(fs: RecordingFs, path: str, allowed: tuple[Expected, ...], kind: str) -> Expected:
    """The one of the models which the container says, after a look at every row of every version.

    Raises `AssertionError`, or what the library raises.
    """
    by_head = {head_of(model): model for model in allowed}
    try:
        with cnrfmt.open(path, backend="pread", verify="all", threads=1, fs=fs) as ck:
            assert ck.version in by_head, f"version {ck.version} is the head, expected one of {sorted(by_head)}"
            model = by_head[ck.version]
            check_newest(ck, model)
    except StorageError:
        if fs.find(path) is None and NO_CONTAINER in by_head:
            return by_head[NO_CONTAINER]
        raise
    except DamagedError as error:
        if kind == "directory" and error.rule == "directory-layout" and NO_CONTAINER in by_head:
            return by_head[NO_CONTAINER]
        raise
    for version in sorted(model.versions)[:-1]:
        check_version(path, model, version, fs)
    return model


def _paths(fs: RecordingFs, folder: str) -> Iterator[str]:
    """Every file below a folder, by its path from there."""
    if isinstance(fs.find(folder), Folder):
        for name in fs.list_directory(folder):
            node = fs.find(f"{folder}/{name}")
            if isinstance(node, File):
                yield name
            else:
                yield from (f"{name}/{below}" for below in _paths(fs, f"{folder}/{name}"))


class _Files(Mapping[str, Any]):
    """The files of a directory, read when they are asked for."""

    def __init__(self, fs: RecordingFs, path: str) -> None:
        self._fs, self._path = fs, path
        self._names = list(_paths(fs, path))

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        handle = self._fs.open(f"{self._path}/{name}", "read")
        data = bytearray(self._fs.stat_handle(handle).size)
        self._fs.pread_into(handle, 0, data)
        self._fs.close(handle)
        return bytes(data)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
