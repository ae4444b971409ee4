"""Codes of 1 to 26 bits in two's complement, one behind the other from the lowest bit of a row's first byte.

They are taken several at a time into a word. Words are loaded and stored whole wherever the array goes on behind
them: what a row's last word has beyond its codes is the next row's to write.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cnrfmt.arrays import Bytes
from cnrfmt.kernels._code_vectors import join_eights, join_four, join_two, unpack_eights
from cnrfmt.kernels._jit import helper
from cnrfmt.kernels._machine import load_u32, store, unsigned

Integers = npt.NDArray[np.int32]

_WORD, _HALF = 8, 4


@helper
def code_bytes(count: int, bits: int) -> int:
    """Bytes of the codes of a row."""
    return (count * bits + 7) // 8


@helper
def pack_row(codes: Integers, first: int, count: int, bits: int, out: Bytes, at: int, limit: int) -> None:
    """Put the codes codes[first : first + count] from out[at] on. No byte from `limit` on is written.

    Bits beyond the last code are zero; so may be some bytes that follow, below the limit.
    """
    wide, mask = unsigned(bits), unsigned((1 << bits) - 1)
    held, filled, done = np.uint64(0), np.uint64(0), 0
    if bits <= 8:
        # Eight codes are whole bytes, and the word that holds them is stored whole.
        eights = count // 8
        if at + eights * bits + _WORD > limit:
            eights = max(0, (limit - at - _WORD) // bits)
        if eights:
            join_eights(codes, first, eights, bits, out, at)
            done, at = 8 * eights, at + eights * bits
    # At most 56 bits at a time, so that a byte begun before fits into the word as well.
    step = 4 if bits <= 14 else 2
    while done + step <= count and at + _WORD <= limit:
        word = join_four(codes, first + done, bits) if step == 4 else join_two(codes, first + done, bits)
        held |= word << filled
        store(out, at, held)
        filled += wide * unsigned(step)
        at += int(filled >> np.uint64(3))
        held >>= filled & ~np.uint64(7)
        filled &= np.uint64(7)
        done += step
    for k in range(first + done, first + count):
        held |= (unsigned(codes[k]) & mask) << filled
        filled += wide
        while filled >= np.uint64(8):
            out[at] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            filled -= np.uint64(8)
            at += 1
    if filled:
        out[at] = np.uint8(held & np.uint64(255))


@helper
def _word_at(data: Bytes, at: int, end: int) -> np.uint32:
    """Four bytes, zeros from `end` on."""
    word = np.uint32(0)
    for k in range(min(_HALF, end - at)):
        word |= np.uint32(data[at + k]) << np.uint32(8 * k)
    return word


@helper
def unpack_row(
    data: Bytes, at: int, limit: int, bits: int, exponent: int, out: Integers, first: int, count: int
) -> bool:
    """out[first : first + count] = the codes from data[at] on, shifted left; whether one of them needs all its bits.

    No byte from `limit` on is read.
    """
    end = at + code_bytes(count, bits)
    # Of so many codes the words that hold them are within the array.
    whole = count // 8
    if at + whole * bits + _WORD > limit:
        whole = max(0, (limit - _WORD - at) // bits)
    needed = unpack_eights(data, at, bits, exponent, out, first, whole)
    rest = np.int32(32 - bits)
    for k in range(8 * whole, count):
        place = k * bits
        byte = at + (place >> 3)
        word = np.int32(load_u32(data, byte) if byte + _HALF <= limit else _word_at(data, byte, end))
        left = np.int32(word << (rest - np.int32(place & 7)))
        needed |= int(left ^ np.int32(left << np.int32(1)))
        out[first + k] = (left >> rest) << exponent
    return bool(needed < 0)
