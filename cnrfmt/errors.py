"""The errors of cnrfmt, as a tree: misuse by the caller is not damage in a file.

CnrError
├── UsageError             the call was wrong; nothing was written
│   ├── MissingKeyError    a key or a row id that the table doesn't have
│   ├── TooLargeError      it takes more memory than the caller allows, or than there is
│   └── ChainTooLongError  the append would exceed the bound on a chain's length
├── DamagedError           the bytes break a rule of the specification
├── UnsupportedError       the file needs a feature that this release doesn't know
├── VersionNotFoundError   the version was never committed, or isn't retained
│   └── VersionExpiredError   its files were removed while a reader still wanted them
├── CommitError            nothing of this commit counts
│   ├── ConflictError      somebody else committed first: open the head again and retry
│   ├── LockedError        another writer holds the container
│   ├── RankLostError      one of many writers is gone, or didn't answer in time
│   └── SilenceError       a coordinator failed, and can't tell what the other writers heard
├── CommitUnknownError     the commit may or may not have happened: read the head to know
└── StorageError           the operating system refused (also an OSError)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any


class CnrError(Exception):
    """Base of every error that cnrfmt raises on purpose."""


class UsageError(CnrError, ValueError):
    """The caller asked for something that can't be done; nothing was changed."""


class MissingKeyError(UsageError, KeyError):
    """A key, table, column or row id that isn't there."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument, quotes included.
        return str(self.args[0]) if self.args else ""


class TooLargeError(UsageError):
    """A call takes more memory than its caller allows, or than the machine gives.

    That is no damage: few bytes may say that very many rows read as the fill value.

    Attributes
    ----------
    what
        The table, or what else it is that is too large.
    asked
        Bytes that the call had come to when it was refused; None where the machine refused.
    limit
        What the caller allows; None where the machine refused.
    argument
        Where that was said: ``max_bytes``, or ``stored_bytes`` of a checkpoint manager.
    """

    def __init__(self, what: str, asked: int | None, limit: int | None, argument: str = "max_bytes") -> None:
        self.what, self.asked, self.limit, self.argument = what, asked, limit, argument
        if limit is None:
            size = "" if asked is None else f"{asked} bytes "
            text = f"{what}: {size}don't fit into memory; read a range of rows at a time"
        else:
            otherwise = ", or, for rows, read a range at a time or give an array as out"
            text = f"{what}: the call takes {asked} bytes by now, and {argument} allows {limit}; allow more"
            text += otherwise if argument == "max_bytes" else ""
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return TooLargeError, (self.what, self.asked, self.limit, self.argument)


class ChainTooLongError(UsageError):
    """One more delta would exceed the bound on a chain's length."""


class DamagedError(CnrError):
    """Bytes that break a rule of the specification.

    Attributes
    ----------
    rule
        The error id of the broken rule, as listed in ``spec/``.
    place
        File, segment, section, part or byte offset: where it was found.
    expected, found
        What the rule asks for, and what the bytes say.
    advice
        What to do about it.
    """

    def __init__(
        self,
        rule: str,
        place: str,
        *,
        expected: object,
        found: object,
        advice: str = "run `cnrfmt verify` for all findings; restore it from a copy, or `cnrfmt salvage` what is sound",
    ) -> None:
        self.rule = rule
        self.place = place
        self.expected = str(expected)
        self.found = str(found)
        self.advice = advice
        super().__init__(
            f"{place}: damaged ({rule}): expected {expected}, found {found}; {advice}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes; keyword arguments don't do so by themselves.
        words = {"expected": self.expected, "found": self.found, "advice": self.advice}
        return partial(DamagedError, **words), (self.rule, self.place)


class UnsupportedError(CnrError):
    """The bytes need a feature or a format that this release doesn't know.

    ``feature`` names it, for example ``incompat bit 7``.
    """

    def __init__(self, place: str, feature: str) -> None:
        self.place = place
        self.feature = feature
        super().__init__(
            f"{place}: needs {feature}, which this release of cnrfmt doesn't know; "
            "upgrade cnrfmt to read it"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return UnsupportedError, (self.place, self.feature)


class VersionNotFoundError(CnrError, LookupError):
    """The version asked for was never committed, or is no longer retained."""


class VersionExpiredError(VersionNotFoundError):
    """The files of a version were removed while a reader still wanted them."""


class CommitError(CnrError):
    """A commit that didn't happen: the container is as it was."""


class ConflictError(CommitError):
    """Another writer committed first; open the new head and try again."""


class LockedError(CommitError):
    """Another writer, in this process or another, holds the container."""


class RankLostError(CommitError):
    """Of several processes that work together, some are gone or didn't answer in time.

    Attributes
    ----------
    reasons
        The ranks that were lost, and what became of each: ``"gone"`` (its process has ended) or ``"late"``.
    payloads
        What the other ranks had said, by rank.
    """

    def __init__(self, what: str, reasons: Mapping[int, str], payloads: Mapping[int, bytes]) -> None:
        self.what, self.reasons, self.payloads = what, dict(reasons), dict(payloads)
        shown = ", ".join(f"rank {rank} is {_LOST.get(why, why)}" for rank, why in sorted(self.reasons.items()))
        super().__init__(f"{what}: {shown}; end all ranks and start them together again")

    def __reduce__(self) -> tuple[Any, ...]:
        return RankLostError, (self.what, self.reasons, self.payloads)


_LOST = {
    "gone": "gone (its process has ended)",
    "late": "late (it hasn't answered in time: it is slow, stuck, or was never started)",
}


class SilenceError(CommitError):
    """A coordinator failed, so that it isn't known what the other ranks said; what it raised is the cause.

    The others may have heard everything, this rank included. Nothing was committed all the same.
    """


class SupersededError(CommitError):
    """The checkpoint was skipped, or given up for a newer one that holds its rows too."""


class CommitUnknownError(CnrError):
    """Whether the commit happened couldn't be settled; read the head before going on.

    Attributes
    ----------
    version
        The version that may be committed.
    commit_id
        The id of the attempt: the version is this attempt's if its manifest has it (`Checkpoint.manifest`).
    state
        The id of the state that it would be: a later version that says the same has it, too.
    """

    version: int | None = None
    commit_id: bytes | None = None
    state: bytes | None = None


class StorageError(CnrError, OSError):
    """The operating system refused; ``errno`` and ``filename`` are set where known."""
