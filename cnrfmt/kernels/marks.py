"""Marked rows: one bit each, in words of 64, and one byte for each page of words that says whether any bit was set.

A page is 4,096 bytes of words, as much as the machine gives memory by: what no byte speaks of isn't touched, so that
memory which was never written to is never taken. `words` has `PAGE_WORDS` words for each of `pages`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.kernels._jit import jit
from cnrfmt.kernels._machine import ones, signed, trailing_zeros, unsigned

PAGE_WORDS = 512
PAGE_ROWS = 64 * PAGE_WORDS

_PAGE_SHIFT = 15
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@jit
def mark(ids: npt.NDArray[np.signedinteger], rows: int, words: Words, pages: Bytes) -> int:
    """Set the bits of these rows; returns -1, or the position of the first id that isn't in 0 ... rows - 1.

    Where there is such an id, no bit is set.
    """
    greatest = _ZERO
    for k in range(len(ids)):
        # A negative id is a very great number without its sign.
        greatest = max(greatest, unsigned(ids[k]))
    if len(ids) > 0 and greatest >= np.uint64(rows):
        for k in range(len(ids)):
            if unsigned(ids[k]) >= np.uint64(rows):
                return k
    for k in range(len(ids)):
        row = unsigned(ids[k])
        at, bit = row >> np.uint64(6), _ONE << (row & np.uint64(63))
        word = words[at]
        # Popular rows are marked over and over. A store for each would have the next one's load wait for it.
        if not word & bit:
            words[at] = word | bit
            pages[row >> np.uint64(_PAGE_SHIFT)] = 1
    return -1


@jit
def count(words: Words, pages: Bytes, more_words: Words, more_pages: Bytes) -> int:
    """How many rows are marked in either of two sets of the same size."""
    total = 0
    for page in range(len(pages)):
        if pages[page] | more_pages[page]:
            for at in range(page * PAGE_WORDS, (page + 1) * PAGE_WORDS):
                total += ones(words[at] | more_words[at])
    return total


@jit
def extract(words: Words, pages: Bytes, more_words: Words, more_pages: Bytes, out: Ids) -> int:
    """Write the rows that are marked in either of two sets, ascending; returns how many.

    Stops where `out` is full.
    """
    found = 0
    for page in range(len(pages)):
        if pages[page] | more_pages[page]:
            for at in range(page * PAGE_WORDS, (page + 1) * PAGE_WORDS):
                left = words[at] | more_words[at]
                if ones(left) > len(out) - found:
                    return found
                while left != _ZERO:
                    out[found] = 64 * at + signed(np.uint64(trailing_zeros(left)))
                    found += 1
                    left &= left - _ONE
    return found


@jit
def merge(words: Words, pages: Bytes, into_words: Words, into_pages: Bytes) -> None:
    """Set in the second set, which is at least as large, what is set in the first."""
    for page in range(len(pages)):
        if pages[page]:
            into_pages[page] = 1
            for at in range(page * PAGE_WORDS, (page + 1) * PAGE_WORDS):
                into_words[at] |= words[at]


@jit
def clear_from(first: int, words: Words, pages: Bytes) -> None:
    """Clear the bits of the rows from `first` on."""
    for page in range(first >> _PAGE_SHIFT, len(pages)):
        if pages[page]:
            for at in range(max(page * PAGE_WORDS, first >> 6), (page + 1) * PAGE_WORDS):
                kept = (_ONE << np.uint64(first & 63)) - _ONE if at == first >> 6 else _ZERO
                words[at] &= kept
