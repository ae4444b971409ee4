"""Digests of pieces: 64-bit XXH3 with a seed, as xxHash 0.8 defines it (Y. Collet).

Bytes are read in the machine's order, which is the format's: little-endian.
"""

from __future__ import annotations

import numpy as np

from cnrfmt.arrays import Bytes, Ids, Words
from cnrfmt.kernels._jit import helper, jit
from cnrfmt.kernels._machine import load_u32, load_u64, multiply_fold, prefetch, xxh3_lanes

# The default secret of the definition.
_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe 7c01812cf721ad1c ded46de9839097db 7240a4a4b7b3671f"
        "cb79e64eccc0e578 825ad07dccff7221 b8084674f743248e e03590e6813a264c"
        "3c2852bb91c300cb 88d0658b1b532ea3 71644897a20df94e 3819ef46a9deacd8"
        "a8fa763fe39c343f f9dcbbc7c70b4f1d 8a51e04bcdb45931 c89f7ec9d9787364"
        "eac5ac8334d3ebc3 c581a0fffa1363eb 170ddd51b7f0da49 d316552629d4689e"
        "2b16be587d47a1fc 8ff8b8d17ad031ce 45cb3a8f95160428 afd7fbcabb4b407e"
    ),
    np.uint8,
)
_SECRET_WORDS = _SECRET.view(np.uint64)

_P32_1 = np.uint64(0x9E3779B1)
_P32_2 = np.uint64(0x85EBCA77)
_P32_3 = np.uint64(0xC2B2AE3D)
_P64_1 = np.uint64(0x9E3779B185EBCA87)
_P64_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P64_3 = np.uint64(0x165667B19E3779F9)
_P64_4 = np.uint64(0x85EBCA77C2B2AE63)
_P64_5 = np.uint64(0x27D4EB2F165667C5)
_MIX_1 = np.uint64(0x165667919E3779F9)
_MIX_2 = np.uint64(0x9FB21C651E98DF25)


def _words(*offsets: int) -> np.uint64:
    """The exclusive or of the secret's words at these byte offsets."""
    words = (int.from_bytes(_SECRET[at : at + 8].tobytes(), "little") for at in offsets)
    first, second = words
    return np.uint64(first ^ second)


_FLIP_EMPTY = _words(56, 64)
_FLIP_SMALL = np.uint64((int(_SECRET_WORDS[0]) >> 32) ^ (int(_SECRET_WORDS[0]) & 0xFFFF_FFFF))
_FLIP_8 = _words(8, 16)
_FLIP_16_LOW = _words(24, 32)
_FLIP_16_HIGH = _words(40, 48)


@helper
def _avalanche(h: np.uint64) -> np.uint64:
    h ^= h >> 37
    h *= _MIX_1
    return h ^ (h >> 32)


@helper
def _avalanche_xxh64(h: np.uint64) -> np.uint64:
    h ^= h >> 33
    h *= _P64_2
    h ^= h >> 29
    h *= _P64_3
    return h ^ (h >> 32)


@helper
def _swap_bytes(x: np.uint64) -> np.uint64:
    x = (x >> 32) | (x << 32)
    x = ((x >> 16) & np.uint64(0x0000FFFF0000FFFF)) | ((x & np.uint64(0x0000FFFF0000FFFF)) << 16)
    return ((x >> 8) & np.uint64(0x00FF00FF00FF00FF)) | ((x & np.uint64(0x00FF00FF00FF00FF)) << 8)


@helper
def _mix_16(data: Bytes, at: int, secret_at: int, seed: np.uint64) -> np.uint64:
    return multiply_fold(
        load_u64(data, at) ^ (load_u64(_SECRET, secret_at) + seed),
        load_u64(data, at + 8) ^ (load_u64(_SECRET, secret_at + 8) - seed),
    )


