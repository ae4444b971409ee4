"""Models of the rans payload: frequencies out of counts, classes of rows, and the tables that coders look them up in.

Symbols are whole numbers that sum to 4096. Of a code c, z = (c << 1) ^ (c >> 31) is below 32 a *token* by itself;
above, a token says the length of z and the two bits below its highest, and the others follow as extra bits.
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes, Words
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import bit_length

Counts = npt.NDArray[np.int64]
Symbols = npt.NDArray[np.uint16]
Slots = npt.NDArray[np.uint32]

SCALE_BITS = 12
SCALE = 1 << SCALE_BITS
TOKENS = 128
"""Places that tables have for the tokens of a class."""
LEVELS = 32
"""Levels of a row's activity, of which classes are made."""

# Bits that a class takes besides its tokens, that a token takes, and that a row kind takes.
_CLASS_BITS, _TOKEN_BITS, _KIND_BITS = 8, 16, 32


@helper
def whole(number: np.integer[Any] | float) -> int:
    """A number as a signed one: numba makes floats of signed and unsigned ones together, numpy narrow numbers."""
    return int(np.int64(number))


@helper
def level_of(total: int, width: int) -> int:
    """How active a row is, from 0 to 31: 0 if all codes are 0, and one more for each factor sqrt(2) of the mean |c|.

    `total` is the sum of the |c|. From a mean of 1/16 on, which has level 1, to one of 2^11.
    """
    if total == 0:
        return 0
    mean = 16.0 * total / width
    return min(max(bit_length(np.uint64(min(mean * mean, 2.0**LEVELS))), 1), LEVELS - 1)


@helper
def _surprise(counts: Counts) -> float:
    """The bits that symbols of these counts take at their own frequencies."""
    total, bits = 0, 0.0
    for n in counts:
        if n:
            total += n
            bits -= n * log2(n)
    return bits + total * log2(total) if total else 0.0


@helper
def _class_bits(counts: Counts) -> float:
    """The bits that a class of these counts of tokens takes, its model included."""
    used = 0
    for token in range(len(counts)):
        if counts[token]:
            used = token + 1
    return _surprise(counts) + _TOKEN_BITS * used + (_CLASS_BITS if used else 0)


@helper
def _kind_bits(kinds: Counts) -> float:
    """What changes with the classes of the bits that the kinds of rows take, given the counts of one class."""
    bits = 0.0
    for n in kinds:
        if n:
            bits += _KIND_BITS - n * log2(n)
    return bits


@jit
def join_levels(tokens: Counts, kinds: Counts, most: int, class_of: Bytes) -> int:
    """Make classes of neighbouring levels: while it makes the whole smaller, or there are too many.

    Parameters
    ----------
    tokens, kinds
        Counts of tokens (levels, 128), and of rows by exponent (levels, exponents). What joins is added up in place.
    most
        The most classes wanted.
    class_of
        Gets each level's class; of one without rows, some class.

    Returns
    -------
    The number of classes.
    """
    levels, n = len(tokens), 0
    first = np.empty(levels, np.int64)  # Where in the arrays the counts of each class are.
    for level in range(levels):
        if kinds[level].any():
            first[n] = level
            n += 1
    own, joined, sums = np.empty(levels), np.empty(levels), np.empty_like(tokens[0])
    both = np.empty_like(kinds[0])
    for k in range(n):
        own[k] = _class_bits(tokens[first[k]]) + _kind_bits(kinds[first[k]])
        joined[k] = -1.0  # With the next one; to be computed.
    while n > 1:
        best, gain = 0, -np.inf
        for k in range(n - 1):
            if joined[k] < 0:
                sums[:] = tokens[first[k]]
                sums += tokens[first[k + 1]]
                both[:] = kinds[first[k]]
                both += kinds[first[k + 1]]
                joined[k] = max(_class_bits(sums) + _kind_bits(both), 0.0)
            if own[k] + own[k + 1] - joined[k] > gain:
                best, gain = k, own[k] + own[k + 1] - joined[k]
        if gain <= 0 and n <= most:
            break
        tokens[first[best]] += tokens[first[best + 1]]
        kinds[first[best]] += kinds[first[best + 1]]
        own[best] = joined[best]
        joined[best] = -1.0
        if best:
            joined[best - 1] = -1.0
        n -= 1
        for k in range(best + 1, n):
            first[k], own[k], joined[k] = first[k + 1], own[k + 1], joined[k + 1]
    for k in range(n):
        tokens[k] = tokens[first[k]]
        kinds[k] = kinds[first[k]]
    at = 0
    for level in range(levels):
        if at + 1 < n and level >= first[at + 1]:
            at += 1
        class_of[level] = at
    return n


@jit
def normalise(counts: Counts, out: Symbols) -> None:
    """Symbols that sum to 4096 for counts of at most 4096 symbols, at least 1 for each that occurs; one does."""
    total = counts.sum()
    rest = SCALE
    for s in range(len(counts)):
        out[s] = 0
        if counts[s]:
            f = max(1, whole(counts[s] * (SCALE / total)))
            out[s] = f
            rest -= f
    # What is left over, or was spent too much, goes where a step changes the bits the most, or the least.
    step = 1 if rest > 0 else -1
    while rest:
        best, most = -1, -np.inf
        for s in range(len(counts)):
            f = whole(out[s])
            if f and f + step:
                gain = counts[s] * log2((f + step) / f)
                if gain > most:
                    best, most = s, gain
        out[best] = whole(out[best]) + step
        rest -= step


@jit
def fill_slots(frequencies: Symbols, slots: Slots) -> None:
    """What 4096 slots say: the frequency of the symbol less 1, 12 bits; the place in its slots, 12; the symbol, 8."""
    at = 0
    for s in range(len(frequencies)):
        f = whole(frequencies[s])
        for k in range(f):
            slots[at + k] = (f - 1) | k << 12 | (s & 0xFF) << 24
        at += f


@jit
def fill_kinds(frequencies: Symbols, symbols: Symbols) -> None:
    """The symbol of each of 4096 slots, where there are more than a slot has a place for."""
    at = 0
    for s in range(len(frequencies)):
        for k in range(whole(frequencies[s])):
            symbols[at + k] = s
        at += whole(frequencies[s])


@jit
def fill_symbols(frequencies: Symbols, symbols: Words) -> None:
    """What the encoder looks up of each symbol of frequency f: 4096 - f, 12 bits; where it starts, 12; how to divide.

    With n such that f is at most 2^n, that is a shift, 20 + 2 n, 6 bits, and the reciprocal 2^shift / f, rounded up, 34
    bits. For a state x below f << 20, x * reciprocal is below 2^64, and shifted down it is the exact x / f (Alverson,
    Integer Division Using Reciprocals, 1991).
    """
    start = 0
    for s in range(len(frequencies)):
        f = whole(frequencies[s])
        if f:
            shift = 20 + 2 * bit_length(np.uint64(f - 1))
            reciprocal = ((1 << shift) + f - 1) // f
            symbols[s] = (SCALE - f) | start << 12 | shift << 24 | reciprocal << 30
        start += f
