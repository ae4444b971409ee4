"""Memory that a file asks for: counted before it is taken, and refused with an error of our own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cnrfmt.arrays import Array
from cnrfmt.errors import TooLargeError, UsageError

METADATA = 32
"""Bytes of memory that a byte of JSON takes at the most: ``[],`` is a list of 56 bytes and a place in another."""


class Budget:
    """What one call may take. Every `take` comes before the memory is taken."""

    def __init__(self, limit: int | None) -> None:
        self._limit, self._taken = limit, 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._limit is not None

    def take(self, nbytes: int, what: str) -> None:
        """Counts bytes for something; raises `TooLargeError` where all that was counted exceeds the limit."""
        self._taken += nbytes
        if self._limit is not None and self._taken > self._limit:
            raise TooLargeError(what, self._taken, self._limit)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """What is counted within counts no more where it raises."""
        before = self._taken
        try:
            yield
        except BaseException:
            self._taken = before
            raise

    def take_json(self, nbytes: int, what: str) -> None:
        """Counts what so many bytes of JSON become."""
        self.take(METADATA * nbytes, what)


def check_limit(max_bytes: int | None) -> int | None:
    """A caller's limit; raises `UsageError`."""
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0):
        raise UsageError(f"max_bytes must be an integer of at least 0, or None, found {max_bytes!r}")
    return max_bytes


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Memory that the machine refuses within becomes a `TooLargeError`."""
    try:
        yield
    except MemoryError:
        raise TooLargeError(what, None, None) from None


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], place: str, budget: Budget) -> Array:
    """An array of values of `place`, not filled, counted before it is taken; raises `TooLargeError`."""
    nbytes = math.prod(shape) * dtype.itemsize
    if budget.limited:
        budget.take(nbytes, f"{place}: {shape} values of {dtype}")
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        # A table may be larger than memory: few bytes say that very many rows read as the fill value.
        raise TooLargeError(f"{place}: {shape} values of {dtype}", nbytes, None) from None
