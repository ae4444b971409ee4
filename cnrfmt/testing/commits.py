"""The commits of a random sequence: what is called, and what the container says after each of its versions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from cnrfmt.checkpointing.compacting.compaction import compact, merge
from cnrfmt.checkpointing.keeping.collect import collect
from cnrfmt.checkpointing.keeping.retention import keep_of, kept, unrecorded
from cnrfmt.checkpointing.keeping.tags import tag, untag
from cnrfmt.checkpointing.kept_tables import Held, plan_of
from cnrfmt.checkpointing.manager import CheckpointManager
from cnrfmt.encodings.grid import Grid
from cnrfmt.reader import open
from cnrfmt.run_record import record_of
from cnrfmt.storage.fs import Fs
from cnrfmt.tabledata import Deleted, Rows, TableData
from cnrfmt.testing.chance import some_changes, some_dense, some_metadata, some_tables, trained
from cnrfmt.testing.checks import changed_rows
from cnrfmt.testing.model import ON_GRID, STEP, Model, ModelTable
from cnrfmt.writer import append, save

_MOST_SEGMENTS = 4
"""A manager merges a chain of so many."""
_GRID = Grid(step=STEP, by=None)


@dataclass
class State:
    """What a container says: its versions, what else each of them carries, and their tags."""

    model: Model = field(default_factory=Model)
    others: dict[int, tuple[dict[str, Any], dict[str, Any], int | None]] = field(default_factory=dict)
    """Dense state, metadata and step by version."""
    tags: dict[str, int] = field(default_factory=dict)

    @property
    def who(self) -> tuple[int, int | None] | None:
        """Version and step of the head: no two commits that may both be there have the same."""
        return (self.model.head, self.others[self.model.head][2]) if self.model.versions else None

    @property
    def next_version(self) -> int:
        """The one that the next commit makes."""
        return self.model.head + 1 if self.model.versions else 0

    def copy(self) -> State:
        """The same, to go on from."""
        after = State(Model(), copy.copy(self.others), copy.copy(self.tags))
        after.model.versions = copy.copy(self.model.versions)
        return after

    def only(self, versions: Collection[int]) -> State:
        """Without all other versions."""
        after = self.copy()
        after.model.versions = {v: tables for v, tables in self.model.versions.items() if v in versions}
        after.others = {v: other for v, other in self.others.items() if v in versions}
        return after

    def repeated(self) -> State:
        """After a version with the content of the head."""
        after, head = self.copy(), self.model.head
        after.model.versions[self.next_version] = self.model.versions[head]
        after.others[self.next_version] = self.others[head]
        return after


@dataclass(frozen=True)
class Place:
    """A container's path, its file system, and whether it is a single file."""

    path: str
    fs: Fs
    single: bool


@dataclass(frozen=True)
class Commit:
    """Something to be done, and what the container says after each version that it commits.

    `call` takes the file system and gives the last version, None if there is nothing to commit. With `goes_on`, an
    error may come after a version that counts, or what comes after one may be left for another time.
    """

    call: Callable[..., int | None]
    stages: tuple[State, ...]
    goes_on: bool = False

    @property
    def version(self) -> int | None:
        """What `call` gives."""
        return self.stages[-1].model.head if self.stages else None


Maker = Callable[[Place, State, Random, int], Commit]
"""Makes a commit on what a container says; the number is the trainer's step."""


def baseline(place: Place, state: State, random: Random, step: int) -> Commit:
    """A `save`."""
    return _written(place, state, random, step, save, some_tables(random))


def delta(place: Place, state: State, random: Random, step: int) -> Commit:
    """An `append`."""
    head = state.model.versions[state.model.head]
    return _written(place, state, random, step, append, some_changes(random, head))


def _written(
    place: Place, state: State, random: Random, step: int, function: Callable[..., int], given: dict[str, Any]
) -> Commit:
    dense, metadata = some_dense(random), some_metadata(random)
    version = state.next_version
    inherited: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    after = state.copy()
    if function is append:
        after.model.append(version, given)
        inherited = state.others[state.model.head][:2]
    else:
        if place.single:
            # A single file is written anew with this version alone.
            after = after.only(())
        after.model.save(version, given)
    after.others[version] = (
        inherited[0] if dense is None else dense,
        inherited[1] if metadata is None else metadata,
        step,
    )
    options: dict[str, Any] = {"dense": dense, "metadata": metadata, "step": step, "threads": 1}
    if isinstance(given.get(ON_GRID), TableData):
        options["quantize"] = {ON_GRID: _GRID}
    return Commit(partial(function, place.path, given, **options), (after,))


def merging(place: Place, state: State, random: Random, step: int) -> Commit:
    """A chain made shorter, or a delta where there is none to be."""
    with open(place.path, threads=1, fs=place.fs) as ck:
        head = ck.manifest
    length = len(head.chain)
    if length < 2:
        return delta(place, state, random, step)
    if random.random() < 0.5:
        after = state.repeated()
        stages = (after.only({after.model.head}) if place.single else after,)
        return Commit(partial(compact, place.path, threads=1), stages)
    first = random.randrange(length - 1)
    last = random.randint(first + 2, length)

    def call(fs: Fs) -> int:
        return merge(place.path, first, last, expect=head, threads=1, fs=fs).version

    return Commit(call, (state.repeated(),))


def tagging(place: Place, state: State, random: Random, step: int) -> Commit:
    """A version gets a name, or loses it. In a single file, which then couldn't be written anew, a delta."""
    others = sorted(set(state.model.versions) - set(state.tags.values()))
    if place.single or not (others or state.tags):
        return delta(place, state, random, step)
    after = state.repeated()
    version = random.choice([*others, *([None] if state.tags else [])])
    after.tags = {} if version is None else {"prod": version}

    def call(fs: Fs) -> int:
        if version is None:
            untag(place.path, "prod", fs=fs)
        else:
            tag(place.path, "prod", version, fs=fs)
        return after.model.head

    return Commit(call, (after,))


