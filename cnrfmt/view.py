"""One version of a container, opened: its manifest, its segments, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cnrfmt import parallel
from cnrfmt.arrays import Ids
from cnrfmt.dense import read_dense
from cnrfmt.errors import UsageError
from cnrfmt.format.chain import check_chain
from cnrfmt.format.manifest import Manifest
from cnrfmt.memory import Budget, guarded
from cnrfmt.resolve import Steps, Strip, touched
from cnrfmt.segment_reader import Backend, SegmentReader, Verify
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


class View:
    """An opened version. Tables of an old view stay valid after a refresh, until the checkpoint is closed."""

    def __init__(
        self,
        container: Container,
        manifest: Manifest,
        options: ReadOptions,
        *,
        known: dict[bytes, SegmentReader],
        manifest_of: Callable[[int, Budget], Manifest | None],
        budget: Budget,
    ) -> None:
        self.container, self.manifest, self.options = container, manifest, options
        self._manifest_of = manifest_of
        self._closed = False
        self.segments: dict[bytes, SegmentReader] = {}
        # What was found out for tables. It holds the segments' files, so it is kept here, where `close` lets go of it.
        self._steps: dict[bytes, Steps] = {}
        self.strips: dict[tuple[bytes, str], list[Strip]] = {}
        for entry in manifest.chain:
            segment = known.get(entry.segment)
            if segment is None or segment.entry.trailer_digest != entry.trailer_digest:
                toc = None
                if entry.toc is not None:
                    toc = manifest.attachments[entry.toc[0] : sum(entry.toc)]
                segment = SegmentReader(
                    container.segment(entry),
                    entry,
                    toc,
                    backend=options.backend,
                    verify=options.verify != "none",
                    manifest=manifest,
                    budget=budget,
                )
            self.segments[entry.segment] = segment
        tocs = [(entry, self.segments[entry.segment].toc) for entry in manifest.chain]
        for problem in check_chain(manifest, tocs, container.path):
            raise problem
        if options.verify == "all":
            for segment in self.segments.values():
                segment.verify_all(parallel.run(options.threads))

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
        self.segments, self._steps, self.strips = {}, {}, {}

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
        with guarded(f"table {table.name!r}, rows that changed"):
            return self._changed(table, since, budget)

    def _changed(self, table: Table, since: int, budget: Budget) -> Changes:
        self.check_open()
        none = np.empty(0, np.int64)
        if since == self.manifest.version:
            return Changes(none, none, True)
        older = self._manifest_of(since, budget)
        states = {entry.to_state for entry in self.manifest.chain}
        before = None
        if older is not None:
            before = next(
                (t for t in older.tables if t.table_id == table.schema.table_id), None
            )
        replaced = older is not None and before is None and older.table(table.name) is not None
        if older is None or older.state not in states or replaced:
            return Changes(_everything(table, budget), none, False)
        if before is None:
            return Changes(_everything(table, budget), none, True)
        what = f"table {table.name!r}, rows that changed"
        steps = self.steps_of(table.schema.table_id, after=older.state)
        rows = touched(steps, budget, what)
        if table.keys is not None:
            deleted = _tombstones(steps, budget, what)
            return Changes(
                np.intersect1d(rows, table.keys, assume_unique=True),
                np.setdiff1d(deleted, table.keys, assume_unique=True),
                True,
            )
        assert before.rows is not None
        lowest = min([before.rows, *(e.rows for s in steps for _, e in s if e.rows is not None)])
        # Rows that were cut off and are back, and rows that are new, read as the fill value now.
        budget.take(24 * max(0, len(table) - lowest) + 8 * max(0, before.rows - len(table)), what)
        grown = np.arange(lowest, len(table), dtype=np.int64)
        rows = np.union1d(rows[rows < len(table)], grown)
        return Changes(rows, np.arange(len(table), before.rows, dtype=np.int64), True)


def _everything(table: Table, budget: Budget) -> Ids:
    if table.keys is not None:
        return table.keys
    budget.take(8 * len(table), f"table {table.name!r}, all row ids")
    return np.arange(len(table), dtype=np.int64)


def _tombstones(steps: Steps, budget: Budget, what: str) -> Ids:
    sets = [
        (segment, entry.row_sets[entry.deleted])
        for step in steps
        for segment, entry in step
        if entry.deleted is not None
    ]
    budget.take(sum(segment.indexes.cost(row_set) + 24 * row_set.count for segment, row_set in sets), what)
    found = [segment.indexes.ids(row_set) for segment, row_set in sets]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
