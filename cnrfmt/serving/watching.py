"""Waiting for a commit: told by the operating system where that can be had, else by looking again and again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from cnrfmt.errors import UsageError
from cnrfmt.storage.directory import MANIFESTS

_DEBOUNCE_MS, _STEP_MS = 20, 5


class Watch:
    """Waits until something may have been committed to a container.

    The library `watchfiles` is used where it is installed. In any case `wait` returns after `poll` seconds: what other
    machines do to a network file system isn't told.
    """

    def __init__(self, path: str, poll: float, over: threading.Event) -> None:
        self._poll, self._over = poll, over
        self._changes: Iterator[Any] | None = _changes(path, poll, over)

    @property
    def is_told(self) -> bool:
        """Whether the operating system tells of changes."""
        return self._changes is not None

    def wait(self) -> None:
        """Returns when something may have changed, after `poll` seconds in any case, and at once when it is over."""
        if self._changes is not None:
            try:
                next(self._changes)
                return
            except (StopIteration, OSError, RuntimeError):
                # The watched folder is gone, or the system watches no more: then it is looked at.
                self._changes = None
        self._over.wait(self._poll)

    def close(self) -> None:
        """Lets go of what the system tells."""
        self._changes = None


def _changes(path: str, poll: float, over: threading.Event) -> Iterator[Any] | None:
    try:
        import watchfiles
    except ImportError:
        return None
    folder = os.path.join(path, MANIFESTS) if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    return watchfiles.watch(
        folder,
        watch_filter=None,
        debounce=_DEBOUNCE_MS,
        step=_STEP_MS,
        stop_event=over,
        rust_timeout=max(1, int(poll * 1000)),
        yield_on_timeout=True,
        raise_interrupt=True,
        recursive=False,
    )


def check_seconds(value: Any, name: str) -> None:
    """That an argument is a time; raises `UsageError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name} is a number of seconds above 0, found {value!r}")
