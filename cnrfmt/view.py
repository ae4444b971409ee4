"""One version of a container, opened: its manifest, its segments, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cnrfmt import parallel, sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.dense import read_dense
from cnrfmt.errors import UsageError, VersionExpiredError
from cnrfmt.format.chain import check_chain, check_table
from cnrfmt.format.manifest import ChainEntry, Manifest
from cnrfmt.format.schema import TableSchema
from cnrfmt.memory import Budget, guarded
from cnrfmt.resolve import Steps, Strip
from cnrfmt.segment_reader import Backend, SegmentReader, Verify
from cnrfmt.step_rows import tombstones, touched
from cnrfmt.storage.mapping import NOTHING, MapNeeds
from cnrfmt.table import Changes

if TYPE_CHECKING:
    from cnrfmt.storage.container import Container
    from cnrfmt.table import Table


@dataclass(frozen=True)
class ReadOptions:
    """How the bytes of a container are read."""

    backend: Backend
    verify: Verify
    threads: int
    max_bytes: int | None = None
    needs: MapNeeds = NOTHING


class History(Protocol):
    """The newest version of a container, and those that it names.

    Attributes
    ----------
    container
        Where the manifests that `manifest_of` gives have their segments.
    """

    container: Container

    def manifest_of(self, version: int, budget: Budget) -> Manifest | None:
        """The manifest of a version; None if it was committed but isn't retained."""


@dataclass(frozen=True)
class _Fork:
    """Another version, and what it has behind the newest state that it shares with the version in view."""

    manifest: Manifest
    state: bytes
    steps: tuple[tuple[SegmentReader, ...], ...]

    def steps_of(self, schema: TableSchema) -> Steps:
        """What each of these steps says of a table; raises `DamagedError` where that isn't what the schema allows."""
        found = []
        for step in self.steps:
            says = [(s, s.toc.by_table[schema.table_id]) for s in step if schema.table_id in s.toc.by_table]
            for segment, entry in says:
                for problem in check_table(schema, entry, segment.place):
                    raise problem
            if says:
                found.append(says)
        return found


