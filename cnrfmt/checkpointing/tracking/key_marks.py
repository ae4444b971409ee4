"""A set of keys of a keyed table, each to be written or to be deleted."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Ids

WRITTEN, DELETED = 1, 2
"""The states of a key, as the kernels know them."""

_LEAST = 1024
"""Slots of an empty table."""


class KeyMarks:
    """Keys with the last thing that was said of each: empty at first. Not safe for several threads by itself.

    A slot takes 9 bytes, and at most three quarters of the slots are taken: the table takes 24 bytes per key at the
    most (save 9 KiB for the smallest), and half as much again for the moment in which it grows.
    """

    def __init__(self, seed: int | None = None) -> None:
        """An empty set; keys are hashed with a random seed, lest somebody should choose keys that collide."""
        from cnrfmt.kernels import key_marks as kernel

        # An import in each call would take as long as a small call does.
        self._kernel = kernel
        self._seed = np.uint64(int.from_bytes(os.urandom(8)) if seed is None else seed)
        self._counts = np.zeros(3, np.int64)
        self._allocate(_LEAST)

    def _allocate(self, slots: int) -> None:
        keys, states = np.empty(slots, np.int64), np.zeros(slots, np.uint8)
        self._keys, self._states = keys, states

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._keys.nbytes + self._states.nbytes

    @property
    def _most(self) -> int:
        return len(self._keys) // 4 * 3

    def empty(self) -> KeyMarks:
        """An empty set that hashes alike."""
        return KeyMarks(int(self._seed))

    def put(self, keys: npt.NDArray[np.signedinteger], state: int) -> None:
        """Notes that keys are to be written or deleted: int32 or int64, 1-D, contiguous.

        Raises `MemoryError`; the keys before the one that there was no room for are noted then.
        """
        done = 0
        while True:
            done = int(
                self._kernel.put(keys, done, state, self._most, self._keys, self._states, self._counts, self._seed)
            )
            if done == len(keys):
                return
            self._make_room(self._most + 1)

    def add_older(self, other: KeyMarks) -> None:
        """Adds the keys of a set that hashes alike, save those that are here, of which more is known here."""
        self._merge(other, replace=False)

    def add_newer(self, other: KeyMarks) -> None:
        """Adds the keys of a set that hashes alike, which knows more of those that both have."""
        self._merge(other, replace=True)

    def _merge(self, other: KeyMarks, *, replace: bool) -> None:
        # Keys that come in the order of their hashes into a smaller table would all collide at its front.
        self._make_room(int(self._counts.sum() + other._counts.sum()))
        self._kernel.merge(other._keys, other._states, replace, self._keys, self._states, self._counts, self._seed)

    def _make_room(self, count: int) -> None:
        """Grows until there is room for so many keys; changes nothing if it raises `MemoryError`."""
        slots = len(self._keys)
        while slots // 4 * 3 < count:
            slots *= 2
        if slots > len(self._keys):
            keys, states = self._keys, self._states
            self._allocate(slots)
            self._kernel.merge(keys, states, True, self._keys, self._states, np.zeros(3, np.int64), self._seed)

    def count(self, state: int = WRITTEN) -> int:
        """How many keys are in a state."""
        return int(self._counts[state])

    def ids(self, older: KeyMarks | None = None, state: int = WRITTEN) -> Ids:
        """The keys in a state, sorted, and those of an older set, of which nothing is said here."""
        out = np.empty(self.count(state) + (older.count(state) if older is not None else 0), np.int64)
        found = 0
        for marks, newer in ((self, self.empty()), (older, self)):
            if marks is not None:
                both = marks._keys, marks._states, state, newer._keys, newer._states
                found += int(self._kernel.extract(*both, self._seed, out[found:]))
        out = out[:found]
        out.sort()
        return out
