"""Tables in memory that follow a trainer, version by version, while look-ups go on."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import numpy as np

from cnrfmt import dtypes, reader
from cnrfmt.checkpoint import Checkpoint
from cnrfmt.errors import CnrError, DamagedError, MissingKeyError, TooLargeError, UsageError, VersionNotFoundError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.memory import Budget, check_limit, guarded
from cnrfmt.patterns import Patterns
from cnrfmt.reader import PathLike
from cnrfmt.segment_reader import Backend, Verify
from cnrfmt.serving.held_rows import ShardBy, Wanted
from cnrfmt.serving.hydrating import Hydration, Progress
from cnrfmt.serving.live_rows import Lease, LiveRows
from cnrfmt.serving.live_table import LiveTable
from cnrfmt.serving.served import Next, Served, begin, goes_on, moved
from cnrfmt.serving.slots import Map, Slots
from cnrfmt.serving.snapshot import LiveStatus, Snapshot
from cnrfmt.serving.watching import Watch
from cnrfmt.storage.fs import Fs
from cnrfmt.table import Changes, Table

_Maps = dict[int, dict[str, tuple[Slots, Map | None]]]
"""By generation and table, whose slots, and their map."""


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
        self._limit, self._dtype = check_limit(max_bytes), None if dtype is None else np.dtype(dtype)
        self._options: dict[str, Any] = {
            "backend": backend, "verify": verify, "threads": threads, "max_bytes": max_bytes, "fs": fs
        }  # fmt: skip
        self._advancing, self._over = threading.Lock(), threading.Event()
        self._dead: deque[int] = deque()
        self._maps: _Maps = {}
        self._generation = -1
        self._held: deque[Snapshot] = deque(maxlen=hold)
        self._pinned = version is not None or tag is not None or digest is not None
        self._tables: dict[str, Served] = {}
        self._updates = 0
        self._applied_s: float | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._checkpoint = reader.open(path, version=version, tag=tag, digest=digest, **self._options)
        self._hydrations: list[Hydration] = []
        try:
            self._patterns.check(list(self._checkpoint), self.path)
            for name in self._wanted.rows:
                if name not in self._checkpoint or name not in self._patterns:
                    raise MissingKeyError(f"rows names a table that isn't served: {name!r}")
            names = [name for name in self._checkpoint if name in self._patterns]
            begun = self._begin({name: self._checkpoint[name] for name in names}, self._checkpoint)
            self._show(self._checkpoint, [Next(served) for served in begun.values()])
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
    def versions(self) -> tuple[int, ...]:
        """Those that are held, the one that is served last."""
        return tuple(snapshot.version for snapshot in tuple(self._held))

    def snapshot(self, version: int | None = None) -> Snapshot:
        """One version of all tables: the one that is served, or another one that is held.

        Raises `VersionNotFoundError` for one that isn't held.
        """
        held = tuple(self._held)
        if version is None:
            if self._over.is_set():
                raise UsageError(f"{self._checkpoint.path}: the tables were closed; open them again")
            return held[-1]
        found = next((one for one in reversed(held) if one.version == version), None)
        if found is None:
            versions = ", ".join(str(one.version) for one in held)
            raise VersionNotFoundError(f"{self.path}: version {version} isn't held; held are {versions} (see hold=)")
        return found

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
        """How many rows are there of the version that it began with."""
        some = [one.progress for one in self._hydrations]
        return Progress(sum(p.rows for p in some), sum(p.of_rows for p in some))

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
        VersionNotFoundError, StorageError, TooLargeError
            As `cnrfmt.open` raises them, or more memory would be taken than `max_bytes`.
        """
        with self._advancing, guarded(f"{self.path}, a newer version"):
            if version is None and digest is None:
                self._pinned = False
                self._checkpoint.move_on()
                found = self._checkpoint
            else:
                found = reader.open(self.path, version=version, digest=digest, **self._options)
                known, other = self._checkpoint.manifest.container_id, found.manifest.container_id
                if known != other:
                    raise DamagedError(
                        "manifest-identity",
                        self.path,
                        expected=f"container {known.hex()}",
                        found=f"container {other.hex()}",
                        advice="another container was put in its place: open it anew if that is meant",
                    )
            moved = self._advance(found)
            self._pinned = version is not None or digest is not None
            return moved

    def _advance(self, checkpoint: Checkpoint) -> bool:
        before = self.snapshot().manifest
        if checkpoint.manifest.digest == before.digest:
            return False
        started = time.monotonic()
        self._release()
        # A view of its own: the checkpoint moves on while snapshots of this version are held.
        view = checkpoint.view
        found: list[Next] = []
        try:
            for name, table in checkpoint.items():
                if name in self._patterns:
                    found.append(self._moved(table, view.changed_since(table, before, view.budget()), checkpoint))
        except BaseException:
            for one in found:
                one.served.slots.give_back(one.taken)
            raise
        self._show(checkpoint, found)
        self._updates += 1
        self._applied_s = time.monotonic() - started
        return True

    def _moved(self, table: Table, changes: Changes, checkpoint: Checkpoint) -> Next:
        """What becomes of a table; one that begins anew is there whole before it is seen."""
        served = self._tables.get(table.name)
        if served is not None and goes_on(served.schema, table.schema) and changes.exact:
            return moved(served, table, changes, self._check_memory)
        begun = self._begin({table.name: table}, checkpoint)[table.name]
        self._hydrations[-1].wait()
        return Next(begun)

    def _begin(self, tables: Mapping[str, Table], checkpoint: Checkpoint) -> dict[str, Served]:
        """Begins to decode tables into slots of their own."""
        budget = Budget(self._limit)
        budget.take(self._nbytes, self.path)
        hydration, found = begin(tables, self._wanted, self._dtype, checkpoint, budget)
        self._hydrations.append(hydration)
        return found

    @property
    def _nbytes(self) -> int:
        """Memory that rows and maps take."""
        return sum(one.slots.nbytes for one in self._tables.values())

    def _check_memory(self, nbytes: int, what: str) -> None:
        """That so many bytes more may be taken."""
        if self._limit is not None and self._nbytes + nbytes > self._limit:
            raise TooLargeError(what, self._nbytes + nbytes, self._limit)

    def _show(self, checkpoint: Checkpoint, found: list[Next]) -> None:
        """Makes what was prepared the version that is served, all tables at once."""
        lease = Lease()
        self._generation += 1
        rows, maps = {}, {}
        tables: dict[str, Served] = {}
        for one in found:
            served, slots = one.served, one.served.slots
            name = served.schema.name
            if one.step is not None:
                slots.move(one.step)
            tables[name] = served
            column = served.schema.column(WEIGHT)
            assert column is not None
            fill = np.frombuffer(column.fill, dtypes.dtype_of(column.dtype))
            default = np.full(served.schema.dim, fill[0], slots.store.dtype)
            maps[name] = (slots, slots.map)
            rows[name] = LiveRows(
                served.schema, served.positions, served.rows, slots.map, slots.store, default, served.base, lease
            )
        self._maps[self._generation] = maps
        weakref.finalize(lease, self._dead.append, self._generation).atexit = False
        self._tables = tables
        # The switch, which look-ups see whole or not at all.
        self._held.append(Snapshot(checkpoint, rows, lease))

    def _release(self) -> None:
        """Takes back what only generations had that nobody looks at any more."""
        gone: _Maps = {}
        while self._dead:
            generation = self._dead.popleft()
            gone[generation] = self._maps.pop(generation)
        oldest = min(self._maps)
        for name, served in self._tables.items():
            slots = served.slots
            dead, alive = (_maps_of(slots, name, some) for some in (gone, self._maps))
            slots.release(dead, [m for _, m in alive], oldest, slots=served.base.is_complete)

    def follow(
        self,
        *,
        poll: float = 0.1,
        on_update: Callable[[Snapshot], None] | None = None,
        max_age: float | None = None,
        on_age: Callable[[LiveStatus], None] | None = None,
    ) -> None:
        """Takes in each new version from now on, in a thread of its own, until `close`.

        What can't be taken in is tried again, and told by `status`; look-ups go on with what there is.

        Parameters
        ----------
        poll
            Seconds between looks at the container; where `watchfiles` is installed, a commit is seen at once.
        on_update
            Is called from that thread with each version that was taken in.
        max_age, on_age
            Is called from that thread when what is served was committed more than so many seconds ago, once until
            something newer is served.
        """
        if self._thread is not None:
            raise UsageError(f"{self.path}: these tables follow it already")
        if isinstance(poll, bool) or not isinstance(poll, int | float) or not poll > 0:
            raise UsageError(f"poll is a number of seconds above 0, found {poll!r}")

        def run() -> None:
            watch, told = Watch(self.path, float(poll), self._over), None
            while not self._over.is_set():
                try:
                    if not self._pinned and self.advance() and on_update is not None:
                        on_update(self.snapshot())
                    self._error = None
                except CnrError as error:
                    self._error = error
                status = self.status()
                if max_age is not None and on_age is not None and status.age_s > max_age and told != status.version:
                    told = status.version
                    on_age(status)
                watch.wait()
            watch.close()

        self._thread = threading.Thread(target=run, name="cnrfmt live tables", daemon=True)
        self._thread.start()

    def status(self) -> LiveStatus:
        """How this server stands."""
        served = self._held[-1]
        return LiveStatus(
            served.version,
            served.step,
            served.created,
            (datetime.now(UTC) - served.created).total_seconds(),
            self._updates,
            self._applied_s,
            self.progress,
            self._pinned,
            self._error,
        )

    def close(self) -> None:
        """Ends what goes on behind, and lets go of files. Snapshots that are held can be looked up all the same."""
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


def _maps_of(slots: Slots, name: str, maps: _Maps) -> list[tuple[int, Map]]:
    """The maps that generations had of these slots of a table."""
    found = ((generation, *tables[name]) for generation, tables in maps.items() if name in tables)
    return [(generation, one) for generation, owner, one in found if owner is slots and one is not None]
