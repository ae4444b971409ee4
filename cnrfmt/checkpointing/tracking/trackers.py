"""The trackers of all tables of a model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.contents import NOTHING, Tables, Touched
from cnrfmt.checkpointing.tracking.tracker import KeyTracker, RowTracker
from cnrfmt.errors import MissingKeyError, UsageError


class Trackers:
    """One tracker per table, made when the table is first seen. Safe to mark from any thread.

    Before a table is seen, what is marked of it isn't noted: its first checkpoint holds every row.
    """

    def __init__(self, *, keep_since_baseline: bool) -> None:
        self._keep = keep_since_baseline
        self._trackers: dict[str, RowTracker | KeyTracker] = {}
        self._unseen: set[str] = set()
        # Of keyed tables: which keys a checkpoint was last begun with.
        self._keys: dict[str, Ids] = {}
        self._lock = threading.Lock()

    def mark(self, name: str, ids: Any) -> None:
        """Notes that rows change; raises as the tracker does, and `MissingKeyError` for a table that isn't there."""
        found = self._trackers.get(name)
        if found is not None:
            found.mark(ids)
            return
        if not isinstance(name, str):
            raise UsageError(f"a table is named by a string, found {name!r}")
        with self._lock:
            if self._trackers and name not in self._trackers:
                known = ", ".join(map(repr, sorted(self._trackers)[:10]))
                raise MissingKeyError(
                    f"no table {name!r} to track; the tables of the last checkpoint are {known}. One that is new comes "
                    "whole with the next checkpoint, and is tracked from then on"
                )
            self._unseen.add(name)

    def forget(self, name: str, keys: Any) -> None:
        """Notes that keys are gone from a keyed table."""
        found = self._trackers.get(name)
        if isinstance(found, KeyTracker):
            found.forget(keys)
        elif found is not None:
            raise MissingKeyError(f"table {name!r} is dense: its rows can't be deleted one by one")

    def resize(self, name: str, rows: int) -> None:
        """Notes that a dense table has so many rows now; those that it has grown by are marked."""
        found = self._trackers.get(name)
        if isinstance(found, RowTracker):
            _resize(found, rows)
        elif found is not None:
            raise UsageError(f"table {name!r} is keyed: it has no number of rows; track new keys, forget old ones")

    def meet(self, tables: Tables) -> None:
        """Makes trackers for tables that are new, drops those of tables that are gone, lets others grow.

        Raises `MissingKeyError` where something was marked of a table that isn't there.
        """
        with self._lock:
            there = {name: table for name, table in tables.items() if table.data is not None}
            if lost := self._unseen - set(there):
                # Said once: all rows of a first checkpoint are written, so that nothing can be missed.
                self._unseen -= lost
                raise MissingKeyError(
                    f"rows of table {min(lost)!r} were marked, and the checkpoint has no such table; "
                    f"it has {', '.join(map(repr, sorted(there)[:10]))}"
                )
            self._unseen.clear()
            for name, table in there.items():
                self._meet(name, None if table.keyed else table.rows)
                if table.keyed:
                    self._compare(name, table.sorted_keys[0], evict=not table.shared)
            for name in set(self._trackers) - set(there):
                del self._trackers[name]
                self._keys.pop(name, None)

    def _meet(self, name: str, rows: int | None) -> None:
        found = self._trackers.get(name)
        if rows is None:
            if not isinstance(found, KeyTracker):
                self._trackers[name] = KeyTracker(name=name, keep_since_baseline=self._keep)
        elif isinstance(found, RowTracker):
            _resize(found, rows)
        else:
            self._trackers[name] = RowTracker(rows, name=name, keep_since_baseline=self._keep)

    def _compare(self, name: str, keys: Ids, *, evict: bool) -> None:
        """Marks the keys that weren't there at the last checkpoint, and forgets those that aren't there any more.

        Where there are several ranks a key may have gone to another one: what is evicted has to be said.
        """
        before, tracker = self._keys.get(name), self._trackers[name]
        if before is not None and isinstance(tracker, KeyTracker):
            tracker.mark(np.setdiff1d(keys, before, assume_unique=True))
            if evict:
                tracker.forget(np.setdiff1d(before, keys, assume_unique=True))
        self._keys[name] = keys.copy()

    def take(self, *, since_baseline: bool, listed: bool) -> dict[str, Touched]:
        """What was touched of each table: since the last checkpoint, or since the baseline. Marks start anew.

        Unless `listed`, nothing is listed: all rows are written anyway.
        """
        found = {}
        taken: list[RowTracker | KeyTracker] = []
        try:
            for name, tracker in self._trackers.items():
                ids = tracker.take(since_baseline=since_baseline, listed=listed)
                taken.append(tracker)
                gone = tracker.take_deleted() if listed and isinstance(tracker, KeyTracker) else NOTHING.deleted
                found[name] = Touched(ids, gone)
        except BaseException:
            for tracker in taken:
                tracker.give_back()
            raise
        return found

    def commit(self, *, baseline: bool, unsent: Mapping[str, Ids] | None = None) -> None:
        """What was taken is durable; but for those rows of each table that weren't sent, which stay marked."""
        for name, tracker in self._trackers.items():
            tracker.commit(baseline=baseline, unsent=(unsent or {}).get(name, NOTHING.ids))

    def give_back(self) -> None:
        """What was taken isn't durable: it is marked again."""
        for tracker in self._trackers.values():
            tracker.give_back()

    def restore(
        self, rows: Mapping[str, int | None], since_baseline: Mapping[str, Ids], keys: Mapping[str, Ids | None]
    ) -> None:
        """Nothing is marked; this was committed since the baseline. `rows` is None for a keyed table, with these keys.

        Where the keys aren't known, those of the next checkpoint aren't compared with anything.
        """
        with self._lock:
            self._keys = {name: found for name, found in keys.items() if found is not None}
            self._trackers.clear()
            self._unseen.clear()
            for name, count in rows.items():
                self._meet(name, count)
                since = since_baseline.get(name) if self._keep else None
                self._trackers[name].restore(np.empty(0, np.int64) if since is None else since)

    @property
    def count(self) -> int:
        """Rows that are marked now, of all tables."""
        return sum(tracker.count for tracker in self._trackers.values())

    @property
    def count_since_baseline(self) -> int:
        """Rows that are marked now or were committed since the baseline, of all tables."""
        return sum(tracker.count_since_baseline for tracker in self._trackers.values())

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(tracker.nbytes for tracker in self._trackers.values())


def _resize(tracker: RowTracker, rows: int) -> None:
    before = tracker.rows
    tracker.resize(rows)
    if rows > before:
        tracker.mark(np.arange(before, rows, dtype=np.int64))
