"""What the engines interrupt: the operations on a container, and what it must say before and after each.

An operation joins every engine by one entry of `OPERATIONS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import cnrfmt
from cnrfmt.checkpointing.compacting.compaction import merge
from cnrfmt.storage.fs import Fs
from tools.crash import _training
from tools.crash._inputs import (
    QUANTIZE,
    baseline,
    changes_on_grid,
    deletion,
    growth,
    name_for_version,
    part_of_chain,
    some_rows,
    two_changes,
)
from tools.crash.expected import Expected, check_version

PathLike = str | os.PathLike[str]
PATHS = {"file": "model.cnr", "directory": "run"}
"""The two kinds of container, and what one is called in an engine's folder."""


def _committed(after: Expected | None) -> tuple[Expected, ...]:
    return () if after is None else (after,)


# What is done


def _save(path: PathLike, given: Any, do: Doing) -> int:
    """A baseline; the versions after it are quantised in the same way."""
    return cnrfmt.save(path, given, quantize=QUANTIZE, step=do.step, threads=1, fs=do.fs)


def _append(path: PathLike, given: Any, do: Doing) -> int:
    return cnrfmt.append(path, given, step=do.step, threads=1, fs=do.fs)


def _open_old(path: PathLike, given: Expected, do: Doing) -> None:
    check_version(path, given, min(given.versions), do.fs)


def _compact(path: PathLike, given: Any, do: Doing) -> int:
    return cnrfmt.compact(path, threads=1, fs=do.fs)


def _merge(path: PathLike, given: tuple[int, int], do: Doing) -> int:
    with cnrfmt.open(path, backend="pread", threads=1, fs=do.fs) as ck:
        head = ck.manifest
    return merge(path, *given, expect=head, threads=1, fs=do.fs).version


def _collect(path: PathLike, given: float, do: Doing) -> int | None:
    """Gives up all but the newest and tagged versions; the files go if they have waited for so many seconds."""
    found = cnrfmt.collect(path, keep=1, grace=given, fs=do.fs)
    assert not found.obstacles, f"in the way: {found.obstacles}"
    assert given or not found.waiting, f"with no grace period, {found.waiting} wait"
    return found.version


def _tag(path: PathLike, given: tuple[str, int | None], do: Doing) -> int:
    name, version = given
    if version is None:
        cnrfmt.untag(path, name, fs=do.fs)
    else:
        cnrfmt.tag(path, name, version, fs=do.fs)
    return do.expected


def _checkpoint(path: PathLike, given: Any, do: Doing) -> int:
    return _training.checkpoint(path, given, do.step, do.fs, do.tell)


def _grid(path: PathLike, given: tuple[bool, Any], do: Doing) -> int:
    begins, changes = given
    return _training.grid(path, changes, do.step, do.fs, do.tell, begins=begins)


@dataclass(frozen=True)
class Doing:
    """How an operation is done: the trainer's step, the file system, and who is told of each commit that is durable.

    `expected` is the version that it should come to, for one that doesn't say it.
    """

    step: int
    fs: Fs | None
    tell: Callable[[int], None]
    expected: int


@dataclass(frozen=True)
class Operation:
    """One thing that is done to a container.

    Attributes
    ----------
    given
        Makes its input from what the container says and a source of chance.
    run
        Does it, on one thread; gives the version that it committed last, or None if it committed none.
    after
        What a container of some kind says after each of its commits.
    first
        Whether it makes the container, or needs one.
    writes
        Whether it changes anything; one that reads raises `AssertionError` if it reads anything wrong.
    kinds
        The kinds of container that it is for.
    least_chain
        The shortest chain that it can be done to.
    several
        Whether there is more to it than one commit: what was refused may have come after one, or before any.
    looks_first
        Whether it opens the container before it begins to commit, and may fail in that as any reader does.
    keeps_house
        Whether what comes after its commits is left for another time where it is refused.
    anew
        Whether a single file is written anew by it, from what it is given alone.
    alone
        Whether no writer may be at work at the same time, since it waits for no grace period.
    start
        What is done before it where an engine tries it alone.
    """

    name: str
    given: Callable[[Expected, Random], Any]
    run: Callable[[PathLike, Any, Doing], int | None]
    after: Callable[[Expected, Any, str], tuple[Expected, ...]]
    first: bool = False
    writes: bool = True
    kinds: tuple[str, ...] = tuple(PATHS)
    least_chain: int = 0
    several: bool = False
    looks_first: bool = False
    keeps_house: bool = False
    anew: bool = False
    alone: bool = False
    start: tuple[str, ...] = ("create", "append")

    def fits(self, model: Expected, kind: str) -> bool:
        """Whether it can be done to a container of that kind that says this."""
        return kind in self.kinds and self.first == (not model.versions) and model.chain >= self.least_chain


