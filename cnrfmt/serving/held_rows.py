"""Which rows of a table somebody wants: all, a range, those of a list, or a shard's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cnrfmt import sorted_ids
from cnrfmt.arrays import Ids
from cnrfmt.errors import MissingKeyError, UsageError
from cnrfmt.inputs import as_ids
from cnrfmt.table import Table

ShardBy = Literal["range", "hash"]

_CHUNK = 1 << 20
"""Ids that are hashed at a time."""


@dataclass(frozen=True)
class Wanted:
    """What somebody wants of the tables, whatever version they are of.

    Attributes
    ----------
    rows
        By table: a pair ``(first, end)``, or ids or keys. All rows of tables that aren't named.
    shard
        The number of a shard, and of how many; None for everything.
    shard_by
        ``"hash"``: the rows whose `shard_of` is the shard's number, whatever comes and goes; the default. ``"range"``:
        of each dense table an equal range of the rows that it has when it is first looked at, the last shard with what
        is added later: for tables that don't grow, else shards that begin at other times don't fit together. Keyed
        tables go by hash in any case.
    """

    rows: Mapping[str, Any] = field(default_factory=dict)
    shard: tuple[int, int] | None = None
    shard_by: ShardBy | None = None

    def __post_init__(self) -> None:
        shard = self.shard
        whole = isinstance(shard, tuple) and len(shard) == 2 and all(type(n) is int for n in shard)
        if shard is not None and not (whole and 0 <= shard[0] < shard[1]):
            raise UsageError(f"shard is (number, of how many), the number from 0 on, found {shard!r}")
        if self.shard_by not in (None, "range", "hash"):
            raise UsageError(f"shard_by is 'range' or 'hash', found {self.shard_by!r}")
        if shard is None and self.shard_by is not None:
            raise UsageError("shard_by says how tables are sharded; give shard=(number, of how many), too")

    def choice(self, table: Table, *, strict: bool = True) -> Choice:
        """Which rows of a table, as the version has it that they are first wanted of.

        Raises `UsageError` and `MissingKeyError` for rows that aren't there, unless `strict` is False.
        """
        given = self.rows.get(table.name)
        if given is not None and self.shard is not None:
            raise UsageError(f"rows[{table.name!r}] and shard both say which rows: give one of them")
        if given is None and self.shard is None:
            return Choice()
        if given is not None:
            return _given(table, given, strict)
        assert self.shard is not None
        number, count = self.shard
        if self.shard_by != "range" or table.keyed:
            return Choice(shard=(number, count))
        first, end = (len(table) * n // count for n in (number, number + 1))
        return Choice(rows=(first, None if number == count - 1 else end))


def _given(table: Table, rows: Any, strict: bool) -> Choice:
    what = f"rows[{table.name!r}]"
    if isinstance(rows, slice):
        start, stop, step = rows.indices(len(table))
        if step != 1 or table.keyed:
            raise UsageError(f"{what}: a slice of step 1 of a dense table, or a list of ids or keys, found {rows!r}")
        rows = (start, max(start, stop))
    if isinstance(rows, tuple):
        whole = len(rows) == 2 and all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in rows)
        if table.keyed or not whole or not 0 <= rows[0] <= rows[1] or (strict and rows[1] > len(table)):
            raise UsageError(
                f"{what}: a range (first, end) of the {len(table)} rows of a dense table, or a list of ids or keys, "
                f"found {rows!r}"
            )
        return Choice(rows=(int(rows[0]), int(rows[1])))
    ids = sorted_ids.union(as_ids(rows, what))
    lost = ids[~_there(table, ids)] if strict else ids[:0]
    if len(lost):
        raise MissingKeyError(
            f"{what}: table {table.name!r} has no {'key' if table.keyed else 'row'} {lost[0]} ({len(lost)} in all)"
        )
    return Choice(ids=ids)


def _there(table: Table, ids: Ids) -> npt.NDArray[np.bool_]:
    if table.keys is None:
        return (ids >= 0) & (ids < len(table))
    return np.isin(ids, table.keys, assume_unique=True)


@dataclass(frozen=True, eq=False)
class Choice:
    """Rows of one table: all, a range (with an end of None, whatever comes), those of a list, or a shard's by hash."""

    rows: tuple[int, int | None] | None = None
    ids: Ids | None = None
    shard: tuple[int, int] | None = None

    @property
    def is_all(self) -> bool:
        """Whether every row is wanted."""
        return self.rows is None and self.ids is None and self.shard is None

    def __str__(self) -> str:
        return "among those that were asked for" if self.shard is None else "of shard {} of {}".format(*self.shard)

    def of(self, table: Table) -> range | Ids:
        """The ids of these rows, ascending: a range where they are consecutive ones of a dense table."""
        if not table.keyed and self.ids is None and self.shard is None:
            first, end = self.rows or (0, None)
            stop = len(table) if end is None else min(end, len(table))
            # A table that ends below where they begin may grow: then they are these all the same.
            return range(first, max(first, stop))
        if table.keys is not None:
            return table.keys[self.among(table.keys)]
        if self.ids is not None:
            return self.ids[self.ids < len(table)]
        found = [np.empty(0, np.int64)]
        for start in range(0, len(table), _CHUNK):
            some = np.arange(start, min(start + _CHUNK, len(table)), dtype=np.int64)
            found.append(some[self.among(some)])
        return np.concatenate(found)

    def among(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of some ids are wanted."""
        if self.ids is not None:
            return np.isin(ids, self.ids)
        if self.shard is not None:
            return np.equal(shard_of(ids, self.shard[1]), self.shard[0], dtype=np.bool_)
        first, end = self.rows or (None, None)
        found = np.ones(len(ids), np.bool_)
        if first is not None:
            found &= ids >= first
        if end is not None:
            found &= ids < end
        return found


def shard_of(ids: Any, count: int) -> Ids:
    """The shard, 0 to `count` - 1, that each id or key belongs to where tables are sharded by hash.

    The hash is the finaliser of splitmix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators,
    2014) of the id as an unsigned number, modulo `count`: whoever routes requests can compute it, too.
    """
    x = as_ids(ids, "ids").astype(np.uint64)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x % np.uint64(count)).astype(np.int64)
