"""Instant restore: live arrays at once, in which rows are decoded when they are first touched, the rest behind."""

from __future__ import annotations

import copy
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np

from cnrfmt import dtypes
from cnrfmt.arrays import Array
from cnrfmt.encodings.grid import CHECKPOINTS
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.format.schema import WEIGHT
from cnrfmt.inputs import as_target
from cnrfmt.memory import Budget
from cnrfmt.patterns import Patterns
from cnrfmt.serving.held_rows import Choice, Wanted
from cnrfmt.serving.hydrated_table import HydratedTable, Progress
from cnrfmt.serving.lazy_memory import lazy_empty
from cnrfmt.table import Table
from cnrfmt.tabledata import TableData

_GRACE_S = 0.002
"""Seconds after which the background begins."""
_PATIENCE_S = 0.02
"""Seconds that the background waits, before each block, for those who touch rows."""


class Hydration(Mapping[str, HydratedTable]):
    """Tables that are being hydrated, by name. A context manager: at its end the background ends.

    Raises what went wrong in the background at the next touch of any table, and at `wait`.
    """

    def __init__(self, path: str, version: int, threads: int) -> None:
        self.path, self.version = path, version
        self._threads, self._process = threads, os.getpid()
        self._tables: dict[str, HydratedTable] = {}
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._workers: list[_Worker] = []
        self._counting, self._urgent, self._calm = threading.Lock(), 0, threading.Event()
        self._calm.set()

    @contextmanager
    def is_urgent(self) -> Iterator[None]:
        """While somebody waits for rows, the background begins with no other block."""
        with self._counting:
            self._urgent += 1
            self._calm.clear()
        try:
            yield
        finally:
            with self._counting:
                self._urgent -= 1
                if not self._urgent:
                    self._calm.set()

    def start(self, tables: dict[str, HydratedTable], counts: Mapping[str, Any]) -> None:
        """Begins with the background."""
        self._tables = tables
        self._begin([(table, int(n)) for table in tables.values() for n in table.blocks(counts.get(table.name))])

    def resume(self) -> None:
        """Begins with the background once more, where something went wrong with it; what wasn't there yet may come."""
        if self._error is not None:
            self.close()
            self._error = None
            self._over = threading.Event()
            self._begin([(table, int(n)) for table in self._tables.values() for n in table.blocks(None)])

    def _begin(self, blocks: list[tuple[HydratedTable, int]]) -> None:
        todo, over, calm = iter(blocks), self._over, self._calm
        taking = threading.Lock()

        def take() -> tuple[HydratedTable, int] | None:
            # Who never stops asking must not keep it from coming to an end.
            calm.wait(_PATIENCE_S)
            with taking:
                return None if over.is_set() else next(todo, None)

        self._workers = [_Worker(over, take, self._failed) for _ in range(self._threads)]
        for worker in self._workers:
            worker.start()
        # The interpreter mustn't go while a kernel runs in one of them.
        weakref.finalize(self, _end, self._over, self._workers)

    def _failed(self, error: BaseException) -> None:
        if self._error is None:
            # Without its traceback, whose frames would keep files open.
            self._error = error.with_traceback(None)

    @property
    def error(self) -> BaseException | None:
        """What went wrong in the background first."""
        return self._error

    def __getitem__(self, name: str) -> HydratedTable:
        if name not in self._tables:
            raise MissingKeyError(f"{self.path}: no table {name!r} is hydrated; there are {', '.join(self._tables)}")
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return all(table.is_complete for table in self._tables.values())

    @property
    def progress(self) -> Progress:
        """How many rows of all tables are there."""
        some = [table.progress for table in self._tables.values()]
        return Progress(sum(p.rows for p in some), sum(p.of_rows for p in some))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all rows are there, or so many seconds; says whether they are. Raises as `ensure` does."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self.is_complete:
            self.check_process()
            for worker in self._workers:
                worker.ended.wait(None if end is None else max(0.0, end - time.monotonic()))
        self.raise_error()
        return self.is_complete

    def check_process(self) -> None:
        """Raises `UsageError` in a process that was forked off, where the background isn't."""
        if self._process != os.getpid():
            raise UsageError(
                f"{self.path}: rows are being decoded by process {self._process}; open the container in this one, too, "
                "or fork when all rows are there"
            )

    def raise_error(self) -> None:
        """Raises what went wrong in the background."""
        if self._error is not None:
            raise copy.copy(self._error)

    def close(self) -> None:
        """Ends the background. The arrays stay as they are, and `ensure` still decodes what it is asked for."""
        # The threads of another process aren't here.
        if self._process == os.getpid():
            _end(self._over, self._workers)

    def give_up(self) -> None:
        """As `close`, and nothing comes into the arrays any more: they are somebody else's."""
        self.close()
        for table in self._tables.values():
            table.give_up()

    def let_go(self) -> None:
        """As `close`, and lets go of the tables, whose arrays would else wait for the collector of cycles."""
        self.close()
        self._tables = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        rows, of_rows = self.progress
        return f"<cnrfmt.Hydration of {self.path!r}, version {self.version}: {rows} of {of_rows} rows>"


