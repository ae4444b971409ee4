"""What checkpoints will cost, before any is written: bytes, storage, bandwidth and stall of a policy and its bits."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cnrfmt.checkpointing.compacting.compaction import due
from cnrfmt.checkpointing.costs.estimates import TableShape, manifest_bytes, recipes_for, segment_sizes
from cnrfmt.checkpointing.costs.rates import Rates
from cnrfmt.checkpointing.costs.traffic import Traffic
from cnrfmt.checkpointing.policies import Costs, Decision, History, Policy, costs_by_needs, policy_for
from cnrfmt.checkpointing.settings import LEAST_SEGMENTS
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.quantize import Choices
from cnrfmt.errors import UsageError
from cnrfmt.run_record import CheckpointRecord
from cnrfmt.sizes import Sizes


@dataclass(frozen=True)
class PlannedMerge:
    """A merge behind a checkpoint: one segment in the place of several, with the same content.

    Attributes
    ----------
    rows, sizes
        As those of a checkpoint.
    write_seconds
        How long it takes to write. None without rates.
    """

    rows: int
    sizes: Sizes
    write_seconds: float | None

    @property
    def nbytes(self) -> int:
        """All of its bytes."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class PlannedCheckpoint:
    """One checkpoint of a plan.

    Attributes
    ----------
    kind
        What the policy decides.
    rows
        Rows that it writes, of all tables.
    sizes
        Its bytes by what they hold, under the keys of `cnrfmt.sizes`, the manifest among `metadata`.
    chain
        Segments that a restore reads, before a merge.
    stall_seconds
        How long the tables mayn't change: until the rows are gathered and encoded. None without rates.
    write_seconds
        How long it takes behind that until it is durable. None without rates.
    merge
        What is merged then, if anything is.
    """

    kind: Decision
    rows: int
    sizes: Sizes
    chain: int
    stall_seconds: float | None
    write_seconds: float | None
    merge: PlannedMerge | None = None

    @property
    def nbytes(self) -> int:
        """All of its bytes; those of the merge are apart."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class CheckpointPlan:
    """What a run's checkpoints will cost.

    Attributes
    ----------
    policy
        The name of the policy.
    checkpoints
        One per interval, the first a baseline.
    costs
        What they write, merges included, and what is kept of them.
    plain_bytes
        What one full checkpoint takes as plain arrays: all columns in their own data types, keys, and dense state.
    interval_seconds
        From one checkpoint to the next.
    """

    policy: str
    checkpoints: tuple[PlannedCheckpoint, ...]
    costs: Costs
    plain_bytes: int
    interval_seconds: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second that are written, on average over all intervals."""
        return self.costs.average_written / self.interval_seconds

    @property
    def stall_share(self) -> float | None:
        """Which part of the time training stands still; None without rates."""
        stalls = [c.stall_seconds for c in self.checkpoints if c.stall_seconds is not None]
        return sum(stalls) / (len(stalls) * self.interval_seconds) if stalls else None

    @property
    def late(self) -> int:
        """How many checkpoints take longer than their interval, so that the next one has to wait or is left out."""
        limit = self.interval_seconds
        return sum((c.stall_seconds or 0) + _behind(c) > limit for c in self.checkpoints)


class _Step(NamedTuple):
    """A segment of a chain: its bytes, those with its manifest, and how many intervals' changes it holds."""

    number: int
    length: int
    nbytes: int
    intervals: int
    toc: bytes


class _Chain:
    """The segments that a restore of the newest version reads."""

    def __init__(
        self,
        tables: Sequence[TableShape],
        recipes: Mapping[tuple[str, str], Recipe],
        dense_bytes: int,
        keep: int,
        initial: float | None,
    ) -> None:
        self._tables, self._recipes, self._dense_bytes, self._keep = tables, recipes, dense_bytes, keep
        self._initial = initial
        self._numbers = itertools.count()
        self.steps: list[_Step] = []

    def put(self, version: int, behind: int, counts: Sequence[int], intervals: int) -> Sizes:
        """Puts a segment of so many rows behind the first `behind` ones, all others go; its bytes, manifest included.

        The first of a chain is a baseline.
        """
        written = counts if behind else None
        sizes, toc = segment_sizes(self._tables, written, self._recipes, self._dense_bytes, self._initial)
        length, before = sum(sizes.values()), self.steps[:behind]
        versions = min(self._keep, version + 1) - 1
        sizes["metadata"] += manifest_bytes(self._tables, [*(step.toc for step in before), toc], versions)
        self.steps = [*before, _Step(next(self._numbers), length, sum(sizes.values()), intervals, toc)]
        return sizes

    def due(self, most_segments: int | None, share: float | None) -> int | None:
        """The segment from which on the chain is to be merged, if it is."""
        if most_segments is None and share is None:
            return None
        found = due([step.length for step in self.steps], most_segments or sys.maxsize, share)
        return None if found is None else found[0]


