"""Patterns of names, as callers give them to choose tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from cnrfmt.errors import UsageError


class Patterns:
    """Which names are wanted: those that match a pattern (as in `fnmatch`, case counts); all if None.

    `argument` is what the caller's argument is called, and what it names: ``tables``, say.
    """

    def __init__(self, patterns: Iterable[str] | None, argument: str = "tables") -> None:
        if isinstance(patterns, str):
            raise UsageError(f"{argument} is a list of patterns; use {argument}=[{patterns!r}]")
        self._patterns = None if patterns is None else tuple(patterns)
        self._argument = argument
        if not all(isinstance(p, str) for p in self._patterns or ()):
            raise UsageError(f"{argument} is a list of patterns, found {self._patterns!r}")

    @property
    def are_given(self) -> bool:
        """Whether there is any pattern."""
        return bool(self._patterns)

    def __contains__(self, name: str) -> bool:
        if self._patterns is None:
            return True
        return any(name == p or fnmatchcase(name, p) for p in self._patterns)

    def check(self, names: Sequence[str], path: str) -> None:
        """Raises `UsageError` if a pattern matches none of these names."""
        for pattern in self._patterns or ():
            if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(map(repr, names[:20])) or "none"
                noun = self._argument.removesuffix("s")
                raise UsageError(f"{path}: no {noun} matches {pattern!r}; what could be {self._argument}: {shown}")
