"""What a manager tells while it works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

EventKind = Literal["snapshot", "committed", "failed", "skipped", "replaced", "merged", "collected"]


@dataclass(frozen=True)
class Event:
    """Something that a manager did, and what it took.

    Attributes
    ----------
    kind
        ``"snapshot"``: the tables may change again; ``"committed"``: a version is durable; ``"failed"``: it isn't, and
        `error` says why; ``"skipped"`` and ``"replaced"``: a checkpoint gave way to another; ``"merged"``: a chain got
        shorter; ``"collected"``: files of versions that aren't wanted any more are gone.
    step, version
        The trainer's step; the version, once there is one.
    checkpoint
        ``"baseline"``, ``"delta"`` or ``"since-baseline"``.
    rows, nbytes
        Rows that were taken, of all tables; bytes of the segment, or of the files that were removed.
    stall_seconds
        How long the trainer was held up: waiting for the checkpoint before, encoding or copying.
    encode_seconds
        How long gathering and encoding took.
    write_seconds
        From then until all bytes were handed to the file system: digests, row indexes, writing.
    commit_seconds
        How long it took to make the version durable after that.
    error
        What went wrong.
    """

    kind: EventKind
    step: int | None = None
    version: int | None = None
    checkpoint: str | None = None
    rows: int = 0
    nbytes: int = 0
    stall_seconds: float = 0.0
    encode_seconds: float = 0.0
    write_seconds: float = 0.0
    commit_seconds: float = 0.0
    error: BaseException | None = field(default=None, compare=False)


Listener = Callable[[Event], None]
"""Called with each event, on whichever thread it happens."""


def tell(listener: Listener | None, event: Event) -> None:
    """Calls the listener. What goes wrong in it is logged, and keeps no checkpoint from being made."""
    if listener is not None:
        try:
            listener(event)
        except BaseException as error:
            # Ctrl-C is the main thread's; elsewhere nobody would hear of an exit.
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            logging.getLogger("cnrfmt").exception("the listener of a checkpoint manager failed on %s", event.kind)
