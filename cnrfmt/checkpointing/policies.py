"""When a checkpoint is a baseline, and what it holds when it is a delta: the policies of Check-N-Run (NSDI 2022).

==================  ==============================================  ====================================================
policy              a checkpoint writes                             a restore needs
==================  ==============================================  ====================================================
``full``            every row                                       that version alone
``one-shot``        every row once, then all rows that changed      the first version and the one that is restored
                    since
``consecutive``     every row once, then the rows that changed      the newest baseline and every version since, up to
                    since the checkpoint before                     the one that is restored
``intermittent``    as one-shot, but every row again as soon as     the newest baseline and the version that is
                    that pays                                       restored, if that is another
==================  ==============================================  ====================================================

The named policies decide by the records of past checkpoints alone, which all ranks of a job know alike. Where there is
no checkpoint yet, every policy begins with a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from cnrfmt.errors import UsageError
from cnrfmt.format import limits
from cnrfmt.run_record import CheckpointRecord

Decision = Literal["baseline", "delta", "since-baseline"]
"""All rows; those that changed since the last checkpoint; those that changed since the newest baseline."""
Unit = Literal["bytes", "rows"]

_DECISIONS: tuple[str, ...] = get_args(Decision)


@dataclass(frozen=True)
class History:
    """What a policy may decide by.

    Attributes
    ----------
    checkpoints
        The newest baseline and the checkpoints since, ascending; empty where there is none. What a checkpoint will
        take is known when it is written, so the one that is decided on isn't among them.
    rows_total
        Rows of all tables.
    rows_marked
        Rows that changed since the last checkpoint; of this rank alone, where there are several.
    rows_since_baseline
        Rows that changed since the newest baseline, `rows_marked` among them; of this rank alone as well.
    row_bytes
        Bytes that a row took on average in the newest checkpoint that had some; 0 where there is none.
    """

    checkpoints: tuple[CheckpointRecord, ...] = ()
    rows_total: int = 0
    rows_marked: int = 0
    rows_since_baseline: int = 0
    row_bytes: float = 0.0


@runtime_checkable
class Policy(Protocol):
    """Decides what the next checkpoint writes."""

    @property
    def name(self) -> str:
        """What it is called in records and messages."""
        ...

    @property
    def needs_since_baseline(self) -> bool:
        """Whether it ever answers ``"since-baseline"``: what changed since the baseline is remembered for it alone."""
        ...

    def decide(self, history: History) -> Decision:
        """What the next checkpoint writes."""
        ...


@dataclass(frozen=True)
class Full:
    """Every checkpoint is a baseline. A restore needs its version alone."""

    name = "full"
    needs_since_baseline = False

    def decide(self, history: History) -> Decision:
        """A baseline."""
        return "baseline"


@dataclass(frozen=True)
class OneShot:
    """A baseline, then each time everything that changed since. A restore needs the baseline and its own version.

    Checkpoints grow until they are as large as a baseline, and no new one is ever taken.
    """

    name = "one-shot"
    needs_since_baseline = True

    def decide(self, history: History) -> Decision:
        """A baseline where there is none."""
        return "since-baseline" if history.checkpoints else "baseline"


@dataclass(frozen=True)
class Consecutive:
    """A baseline, then each time what changed since the checkpoint before.

    A restore needs the newest baseline and every version since, up to its own.

    It writes least, and keeps most: no delta can go before the next baseline, or before they are merged. A new
    baseline comes after `most_deltas` of them; with None, only where the chain can't be longer.
    """

    most_deltas: int | None = None
    name = "consecutive"
    needs_since_baseline = False

    def __post_init__(self) -> None:
        n = self.most_deltas
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise UsageError(f"policy 'consecutive': most_deltas is an integer of at least 1, or None; found {n!r}")

    def decide(self, history: History) -> Decision:
        """A baseline where there is none, or where there are deltas enough."""
        past = history.checkpoints
        if not past or past[-1].chain >= limits.MAX_CHAIN:
            return "baseline"
        deltas = len(past) - 1
        return "baseline" if self.most_deltas is not None and deltas >= self.most_deltas else "delta"


@dataclass(frozen=True)
class Intermittent:
    """As `OneShot`, but with a new baseline as soon as the history says that it pays.

    A restore needs the newest baseline and its own version. With S_1 .. S_i the sizes of the checkpoints since the
    baseline, each with everything since then, in units of the baseline's own size, the next one is a baseline where

        1 + S_1 + ... + S_i <= (i + 1) x S_i.

    On the left is what another i + 1 checkpoints take that begin with a baseline and go on as these did; on the right
    what they take at the least without one, since no later checkpoint is smaller than the last. So only sizes of the
    past count, and the first checkpoint behind a baseline is never a baseline.

    Sizes are bytes, with row ids, optimizer state, dense state and all, or rows. By bytes, a baseline in more bits than
    the deltas counts for what it takes, and comes the later. Where the bits of a run change, it is the other way round:
    deltas in more bits than their baseline bring the next one forward, and with it the rows that still have fewer.
    Checkpoints in which nothing changed never ask for a baseline.
    """

    by: Unit = "bytes"
    name = "intermittent"
    needs_since_baseline = True

    def __post_init__(self) -> None:
        if self.by not in get_args(Unit):
            raise UsageError(f"policy 'intermittent': by is 'bytes' or 'rows', found {self.by!r}")

    def decide(self, history: History) -> Decision:
        """A baseline where there is none, or where the predictor says that it pays."""
        past = history.checkpoints
        if not past:
            return "baseline"
        # Deltas on deltas, left by another policy, say nothing of how large one with everything is.
        sizes = [self._size(c) for n, c in enumerate(past[1:]) if n == 0 or c.kind == "since-baseline"]
        pays = bool(sizes) and sizes[-1] > 0 and self._size(past[0]) + sum(sizes) <= (len(sizes) + 1) * sizes[-1]
        return "baseline" if pays else "since-baseline"

    def _size(self, checkpoint: CheckpointRecord) -> int:
        return checkpoint.nbytes if self.by == "bytes" else checkpoint.rows


@dataclass(frozen=True)
class _Checked:
    """A caller's own policy, whose answers aren't taken on trust."""

    name: str
    needs_since_baseline: bool
    answer: Callable[[History], Any]

    def decide(self, history: History) -> Decision:
        """What it answers; raises `UsageError` for an answer that can't be carried out."""
        found = self.answer(history)
        if not isinstance(found, str) or found not in _DECISIONS:
            raise UsageError(f"policy {self.name!r}: it answers {', '.join(map(repr, _DECISIONS))}; found {found!r}")
        if found != "baseline" and not history.checkpoints:
            raise UsageError(
                f"policy {self.name!r}: there is no baseline yet, so the first answer is 'baseline'; found {found!r}"
            )
        if found == "since-baseline" and not self.needs_since_baseline:
            raise UsageError(
                f"policy {self.name!r}: it answers 'since-baseline', but its needs_since_baseline is False, so nobody "
                "knows what changed since then; make it True"
            )
        return found  # type: ignore[return-value]


