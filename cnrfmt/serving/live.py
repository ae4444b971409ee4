"""Tables in memory that follow a trainer, version by version, while look-ups go on."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import numpy as np

from cnrfmt import reader
from cnrfmt.errors import DamagedError, TooLargeError, UsageError, VersionNotFoundError
from cnrfmt.memory import Budget, check_limit, guarded
from cnrfmt.patterns import Patterns
from cnrfmt.reader import PathLike
from cnrfmt.segment_reader import Backend, Verify
from cnrfmt.serving.generations import Generations
from cnrfmt.serving.held_rows import Choice, ShardBy, Wanted
from cnrfmt.serving.hydrated_table import Progress
from cnrfmt.serving.hydrating import Hydration, choices_of
from cnrfmt.serving.keeper import Keeper
from cnrfmt.serving.live_table import LiveTable
from cnrfmt.serving.served import Next, Served, begin, goes_on, moved, settled
from cnrfmt.serving.snapshot import LiveStatus, Snapshot
from cnrfmt.serving.watching import check_seconds
from cnrfmt.storage.fs import Fs
from cnrfmt.table import Changes, Table
from cnrfmt.view import View


class LiveTables(Mapping[str, LiveTable]):
    """Tables of a container in memory, decoded, which move on from version to version while look-ups go on.

    They can be looked up at once: rows are decoded when they are first asked for, and the others in the background. A
    look-up sees one version; several see the same one through a `snapshot`. A new version takes the memory of the rows
    that it changes, as long as an older one is held. Safe to use from many threads. A context manager.

    Parameters
    ----------
    path
        A container.
    tables
        Names or patterns; all if None.
    rows, shard, shard_by
        Which rows are held, as `Checkpoint.hydrate` has them.
    version, tag, digest
        What to begin with, as `cnrfmt.open` has them. With one of them nothing newer is taken in before `advance` is
        called.
    dtype
        Of the rows in memory; that of the stored column if None.
    hold
        How many versions are held, so that `snapshot` gives them: with 2, the one before the newest too.
    backend, verify, threads, fs
        As `cnrfmt.open` has them.
    max_bytes
        The most that rows, maps and indexes may take; None doesn't limit it.

    Raises
    ------
    UsageError, MissingKeyError, TooLargeError
        What was asked for can't be.
    DamagedError, StorageError, VersionNotFoundError
        As `cnrfmt.open` raises them.
    """

    def __init__(
        self,
        path: PathLike,
        tables: Iterable[str] | None = None,
        *,
        rows: Mapping[str, Any] | None = None,
        shard: tuple[int, int] | None = None,
        shard_by: ShardBy | None = None,
        version: int | None = None,
        tag: str | None = None,
        digest: str | None = None,
        dtype: Any = None,
        hold: int = 1,
        backend: Backend = "mmap",
        verify: Verify = "touched",
        threads: int | None = None,
        max_bytes: int | None = None,
        fs: Fs | None = None,
    ) -> None:
        if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
            raise UsageError(f"hold is how many versions are held, at least 1, found {hold!r}")
        self._wanted, self._patterns = Wanted(rows or {}, shard, shard_by), Patterns(tables)
        self._limit, self._dtype = check_limit(max_bytes), _dtype(dtype)
        self._options: dict[str, Any] = {
            "backend": backend, "verify": verify, "threads": threads, "max_bytes": max_bytes, "fs": fs
        }  # fmt: skip
        self._process = os.getpid()
        self._advancing, self._over = threading.Lock(), threading.Event()
        self._generations = Generations()
        self._held: deque[Snapshot] = deque(maxlen=hold)
        self._pinned = version is not None or tag is not None or digest is not None
        self._tables: dict[str, Served] = {}
        # Of a version that is being taken in, the tables that are there already.
        self._coming: list[Next] = []
        self._updates = 0
        self._applied_s: float | None = None
        self._thread: threading.Thread | None = None
        self._keeper: Keeper | None = None
        self._checkpoint = reader.open(path, version=version, tag=tag, digest=digest, **self._options)
        self._hydrations: list[Hydration] = []
        try:
            choices = choices_of(self.path, self._checkpoint, tables, self._wanted)
            view = self._checkpoint.view
            begun = self._begin({name: self._checkpoint[name] for name in choices}, choices, view)
            self._show(view, [Next(served) for served in begun.values()])
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """The container."""
        return self._checkpoint.path

    @property
    def version(self) -> int:
        """The version that is served."""
        return self.snapshot().version

    @property
    def step(self) -> int | None:
        """Its step."""
        return self.snapshot().step

    @property
    def is_closed(self) -> threading.Event:
        """Set once it was closed."""
        return self._over

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that are held, the one that is served last."""
        return tuple(snapshot.version for snapshot in tuple(self._held))

    def snapshot(self, version: int | None = None) -> Snapshot:
        """One version of all tables: the one that is served, or another one that is held.

        Raises `VersionNotFoundError` for one that isn't held.
        """
        held = tuple(self._held)
        if version is None:
            self._check_open()
            return held[-1]
        found = next((one for one in reversed(held) if one.version == version), None)
        if found is None:
            versions = ", ".join(str(one.version) for one in held)
            raise VersionNotFoundError(f"{self.path}: version {version} isn't held; held are {versions} (see hold=)")
        return found

    def _check_open(self) -> None:
        if self._over.is_set():
            raise UsageError(f"{self.path}: the tables were closed; open them again")
        if self._process != os.getpid():
            raise UsageError(f"{self.path}: these tables belong to process {self._process}; open them in this one, too")

    def __getitem__(self, name: str) -> LiveTable:
        _ = self.snapshot()[name]
        return LiveTable(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.snapshot())

    def __len__(self) -> int:
        return len(self.snapshot())

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all rows of the version that it began with are there; raises what went wrong with them."""
        end = None if timeout is None else time.monotonic() + timeout
        return all(one.wait(None if end is None else max(0.0, end - time.monotonic())) for one in self._hydrations)

    @property
    def progress(self) -> Progress:
        """How many rows are there of those that the tables began with."""
        rows = of_rows = 0
        for served in self._tables.values():
            of_rows += served.slots.begun
            rows += served.slots.begun if served.base is None else served.base.progress.rows
        return Progress(rows, of_rows)

    def advance(self, version: int | None = None, *, digest: str | None = None) -> bool:
        """Goes on to the newest version, or to another one, newer or older; says whether that is another than before.

        Look-ups see the old version until all tables have the new one. After an error they go on seeing the old one.

        Parameters
        ----------
        version
            A version that can be opened; with it, nothing newer is taken in by itself until `advance` is called
            without one.
        digest
            The manifest digest that it must have.

        Raises
        ------
        DamagedError
            Another container, or an older state, is in the container's place, or what is new is damaged.
        UsageError
            The tables were closed, or belong to another process.
        VersionNotFoundError, StorageError, TooLargeError
            As `cnrfmt.open` raises them, or more memory would be taken than `max_bytes`.
        """
        # In a process that was forked off, nobody gives back what another thread held.
        self._check_open()
        with self._advancing, guarded(f"{self.path}, a newer version"):
            self._check_open()
            if version is None and digest is None:
                self._pinned = False
                return self._go_on()
            moved = self._advance(self._view_of(version, digest))
            self._pinned = True
            return moved

    def keep_up(self) -> bool:
        """As `advance` to the newest version, but a version that was asked for stays; for whoever follows."""
        self._check_open()
        with self._advancing, guarded(f"{self.path}, a newer version"):
            self._check_open()
            if self._pinned:
                self._settle()
                return False
            return self._go_on()

    def _go_on(self) -> bool:
        self._checkpoint.move_on()
        return self._advance(self._checkpoint.view)

    def _view_of(self, version: int | None, digest: str | None) -> View:
        """A version that can be opened, or that is held though it can't be opened any more."""
        try:
            view = reader.open(self.path, version=version, digest=digest, **self._options).view
        except VersionNotFoundError:
            held = next((one for one in self._held if one.version == version and digest in (None, one.digest)), None)
            if held is None:
                raise
            return held.view
        known, other = self._checkpoint.manifest.container_id, view.manifest.container_id
        if known != other:
            raise DamagedError(
                "manifest-identity",
                self.path,
                expected=f"container {known.hex()}",
                found=f"container {other.hex()}",
                advice="another container was put in its place: open it anew if that is meant",
            )
        return view

    def _advance(self, view: View) -> bool:
        before = self.snapshot().manifest
        if view.manifest.digest == before.digest:
            self._settle()
            return False
        started = time.monotonic()
        self._release()
        for hydration in self._hydrations:
            hydration.resume()
        found, known = self._coming, len(self._hydrations)
        try:
            for schema in view.manifest.tables:
                if schema.name in self._patterns:
                    table = Table(view, schema)
                    found.append(self._moved(table, view.changed_since(table, before, view.budget()), view))
        except BaseException:
            for one in found:
                one.give_up()
            # Who tries again begins them again.
            for hydration in self._hydrations[known:]:
                hydration.let_go()
            del self._hydrations[known:]
            raise
        finally:
            self._coming = []
        self._show(view, found)
        self._updates += 1
        self._applied_s = time.monotonic() - started
        self._settle()
        return True

    def _release(self) -> None:
        """Takes back what nobody looks at any more."""
        tables = self._tables.values()
        self._generations.release({one.slots: one.base is None or one.base.is_complete for one in tables})

    def _settle(self) -> None:
        """Puts rows where they are quicker to look up, if nobody looks at what was there."""
        self._release()
        if found := settled(self._tables.values()):
            self._show(self._held[-1].view, found)

    def _moved(self, table: Table, changes: Changes, view: View) -> Next:
        """What becomes of a table; one that begins anew is there whole before it is seen."""
        served = self._tables.get(table.name)
        if served is not None and goes_on(served.schema, table.schema) and changes.exact:
            served = served.without_gaps(self._generations.number)
            return moved(served, table, changes, self._check_memory)
        # Rows that were asked for by their ids needn't be there any more.
        choices = {table.name: self._wanted.choice(table, strict=False)}
        begun = self._begin({table.name: table}, choices, view)[table.name]
        self._hydrations[-1].wait()
        return Next(begun)

    def _begin(self, tables: Mapping[str, Table], choices: Mapping[str, Choice], view: View) -> dict[str, Served]:
        """Begins to decode tables into slots of their own."""
        budget = Budget(self._limit)
        budget.take(self._nbytes, self.path)
        generation = self._generations.number + 1
        hydration, found = begin(tables, choices, self._dtype, generation, view, budget)
        self._hydrations.append(hydration)
        return found

    @property
    def _nbytes(self) -> int:
        """Memory that rows and maps take."""
        tables = {one.slots for one in self._tables.values()} | {one.served.slots for one in self._coming}
        return sum(slots.nbytes for slots in tables)

    def _check_memory(self, nbytes: int, what: str) -> None:
        """That so many bytes more may be taken."""
        if self._limit is not None and self._nbytes + nbytes > self._limit:
            raise TooLargeError(what, self._nbytes + nbytes, self._limit)

    def _show(self, view: View, found: list[Next]) -> None:
        """Makes what was prepared the version that is served, all tables at once."""
        tables: dict[str, Served] = {}
        for one in found:
            served = one.served
            if one.step is not None:
                served.slots.move(one.step)
            if served.base is not None and served.base.is_complete:
                # Its arrays are needed no more, nor the files of the version that they were read of.
                served = replace(served, base=None)
            tables[served.schema.name] = served
        lease = self._generations.begin({served.slots: served.slots.map for served in tables.values()})
        rows = {name: served.rows_for(lease) for name, served in tables.items()}
        self._tables = tables
        bases = [served.base for served in tables.values() if served.base is not None]
        ended = [one for one in self._hydrations if not any(base in one.values() for base in bases)]
        self._hydrations = [one for one in self._hydrations if one not in ended]
        # The switch, which look-ups see whole or not at all.
        snapshot = Snapshot(view, rows, lease)
        if self._held and self._held[-1].view is view:
            self._held[-1] = snapshot
        else:
            self._held.append(snapshot)
        for hydration in ended:
            # Of a table that is gone, rows may still be to come, which nobody will see.
            hydration.let_go()

    def follow(
        self,
        *,
        poll: float = 0.1,
        on_update: Callable[[Snapshot], None] | None = None,
        max_age: float | None = None,
        on_age: Callable[[LiveStatus], None] | None = None,
        on_error: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        """Takes in each new version from now on, in a thread of its own, until `close`.

        What can't be taken in is tried again, and told by `status`, as is what `on_update` raises, until it is called
        again; look-ups go on with what there is.

        Parameters
        ----------
        poll
            Seconds between looks at the container; where `watchfiles` is installed, a commit is seen at once.
        on_update
            Is called from that thread with each version that was taken in.
        max_age, on_age
            Is called from that thread when what is served was committed more than so many seconds ago, once until
            something newer is served.
        on_error
            Is called from that thread with what goes wrong, once until all is well again, and then with None.
        """
        self._check_open()
        if self._thread is not None:
            raise UsageError(f"{self.path}: these tables follow it already")
        check_seconds(poll, "poll")
        if (max_age is None) is not (on_age is None):
            raise UsageError("max_age and on_age go together: after how many seconds, and what is called then")
        if max_age is not None:
            check_seconds(max_age, "max_age")

        self._keeper = Keeper(self, poll, on_update, max_age, on_age, on_error)
        self._thread = threading.Thread(target=self._keeper.run, name="cnrfmt live tables", daemon=True)
        self._thread.start()

    def status(self) -> LiveStatus:
        """How this server stands."""
        served, keeper = self._held[-1], self._keeper
        error: BaseException | None = None if keeper is None else keeper.error
        error = error or next((one.error for one in self._hydrations if one.error is not None), None)
        return LiveStatus(
            served.version,
            served.step,
            served.created,
            (datetime.now(UTC) - served.created).total_seconds(),
            self._updates,
            self._applied_s,
            self.progress,
            self._pinned,
            error,
            0.0 if keeper is None else keeper.failing_s,
        )

    def close(self) -> None:
        """Ends what goes on behind, and lets go of files. Snapshots that are held can be looked up all the same."""
        if self._process != os.getpid():
            # What goes on behind does so in another process.
            return
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for one in self._hydrations:
            one.close()
        self._checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<cnrfmt.LiveTables of {self.path!r}>"

    # A mapping compares its items, which would be looked up.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _dtype(dtype: Any) -> np.dtype[Any] | None:
    """A caller's data type for rows; raises `UsageError`."""
    if dtype is None:
        return None
    found: np.dtype[Any] = np.dtype(dtype)
    if found.kind not in "fV" or found.names is not None:
        raise UsageError(f"dtype is a floating-point type, as rows are kept in memory, found {found}")
    return found
