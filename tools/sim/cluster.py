"""The cluster: what is measured, what is assumed, and what each checkpoint of a run then takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cnrfmt.checkpointing.costs.estimates import TableShape, table_shape
from cnrfmt.checkpointing.costs.planning import CheckpointPlan, plan_checkpoints
from cnrfmt.checkpointing.costs.traffic import CLASSES, EXPONENT, SPREAD, Traffic

Floats = np.ndarray[Any, np.dtype[np.float64]]

RAW = 32
CYCLE = 48
"""Checkpoints that are planned one by one."""
_ROUNDS = 8
"""How often a longer interval is tried where checkpoints don't get done within the one that was asked for."""


@dataclass(frozen=True)
class Measured:
    """Bytes per second of one core, and of one disk.

    Attributes
    ----------
    encode, gather
        By bits: float32 rows to what is stored, one behind the other, and from all over their table.
    copy
        A plain copy of float32 rows into fresh memory.
    disk
        A file that is written and synced.
    """

    encode: Mapping[int, float]
    gather: Mapping[int, float]
    copy: float
    disk: float


@dataclass(frozen=True)
class Assumed:
    """What is taken for granted of the cluster and of the run; `words` says it."""

    rank_bytes: float = 32e9
    dim: int = 64
    cores: int = 8
    efficiency: float = 0.7
    ranks_per_node: int = 8
    storage: float = 20e9
    failures: float = 1 / 2000
    restart_minutes: float = 5.0
    run_hours: float = 168.0
    touched: float = 0.26
    touched_minutes: float = 30.0
    skew: float = 0.1

    def words(self) -> list[str]:
        """A line for each."""
        return [
            f"a rank trains {self.rank_bytes / 1e9:g} GB of float32 tables of {self.dim} elements, with a row-wise "
            "Adagrad accumulator; dense state isn't counted",
            f"{self.touched:.0%} of the rows change in {self.touched_minutes:g} minutes; in other times as under "
            f"Zipf's law with exponent {EXPONENT:g} in {CLASSES} classes of rows whose rates fall by {SPREAD:g}",
            "  (this factor was chosen so that the second baseline comes at the eighth interval, as the paper reports; "
            "one law for all rows brings it at the fifth)",
            f"{self.cores} cores a rank encode (or copy) together, {self.efficiency:.0%} as fast as that many alone",
            f"ranks write to a disk each, and together no more than {self.storage / 1e9:g} GB/s (shared storage)",
            f"the changed rows of ranks differ by {self.skew:.0%} (log-normal, drawn once); the slowest holds up all",
            f"{self.ranks_per_node} ranks a node; a node fails once in {1 / self.failures:,.0f} hours and ends the job",
            f"a restart takes {self.restart_minutes:g} minutes, and reading a checkpoint at the rate of writing",
            f"a run takes {self.run_hours:g} hours; a checkpoint waits for the one before it",
            f"one version is kept, chains aren't merged; the checkpoints of a run repeat a cycle of {CYCLE}, "
            "which begins with a baseline",
        ]

    def failure_rate(self, ranks: int) -> float:
        """Failures of the job per hour."""
        return self.failures * max(1.0, ranks / self.ranks_per_node)

    @property
    def shard(self) -> TableShape:
        """The table of one rank."""
        return _shard(self.rank_bytes, self.dim)


@lru_cache(maxsize=16)
def _shard(rank_bytes: float, dim: int) -> TableShape:
    return table_shape("shard", int(rank_bytes / (4 * dim + 4)), dim, columns={"accumulator": True})


@dataclass(frozen=True)
class Way:
    """A way to make checkpoints: a policy and bits; `copies` if the stall is a plain copy of all tables."""

    policy: str
    bits: int
    copies: bool = False

    @property
    def name(self) -> str:
        """How tables and the picture call it."""
        stored = "float32" if self.bits == RAW else f"{self.bits} bits"
        return f"{'copy, then ' if self.copies else ''}{self.policy}, {stored}"


COPY = Way("full", RAW, copies=True)
"""What there was before: tables are copied in memory while training waits, then written as they are."""


@dataclass(frozen=True)
class Timeline:
    """The checkpoints of a run, again and again the same cycle; seconds, and bytes of the whole cluster.

    Attributes
    ----------
    gaps
        Training from one checkpoint to the next.
    stalls, writes
        How long training stands still for each, and how long after that it is durable.
    nbytes, held, reads
        What each writes, what is kept after it, and what a restore of it reads.
    plain
        The tables as float32.
    """

    gaps: Floats
    stalls: Floats
    writes: Floats
    nbytes: Floats
    held: Floats
    reads: Floats
    plain: float


def plan(assumed: Assumed, way: Way, minutes: float, intervals: int) -> CheckpointPlan:
    """What the checkpoints of one rank take."""
    return _plan(assumed, way.policy, way.bits, minutes, intervals)


@lru_cache(maxsize=4096)
def _plan(assumed: Assumed, policy: str, bits: int, minutes: float, intervals: int) -> CheckpointPlan:
    rows = assumed.shard.count
    # The law is that of the interval in which the fraction was seen; other intervals have more or fewer lookups.
    lookups = Traffic(assumed.touched).lookups_in(rows) * minutes / assumed.touched_minutes
    traffic = Traffic(lookups=lookups, spread=SPREAD)
    return plan_checkpoints([assumed.shard], traffic, policy=policy, bits=bits, intervals=intervals)


def timeline(
    measured: Measured, assumed: Assumed, way: Way, ranks: int, minutes: float, *, seed: int, intervals: int = CYCLE
) -> Timeline:
    """The checkpoints of a cluster, `minutes` apart, or as far as they have to be."""
    slowest = float(np.exp(np.random.default_rng([seed, ranks]).normal(0, assumed.skew, ranks)).max())
    cores = assumed.cores * assumed.efficiency
    apart = minutes
    for _ in range(_ROUNDS):
        planned = plan(assumed, way, round(apart, 3), intervals)
        nbytes = np.array([c.nbytes for c in planned.checkpoints], float)
        rows = np.array([c.rows for c in planned.checkpoints], float)
        full = np.array([c.kind == "baseline" for c in planned.checkpoints])
        row_bytes = assumed.shard.plain_bytes
        # All rows of a shard are as many on each rank; those that changed aren't.
        most = np.where(full, 1.0, slowest)
        if way.copies:
            stalls = np.full(intervals, assumed.shard.count * row_bytes / (measured.copy * cores))
        else:
            rate = np.where(full, measured.encode[way.bits], measured.gather[way.bits])
            stalls = most * rows * row_bytes / (rate * cores)
        writes = np.maximum(most * nbytes / measured.disk, ranks * nbytes / assumed.storage)
        gaps = np.maximum(60 * minutes, writes)
        if gaps.mean() <= 60 * apart * 1.01:
            break
        apart = float(gaps.mean()) / 60
    costs = planned.costs
    held, reads = (ranks * np.array(x, float) for x in (costs.held, costs.read))
    return Timeline(gaps, stalls, writes, ranks * nbytes, held, reads, ranks * float(planned.plain_bytes))
