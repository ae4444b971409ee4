"""Keeps served tables at the newest version, in a thread of its own, whatever goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cnrfmt.serving.snapshot import LiveStatus, Snapshot
from cnrfmt.serving.watching import Watch

if TYPE_CHECKING:
    from cnrfmt.serving.live import LiveTables

_SOON_S = 0.01


class Keeper:
    """What `LiveTables.follow` runs, with its arguments.

    Attributes
    ----------
    error
        What couldn't be taken in, or what a call back raised when it was last called; None where nothing is wrong.
    """

    def __init__(
        self,
        live: LiveTables,
        poll: float,
        on_update: Callable[[Snapshot], None] | None,
        max_age: float | None,
        on_age: Callable[[LiveStatus], None] | None,
        on_error: Callable[[BaseException | None], None] | None,
    ) -> None:
        self._live, self._poll, self._on_update = live, float(poll), on_update
        self._max_age, self._on_age, self._on_error = max_age, on_age, on_error
        self._is_well = True
        self._told: int | None = None
        self._refused: Exception | None = None
        self._failing_since: float | None = None
        self.error: Exception | None = None

    @property
    def failing_s(self) -> float:
        """Seconds since something went wrong first; 0 where nothing is."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def run(self) -> None:
        """Takes in each new version until the tables are closed."""
        over = self._live.is_closed
        watch = Watch(self._live.path, self._poll, over)
        while not over.is_set():
            if self._look():
                # Look-ups of the version before end soon: then rows come back to where they are quicker to look up.
                over.wait(_SOON_S)
            else:
                watch.wait()
        watch.close()

    def _look(self) -> bool:
        """Whether another version was taken in."""
        moved, failed = False, None
        # Whatever goes wrong, others must be told, and what is served goes on.
        try:
            moved = self._live.keep_up()
        except Exception as error:
            failed = error
        status = self._live.status()
        is_old = self._max_age is not None and status.age_s > self._max_age and self._told != status.version
        if moved or is_old:
            self._refused = None
            try:
                if moved and self._on_update is not None:
                    self._on_update(self._live.snapshot())
                if is_old and self._on_age is not None:
                    self._told = status.version
                    self._on_age(status)
            except Exception as error:
                self._refused = error
        self.error = failed or self._refused
        self._tell_error()
        self._failing_since = None if self.error is None else self._failing_since or time.monotonic()
        return moved

    def _tell_error(self) -> None:
        # With what goes wrong with rows that are decoded behind.
        error = self._live.status().error
        if self._on_error is not None and (error is None) is not self._is_well:
            self._is_well = error is None
            try:
                self._on_error(error)
            except Exception as another:
                self.error = another