class View:
    """An opened version. Tables of an old view stay valid after a refresh, until the checkpoint is closed."""

    def __init__(
        self,
        container: Container,
        manifest: Manifest,
        options: ReadOptions,
        *,
        known: dict[bytes, SegmentReader],
        history: History,
        budget: Budget,
    ) -> None:
        self.container, self.manifest, self.options = container, manifest, options
        self._history = history
        self._closed = False
        self.segments: dict[bytes, SegmentReader] = {}
        # What was found out for tables. It holds the segments' files, so it is kept here, where `close` lets go of it.
        self._steps: dict[bytes, Steps] = {}
        self.strips: dict[tuple[bytes, str], list[Strip]] = {}
        self._fork: _Fork | None = None
        for entry in manifest.chain:
            segment = known.get(entry.segment)
            if segment is None or segment.entry.trailer_digest != entry.trailer_digest:
                segment = self._open(container, manifest, entry, budget, options.needs)
            self.segments[entry.segment] = segment
        tocs = [(entry, self.segments[entry.segment].toc) for entry in manifest.chain]
        for problem in check_chain(manifest, tocs, container.path):
            raise problem
        if options.verify == "all":
            for segment in self.segments.values():
                segment.verify_all(parallel.run(options.threads))

    def _open(
        self, container: Container, manifest: Manifest, entry: ChainEntry, budget: Budget, needs: MapNeeds = NOTHING
    ) -> SegmentReader:
        source, toc = container.segment(entry), None
        source.needs = needs
        if entry.toc is not None:
            toc = manifest.attachments[entry.toc[0] : sum(entry.toc)]
        segment = SegmentReader(
            source,
            entry,
            toc,
            backend=self.options.backend,
            verify=self.options.verify != "none",
            manifest=manifest,
            budget=budget,
        )
        if needs != NOTHING:
            segment.map()
        return segment

    def at(self, manifest: Manifest) -> View:
        """A version of which all segments are among this one's: the baseline that this one is put on, say."""
        known, budget = self.segments, self.budget()
        return View(self.container, manifest, self.options, known=known, history=self._history, budget=budget)

    @property
    def threads(self) -> int:
        """How many threads a call may use."""
        return self.options.threads

    def budget(self) -> Budget:
        """What a call on this version may take."""
        return Budget(self.options.max_bytes)

    def check_open(self) -> None:
        """Raises `UsageError` once the checkpoint was closed."""
        if self._closed:
            raise UsageError(f"{self.container.path}: the checkpoint was closed; open it again")

    def close(self) -> None:
        """Lets go of the bytes, as soon as no call is using them any more."""
        self._closed = True
        # Calls of other threads may be looking into the old ones.
        self.segments, self._steps, self.strips, self._fork = {}, {}, {}, None

    def steps_of(self, table_id: bytes, after: bytes | None = None) -> Steps:
        """What each step of the chain says of a table; only the steps after a state if one is given."""
        segments, known = self.segments, self._steps
        self.check_open()
        if after is None and table_id in known:
            return known[table_id]
        steps = self.manifest.steps()
        if after is not None:
            states = [step[0].to_state for step in steps]
            steps = steps[states.index(after) + 1 :]
        found = []
        for step in steps:
            says = [
                (segment, segment.toc.by_table[table_id])
                for segment in (segments[entry.segment] for entry in step)
                if table_id in segment.toc.by_table
            ]
            if says:
                found.append(says)
        if after is None:
            known[table_id] = found
        return found

    @cached_property
    def dense(self) -> dict[str, Any]:
        """The dense state."""
        self.check_open()
        if self.manifest.dense is None:
            return {}
        with guarded("dense state"):
            return read_dense(self.segments[self.manifest.dense], self.budget())

    def changed(self, table: Table, since: int, budget: Budget) -> Changes:
        """The rows of a table that were touched after version `since`."""
        self.check_open()
        none = np.empty(0, np.int64)
        if since == self.manifest.version:
            return Changes(none, none, True)
        try:
            other = self._history.manifest_of(since, budget)
        except VersionExpiredError:
            other = None
        if other is None:
            return Changes(_everything(table, budget), none, False)
        return self.changed_since(table, other, budget)

    def changed_since(self, table: Table, other: Manifest, budget: Budget) -> Changes:
        """The rows of a table that were touched after another version of the container, which needn't be retained."""
        what = f"table {table.name!r}, rows that changed"
        self.check_open()
        with guarded(what):
            return self._changed(table, other, budget, what)

    def _changed(self, table: Table, other: Manifest, budget: Budget, what: str) -> Changes:
        none = np.empty(0, np.int64)
        fork = self._fork_from(other, budget)
        if fork is None:
            return Changes(_everything(table, budget), none, False)
        before = next((t for t in fork.manifest.tables if t.table_id == table.schema.table_id), None)
        if before is None or not _comparable(before, table.schema):
            is_new = before is None and fork.manifest.table(table.name) is None
            return Changes(_everything(table, budget), none, is_new)
        # Up to the state that both share, both have the same rows: only what one of them did afterwards counts.
        steps = [*fork.steps_of(before), *self.steps_of(before.table_id, after=fork.state)]
        rows = touched(steps, budget, what)
        if table.keys is not None:
            deleted = tombstones(steps, budget, what)
            if len(deleted):
                budget.take(16 * (len(rows) + len(deleted)), what)
                rows = sorted_ids.union(rows, deleted)
            return Changes(
                sorted_ids.intersection(rows, table.keys),
                np.setdiff1d(rows, table.keys, assume_unique=True),
                True,
            )
        assert before.rows is not None
        lowest = min([before.rows, *(e.rows for s in steps for _, e in s if e.rows is not None)])
        # Rows that were cut off and are back, and rows that are new, read as the fill value now.
        budget.take(24 * max(0, len(table) - lowest) + 8 * max(0, before.rows - len(table)), what)
        grown = np.arange(lowest, len(table), dtype=np.int64)
        rows = sorted_ids.union(rows[rows < len(table)], grown)
        return Changes(rows, np.arange(len(table), before.rows, dtype=np.int64), True)

    def _fork_from(self, other: Manifest, budget: Budget) -> _Fork | None:
        """Where another version parts from this one; None where they share no state, or its segments are gone."""
        if self._fork is not None and self._fork.manifest.digest == other.digest:
            return self._fork
        steps = other.steps()
        places = {step[0].to_state: place for place, step in enumerate(steps)}
        state = next((s[0].to_state for s in reversed(self.manifest.steps()) if s[0].to_state in places), None)
        if state is None:
            return None
        container, behind = self._history.container, steps[places[state] + 1 :]
        try:
            opened = tuple(tuple(self._open(container, other, entry, budget) for entry in step) for step in behind)
        except VersionExpiredError:
            return None
        # It is asked for table by table.
        self._fork = _Fork(other, state, opened)
        return self._fork


def _comparable(before: TableSchema, now: TableSchema) -> bool:
    """Whether two schemas of one table differ in nothing but rows, and columns that came or went."""
    return (before.keyed, before.dim) == (now.keyed, now.dim) and all(
        column == known for column in now.columns if (known := before.column(column.name)) is not None
    )


def _everything(table: Table, budget: Budget) -> Ids:
    if table.keys is not None:
        return table.keys
    budget.take(8 * len(table), f"table {table.name!r}, all row ids")
    return np.arange(len(table), dtype=np.int64)
