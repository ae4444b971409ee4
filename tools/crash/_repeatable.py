"""Runs that give the same bytes each time: chance from a seed, and a clock and a process that stand still."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest.mock import patch

_MOMENT = time.struct_time((2024, 2, 29, 12, 0, 0, 3, 60, 0))


class Chance:
    """Where ids and temporary names come from."""

    def __init__(self) -> None:
        self._random = Random(0)

    def restart(self, *seed: object) -> None:
        """The same seed gives the same ids from here on."""
        self._random = Random(" ".join(map(str, seed)))

    def bytes(self, count: int) -> bytes:
        """In the place of `os.urandom`."""
        return self._random.randbytes(count)

    def hex(self, count: int | None = None) -> str:
        """In the place of `secrets.token_hex`."""
        return self._random.randbytes(count or 32).hex()


@contextmanager
def repeatable() -> Iterator[Chance]:
    """Within, nothing but the seed that is given to `Chance.restart` decides what a commit writes."""
    chance = Chance()
    with ExitStack() as stack:
        for target, name, value in (
            (os, "urandom", chance.bytes),
            (os, "getpid", lambda: 4711),
            (secrets, "token_hex", chance.hex),
            (socket, "gethostname", lambda: "host"),
            (time, "gmtime", lambda *seconds: _MOMENT),
            # A torn slot is read again a moment later; here it doesn't change in between.
            (time, "sleep", lambda seconds: None),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield chance