NAMED: dict[str, Policy] = {p.name: p for p in (Full(), OneShot(), Consecutive(), Intermittent())}
"""The policies that have names."""


def policy_for(policy: str | Policy | Callable[[History], Decision]) -> Policy:
    """The policy of a name, one of the policies as it is, or a caller's own: an object, or a function of a `History`.

    A function may have the attributes `name` and `needs_since_baseline`; else it is called as Python calls it, and may
    answer anything. What a caller's own policy answers is checked each time; `UsageError` names it.

    Raises
    ------
    UsageError
        It is no policy.
    """
    if isinstance(policy, str):
        if policy not in NAMED:
            raise UsageError(f"policy: there are {', '.join(map(repr, NAMED))}, or a function; found {policy!r}")
        return NAMED[policy]
    if isinstance(policy, Full | OneShot | Consecutive | Intermittent | _Checked):
        return policy
    decide = getattr(policy, "decide", policy)
    if isinstance(policy, type) or not callable(decide):
        raise UsageError(
            f"policy: a name ({', '.join(map(repr, NAMED))}), a policy, or a function of a History; found {policy!r}"
        )
    name = getattr(policy, "name", None) or getattr(policy, "__name__", None) or type(policy).__name__
    return _Checked(str(name), bool(getattr(policy, "needs_since_baseline", True)), decide)


# What checkpoints cost


@dataclass(frozen=True)
class Costs:
    """What checkpoints cost in the sense of the paper: write bandwidth, and capacity of the storage.

    Attributes
    ----------
    written
        Bytes that each checkpoint writes.
    held
        Bytes that are kept after each: of the versions that stay readable, and of those that they need.
    meanwhile
        Bytes that are there at the end of each, before what isn't needed any more is removed: a checkpoint counts only
        once it is whole, so the ones before it stay until then.
    read
        Bytes that a restore of each reads.
    """

    written: tuple[int, ...]
    held: tuple[int, ...]
    meanwhile: tuple[int, ...]
    read: tuple[int, ...]

    @property
    def average_written(self) -> float:
        """Bytes per checkpoint; 0 where there is none."""
        return sum(self.written) / max(1, len(self.written))

    @property
    def average_held(self) -> float:
        """Bytes kept, on average over the intervals; 0 where there is none."""
        return sum(self.held) / max(1, len(self.held))

    @property
    def peak_held(self) -> int:
        """The most bytes that are kept after a checkpoint."""
        return max(self.held, default=0)

    @property
    def peak(self) -> int:
        """The most bytes that there are at any moment."""
        return max(self.meanwhile, default=0)


def costs_by_needs(written: Sequence[int], needs: Sequence[Mapping[int, int]], keep: int = 1) -> Costs:
    """What checkpoints cost where the last `keep` versions stay readable.

    Each writes so many bytes, and a restore of it reads the files that it needs: their numbers, with their bytes.
    """
    held: list[int] = []
    for n in range(len(needs)):
        kept: dict[int, int] = {}
        for files in needs[max(0, n + 1 - keep) : n + 1]:
            kept |= files
        held.append(sum(kept.values()))
    before = [0, *held][: len(held)]
    return Costs(
        tuple(written),
        tuple(held),
        tuple(old + new for old, new in zip(before, written, strict=True)),
        tuple(sum(files.values()) for files in needs),
    )