class _Worker(threading.Thread):
    """A thread of the background.

    `ended` is waited for, and not the thread: of a `join` that a signal interrupts, Python 3.11 takes the thread for
    ended.
    """

    def __init__(
        self,
        over: threading.Event,
        take: Callable[[], tuple[HydratedTable, int] | None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="cnrfmt hydration", daemon=True)
        self.ended = threading.Event()
        self._over, self._take, self._failed = over, take, failed

    def run(self) -> None:
        """Decodes block after block."""
        take, failed = self._take, self._failed
        # Who waits for the end of this keeps none of the tables.
        del self._take, self._failed
        try:
            # Whoever opened the container mostly asks for rows at once, and would share the interpreter with this.
            self._over.wait(_GRACE_S)
            while (found := take()) is not None:
                table, block = found
                try:
                    table.fill(block)
                except BaseException as error:
                    # Others may be sound.
                    failed(error)
        finally:
            self.ended.set()


def _end(over: threading.Event, workers: Sequence[_Worker]) -> None:
    over.set()
    for worker in workers:
        if worker is not threading.current_thread():
            worker.ended.wait()


def hydrate(
    path: str,
    version: int,
    stored: Mapping[str, Table],
    *,
    choices: Mapping[str, Choice],
    columns: bool | Iterable[str] | Mapping[str, Iterable[str]],
    elements: Mapping[str, tuple[int, int]],
    into: Mapping[str, Any],
    order: Mapping[str, Any],
    threads: int,
    budget: Budget,
) -> Hydration:
    """Begins to hydrate the rows of tables that were chosen; see `Checkpoint.hydrate`."""
    for argument, given in (("elements", elements), ("into", into), ("order", order)):
        if unknown := set(given) - set(choices):
            raise MissingKeyError(f"{argument} names a table that isn't hydrated: {min(unknown)!r}")
    found = Hydration(path, version, threads)
    made = {}
    for name, choice in choices.items():
        table = stored[name]
        ids = choice.of(table)
        counts = order.get(name)
        if counts is not None and np.shape(counts) != (len(ids),):
            raise UsageError(f"order[{name!r}]: a number for each of {len(ids)} rows, found shape {np.shape(counts)}")
        part = elements.get(name)
        own = columns.get(name, ()) if isinstance(columns, Mapping) else columns
        arrays = _arrays(table, _columns(table, own), len(ids), part, into.get(name), budget)
        budget.take(len(ids) * (1 if isinstance(ids, range) else 25), f"table {name!r}, which rows are there")
        made[name] = HydratedTable(found, table, ids, arrays, part)
    found.start(made, order)
    return found


def choices_of(
    path: str, stored: Mapping[str, Table], tables: Iterable[str] | None, wanted: Wanted
) -> dict[str, Choice]:
    """By table, the rows that somebody asks for; raises `UsageError` and `MissingKeyError`."""
    patterns = Patterns(tables)
    patterns.check(list(stored), path)
    names = [name for name in stored if name in patterns]
    if unknown := set(wanted.rows) - set(names):
        raise MissingKeyError(f"{path}: rows names a table that isn't among those asked for: {min(unknown)!r}")
    return {name: wanted.choice(stored[name]) for name in names}


def _columns(table: Table, columns: bool | Iterable[str]) -> list[str]:
    own = [name for name in table.columns if name != CHECKPOINTS]
    if isinstance(columns, bool):
        return own if columns else own[:1]
    if isinstance(columns, str):
        raise UsageError(f"columns is True, False or a list of names; use columns=[{columns!r}]")
    chosen = list(columns)
    # A table lacks the columns that others have; a name that nobody has is told of where it is looked for.
    return [WEIGHT, *(name for name in own[1:] if name in chosen)]


def _arrays(
    table: Table, columns: list[str], count: int, elements: tuple[int, int] | None, into: Any, budget: Budget
) -> dict[str, Array]:
    name, dim = table.name, table.schema.dim
    if elements is not None:
        whole = len(elements) == 2 and all(isinstance(n, int) for n in elements)
        if not whole or not 0 <= elements[0] < elements[1] <= dim:
            raise UsageError(f"elements[{name!r}]: (first, end) within 0 to {dim}, found {elements!r}")
    given = {} if into is None else _given(name, into)
    if unknown := set(given) - set(columns):
        raise MissingKeyError(f"into[{name!r}] has a column that isn't hydrated: {min(unknown)!r}; see columns=")
    found = {}
    for column in columns:
        schema = table.schema.column(column)
        assert schema is not None
        shape = (count,) if schema.per_row else (count, dim if elements is None else elements[1] - elements[0])
        array = given.get(column)
        if array is None:
            dtype = dtypes.dtype_of(schema.dtype)
            budget.take(math.prod(shape) * dtype.itemsize, f"table {name!r}, column {column!r}")
            array = lazy_empty(shape, dtype)
        elif array.shape != shape or not array.flags.writeable:
            raise UsageError(
                f"into[{name!r}], column {column!r}: a writable array of shape {shape}, found one of {array.shape}"
            )
        elif array.dtype.kind in "biu" and dtypes.dtype_of(schema.dtype).kind not in "biu":
            raise UsageError(
                f"into[{name!r}], column {column!r}: {schema.dtype} can't be put into {array.dtype}; give an array of "
                "floating-point numbers"
            )
        found[column] = array
    return found


def _given(name: str, into: Any) -> dict[str, Array]:
    """The arrays of a target: an array for the weights alone, or by column."""
    # A tensor of torch, too, has something that is called `values`.
    columns = {WEIGHT: into.values, **(into.columns or {})} if isinstance(into, TableData) else {WEIGHT: into}
    return {column: as_target(one, what=f"into[{name!r}], column {column!r}") for column, one in columns.items()}
