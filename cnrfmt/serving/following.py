"""Following a container: each version that comes, with the rows that it changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from cnrfmt.checkpoint import Checkpoint
from cnrfmt.errors import MissingKeyError
from cnrfmt.format.manifest import Manifest
from cnrfmt.reader import PathLike, open
from cnrfmt.serving.watching import Watch, check_seconds
from cnrfmt.storage.fs import Fs
from cnrfmt.table import Changes, Table
from cnrfmt.view import View


class Changed(Mapping[str, Changes]):
    """By table, the rows that changed between two versions; found out when a table is asked for."""

    def __init__(self, view: View, before: Manifest) -> None:
        self._view, self._before = view, before
        self._tables = {schema.name: schema for schema in view.manifest.tables}
        self._known: dict[str, Changes] = {}

    def __getitem__(self, name: str) -> Changes:
        if name not in self._known:
            if name not in self._tables:
                raise MissingKeyError(f"no table {name!r} in version {self._view.manifest.version}")
            table = Table(self._view, self._tables[name])
            self._known[name] = self._view.changed_since(table, self._before, self._view.budget())
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


@dataclass(frozen=True, eq=False)
class Update:
    """A version that came, and what it brought since the one before it that was seen.

    Versions between the two were superseded: their rows are among the changed ones, and are read once.

    Attributes
    ----------
    before, version
        The version that was seen before, and this one.
    step
        The trainer's step.
    checkpoint
        The container, open at this version until the next update is asked for.
    changed
        By table the rows that changed, as `Table.changed` tells them; found out when it is asked for. Where `exact` is
        False, the rows are all that the table has, and what it doesn't list is gone.
    added, dropped
        The tables that came and went.
    """

    before: int
    version: int
    step: int | None
    checkpoint: Checkpoint
    changed: Mapping[str, Changes]
    added: tuple[str, ...]
    dropped: tuple[str, ...]


class Follower:
    """Yields each new version of a container; made by `follow`. A context manager."""

    def __init__(self, checkpoint: Checkpoint, before: Manifest, poll: float) -> None:
        self.checkpoint = checkpoint
        self._before = before
        self._over = threading.Event()
        self._watch = Watch(checkpoint.path, poll, self._over)
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self.error: Exception | None = None
        """What is wrong where it calls back; None where nothing is. It is tried again."""

    def __iter__(self) -> Iterator[Update]:
        while not self._over.is_set():
            found = self.next_update()
            if found is not None:
                yield found
            else:
                self._watch.wait()

    def next_update(self) -> Update | None:
        """The newest version, if it is newer than the one before; without waiting.

        Raises
        ------
        DamagedError
            Another container, or an older state, is in the container's place, or what is new is damaged.
        StorageError
            The operating system refuses.
        """
        checkpoint, before = self.checkpoint, self._before
        checkpoint.move_on()
        view = checkpoint.view
        if view.manifest.digest == before.digest:
            return None
        self._before = view.manifest
        names, old = ({schema.name for schema in m.tables} for m in (view.manifest, before))
        return Update(
            before.version,
            view.manifest.version,
            view.manifest.step,
            checkpoint,
            Changed(view, before),
            tuple(sorted(names - old)),
            tuple(sorted(old - names)),
        )

    def start(self, on_update: Callable[[Update], None]) -> None:
        """Calls back from a thread of its own for each version, until `close`.

        Where that raises, or what is new can't be taken in, `error` tells so, and it is tried again; by then what is
        newer may have come, too.
        """

        def run() -> None:
            while not self._over.is_set():
                before = self._before
                try:
                    update = self.next_update()
                    if update is not None:
                        on_update(update)
                    self.error = None
                except Exception as error:
                    self._before, self.error = before, error
                self._watch.wait()

        self._thread = threading.Thread(target=run, name="cnrfmt follow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it, and closes the checkpoint; raises `error`, where it calls back and something is wrong."""
        if self._process != os.getpid():
            # The thread, and whatever it waits for, is in another process.
            return
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._watch.close()
        self.checkpoint.close()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def follow(
    path: PathLike,
    on_update: Callable[[Update], None] | None = None,
    *,
    since: int | None = None,
    poll: float = 0.1,
    threads: int | None = None,
    max_bytes: int | None = None,
    fs: Fs | None = None,
    **options: Any,
) -> Follower:
    """Follows a container: gives each version that is committed from now on, with its changed and deleted rows.

    Parameters
    ----------
    on_update
        Is called with each `Update` from a thread of its own. Where it raises, `Follower.error` tells so, and it is
        called again, with what is new since it last returned. Without it, iterate over what this returns.
    since
        The version that is known already; the newest one at this moment if None.
    poll
        Seconds between looks at the container; where the library `watchfiles` is installed, a commit is seen at once.
    threads, max_bytes, options
        As `cnrfmt.open` has them.

    Returns
    -------
    Follower
        To be iterated over, and closed. Who comes late gets the newest version at once, with all that changed since
        theirs.

    Raises
    ------
    DamagedError, VersionNotFoundError, StorageError
        As `open` raises them; and while it is iterated, where another container or an older state is put in its place.
    """
    check_seconds(poll, "poll")
    checkpoint = open(path, threads=threads, max_bytes=max_bytes, fs=fs, **options)
    try:
        before = checkpoint.manifest
        if since is not None:
            before = checkpoint.manifest_of(since)
        found = Follower(checkpoint, before, float(poll))
    except BaseException:
        checkpoint.close()
        raise
    if on_update is not None:
        found.start(on_update)
    return found
