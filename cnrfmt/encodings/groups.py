"""The directory of a section whose rows are stored in groups: where each group begins (specification, section 6.8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids
from cnrfmt.errors import DamagedError

_BLOCK = 1024
"""Groups of a block of the directory."""
_BLOCK_WORDS = _BLOCK + 2
"""32-bit words of a whole block: a 64-bit base, then one for each group."""
_CHUNK = 256
"""Blocks that a check looks at in one step."""


def group_count(count: int, group: int) -> int:
    """Groups of `group` rows that `count` rows make."""
    return -(-count // group)


def directory_bytes(groups: int) -> int:
    """Bytes of the directory of so many groups: also what it takes in memory."""
    whole, rest = divmod(groups, _BLOCK)
    return 4 * _BLOCK_WORDS * whole + (8 + 8 * -(-rest // 2) if rest else 0)


def build(starts: Ids) -> Bytes:
    """The directory of groups that begin at these bytes of the payload, ascending, the first at 0."""
    groups = len(starts)
    words = np.zeros(directory_bytes(groups) // 4, np.uint32)
    bases = starts[::_BLOCK]
    at = np.arange(len(bases)) * _BLOCK_WORDS
    words[at] = bases & 0xFFFFFFFF
    words[at + 1] = bases >> 32
    numbers = np.arange(groups)
    words[_places(numbers)] = starts - bases[numbers // _BLOCK]
    return words.astype("<u4", copy=False).view(np.uint8)


def _places(groups: Ids) -> Ids:
    """Where the words of these groups are in the directory."""
    return groups // _BLOCK * _BLOCK_WORDS + 2 + groups % _BLOCK


@dataclass(frozen=True)
class Directory:
    """Where the groups of a payload begin: `words` is a private, checked copy of the section's bytes."""

    words: npt.NDArray[np.uint32]
    groups: int
    payload_bytes: int

    def bounds(self, first: int, stop: int) -> Ids:
        """Where the groups from `first` to `stop`, and the group behind them, begin in the payload."""
        from cnrfmt.kernels import integers as kernel

        found = np.empty(stop - first + 1, np.int64)
        kernel.group_bounds(self.words, self.groups, self.payload_bytes, first, found)
        return found

    def bounds_of(self, numbers: Ids) -> tuple[Ids, Ids]:
        """Where each of these groups begins and ends in the payload."""
        from cnrfmt.kernels import integers as kernel

        starts, stops = np.empty_like(numbers), np.empty_like(numbers)
        kernel.bounds_of_groups(self.words, self.groups, self.payload_bytes, numbers, starts, stops)
        return starts, stops


def parse(data: Bytes, groups: int, payload_bytes: int, place: str) -> Directory:
    """Checks the directory of at least one group, which is as long as `directory_bytes` says, of a payload of so many.

    Raises `DamagedError` (rule ``grid-directory``).
    """
    words = np.array(data).view("<u4").astype(np.uint32, copy=False)
    bases = words.view(np.uint64)[:: _BLOCK_WORDS // 2]
    if not (bases <= payload_bytes).all():
        number = int(np.argmax(bases > payload_bytes)) * _BLOCK
        raise _damaged(place, number, f"a beginning of at most {payload_bytes}", int(bases[number // _BLOCK]))
    if bases[0]:
        raise _damaged(place, 0, "a beginning of 0", int(bases[0]))
    if words[_places(np.arange(0, groups, _BLOCK))].any():
        number = int(np.argmax(words[_places(np.arange(0, groups, _BLOCK))] != 0)) * _BLOCK
        raise _damaged(place, number, "the beginning of its block", f"{words[_places(np.array([number]))][0]} bytes on")
    if groups % _BLOCK % 2 and words[-1]:
        raise _damaged(place, groups - 1, "zero bytes behind it", "others")
    found = Directory(words, groups, payload_bytes)
    for first in range(0, groups, _CHUNK * _BLOCK):
        bounds = found.bounds(first, min(first + _CHUNK * _BLOCK, groups))
        backwards = bounds[1:] < bounds[:-1]
        if backwards.any():
            number = int(np.argmax(backwards))
            expected = f"an end of at least {bounds[number]}"
            raise _damaged(place, first + number, expected, int(bounds[number + 1]))
    return found


def _damaged(place: str, group: int, expected: str, found: object) -> DamagedError:
    return DamagedError("grid-directory", f"{place}, group {group}", expected=expected, found=found)
