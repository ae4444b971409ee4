"""Which checkpoints stay readable: `Keep`, and `kept`, which applies it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from cnrfmt.errors import UsageError
from cnrfmt.run_record import CheckpointRecord

Best = tuple[str, int, Literal["min", "max"]]
"""A metric, how many checkpoints, and whether the lowest or the highest values are the best."""

_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Keep:
    """The checkpoints that stay readable: those that any of these rules names.

    The newest version stays whatever the rules say, and so does a version that has a tag.

    Parameters
    ----------
    last
        The newest n.
    every_steps
        Of the trainer's steps, the first checkpoint at or after each multiple of k: one whose step, divided by k and
        rounded down, isn't that of the checkpoint before it. So a run that went back to an earlier step keeps its new
        checkpoints, too. One without a step doesn't count.
    every_minutes
        The same of the time of the commit: the first checkpoint in each span of t minutes, counted from the start of
        1970 in UTC.
    best
        A metric, a number n, and ``"min"`` or ``"max"``: the n checkpoints with the lowest or the highest value of the
        metric; of equal ones the newer. One without the metric, or with a NaN, doesn't count.
    where
        A function of a `CheckpointRecord` that says whether it stays. Where it raises something, a manager's checkpoint
        is committed and gives no version up; the log says so each time, and the next call of the manager raises it
        once, as a `UsageError` (with several ranks the log alone). `collect` raises it and changes nothing.

    Raises
    ------
    UsageError
        No rule is given, or one isn't as it should be.
    """

    last: int | None = None
    every_steps: int | None = None
    every_minutes: float | None = None
    best: Best | None = None
    where: Callable[[CheckpointRecord], bool] | None = None

    def __post_init__(self) -> None:
        if (self.last, self.every_steps, self.every_minutes, self.best, self.where) == (None,) * 5:
            raise UsageError("keep names no rule; last=1 keeps the newest checkpoint alone, None keeps all")
        for name, count in (("last", self.last), ("every_steps", self.every_steps)):
            if count is not None:
                _check_count(count, name)
        minutes: Any = self.every_minutes
        if minutes is not None and not (_is_number(minutes) and 0 < minutes < math.inf):
            raise UsageError(f"every_minutes is a number above 0, found {minutes!r}")
        if self.best is not None:
            _check_best(self.best)
        where: Any = self.where
        if where is not None and not callable(where):
            raise UsageError(f"where is a function of a CheckpointRecord, found {where!r}")


EVERYTHING = Keep(where=lambda checkpoint: True)
"""Gives nothing up."""


def keep_of(keep: int | Keep | None) -> Keep:
    """The rules that a caller's word stands for: a number of newest checkpoints, or everything for None."""
    if keep is None or isinstance(keep, Keep):
        return EVERYTHING if keep is None else keep
    if isinstance(keep, bool) or not isinstance(keep, int | np.integer):
        raise UsageError(f"keep is a number of checkpoints, a cnrfmt.Keep or None, found {keep!r}")
    return Keep(last=int(keep))


def kept(
    keep: Keep,
    checkpoints: Sequence[CheckpointRecord],
    tags: Mapping[str, int],
    newest: int,
    among: Collection[int] | None = None,
) -> set[int]:
    """The versions that stay readable.

    A merge, a version of kind ``"merge"``, has the content of the checkpoint before it, so they are one checkpoint to
    the rules: it takes no place of its own among the last n, and is judged by what is known of the checkpoint. Where
    that stays, the newest of its versions stays for it, which needs the fewest segments; the others go unless a tag
    names them. What is asked for is a content, so its number may change; a tag, which names a version, pins that very
    version.

    Parameters
    ----------
    checkpoints
        What is known of versions, ascending; of those that are gone, too, so that a merge is known for one of them.
    tags
        Versions by their names.
    newest
        The newest version.
    among
        The versions that are there; those of `checkpoints` if None. One that isn't among `checkpoints` counts as a
        checkpoint of which the version alone is known.

    Returns
    -------
    set of int
        Some of `among`, and `newest`.

    Raises
    ------
    UsageError
        The function `keep.where` raised something.
    """
    groups = _groups(checkpoints, {c.version for c in checkpoints} if among is None else set(among))
    there = {version for group in groups for version in group.versions}
    stay = {group.versions[-1] for group in _wanted(keep, groups)}
    return stay | (there & set(tags.values())) | {newest}


