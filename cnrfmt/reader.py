"""Opening a container: `open`, `Checkpoint` and `load`."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from cnrfmt import parallel
from cnrfmt.arrays import Array
from cnrfmt.errors import DamagedError, MissingKeyError, UsageError, VersionExpiredError, VersionNotFoundError
from cnrfmt.format.manifest import Manifest
from cnrfmt.history import History, check_goes_on, read_head
from cnrfmt.memory import Budget, check_limit, guarded
from cnrfmt.run_record import record_of, user_metadata
from cnrfmt.segment_reader import Backend, SegmentReader, Verify
from cnrfmt.storage.container import Container, open_container, path_text
from cnrfmt.storage.fs import Fs
from cnrfmt.table import Changes, Table
from cnrfmt.tabledata import TableData
from cnrfmt.view import ReadOptions, View

PathLike = str | os.PathLike[str]
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

    def _refresh(self, budget: Budget) -> Refreshed | None:
        self._view.check_open()
        history = self._history
        container = open_container(self.path, self._fs)
        try:
            if container.same_as(history.container):
                container.close()
                container = history.container
            view = _opened(lambda: self._newer_view(container, budget), None, budget)
            if view is None:
                return None
        except BaseException:
            if container is not history.container:
                container.close()
            raise
        before, old = self._view, self._tables
        if container is not history.container:
            # What was opened of the old one stays open for as long as its tables are held.
            history.container.close()
        history.container, history.head = container, view.manifest
        self._show(view)
        return Refreshed(
            before.manifest.version,
            self.version,
            {name: view.changed(t, before.manifest.version, budget) for name, t in self._tables.items()},
            tuple(name for name in self._tables if name not in old),
            tuple(name for name in old if name not in self._tables),
        )

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


def open(
    path: PathLike,
    *,
    version: int | None = None,
    tag: str | None = None,
    backend: Backend = "mmap",
    verify: Verify = "touched",
    digest: str | None = None,
    threads: int | None = None,
    max_bytes: int | None = None,
    fs: Fs | None = None,
) -> Checkpoint:
    """Opens a container for reading, at its newest version, or at `version`, or at the one that has the `tag`.

    Parameters
    ----------
    path
        A single file or a directory.
    version
        An older, retained version. Where none is asked for and the newest goes while it is opened, its successor is.
    tag
        The name of a version, in its place.
    backend
        ``"mmap"``, or ``"pread"``, which also survives a file that somebody truncates or changes in place.
    verify
        ``"touched"`` checks the digest of each piece before its first use, ``"all"`` those of all pieces before
        `open` returns, ``"none"`` leaves data unchecked (metadata are always checked).
    digest
        The manifest digest (`Checkpoint.digest`) that the version must have.
    threads
        How many threads a call on the result may use; as many as there are processors if None.
    max_bytes
        How much memory a call, this one or one on the result, may take for what the file claims: arrays of results,
        row indexes, dense state, and metadata at 32 bytes for each of their own. What exceeds it is refused with
        `TooLargeError` before it is taken. (A manifest's own bytes, 128 MiB at the most and no more than the file
        has, are read before they are counted, and a call takes some MiB per thread beside.) None doesn't limit it.

    Raises
    ------
    DamagedError, UnsupportedError, VersionNotFoundError, TooLargeError, StorageError
    """
    options = _options(backend, verify, threads, max_bytes)
    _check_pin(digest)
    if tag is not None and version is not None:
        raise UsageError(f"a version is named by its number or by a tag, not by both: found {version!r} and {tag!r}")
    return _open(path, version, options, digest, fs, Budget(max_bytes), tag)


def _options(backend: Backend, verify: Verify, threads: int | None, max_bytes: int | None) -> ReadOptions:
    if backend not in ("mmap", "pread"):
        raise UsageError(f"backend is 'mmap' or 'pread', found {backend!r}")
    if verify not in ("none", "touched", "all"):
        raise UsageError(f"verify is 'none', 'touched' or 'all', found {verify!r}")
    return ReadOptions(backend, verify, parallel.thread_count(threads), check_limit(max_bytes))


def _check_pin(digest: str | None) -> None:
    """That a pinned digest could be one at all; raises `UsageError`."""
    if digest is not None and not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{16}", digest)):
        raise UsageError(f"digest is 16 hexadecimal digits, as Checkpoint.digest gives them, found {digest!r}")


def _open(
    path: PathLike,
    version: int | None,
    options: ReadOptions,
    digest: str | None,
    fs: Fs | None,
    budget: Budget,
    tag: str | None = None,
) -> Checkpoint:
    text = path_text(path)
    with guarded(f"{text}, metadata"):
        return Checkpoint(text, version, options, digest, fs, budget, tag)


def load(
    path: PathLike,
    tables: Iterable[str] | None = None,
    *,
    version: int | None = None,
    out: Mapping[str, Array] | None = None,
    columns: bool = False,
    backend: Backend = "mmap",
    verify: Verify = "touched",
    threads: int | None = None,
    max_bytes: int | None = None,
    fs: Fs | None = None,
) -> dict[str, Any]:
    """Loads whole tables into memory.

    Gives a dict of names to arrays of `rows x dim`. A keyed table comes as a `TableData` with keys; with
    ``columns=True`` every table comes as a `TableData` with all columns. `out` maps names to arrays that are
    filled instead of new ones. `max_bytes` is for all tables together, else as for `open`.

    Raises what `open` raises, and `MissingKeyError` for a table that isn't there.
    """
    options, budget = _options(backend, verify, threads, max_bytes), Budget(max_bytes)
    with _open(path, version, options, None, fs, budget) as ck, guarded(f"{ck.path}, tables"):
        if isinstance(tables, str):
            raise UsageError(f"tables is a list of names; use tables=[{tables!r}]")
        names = list(ck if tables is None else tables)
        if unknown := set(out or ()) - set(names):
            raise MissingKeyError(f"out names a table that isn't loaded: {min(unknown)!r}")
        return {name: _load_table(ck[name], (out or {}).get(name), columns, budget) for name in names}


def _load_table(table: Table, out: Array | None, columns: bool, budget: Budget) -> Any:
    values = table.read_within(budget, out=out)
    if not table.keyed and not columns:
        return values
    others = {c: table.read_within(budget, column=c) for c in table.columns[1:]}
    keys = table.keys
    if keys is not None:
        budget.take(keys.nbytes, f"table {table.name!r}, keys")
        keys = keys.copy()
    fill = {c: table.fill(c)[()] for c in table.columns}
    return TableData(values, columns=others, keys=keys, fill=fill)