def plan_checkpoints(
    tables: Sequence[TableShape],
    traffic: Traffic,
    *,
    policy: str | Policy | Callable[[History], Decision] = "intermittent",
    bits: int = 32,
    quantize: Choices = None,
    initial: float | None = None,
    dense_bytes: int = 0,
    intervals: int = 12,
    interval_seconds: float = 1800.0,
    keep: int = 1,
    merge_share: float | None = None,
    most_segments: int | None = None,
    rates: Rates | None = None,
) -> CheckpointPlan:
    """Plans the checkpoints of a run to a directory; nothing is read or written.

    Bytes of rows, digests and padding are exact for as many rows as the traffic is expected to touch, those on a grid
    aside, which are what is typical (`cnrfmt.checkpointing.costs.typical`); row ids are taken for scattered. Left out
    are rows that an encoding can't hold (stored exactly beside it), file names, what
    the file system adds, and what a run notes of its checkpoints in the manifest, some 100 bytes each.

    Parameters
    ----------
    tables
        From `table_shape` or `shapes_of`.
    traffic
        How many rows the intervals touch, the same for each table.
    policy
        A name, a policy or a function, as the manager takes it.
    bits, quantize
        The bits of the run (2 to 8; 32 for raw rows), and what goes before them for all tables or some: a `Quantize`,
        a `Grid` that says its learning rate, or a dict of patterns to these.
    initial
        How large the weights are that rows begin with, on a grid: their root mean square in learning rates. None: 0.5,
        or 50 with the columns of Adam, whose learning rates are smaller.
    dense_bytes
        Of the dense state, which each checkpoint holds whole.
    intervals, interval_seconds
        How many checkpoints, and how far apart.
    keep
        How many versions stay readable.
    merge_share, most_segments
        When chains are merged, as the manager takes it; None for either: not for that.
    rates
        Of the machine, for stall and write times; None leaves them open.

    Raises
    ------
    UsageError
        Arguments that aren't legal.
    """
    _check(tables, dense_bytes, intervals, interval_seconds, keep)
    if merge_share is not None and not 0 < merge_share < float("inf"):
        raise UsageError(f"plan: merge_share is a number above 0, or None, found {merge_share!r}")
    if most_segments is not None and most_segments < LEAST_SEGMENTS:
        raise UsageError(f"plan: most_segments is at least {LEAST_SEGMENTS}, or None, found {most_segments!r}")
    if initial is not None and not 0 <= initial < float("inf"):
        raise UsageError(f"plan: initial is a number of learning rates of at least 0, or None, found {initial!r}")
    chosen = policy_for(policy)
    recipes = recipes_for(tables, bits, quantize)
    chain = _Chain(tables, recipes, dense_bytes, keep, initial)
    records: list[CheckpointRecord] = []
    planned: list[PlannedCheckpoint] = []
    needs: list[dict[int, int]] = []
    for version in range(intervals):
        since = records[_newest_baseline(records) :]
        kind = chosen.decide(_history(tables, traffic, since, records))
        covered = 1 if kind == "delta" else len(since)
        counts = [t.count if kind == "baseline" else _touched(t, traffic, covered) for t in tables]
        behind = {"baseline": 0, "delta": len(chain.steps), "since-baseline": 1}[kind]
        sizes = chain.put(version, behind, counts, covered)
        stall = write = None
        if rates is not None:
            moved = sum(n * t.plain_bytes for t, n in zip(tables, counts, strict=True))
            stall = moved / (rates.encode if kind == "baseline" else rates.gather)
            write = sum(sizes.values()) / rates.write
        found = PlannedCheckpoint(kind, sum(counts), sizes, len(chain.steps), stall, write)
        records.append(CheckpointRecord(version, None, "", kind, found.rows, found.nbytes, bits, found.chain))
        if (first := chain.due(most_segments, merge_share)) is not None:
            covered = sum(step.intervals for step in chain.steps[first:])
            counts = [t.count if first == 0 else _touched(t, traffic, covered) for t in tables]
            sizes = chain.put(version, first, counts, covered)
            write = None if rates is None else sum(sizes.values()) / rates.write
            found = replace(found, merge=PlannedMerge(sum(counts), sizes, write))
        planned.append(found)
        needs.append({step.number: step.nbytes for step in chain.steps})
    written = [c.nbytes + (0 if c.merge is None else c.merge.nbytes) for c in planned]
    plain = sum(t.count * (t.plain_bytes + (8 if t.schema.keyed else 0)) for t in tables) + dense_bytes
    return CheckpointPlan(chosen.name, tuple(planned), costs_by_needs(written, needs, keep), plain, interval_seconds)


def _check(
    tables: Sequence[TableShape], dense_bytes: int, intervals: int, interval_seconds: float, keep: int
) -> None:
    names = [t.schema.name for t in tables]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"plan: table {min(twice)!r} twice")
    for name, value, least in (("dense_bytes", dense_bytes, 0), ("intervals", intervals, 1), ("keep", keep, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"plan: {name} is an integer of at least {least}, found {value!r}")
    if not 0 < interval_seconds < float("inf"):
        raise UsageError(f"plan: an interval takes more than no time, found {interval_seconds!r} seconds")


def _behind(checkpoint: PlannedCheckpoint) -> float:
    """Seconds until a checkpoint and the merge behind it are written."""
    merge = checkpoint.merge
    return (checkpoint.write_seconds or 0) + (0 if merge is None else merge.write_seconds or 0)


def _newest_baseline(records: Sequence[CheckpointRecord]) -> int:
    return max((n for n, c in enumerate(records) if c.kind == "baseline"), default=0)


def _history(
    tables: Sequence[TableShape], traffic: Traffic, since: Sequence[CheckpointRecord], every: Sequence[CheckpointRecord]
) -> History:
    total = sum(t.count for t in tables)
    return History(
        tuple(since),
        total,
        sum(_touched(t, traffic, 1) for t in tables) if every else 0,
        sum(_touched(t, traffic, len(since)) for t in tables),
        since[0].nbytes / total if since and total else 0.0,
    )


def _touched(table: TableShape, traffic: Traffic, intervals: int) -> int:
    return round(table.count * traffic.fraction(table.count, intervals))
