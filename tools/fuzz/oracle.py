"""What a target holds the library against: the independent validator, and the library itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from cnrfmt.errors import CnrError, DamagedError, UnsupportedError
from tools import cnrcheck

T = TypeVar("T")

SOUND, DAMAGED, UNJUDGED = "sound", "damaged", "unjudged"


class Disagreement(AssertionError):  # noqa: N818
    """The library broke a promise: a fuzzer takes it for a crash."""


def attempt(work: Callable[[], T]) -> tuple[str, T | None, CnrError | None]:
    """The library's verdict on some bytes, what it made of them, and its error; any but its own goes through."""
    try:
        return SOUND, work(), None
    except DamagedError as error:
        return DAMAGED, None, error
    except UnsupportedError as error:
        return UNJUDGED, None, error


def judged(checker: cnrcheck._Checker, *, ignore: Iterable[str] = ()) -> str:
    """The verdict of the independent validator, some rules aside."""
    return cnrcheck.verdict(f for f in checker.found if f.error not in set(ignore))


def agree(library: str, error: CnrError | None, checker: cnrcheck._Checker, *, ignore: Iterable[str] = ()) -> None:
    """Both call it sound, or neither does.

    An `incompat` bit ends the library's look, so that *unjudged* and *damaged* may stand against each other there.
    """
    other = judged(checker, ignore=ignore)
    if (library == SOUND) != (other == SOUND) and not (library == SOUND and other == UNJUDGED):
        findings = "; ".join(str(f) for f in checker.found)
        raise Disagreement(f"the library says {library} ({error}), cnrcheck says {other} ({findings})")


def same(found: object, expected: object, what: str) -> None:
    """Both are equal."""
    if found != expected:
        raise Disagreement(f"{what}: {str(found)[:300]} where {str(expected)[:300]} was expected")


__all__ = ["CnrError", "Disagreement", "agree", "attempt", "judged", "same"]