@helper
def _short(data: Bytes, first: int, length: int, seed: np.uint64) -> np.uint64:
    """The digest of at most 16 bytes."""
    size = np.uint64(length)
    if length > 8:
        low = load_u64(data, first) ^ (_FLIP_16_LOW + seed)
        high = load_u64(data, first + length - 8) ^ (_FLIP_16_HIGH - seed)
        return _avalanche(size + _swap_bytes(low) + high + multiply_fold(low, high))
    if length >= 4:
        seed ^= _swap_bytes(seed & np.uint64(0xFFFF_FFFF))
        head = np.uint64(load_u32(data, first))
        tail = np.uint64(load_u32(data, first + length - 4))
        h = (tail + (head << 32)) ^ (_FLIP_8 - seed)
        h ^= ((h << 49) | (h >> 15)) ^ ((h << 24) | (h >> 40))
        h *= _MIX_2
        h ^= (h >> 35) + size
        h *= _MIX_2
        return h ^ (h >> 28)
    if length > 0:
        combined = (
            np.uint64(data[first + length - 1])
            | (size << 8)
            | (np.uint64(data[first]) << 16)
            | (np.uint64(data[first + (length >> 1)]) << 24)
        )
        return _avalanche_xxh64(combined ^ (_FLIP_SMALL + seed))
    return _avalanche_xxh64(seed ^ _FLIP_EMPTY)


@helper
def _medium(data: Bytes, first: int, length: int, seed: np.uint64) -> np.uint64:
    """The digest of 17 to 240 bytes."""
    total = np.uint64(length) * _P64_1
    if length <= 128:
        for i in range((length - 1) >> 5, -1, -1):
            total += _mix_16(data, first + 16 * i, 32 * i, seed)
            total += _mix_16(data, first + length - 16 * (i + 1), 32 * i + 16, seed)
        return _avalanche(total)
    for i in range(8):
        total += _mix_16(data, first + 16 * i, 16 * i, seed)
    total = _avalanche(total)
    for i in range(8, length >> 4):
        total += _mix_16(data, first + 16 * i, 16 * (i - 8) + 3, seed)
    total += _mix_16(data, first + length - 16, 136 - 17, seed)
    return _avalanche(total)


@helper
def _secret_word(number: int, seed: np.uint64) -> np.uint64:
    word: np.uint64 = _SECRET_WORDS[number]
    return word - seed if number & 1 else word + seed


@helper
def _long(data: Bytes, first: int, length: int, seed: np.uint64, lanes: Words) -> np.uint64:
    """The digest of more than 240 bytes; `lanes` is room for 8 words."""
    lanes[0], lanes[1], lanes[2], lanes[3] = _P32_3, _P64_1, _P64_2, _P64_3
    lanes[4], lanes[5], lanes[6], lanes[7] = _P64_4, _P32_2, _P64_5, _P32_1
    xxh3_lanes(lanes, data, first, length, _SECRET_WORDS, seed)
    for i in range(8):
        # The lanes meet the secret's bytes from the eleventh on.
        low, high = _secret_word(i + 1, seed), _secret_word(i + 2, seed)
        lanes[i] ^= (low >> 24) | (high << 40)
    total = np.uint64(length) * _P64_1
    for i in range(0, 8, 2):
        total += multiply_fold(lanes[i], lanes[i + 1])
    return _avalanche(total)


@helper
def _digest(data: Bytes, first: int, length: int, seed: np.uint64, lanes: Words) -> np.uint64:
    if length > 240:
        return _long(data, first, length, seed, lanes)
    if length > 16:
        return _medium(data, first, length, seed)
    return _short(data, first, length, seed)


@helper
def _ask_for(data: Bytes, first: int, length: int) -> None:
    """Ask for a piece that is hashed next.

    The processor itself doesn't look beyond a page, so it would wait for the first lines of each piece.
    """
    if first + length <= len(data):
        for line in range(0, length, 64):
            prefetch(data, first + line)