def collection(place: Place, state: State, random: Random, step: int) -> Commit:
    """All but some of the newest versions are given up, and their files go. In a single file, a delta."""
    if place.single:
        return delta(place, state, random, step)
    keep = random.choice([1, 1, 2, 3])
    foretold = collect(place.path, keep=keep, grace=0, dry_run=True, fs=place.fs)
    gone, head = set(foretold.given_up), state.model.head
    assert gone < set(state.model.versions), f"{gone} of {sorted(state.model.versions)} are to be given up"
    assert not gone & {head, *state.tags.values()}, f"{gone} are to be given up, {head} and {state.tags} among them"

    def call(fs: Fs) -> int | None:
        return collect(place.path, keep=keep, grace=0, fs=fs).version

    stages = (state.repeated().only({*state.model.versions, state.next_version} - gone),) if gone else ()
    return Commit(call, stages, goes_on=True)


def checkpoint(place: Place, state: State, random: Random, step: int) -> Commit:
    """A training run goes on for one checkpoint; where the chain is long by then, it is merged behind it."""
    with open(place.path, threads=1, fs=place.fs) as ck:
        head = ck.manifest
    keep = None if place.single else random.choice([None, 1, 2])
    version, there = state.next_version, {*state.model.versions, state.next_version}
    record = record_of(head)
    known = () if record is None else record.checkpoints
    stay = kept(keep_of(keep), (*known, replace(unrecorded(version), kind="delta")), state.tags, version, there)
    if place.single:
        # Earlier versions go with their bytes, when it is written anew.
        stay = there
    before = state.model.versions[state.model.head]
    dense = some_dense(random) or {}
    metadata = some_metadata(random) or {}
    after = state.copy()
    after.model.append(state.next_version, {name: _some_training(random, table) for name, table in before.items()})
    after.others[version] = dense, metadata, step
    now = after.model.versions[version]
    for gone in there - stay:
        others = (after.model.versions[v] for v in stay)
        assert keep is not None or any(after.model.versions[gone] is other for other in others), f"version {gone} goes"
    stages = [after.only(stay)]
    # A checkpoint that says nothing new has no segment.
    says = bool(dense) or head.dense is not None or any(_changed(before[name], table) for name, table in now.items())
    if len(head.chain) + says >= _MOST_SEGMENTS and not place.single:
        stages.append(stages[0].repeated())
    call = partial(_train, place.path, before, now, keep=keep, step=step, dense=dense, metadata=metadata)
    return Commit(call, tuple(stages), goes_on=True)


def _changed(before: ModelTable, now: ModelTable) -> set[int]:
    """The rows that differ, those that are gone among them."""
    return changed_rows(before, now) | (set(before.ids) - set(now.ids))


def _some_training(random: Random, table: ModelTable) -> Any:
    """New values of some rows; keys that come and go."""
    ids = [row for row in table.ids if random.random() < 0.4]
    gone: list[int] = []
    if table.rows is None:
        gone = [key for key in table.ids if key not in ids and random.random() < 0.2]
        ids += [key for key in random.sample(range(50, 60), 1) if key not in table.cells]
    columns = {}
    for name in table.dtypes:
        columns[name] = trained(random, table, name, ids)
    rows = Rows(np.array(ids, np.int64), columns.pop("weight"), columns=columns)
    return (rows, Deleted(np.array(gone, np.int64))) if table.rows is None else rows


def _train(
    path: str,
    before: Mapping[str, ModelTable],
    now: Mapping[str, ModelTable],
    *,
    keep: int | None,
    step: int,
    dense: Mapping[str, Any],
    metadata: Mapping[str, Any],
    fs: Fs,
) -> int:
    merged: list[int] = []
    manager = CheckpointManager(
        path,
        policy="consecutive",
        encoding={"*": None, **({ON_GRID: _GRID} if _is_on_grid(path, fs) else {})},
        merge_share=None,
        keep=keep,
        grace=0,
        most_segments=_MOST_SEGMENTS,
        save_threads=1,
        flush_on_sigterm=False,
        on_event=lambda event: merged.append(event.version or 0) if event.kind == "merged" else None,
        fs=fs,
    )
    with manager:
        assert manager.restore() is not None
        for name, table in now.items():
            manager.track(name, np.array(sorted(changed_rows(before[name], table)), np.int64))
            if table.rows is None:
                manager.forget(name, np.array(sorted(set(before[name].ids) - set(table.ids)), np.int64))
        tables = {name: _live(table) for name, table in now.items()}
        version = manager.save(step, tables, dense=dense, metadata=metadata, kind="delta").wait()
    assert version is not None
    return max([version, *merged])


def _is_on_grid(path: str, fs: Fs) -> bool:
    """Whether a run can go on with differences: a table that was empty at its baseline is on no grid."""
    with open(path, backend="pread", threads=1, fs=fs) as ck:
        if ON_GRID not in ck:
            return False
        return plan_of(ck.view, ck[ON_GRID].schema, Held()) is not None


def _live(table: ModelTable) -> TableData:
    columns = {name: table.array(name) for name in table.dtypes}
    keys = np.array(table.ids, np.int64) if table.rows is None else None
    return TableData(columns.pop("weight"), columns=columns, keys=keys, fill=table.fills)


UPKEEP: tuple[Maker, ...] = (merging, tagging, collection, checkpoint)
"""What is done to a container that is there, beside a baseline or a delta."""