_DIRECTORY = ("directory",)
_HISTORY = ("create", "append", "compact", "append")

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "create", baseline, _save, lambda m, given, kind: (m.saved(given, kind),), first=True, anew=True, start=()
        ),
        Operation("append", some_rows, _append, lambda m, given, kind: (m.appended(given),)),
        Operation("delete", deletion, _append, lambda m, given, kind: (m.appended(given),)),
        Operation("grow", growth, _append, lambda m, given, kind: (m.appended(given),)),
        Operation("replace", baseline, _save, lambda m, given, kind: (m.saved(given, kind),), anew=True),
        Operation("open-old", lambda m, random: m, _open_old, lambda m, given, kind: (), writes=False),
        Operation(
            "compact",
            lambda m, random: None,
            _compact,
            lambda m, _, kind: (m.compacted(kind),),
            least_chain=2,
            looks_first=True,
        ),
        Operation(
            "merge",
            part_of_chain,
            _merge,
            lambda m, given, kind: (m.merged(*given),),
            least_chain=2,
            looks_first=True,
            start=("create", "append", "append"),
        ),
        Operation("tag", name_for_version, _tag, lambda m, given, kind: (m.tagged(*given),), kinds=_DIRECTORY),
        Operation(
            "collect",
            lambda m, random: 0.0,
            _collect,
            lambda m, given, kind: _committed(m.collected()),
            kinds=_DIRECTORY,
            several=True,
            looks_first=True,
            alone=True,
            start=_HISTORY,
        ),
        Operation(
            "collect-later",
            # With a clock that goes on by some seconds at each step, some of the files have waited for so long.
            lambda m, random: random.choice([100.0, 400.0, 2000.0]),
            _collect,
            lambda m, given, kind: _committed(m.collected()),
            kinds=_DIRECTORY,
            several=True,
            looks_first=True,
            start=_HISTORY,
        ),
        Operation(
            "checkpoint",
            two_changes,
            _checkpoint,
            _training.after_checkpoints,
            kinds=_DIRECTORY,
            several=True,
            looks_first=True,
            keeps_house=True,
            alone=True,
            start=("create", "append"),
        ),
        Operation(
            "grid",
            changes_on_grid,
            _grid,
            lambda m, given, kind: _training.after_grid(m, given[1], kind),
            kinds=_DIRECTORY,
            several=True,
            looks_first=True,
            keeps_house=True,
            alone=True,
            start=("create", "grid", "compact", "append"),
        ),
    )
}


@dataclass(frozen=True)
class Step:
    """An operation with its input; what the container says before it, and after each of its commits.

    `before` has no versions where there is no container yet. There is no commit in an operation that only reads, and
    in one that finds nothing to be done.
    """

    operation: Operation
    given: Any
    before: Expected
    stages: tuple[Expected, ...]

    @property
    def after(self) -> Expected:
        """What the container says when all was done."""
        return self.stages[-1] if self.stages else self.before

    @property
    def version(self) -> int | None:
        """The version that `run` gives."""
        return self.stages[-1].head if self.stages else None

    def possible(self, told: Iterable[int] = ()) -> tuple[Expected, ...]:
        """What the container may say, once in this order, while it is done: these versions were acknowledged so far."""
        last = max(told, default=-1)
        return tuple(m for m in (self.before, *self.stages) if max(m.versions, default=-1) >= last)

    def run(
        self, path: PathLike, fs: Fs | None = None, tell: Callable[[int], None] = lambda version: None
    ) -> int | None:
        """Does it, and tells of each version that is acknowledged before it ends. Gives the last one, None if none."""
        doing = Doing(len(self.before.versions), fs, tell, self.after.head)
        return self.operation.run(path, self.given, doing)


def step(name: str, before: Expected, seed: int, kind: str) -> Step:
    """The operation `name` on what `before` says, with what `seed` makes of it, on a container of this kind.

    Where it can't be done, a delta is appended in its place.
    """
    operation = OPERATIONS[name]
    if not operation.fits(before, kind):
        operation = OPERATIONS["append" if before.versions else "create"]
    given = operation.given(before, Random(seed))
    return Step(operation, given, before, operation.after(before, given, kind))


def fitting(model: Expected, kind: str) -> list[str]:
    """The names of what can be done to a container of this kind that says this."""
    return [name for name, operation in OPERATIONS.items() if operation.fits(model, kind)]
