"""`CheckpointManager`: what a trainer calls to have its checkpoints made, kept and restored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

from cnrfmt.checkpointing import endings
from cnrfmt.checkpointing.background import Pending
from cnrfmt.checkpointing.checkpointer import Checkpointer
from cnrfmt.checkpointing.encoding_rule import Encoding
from cnrfmt.checkpointing.events import Listener
from cnrfmt.checkpointing.keeping.retention import Keep
from cnrfmt.checkpointing.policies import Decision, History, Policy
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.checkpointing.request import request
from cnrfmt.checkpointing.resuming.restored import Restored
from cnrfmt.checkpointing.saving import Saving
from cnrfmt.checkpointing.settings import (
    MOST_SEGMENTS,
    Mode,
    Start,
    StoredIn,
    WhenBusy,
    check_flag,
    check_for_ranks,
    check_restore,
    settings,
)
from cnrfmt.checkpointing.stored_values import StoredValues
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import UsageError, VersionNotFoundError
from cnrfmt.storage.container import path_text
from cnrfmt.storage.fs import Fs


class CheckpointManager:
    """Makes the checkpoints of one training run, as Check-N-Run does (Eisenman et al., NSDI 2022).

    The trainer says which rows change (`track`), and from time to time hands over its live tables (`save`), which picks
    the rows to write, encodes them at once and returns; the rest goes on in the background. After a failure, `restore`
    gives the newest version, and the next `save` goes on from there.

        manager = cnrfmt.CheckpointManager("run7", policy="intermittent", expected_restores=3, keep=2)
        restored = manager.restore(into=tables)          # None in a directory where nothing is yet
        for step in range(...):
            manager.track("user", ids)
            ...
            if step % 1000 == 0:
                pending = manager.save(step, tables, dense=weights)
        manager.close()

    Parameters
    ----------
    path
        The container: a directory, or a single file (``.cnr``), of which each baseline leaves itself alone.
    policy
        ``"full"``, ``"one-shot"``, ``"consecutive"``, ``"intermittent"``, one of the policies' objects, or a function
        of a `History` that answers ``"baseline"``, ``"delta"`` or ``"since-baseline"``. None: ``"consecutive"`` where
        tables may be on a grid, whose deltas are merged by addition, else ``"intermittent"``.
    encoding
        ``"rowwise"``: rows as `bits` or `quantize` say. ``"grid"``: each delta stores how rows differ from what the
        version before stored for them, in steps that follow from `learning_rate` and the restores that are expected;
        a `Grid` says that itself. ``"auto"``: a grid for each table of which both are known and a column tells how far
        the optimizer moves its rows, unless `bits` or `quantize` is given, else row-wise; `cnrfmt info` says why. A
        dict of patterns, as `quantize` has them, to `Grid`, `Quantize` or None (raw); what none of them names is as
        under ``"auto"``.
    learning_rate
        The optimizer's, which the steps of a grid are multiples of. A `restore` under a smaller one, or after more
        restores than the steps allow, has a baseline in finer steps come next.
    expected_restores, failure_rate, run_hours
        How often the run will go on from a checkpoint, or how often an hour it fails and how long it takes: from that
        the bits follow, or the steps of a grid. If it happens more often, bits are 8 from then on, and steps become
        finer; the container keeps count.
    bits
        2 to 8, or 32 for raw rows, in place of those. 8 where nothing is said.
    quantize
        As for `save`: where it has a say on a table, it goes before the bits.
    keep
        The last so many checkpoints, or a `Keep`. None keeps all. What was given up is removed `grace` seconds later.
    grace
        Seconds, or a timedelta, for which files of versions that were given up stay for readers that have them open.
    most_segments, merge_share
        A chain is merged in the background so that it has at most this many segments; and into its baseline once the
        deltas are more than this share of it, which keeps restores quick and writes more. In a directory. ``"auto"``:
        once they are more than all of it where tables may be on a grid, else never.
    buffer_bytes
        How many bytes of encoded rows may wait to be written. Beyond it `save` waits for the disk.
    mode
        ``"encode"``: `save` encodes; ``"copy"``: it only copies the rows that changed, which takes as much memory as
        they do, and they are encoded behind.
    when_busy
        What a `save` does while the one before it is being written: ``"wait"`` for it, ``"skip"`` this one, or
        ``"replace"`` that one, whose rows this one writes too.
    start
        ``"resume"``: on a container that has versions `restore` comes first; ``"anew"``: this is another run, and its
        first checkpoint is a baseline.
    threads, save_threads
        How many threads the background may take; and `save`, as many as there are processors if None.
    stored_values, stored_bytes
        ``"memory"`` or ``"container"``: `stored_values` gives any row as last stored, from a copy in memory or from the
        container; at most so many bytes are taken for it (1 GiB if None). Deltas on a grid need that in any case: in
        memory unless said otherwise, about two bytes per value, and without a bound if None. Of several ranks, each
        keeps the rows that it has.
    on_event
        Called with an `Event` for each thing that happens.
    flush_on_sigterm
        Whether SIGTERM finishes what is under way before it ends the process (for a manager made on the main thread).
    coordinator
        Where several processes, *ranks*, write each checkpoint together: how they meet, a `FileCoordinator` on one
        machine. Every rank has a manager with the same settings and calls `save` as often as the others, with the
        tables that it has, whole or as `Shard`s; rank 0 alone gives the dense state. A version counts when all have
        written their part.

    Raises
    ------
    UsageError
        Settings that don't fit. Nothing on the disk is looked at before the first `save` or `restore`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: str | Policy | Callable[[History], Decision] | None = None,
        encoding: Encoding = "auto",
        learning_rate: float | None = None,
        expected_restores: float | None = None,
        failure_rate: float | None = None,
        run_hours: float | None = None,
        bits: int | None = None,
        quantize: Choices = None,
        keep: int | Keep | None = None,
        grace: float | timedelta = 3600,
        most_segments: int = MOST_SEGMENTS,
        merge_share: float | Literal["auto"] | None = "auto",
        buffer_bytes: int = 4 << 30,
        mode: Mode = "encode",
        when_busy: WhenBusy = "wait",
        start: Start = "resume",
        threads: int = 1,
        save_threads: int | None = None,
        stored_values: StoredIn | None = None,
        stored_bytes: int | None = None,
        on_event: Listener | None = None,
        flush_on_sigterm: bool = True,
        coordinator: Coordinator | None = None,
        fs: Fs | None = None,
    ) -> None:
        self._path = os.path.abspath(path_text(path))
        check_flag("flush_on_sigterm", flush_on_sigterm)
        self._settings = settings(
            self._path,
            policy=policy,
            encoding=encoding,
            learning_rate=learning_rate,
            bits=bits,
            expected=expected_restores,
            failure_rate=failure_rate,
            run_hours=run_hours,
            quantize=quantize,
            keep=keep,
            grace=grace,
            most_segments=most_segments,
            merge_share=merge_share,
            buffer_bytes=buffer_bytes,
            mode=mode,
            when_busy=when_busy,
            start=start,
            threads=threads,
            save_threads=save_threads,
            stored_values=stored_values,
            stored_bytes=stored_bytes,
            on_event=on_event,
        )
        if coordinator is not None:
            if not callable(getattr(coordinator, "gather", None)) or not hasattr(coordinator, "world_size"):
                raise UsageError(f"coordinator must be a FileCoordinator or something like it, found {coordinator!r}")
            check_for_ranks(self._settings, self._path)
        self._run = Checkpointer(self._path, self._settings, coordinator, fs)
        self._saving = Saving(self._run)
        self._closed = False
        self._process = os.getpid()
        endings.watch(self, sigterm=flush_on_sigterm)

    # What changes

    def track(self, table: str, ids: Any) -> None:
        """Notes that these rows of a table change: row ids of a dense one, keys of a keyed one, repeats allowed.

        Safe from any thread. Rows that are marked while a checkpoint is being made belong to the next one. Of a table
        that is being restored lazily, these rows are there when it returns, to be read and written.

        Raises
        ------
        MissingKeyError
            A table or a row id that isn't there; nothing was marked.
        UsageError
            Ids that are no integers.
        CnrError
            What kept the checkpoint before this from being written, if nobody asked for it yet, or rows from being
            restored; the ids are noted.
        """
        self._check_own()
        # What failed before is told after the ids are noted: whoever goes on all the same has lost none.
        self._run.trackers.mark(table, ids)
        if (lazy := self._run.lazy) is not None:
            lazy.ensure(table, ids)
        self._saving.raise_failure()

    def forget(self, table: str, keys: Any) -> None:
        """Notes that these keys are gone from a keyed table. Raises as `track` does.

        Of a table that is being restored lazily, the places of their rows may be given to others when it returns.
        """
        self._check_own()
        self._run.trackers.forget(table, keys)
        if (lazy := self._run.lazy) is not None:
            lazy.ensure(table, keys)
        self._saving.raise_failure()

    def resize(self, table: str, rows: int) -> None:
        """Notes that a dense table has so many rows now: those that it has grown by change, and can be tracked.

        `save` sees for itself that a table has grown or shrunk. This is for rows that are tracked before, and for a
        table that shrinks and grows again between two checkpoints. Raises as `track` does.
        """
        self._check_own()
        self._run.trackers.resize(table, rows)
        if (lazy := self._run.lazy) is not None:
            # Where the table grows again, nothing that was stored may come into new rows.
            lazy.ensure_from(table, rows)
        self._saving.raise_failure()

    # Saving

    def save(
        self,
        step: int | None,
        tables: Mapping[str, Any],
        *,
        dense: Mapping[str, Any] | None = None,
        reader: Any = None,
        random: bool | Mapping[str, Any] = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: Decision | None = None,
    ) -> Pending:
        """Begins a checkpoint of these live tables, and returns as soon as they may change again.

        Where several ranks have parts of a table that comes onto a grid, at a baseline mostly, it waits until all have
        called it, to learn from each what its rows are like.

        It holds exactly what it is given: nothing of the checkpoint before it is taken over but the rows that weren't
        marked since. It is durable when `commit` of the result has resolved. The first one after a lazy restore waits
        until all rows are there, and takes the arrays that are filled.

        Parameters
        ----------
        step
            The trainer's own counter.
        tables
            Every table of the model, whole: arrays, or `TableData` with optimizer state in `columns` and, for a keyed
            table, all its keys. `Dropped()` for a table that is gone.
        dense
            Everything else of the model, as for `cnrfmt.save`.
        reader
            Where the reader of the training data stands: what JSON can say, or bytes.
        random
            True: the states of the random number generators of Python, numpy and torch, where they are loaded; or a
            dict of names to generators of numpy, which are put beside them.
        metrics
            What is known of the model: `Keep(best=...)` goes by it.
        tags
            Names for the version; it stays as long as it has one.
        metadata
            As for `cnrfmt.save`.
        kind
            What to write, whatever the policy says: ``"baseline"``, ``"delta"`` or ``"since-baseline"``.

        Raises
        ------
        UsageError, MissingKeyError
            Nothing was begun, and what was marked still is.
        CommitError
            Nothing was begun either: ranks that wait for each other lost one, or one of them failed (with its error).
        CnrError
            What kept the checkpoint before this from being written, if nobody asked for it yet.
        """
        self._check_usable()
        shards = self._run.coordinator is not None
        return self._saving.save(
            step,
            lambda: request(step, tables, dense, reader, random, metrics, tags, metadata, kind, shards=shards),
        )

    def wait(self) -> None:
        """Waits until nothing is under way. Raises what kept a checkpoint from being written, if nobody asked yet."""
        self._saving.wait()
        self._saving.raise_failure()

    def flush(self, *, ending: bool = False) -> None:
        """Waits until nothing is under way, a `save` in another thread included; doesn't raise.

        `ending`: since the process ends, rows that are still being restored aren't waited for.
        """
        if self._process == os.getpid():
            with self._saving.lock:
                if ending and (lazy := self._run.lazy) is not None:
                    lazy.stop()
                self._saving.wait()

    # Restoring

    def restore(
        self,
        *,
        version: int | None = None,
        step: int | None = None,
        tag: str | None = None,
        verify_all: bool = False,
        tables: Iterable[str] | None = None,
        rows: Mapping[str, Any] | None = None,
        into: Mapping[str, Any] | None = None,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        remap: Mapping[str, Any] | None = None,
        resize: Mapping[str, Any] | None = None,
        columns: bool = True,
        convert: bool = False,
        lazy: bool = False,
        order: Mapping[str, Any] | None = None,
    ) -> Restored | None:
        """Reads a version, the newest unless one is named; the next `save` goes on from it. None where there is none.

        Parameters
        ----------
        version, step, tag
            Which version: by its number, by the trainer's step (the newest of it), or by a tag.
        verify_all
            Whether every byte is checked before a target is changed, rather than each when it is read.
        tables, rows, into, strict, rename, remap, resize, columns, convert
            As for `restore_version`. Where they give the tables in part or as other ones, the next checkpoint is a
            baseline, since rows that aren't marked aren't as they are stored. With several ranks each gives `into` what
            it has: arrays, or `Shard`s of them.
        lazy
            Whether it returns at once, with arrays whose rows are decoded when they are first wanted: by `track` or
            `Restored.ensure`, before the trainer reads or writes them. The place of a key's row is given to another key
            only once `forget`, `track` or `ensure` has returned for the one that had it. The rest is decoded behind, by
            as many threads as the background may take; `Restored.wait` waits for it, and so does the next `save`. Rows
            come as they are stored: `remap`, and `rows` that are lists, go with ``lazy=False``.
        order
            With `lazy`, by table, a number for each row, how often it is looked up: rows with much are decoded first.

        Raises
        ------
        VersionNotFoundError, UsageError, DamagedError, UnsupportedError, StorageError
            As `open` and `restore_version` raise them; no checkpoint goes on from there then.
        """
        self._check_usable()
        options = {
            "tables": tables,
            "rows": rows,
            "into": into,
            "strict": strict,
            "rename": rename,
            "remap": remap,
            "resize": resize,
            "columns": columns,
            "convert": convert,
            "lazy": lazy,
            "order": order,
        }
        check_restore({**options, "verify_all": verify_all})
        with self._saving.lock:
            # A restore before this, of other rows perhaps, needn't come to its end.
            self._run.forget_lazy()
            self.wait()
            if self._run.is_nothing_there():
                if version is not None or step is not None or tag is not None:
                    raise VersionNotFoundError(f"{self._path}: there is no container yet")
                return None
            restored = self._run.restore(version, step, tag, verify_all, options)
            self._saving.restored()
            return restored

    @property
    def stored_values(self) -> StoredValues:
        """The rows of all tables as they were last stored; raises `UsageError` unless they were asked for."""
        if self._run.bases.asked is None:
            raise UsageError(
                f'{self._path}: stored values weren\'t asked for; CheckpointManager(..., stored_values="memory") keeps '
                'them, "container" reads them back'
            )
        if (lazy := self._run.lazy) is not None:
            # They are read behind the rows; what kept these from coming is raised.
            lazy.wait()
            self._saving.wait()
        return self._run.bases.asked

    # The end

    def close(self) -> None:
        """Waits until nothing is under way.

        Raises what kept a checkpoint from being written, if nobody asked yet, or rows from being restored.
        """
        self._end(ending=False)

    def _end(self, *, ending: bool) -> None:
        self._closed = True
        endings.unwatch(self)
        self.flush(ending=ending)
        self._run.bases.forget()
        try:
            if (lazy := self._run.lazy) is not None and not ending:
                lazy.wait()
        finally:
            self._run.forget_lazy()
        self._saving.raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(ending=error is not None)
        except Exception:
            # The error that ends the block is the one to see.
            if error is None:
                raise

    def _check_usable(self) -> None:
        self._check_own()
        self._saving.raise_failure()

    def _check_own(self) -> None:
        if self._closed:
            raise UsageError(f"{self._path}: the manager was closed; make another")
        if self._process != os.getpid():
            raise UsageError(f"{self._path}: this manager belongs to process {self._process}; a fork can't save")
