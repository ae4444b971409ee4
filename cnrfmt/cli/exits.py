"""The exit codes of the command."""

from __future__ import annotations

from collections.abc import Iterable

from cnrfmt.errors import DamagedError, UnsupportedError, UsageError

SOUND, DAMAGED, USAGE, UNJUDGED, IO = 0, 1, 2, 3, 4
DIFFERENT = 5
"""What `diff` found, where ``--exit-code`` asks for it."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell makes of death by SIGINT and SIGPIPE."""

MEANINGS = {
    SOUND: "sound",
    DAMAGED: "damaged",
    USAGE: "wrong usage, or something asked for that isn't there",
    UNJUDGED: "can't judge: needs a newer cnrfmt",
    IO: "input or output failed",
}


def code_of(error: Exception) -> int:
    """The exit code that an error ends in."""
    if isinstance(error, DamagedError):
        return DAMAGED
    if isinstance(error, UnsupportedError):
        return UNJUDGED
    # An older version that isn't there was asked for by whoever typed its number.
    return USAGE if isinstance(error, UsageError | LookupError) else IO


def worst_of(errors: Iterable[Exception]) -> int:
    """The exit code where these errors were met and reported on the way: damage outweighs the rest."""
    return min((code_of(error) for error in errors), default=SOUND)
