"""Which rows have changed since the last checkpoint, and since the newest baseline.

What is marked goes through three states. *Marked*: changed since the last checkpoint was begun. *Being written*:
taken for a checkpoint that isn't durable yet; it is either committed or given back. *Committed since the baseline*:
what a delta to that baseline has to hold; it is kept only where it is asked for, since it takes as much again.

Threads may mark at any time. A mark that is made while a checkpoint is being taken belongs either to that one or to
the next, and marks made afterwards to the next. So an id is to be marked *before or while* its row changes, and no
row is to change between `take` and the moment at which its values are copied.

A tracker must not be used in a signal handler, which may have interrupted a call that holds its lock. A forked child
has a copy of its own, and its marks are nobody else's; if another thread was marking at the moment of the fork, the
child's copy can't be used. A tracker can't be pickled: what must survive is in `since_baseline`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.checkpointing.tracking.key_marks import DELETED, WRITTEN, KeyMarks
from cnrfmt.checkpointing.tracking.row_marks import RowMarks
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format import limits
from cnrfmt.inputs import as_flat_ids


class _Marks(Protocol):
    """What the states need of a set of rows or keys."""

    @property
    def nbytes(self) -> int: ...
    def count(self) -> int: ...
    def add_older(self, other: Any) -> None: ...
    def add_newer(self, other: Any) -> None: ...
    def ids(self, older: Any = None) -> Ids: ...


M = TypeVar("M", bound=_Marks)


class Tracker(ABC, Generic[M]):
    """The three states of marks, for `RowTracker` and `KeyTracker`.

    Attributes
    ----------
    name
        The table's name, for messages.
    """

    def __init__(self, name: str, what: str, marks: M, *, keep_since_baseline: bool) -> None:
        self.name, self._what = name, f"table {name!r}: {what}"
        # Whoever holds both locks has taken that of the states first. The marks' is never held while ids are listed,
        # so that training doesn't wait for a checkpoint.
        self._states, self._lock = threading.RLock(), threading.Lock()
        self._marked = marks
        self._taken: M | None = None
        self._since = self._empty() if keep_since_baseline else None
        self._with_since = False

    @abstractmethod
    def _empty(self) -> M:
        """An empty set like that of the marks."""

    @abstractmethod
    def _some(self, ids: Ids) -> M:
        """A set of these rows, as far as they are there."""

    @abstractmethod
    def mark(self, ids: Any) -> None:
        """Notes that rows change."""

    @property
    def count(self) -> int:
        """How many rows are marked now, and not being written; marks that are being made count or don't."""
        return self._marked.count()

    @property
    def count_since_baseline(self) -> int:
        """Rows that are marked now or were committed since the baseline; counted by listing them."""
        with self._states, self._lock:
            return len(self._marked.ids(self._since))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that all marks take now."""
        sets = (self._marked, self._taken, self._since)
        return sum(marks.nbytes for marks in sets if marks is not None)

    def take(self, *, since_baseline: bool = False, listed: bool = True) -> Ids:
        """Begins a checkpoint: what is marked is being written from now on, and nothing is marked.

        Parameters
        ----------
        since_baseline
            Also list what was committed since the baseline, for a delta that stands on the baseline alone.
        listed
            False where all rows are written anyway: none is listed then, which is quicker.

        Returns
        -------
        Ids
            The rows to write: int64, sorted, distinct, the caller's own.

        Raises
        ------
        UsageError
            Something is being written already, or it was created without `keep_since_baseline` and is asked for that.
        MemoryError
            There is no room for the ids, 8 bytes each. All stays marked.
        """
        with self._states:
            if self._taken is not None:
                raise UsageError(
                    f"table {self.name!r}: the last checkpoint is still being written; commit it or give it back first"
                )
            older = self._kept() if since_baseline else None
            empty = self._empty()
            with self._lock:
                self._taken, self._marked = self._marked, empty
            self._with_since = since_baseline
            try:
                return self._taken.ids(older) if listed else np.empty(0, np.int64)
            except BaseException:
                self.give_back()
                raise

    def commit(self, *, baseline: bool = False, unsent: Ids | None = None) -> None:
        """Ends a checkpoint that is durable: what was being written is committed since the baseline.

        With `baseline` the checkpoint was a baseline itself, and nothing is committed since it. Rows that are `unsent`
        were taken and not written, since they were stored almost as they are: they are marked again. Raises
        `UsageError` where nothing is being written.
        """
        with self._states:
            taken = self._being_written("commit")
            if unsent is not None and len(unsent):
                again = self._some(unsent)
                with self._lock:
                    self._marked.add_older(again)
            if self._since is not None:
                if baseline:
                    self._since = self._empty()
                else:
                    self._since.add_newer(taken)
            self._taken = None

    def give_back(self) -> None:
        """Ends a checkpoint that failed: what was being written is marked again, with what was marked meanwhile.

        Raises `UsageError` where nothing is being written.
        """
        with self._states:
            taken = self._being_written("give back")
            with self._lock:
                self._marked.add_older(taken)
            self._taken = None

    def since_baseline(self) -> Ids:
        """What was committed since the baseline: int64, sorted, distinct. What is marked or being written isn't in it.

        Raises `UsageError` if it was created without `keep_since_baseline`.
        """
        with self._states:
            return self._kept().ids()

    def _restore(self, since: M | None) -> None:
        with self._states:
            if self._taken is not None:
                raise UsageError(
                    f"table {self.name!r}: can't restore while a checkpoint is being written; "
                    "commit it or give it back first"
                )
            empty = self._empty()
            with self._lock:
                self._marked = empty
            if self._since is not None:
                self._since = self._empty() if since is None else since

    def _being_written(self, verb: str) -> M:
        if self._taken is None:
            raise UsageError(f"table {self.name!r}: there is nothing to {verb}; take comes first")
        return self._taken

    def _kept(self) -> M:
        if self._since is None:
            raise UsageError(
                f"table {self.name!r}: what was committed since the baseline isn't kept; "
                "create the tracker with keep_since_baseline=True"
            )
        return self._since


class RowTracker(Tracker[RowMarks]):
    """Which rows of a dense table have changed, one bit per row. Every method may be called by any thread.

    A mark takes no more than a look at its bit where that is set already. Threads that mark the same table at once
    wait for each other, batch by batch, without holding the interpreter's lock.

    Memory: each of the states takes one bit per row and nothing for pages of 32,768 rows that no mark was made in,
    save a byte. So it is at most 4,097 bytes per page and state: two states while a checkpoint is being written, else
    one, and one more with `keep_since_baseline`.

    Parameters
    ----------
    rows
        How many rows the table has.
    name
        The table's name, for messages.
    keep_since_baseline
        Keep what was committed since the baseline, too.

    Raises
    ------
    UsageError
        `rows` isn't a number of rows.
    MemoryError
        There are no addresses left for that many bits.
    """

    def __init__(self, rows: int, *, name: str, keep_since_baseline: bool = False) -> None:
        super().__init__(name, "row ids", RowMarks(_rows(rows, name)), keep_since_baseline=keep_since_baseline)

    def _empty(self) -> RowMarks:
        return self._marked.empty()

    def _some(self, ids: Ids) -> RowMarks:
        found = self._empty()
        # The table may have shrunk since.
        found.mark(ids[ids < found.rows])
        return found

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return self._marked.rows

    def mark(self, ids: Any) -> None:
        """Notes that rows change.

        Parameters
        ----------
        ids
            Row ids of any integer type and shape, in any order, repeats welcome: anything array-like on the CPU.
            Contiguous int32 and int64 are read where they are; all else is copied.

        Raises
        ------
        MissingKeyError
            An id is negative, or not less than the number of rows. Nothing of the call is marked.
        UsageError
            These aren't integers.
        """
        flat = as_flat_ids(ids, self._what)
        with self._lock:
            bad = self._marked.mark(flat)
            rows = self._marked.rows
        if bad >= 0:
            self._refuse(int(flat[bad]), rows)

    def _refuse(self, row: int, rows: int) -> NoReturn:
        have = f"has rows 0 to {rows - 1}" if rows else "has no rows"
        raise MissingKeyError(
            f"table {self.name!r} {have}, found id {row}; nothing of this call was marked: "
            "resize it if the table has grown"
        )

    def resize(self, rows: int) -> None:
        """Follows a table that grows or shrinks. New rows aren't marked; rows that go are forgotten in every state.

        Raises `UsageError`, and `MemoryError`; then nothing is changed.
        """
        rows = _rows(rows, self.name)
        with self._states, self._lock:
            # Whatever may fail comes first.
            taken = None if self._taken is None else self._taken.larger(rows)
            since = None if self._since is None else self._since.larger(rows)
            marked = self._marked.larger(rows)
            for marks in (marked, taken, since):
                if marks is not None:
                    marks.resize(rows)
            self._marked, self._taken, self._since = marked, taken, since

    def restore(self, since_baseline: Any = ()) -> None:
        """Begins anew after a restart or a restore: nothing is marked, these rows were committed since the baseline.

        Raises what `mark` raises, and `UsageError` where a checkpoint is being written, or where rows are given that
        wouldn't be kept; then nothing is changed.
        """
        flat = as_flat_ids(since_baseline, self._what)
        if len(flat):
            self._kept()
        with self._states:
            since = self._empty()
            bad = since.mark(flat)
            if bad >= 0:
                self._refuse(int(flat[bad]), since.rows)
            self._restore(since)


class KeyTracker(Tracker[KeyMarks]):
    """Which keys of a keyed table have changed, and which are gone. Every method may be called by any thread.

    Of a key that was marked and forgotten, whichever came last holds.

    Memory: each of the states takes 9 bytes for each slot of a hash table of which at most three quarters are used:
    12 to 24 bytes for each distinct key that was marked or forgotten (9 KiB at the least), and half as much again
    for the moment in which it grows. There are as many states as with a `RowTracker`.

    Parameters
    ----------
    name
        The table's name, for messages.
    keep_since_baseline
        Keep what was committed since the baseline, too.
    """

    def __init__(self, *, name: str, keep_since_baseline: bool = False) -> None:
        super().__init__(name, "keys", KeyMarks(), keep_since_baseline=keep_since_baseline)

    def _empty(self) -> KeyMarks:
        return self._marked.empty()

    def _some(self, ids: Ids) -> KeyMarks:
        found = self._empty()
        found.put(ids, WRITTEN)
        return found

    def mark(self, ids: Any) -> None:
        """Notes that rows change, or that they are new.

        Parameters
        ----------
        ids
            Keys of any integer type and shape, in any order, repeats welcome: anything array-like on the CPU.

        Raises
        ------
        UsageError
            These aren't integers that fit in int64. Nothing of the call is marked.
        MemoryError
            There is no room. Some of them may be marked.
        """
        self._put(ids, WRITTEN)

    def forget(self, keys: Any) -> None:
        """Notes that keys are gone from the table, as `mark` does that rows change."""
        self._put(keys, DELETED)

    def _put(self, keys: Any, state: int) -> None:
        flat = as_flat_ids(keys, self._what)
        with self._lock:
            self._marked.put(flat, state)

    def take_deleted(self) -> Ids:
        """What `take` lists of the keys that are gone: int64, sorted, distinct. They are committed or given back alike.

        Raises `UsageError` where nothing is being written.
        """
        with self._states:
            taken = self._being_written("list")
            return taken.ids(self._kept() if self._with_since else None, DELETED)

    def restore(self, since_baseline: Any = (), deleted: Any = ()) -> None:
        """Begins anew after a restart or a restore: nothing is marked, and this was committed since the baseline.

        Parameters
        ----------
        since_baseline, deleted
            The keys that were written, and those that were deleted.

        Raises
        ------
        UsageError
            These aren't integers that fit in int64, a key is in both, a checkpoint is being written, or keys are
            given that wouldn't be kept; then nothing is changed.
        """
        written = as_flat_ids(since_baseline, self._what)
        gone = as_flat_ids(deleted, f"table {self.name!r}: deleted keys")
        if len(written) or len(gone):
            self._kept()
        if len(both := sorted_ids.intersection(sorted_ids.union(written), sorted_ids.union(gone))):
            raise UsageError(f"table {self.name!r}: key {both[0]} can't be both written and deleted")
        since = self._empty()
        since.put(written, WRITTEN)
        since.put(gone, DELETED)
        self._restore(since)


def _rows(rows: Any, name: str) -> int:
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 0 <= rows <= limits.MAX_ROWS:
        raise UsageError(
            f"table {name!r}: the number of rows must be an integer from 0 to {limits.MAX_ROWS}, found {rows!r}"
        )
    return int(rows)