def unrecorded(version: int) -> CheckpointRecord:
    """A checkpoint of which the version alone is known."""
    return CheckpointRecord(version, None, "", "baseline", 0, 0, 0, 0)


@dataclass(frozen=True)
class _Group:
    """A checkpoint, and those of its versions that are there, itself and its merges; ascending, at least one."""

    checkpoint: CheckpointRecord
    versions: tuple[int, ...]


def _groups(checkpoints: Sequence[CheckpointRecord], among: set[int]) -> list[_Group]:
    unknown = among - {c.version for c in checkpoints}
    everything = sorted((*checkpoints, *map(unrecorded, unknown)), key=lambda c: c.version)
    groups: list[list[CheckpointRecord]] = []
    for c in everything:
        if c.kind != "merge" or not groups:
            groups.append([])
        groups[-1].append(c)
    found = [_Group(group[0], tuple(c.version for c in group if c.version in among)) for group in groups]
    return [group for group in found if group.versions]


def _wanted(keep: Keep, groups: list[_Group]) -> Iterator[_Group]:
    if keep.last is not None:
        yield from groups[-keep.last :]
    if keep.every_steps is not None:
        yield from _firsts(groups, keep.every_steps, lambda c: c.step)
    if keep.every_minutes is not None:
        yield from _firsts(groups, 60 * keep.every_minutes, _seconds)
    if keep.best is not None:
        yield from _best(groups, *keep.best)
    if keep.where is not None:
        yield from (group for group in groups if _says(keep.where, group.checkpoint))


def _says(where: Callable[[CheckpointRecord], bool], checkpoint: CheckpointRecord) -> bool:
    try:
        return bool(where(checkpoint))
    except Exception as error:
        raise UsageError(
            f"keep: where() of the checkpoint of version {checkpoint.version} raised {type(error).__name__}: {error}"
        ) from error


def _firsts(
    groups: list[_Group], span: float, place: Callable[[CheckpointRecord], float | None]
) -> Iterator[_Group]:
    """The first of each run of groups whose places are in the same span; those without a place are left out."""
    before = None
    for group in groups:
        if (where := place(group.checkpoint)) is not None:
            if where // span != before:
                yield group
            before = where // span


def _best(groups: list[_Group], metric: str, count: int, which: str) -> list[_Group]:
    sign = 1 if which == "max" else -1
    judged = [
        (sign * value, number)
        for number, group in enumerate(groups)
        if (value := group.checkpoint.metrics.get(metric)) is not None and not math.isnan(value)
    ]
    return [groups[number] for _, number in sorted(judged)[-count:]]


def _seconds(checkpoint: CheckpointRecord) -> float | None:
    """When it was committed, in seconds since 1970; None where the record doesn't say."""
    try:
        return datetime.strptime(checkpoint.created, _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _check_count(count: Any, what: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise UsageError(f"{what} is an integer of at least 1, found {count!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_best(best: Any) -> None:
    if not isinstance(best, tuple | list) or len(best) != 3:
        raise UsageError(f'best is a metric, a number and "min" or "max", as in ("auc", 3, "max"), found {best!r}')
    metric, count, which = best
    if not isinstance(metric, str):
        raise UsageError(f"best: the name of a metric is a string, found {metric!r}")
    _check_count(count, f"best: the number of checkpoints by {metric!r}")
    if which not in ("min", "max"):
        raise UsageError(f'best: the best by {metric!r} are those with the "min" or the "max", found {which!r}')