@jit
def digest_pieces(data: Bytes, piece_size: int, first_seed: np.uint64, out: Words) -> None:
    """out[i] = digest of the bytes i * piece_size ... of `data`, under the seed first_seed + i.

    The last piece ends with `data` and may be short. `out` has one word per piece; seeds are taken
    modulo 2**64.
    """
    lanes = np.empty(8, np.uint64)
    for i in range(len(out)):
        at = i * piece_size
        _ask_for(data, at + piece_size, piece_size)
        length = min(piece_size, len(data) - at)
        out[i] = _digest(data, at, length, np.uint64(first_seed) + np.uint64(i), lanes)


@jit
def verify_pieces(
    data: Bytes,
    data_first: int,
    piece_size: int,
    pieces: Ids,
    first_seed: np.uint64,
    digests: Words,
    verified: Bytes,
) -> int:
    """Check the digests of those of `pieces` that aren't marked in `verified`, and mark them.

    `data` starts with the first byte of piece number `data_first`; the piece at its end may be
    short. ``digests[p]`` is the digest of piece p under the seed first_seed + p. Returns the first
    bad piece, which isn't marked, or -1.

    Threads may share `verified`: a piece is marked after it was found sound, so at worst two of
    them check the same one.
    """
    lanes = np.empty(8, np.uint64)
    for piece in pieces:
        if verified[piece]:
            continue
        at = (piece - data_first) * piece_size
        length = min(piece_size, len(data) - at)
        seed = np.uint64(first_seed) + np.uint64(piece)
        if _digest(data, at, length, seed, lanes) != digests[piece]:
            return int(piece)
        verified[piece] = 1
    return -1


@jit
def pieces_of_rows(offsets: Ids, row_bytes: int, piece_size: int, verified: Bytes, out: Ids) -> int:
    """List the pieces that hold the rows at these byte offsets and aren't marked in `verified`.

    Returns how many were put into `out`, which needs room for
    ``len(offsets) * ((row_bytes + piece_size - 2) // piece_size + 1)`` of them, at most. Each is listed
    once if the offsets ascend. In any other order some may be listed again, which costs little:
    `verify_pieces` passes over what it has just marked.
    """
    count = 0
    low, high = 0, -1  # The pieces that the row before touches: they are listed or verified.
    for offset in offsets:
        first, last = offset // piece_size, (offset + row_bytes - 1) // piece_size
        for piece in range(first, last + 1):
            if (piece < low or piece > high) and not verified[piece]:
                out[count] = piece
                count += 1
        low, high = first, last
    return count


@jit
def verify_gathered(data: Bytes, piece_size: int, pieces: Ids, first_seed: np.uint64, digests: Words) -> int:
    """Check the digests of pieces that lie one behind the other in `data`, in the order of `pieces`.

    The last of them ends with `data` and may be short. Returns the first bad piece, or -1.
    """
    lanes = np.empty(8, np.uint64)
    for k in range(len(pieces)):
        at = k * piece_size
        length = min(piece_size, len(data) - at)
        seed = np.uint64(first_seed) + np.uint64(pieces[k])
        if _digest(data, at, length, seed, lanes) != digests[pieces[k]]:
            return int(pieces[k])
    return -1


@jit
def verify_range(
    data: Bytes, first: int, stop: int, piece_size: int, first_seed: np.uint64, digests: Words
) -> int:
    """Check the digests of the pieces first ... stop - 1, which `data` holds whole, one behind the other.

    The last of them ends with `data` and may be short. Returns the first bad piece, or -1.
    """
    lanes = np.empty(8, np.uint64)
    for piece in range(first, stop):
        at = (piece - first) * piece_size
        length = min(piece_size, len(data) - at)
        seed = np.uint64(first_seed) + np.uint64(piece)
        if _digest(data, at, length, seed, lanes) != digests[piece]:
            return int(piece)
    return -1
