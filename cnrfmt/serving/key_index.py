"""Keys of a table in memory, found at once: a hash index that is built for one set of keys and never changes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import TooLargeError, UsageError
from cnrfmt.inputs import as_ids

_NARROW_KEYS = 1 << 31
"""Fewer keys than this have their positions in 4 bytes each."""


class KeyIndex:
    """Where each of some distinct int64 keys stands among them. Safe to use from many threads.

    It keeps a copy of the keys, at 24 to 48 bytes for each.
    """

    def __init__(self, slots: Bytes, slot_bytes: int, seed: np.uint64, count: int) -> None:
        self._slots, self._slot_bytes, self._seed, self._count = slots, slot_bytes, seed, count

    @classmethod
    def build(cls, keys: Ids, *, seed: int | None = None) -> KeyIndex:
        """An index of these keys, in any order.

        Parameters
        ----------
        keys
            Distinct integers that fit in int64.
        seed
            Of the hash, from 0 to 2**64 - 1; a random one if None, lest somebody should choose keys that collide.

        Raises
        ------
        UsageError
            A key is there twice.
        TooLargeError
            There isn't the memory for it.
        """
        from cnrfmt.kernels import key_index as kernel

        keys = as_ids(keys, "keys")
        slot_bytes = kernel.NARROW if len(keys) < _NARROW_KEYS else kernel.WIDE
        nbytes = slot_bytes * slots_for(len(keys))
        try:
            slots = np.zeros(nbytes, np.uint8)
        except MemoryError:
            raise TooLargeError(f"an index of {len(keys)} keys", nbytes, None) from None
        chosen = np.uint64(int.from_bytes(os.urandom(8)) if seed is None else seed)
        twice = int(kernel.build(keys, slots, slot_bytes, chosen))
        if twice >= 0:
            raise UsageError(f"keys must be distinct: key {keys[twice]} at position {twice} was there before")
        slots.flags.writeable = False
        return cls(slots, slot_bytes, chosen, len(keys))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._slots.nbytes

    def find(self, wanted: Any, out: Ids | None = None) -> Ids:
        """The position of each of these keys, int64; -1 for those that aren't there.

        Parameters
        ----------
        wanted
            Integers that fit in int64, in any order and with repeats.
        out
            A contiguous int64 array of that length to fill.
        """
        from cnrfmt.kernels import key_index as kernel

        keys = as_ids(wanted, "wanted")
        if out is None:
            out = np.empty(len(keys), np.int64)
        elif not (
            isinstance(out, np.ndarray)
            and out.dtype == np.int64
            and out.shape == keys.shape
            and out.flags.c_contiguous
            and out.flags.writeable
        ):
            raise UsageError(
                f"out must be a writable, contiguous int64 array of shape {keys.shape}, found a {type(out).__name__} "
                f"of {getattr(out, 'dtype', None)} and shape {np.shape(out)}"
            )
        elif np.may_share_memory(out, keys):
            # It is written to before all keys are read.
            keys = keys.copy()
        kernel.find(self._slots, self._slot_bytes, self._seed, keys, out)
        return out

    def __repr__(self) -> str:
        return f"<cnrfmt.serving.KeyIndex: {self._count} keys, {self.nbytes} bytes>"


def slots_for(count: int) -> int:
    """How many slots so many keys have: the least power of two that leaves half of them free."""
    return 1 << max(1, (2 * count - 1).bit_length())
