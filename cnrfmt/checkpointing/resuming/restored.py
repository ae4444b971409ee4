"""What a restore gave: the tables, what came with them, and what didn't fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cnrfmt.checkpointing.resuming.lazy_restore import LazyRestore
from cnrfmt.checkpointing.resuming.random_state import PREFIX as RANDOM
from cnrfmt.checkpointing.resuming.random_state import reinstate
from cnrfmt.checkpointing.resuming.targets import Target
from cnrfmt.errors import MissingKeyError


@dataclass(frozen=True, eq=False)
class Restored:
    """What a restore gave. Printed, it tells what came from where and what was left.

    Attributes
    ----------
    path, version, step
        What was restored.
    tables
        By the target's names: the targets that were given, now filled; else new arrays, or `TableData`, as
        `cnrfmt.load` gives them.
    dense
        The dense state that the trainer gave, without the library's own entries.
    reader
        The reader position; None where none was saved.
    random
        The entries for `random_state.reinstate`.
    metrics
        Those that were saved with the checkpoint.
    metadata
        The user metadata of the version.
    missing
        Tables and columns that the target has and the checkpoint lacks; they were left as they were.
    unexpected
        Those that the checkpoint has and the target lacks; they were left out.
    grown
        Where the target has more rows or elements than are stored; those kept their own values.
    cut
        Where the target has no place for rows or elements that are stored.
    """

    path: str
    version: int
    step: int | None
    tables: dict[str, Any]
    dense: dict[str, Any]
    reader: Any
    random: dict[str, Any]
    metrics: Mapping[str, float]
    metadata: dict[str, Any]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    given: frozenset[str] = field(default=frozenset(), repr=False)
    lazy: LazyRestore | None = field(default=None, repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there: with ``lazy=True`` they come while the trainer goes on."""
        return self.lazy is None or self.lazy.is_complete

    def ensure(self, table: str, ids: Any) -> None:
        """Returns when these rows of a table are there, so that they may be read and written.

        `ids` are as `CheckpointManager.track` has them, which does this, too; what isn't stored is passed over.

        Raises
        ------
        MissingKeyError
            A table that wasn't restored.
        UsageError
            Ids that are no integers; or rows that hadn't come when the manager was closed.
        DamagedError, StorageError, TooLargeError
            The rows couldn't be read, or others in the background couldn't: the error names the place.
        """
        if table not in self.tables:
            raise MissingKeyError(f"no table {table!r} was restored; there are {', '.join(map(repr, self.tables))}")
        if self.lazy is not None:
            self.lazy.ensure(table, ids)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all rows are there, or so many seconds; says whether they are. Raises as `ensure` does."""
        return self.lazy is None or self.lazy.wait(timeout)

    def set_random(self, generators: Mapping[str, np.random.Generator] | None = None) -> list[str]:
        """Puts the random states back that were saved, as `random_state.reinstate` does, and says which."""
        return reinstate(self.random, generators)

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        lines = [f"{self.path}: restored version {self.version}{step}"]
        lines += [f"  table {name!r}: {self._shown(name)}" for name in self.tables]
        named = [*list(self.dense)[:10], *(["..."] if len(self.dense) > 10 else [])]
        beside = [f"dense state ({', '.join(named)})"] if self.dense else []
        beside += ["reader position"] if self.reader is not None else []
        beside += [f"random state ({', '.join(n.removeprefix(RANDOM) for n in self.random)})"] if self.random else []
        beside += [f"{name} {value:g}" for name, value in self.metrics.items()]
        lines += [f"  {', '.join(beside)}"] if beside else []
        for title, found in (
            ("not in the checkpoint, left as it was", self.missing),
            ("not in the target, left out", self.unexpected),
            ("grown", self.grown),
            ("cut", self.cut),
        ):
            lines += [f"  {title}: {line}" for line in found]
        return "\n".join(lines)

    def _shown(self, name: str) -> str:
        target = Target.of(self.tables[name])
        weight, *others = target.columns
        shape = " x ".join(map(str, target.columns[weight].shape))
        also = f" and {', '.join(others)}" if others else ""
        return f"{shape}{also}, {'into the array given' if name in self.given else 'as a new array'}"
