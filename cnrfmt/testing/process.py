"""A process that ends, or that the operating system refuses something, in the midst of what it does."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, cast

from cnrfmt.errors import StorageError
from cnrfmt.storage.fs import Fs, byte_view


class Killed(BaseException):
    """The end of a process that lives in the process of its test."""


class Process:
    """The calls of one process on a file system: `fs` is what its commits and readers are given.

    Parameters
    ----------
    fs
        The file system on which the calls are made.
    ends_at
        The number of the call, from 1, before which the process ends: this call and all later ones raise `Killed`.
    torn
        How much of a write the file system still does if the process ends there: a part from 0 to 1.
    refused_at
        The number of the call that is refused with the error `code`; with `lasting`, all later ones are, too.
    counted_from
        Named points of a commit: calls are counted once one of them is passed; from the start if there are none.
    """

    def __init__(
        self,
        fs: Fs,
        *,
        ends_at: int | None = None,
        torn: float = 0.0,
        refused_at: int | None = None,
        code: int = 0,
        lasting: bool = False,
        counted_from: Collection[str] = (),
    ) -> None:
        self._inner = fs
        self._ends_at, self._torn = ends_at, torn
        self._refused_at, self._code, self._lasting = refused_at, code, lasting
        self._counted_from, self._counting = counted_from, not counted_from
        self._handles: set[int] = set()
        self.calls = 0
        """How many calls were counted."""
        self.refused: list[str] = []
        """The names of the calls that were refused."""
        self.killed = False
        """Whether the process came to the call before which it ends."""
        self.fs = cast(Fs, _Calls(self))

    @property
    def open_handles(self) -> int:
        """How many handles it holds."""
        return len(self._handles)

    def call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Makes a call, or doesn't."""
        target = getattr(self._inner, name)
        if name == "close":
            return self._close(args[0])
        if name == "point":
            self._counting = self._counting or args[0] in self._counted_from
            return target(*args)
        self.calls += self._counting
        if self.killed or self.calls == self._ends_at:
            if not self.killed and name == "pwrite":
                self._tear(*args)
            self.killed = True
            raise Killed
        if self._refused_at is not None and (
            self.calls == self._refused_at or (self._lasting and self.calls > self._refused_at)
        ):
            self.refused.append(name)
            raise StorageError(self._code, os.strerror(self._code))
        result = target(*args, **options)
        if name == "open":
            self._handles.add(result)
        return result

    def _tear(self, handle: int, offset: int, data: Any) -> None:
        view = byte_view(data)
        self._inner.pwrite(handle, offset, view[: int(len(view) * self._torn)])

    def _close(self, handle: int) -> None:
        # Once the process is over, its handles may be another's.
        if handle in self._handles:
            self._handles.discard(handle)
            self._inner.close(handle)

    def end(self) -> None:
        """What the operating system does when a process has ended: it closes its handles, which frees its locks."""
        for handle in list(self._handles):
            self._close(handle)


class _Calls:
    """The methods of `Fs`, each handed to the process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            return self._process.call(name, args, options)

        return call
