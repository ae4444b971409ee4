"""An open container at one version: `Checkpoint`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from cnrfmt import parallel
from cnrfmt.errors import DamagedError, MissingKeyError, VersionExpiredError, VersionNotFoundError
from cnrfmt.format.manifest import Manifest
from cnrfmt.history import History, check_goes_on, read_head
from cnrfmt.memory import Budget, check_limit, guarded
from cnrfmt.run_record import record_of, user_metadata
from cnrfmt.segment_reader import SegmentReader
from cnrfmt.storage.container import Container, open_container
from cnrfmt.storage.fs import Fs
from cnrfmt.table import Changes, Table
from cnrfmt.view import ReadOptions, View

if TYPE_CHECKING:
    from cnrfmt.serving.hydrating import Hydration

_Opened = TypeVar("_Opened")
_TRIES = 5


@dataclass(frozen=True)
class Refreshed:
    """What a refresh brought: tables with their changes, and the names that came and went."""

    before: int
    version: int
    changed: dict[str, Changes]
    added: tuple[str, ...]
    dropped: tuple[str, ...]


class Checkpoint(Mapping[str, Table]):
    """An open container at one version: a mapping of table names to tables.

    `version`, `versions`, `step` and `metadata` tell of the version; `dense` is its dense state, read when asked
    for. Safe to read from many threads. Made by `cnrfmt.open`.
    """

    def __init__(
        self,
        path: str,
        version: int | None,
        options: ReadOptions,
        digest: str | None,
        fs: Fs | None,
        budget: Budget,
        tag: str | None = None,
    ) -> None:
        # Whoever changes the working directory goes on with the same container.
        self.path = os.path.abspath(path)
        self._options, self._fs = options, fs
        self._history = History(self.path, open_container(self.path, fs))
        # A view lives as long as somebody holds one of its tables; its files are let go of with it.
        self._views: weakref.WeakSet[View] = weakref.WeakSet()
        self._refreshing = threading.Lock()
        try:
            self._show(_opened(lambda: self._first_view(version, tag, digest, budget), version, budget))
        except BaseException:
            self.close()
            raise

    def _first_view(self, version: int | None, tag: str | None, digest: str | None, budget: Budget) -> View:
        history = self._history
        history.head = read_head(history.container, budget)
        if tag is not None:
            version = self._tagged(tag)
        manifest = history.head if version is None else history.manifest_of(version, budget)
        if manifest is None:
            raise VersionNotFoundError(
                f"{self.path}: version {version} isn't retained; retained are {', '.join(map(str, self.versions))}"
            )
        if digest is not None and digest != f"{manifest.digest:016x}":
            raise DamagedError(
                "manifest-digest",
                f"{self.path}, version {manifest.version}",
                expected=f"the pinned digest {digest}",
                found=f"{manifest.digest:016x}",
                advice="another state was put in the place of the pinned one, or the pin is old",
            )
        return self._open_view(history.container, manifest, {}, budget)

    def _open_view(
        self, container: Container, manifest: Manifest, known: dict[bytes, SegmentReader], budget: Budget
    ) -> View:
        view = View(container, manifest, self._options, known=known, history=self._history, budget=budget)
        self._views.add(view)
        return view

    def _show(self, view: View) -> None:
        self._view = view
        self._tables = {schema.name: Table(view, schema) for schema in view.manifest.tables}

    @property
    def version(self) -> int:
        """The version that is open."""
        return self._view.manifest.version

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that can be opened, ascending, the head last."""
        head = self._history.head
        return (*(r.version for r in head.versions), head.version)

    @property
    def tags(self) -> dict[str, int]:
        """Names of versions that can be opened, as `cnrfmt.tag` gave them."""
        record = record_of(self._history.head)
        return {} if record is None else {name: v for name, v in record.tags.items() if v in self.versions}

    def _tagged(self, tag: str) -> int:
        tags = self.tags
        if tag not in tags:
            names = ", ".join(map(repr, sorted(tags))) or "none"
            raise VersionNotFoundError(f"{self.path}: no version has the tag {tag!r}; there are {names}")
        return tags[tag]

    @property
    def step(self) -> int | None:
        """The trainer's step, stored with the version."""
        return self._view.manifest.step

    @property
    def metadata(self) -> dict[str, Any]:
        """The user metadata of the version."""
        return user_metadata(self._view.manifest)

    @property
    def dense(self) -> dict[str, Any]:
        """The dense state: arrays (private copies), JSON values and bytes by name."""
        return self._view.dense

    @property
    def manifest(self) -> Manifest:
        """The commit record of the version."""
        return self._view.manifest

    @property
    def digest(self) -> str:
        """The digest of the version's manifest, to be pinned by ``open(..., digest=)``."""
        return f"{self._view.manifest.digest:016x}"

    @property
    def view(self) -> View:
        """The opened version, for those who want to look at its segments."""
        return self._view

    def __getitem__(self, name: str) -> Table:
        self._view.check_open()
        try:
            return self._tables[name]
        except KeyError:
            names = ", ".join(map(repr, list(self._tables)[:10])) or "none"
            raise MissingKeyError(
                f"{self.path}: no table {name!r} in version {self.version}; it has {names}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def hydrate(
        self,
        tables: Iterable[str] | None = None,
        *,
        rows: Mapping[str, Any] | None = None,
        shard: tuple[int, int] | None = None,
        shard_by: Literal["range", "hash"] | None = None,
        columns: bool | Iterable[str] | Mapping[str, Iterable[str]] = False,
        elements: Mapping[str, tuple[int, int]] | None = None,
        into: Mapping[str, Any] | None = None,
        order: Mapping[str, Any] | None = None,
        threads: int | None = None,
        max_bytes: int | None = None,
    ) -> Hydration:
        """Begins to decode tables into memory, and gives their arrays at once.

        Rows are decoded when somebody asks for them (`HydratedTable.ensure`, `gather`), the rest in the background. A
        row may be written to, by a trainer say, once `ensure` has returned for it.

        Parameters
        ----------
        tables
            Names or patterns; all if None.
        rows
            By table: a pair ``(first, end)``, a slice, or ids or keys. All rows of tables that aren't named.
        shard
            Of each table only a shard's rows: its number, from 0 on, and of how many.
        shard_by
            ``"hash"``, the rows whose `cnrfmt.shard_of` is the shard's number, as by default, or ``"range"``: of each
            dense table an equal range of the rows that it has now.
        columns
            ``False`` for the weights alone, ``True`` for all, or names of others that come with the weights, or a dict
            by table of such names.
        elements
            By table: the first element, and the end, of a range; all elements of tables that aren't named.
        into
            By table: an array for the weights, or a `TableData` of arrays, to be filled instead of new ones.
        order
            By table: a number for each row that is held, how often it is looked up: blocks with much come first.
        threads
            How many threads decode in the background; as many as the checkpoint was opened with if None.
        max_bytes
            The most that arrays, and what is known of their rows, may take; as the checkpoint was opened if None.

        Raises
        ------
        UsageError, MissingKeyError, TooLargeError
            What was asked for can't be; nothing was begun.
        DamagedError, StorageError
            The keys of a table couldn't be read.
        """
        # Rooms that stand on this one are imported on use.
        from cnrfmt.serving.held_rows import Wanted
        from cnrfmt.serving.hydrating import choices_of, hydrate

        self._view.check_open()
        options = self._view.options
        return hydrate(
            self.path,
            self.version,
            self,
            choices=choices_of(self.path, self, tables, Wanted(rows or {}, shard, shard_by)),
            columns=columns,
            elements=elements or {},
            into=into or {},
            order=order or {},
            threads=parallel.thread_count(threads) if threads is not None else options.threads,
            budget=Budget(options.max_bytes if max_bytes is None else check_limit(max_bytes)),
        )

    def refresh(self) -> Refreshed | None:
        """Moves on to the head if it is newer, and says what changed; None if there is nothing newer.

        Tables that were taken before stay at their version, and stay valid until the checkpoint is closed.
        A checkpoint that was opened at a given version moves on to the head, too.
        Threads may call it at once. Raises `DamagedError` where
        the container was exchanged for another one or went back to an older version. Where the list of what changed
        can't be had (`TooLargeError`, say), the checkpoint has moved on all the same.
        """
        with self._refreshing, guarded(f"{self.path}, what a refresh brings"):
            return self._refresh(self._view.budget())

    def move_on(self) -> bool:
        """As `refresh`, without finding out what changed; says whether there is anything newer."""
        with self._refreshing, guarded(f"{self.path}, what a refresh brings"):
            return self._move_on(self._view.budget())

    def manifest_of(self, version: int) -> Manifest:
        """The commit record of a version that can be opened; raises as `cnrfmt.open` does."""
        found = self._history.manifest_of(version, self._view.budget())
        if found is None:
            raise VersionNotFoundError(f"{self.path}: version {version} isn't retained")
        return found

    def _refresh(self, budget: Budget) -> Refreshed | None:
        before, old = self._view, self._tables
        if not self._move_on(budget):
            return None
        view = self._view
        return Refreshed(
            before.manifest.version,
            self.version,
            {name: view.changed(t, before.manifest.version, budget) for name, t in self._tables.items()},
            tuple(name for name in self._tables if name not in old),
            tuple(name for name in old if name not in self._tables),
        )

    def _move_on(self, budget: Budget) -> bool:
        self._view.check_open()
        history = self._history
        container = open_container(self.path, self._fs)
        try:
            if container.same_as(history.container):
                container.close()
                container = history.container
            view = _opened(lambda: self._newer_view(container, budget), None, budget)
            if view is None:
                return False
        except BaseException:
            if container is not history.container:
                container.close()
            raise
        if container is not history.container:
            # What was opened of the old one stays open for as long as its tables are held.
            history.container.close()
        history.container, history.head = container, view.manifest
        self._show(view)
        return True

    def _newer_view(self, container: Container, budget: Budget) -> View | None:
        """The head's view; None where that is open already."""
        history, before = self._history, self._view
        head = read_head(container, budget)
        check_goes_on(history.head, head, self.path)
        if head.version == self.version and head.digest == before.manifest.digest:
            return None
        known = dict(before.segments) if container is history.container else {}
        return self._open_view(container, head, known, budget)

    def close(self) -> None:
        """Lets go of files and maps; tables of this checkpoint can't be read afterwards."""
        # A refresh that is under way would open it again.
        with self._refreshing:
            for view in self._views:
                view.close()
            self._history.container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<cnrfmt.Checkpoint {self.path!r}: version {self.version}, {len(self)} tables>"

    # A mapping compares its items, which would read whole tables.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _opened(attempt: Callable[[], _Opened], version: int | None, budget: Budget) -> _Opened:
    """What an attempt to open a version gives: the one that was asked for, or the newest or a tagged one for None.

    Where a newer one is committed meanwhile and files that it doesn't need go at once, that is tried again.
    """
    for _ in range(_TRIES - 1 if version is None else 0):
        with suppress(VersionExpiredError), budget.tried():
            return attempt()
    return attempt()
