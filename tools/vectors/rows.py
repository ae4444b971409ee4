"""Row indexes, laid out as section 7 of the specification says, and the rows that most vectors have."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

from numpy.typing import ArrayLike, NDArray

from vectors import encodings
from vectors.encodings import F32, Json

GROUP = 128


def raw(ids: Sequence[int]) -> bytes:
    """The row index of the code `raw`."""
    return struct.pack(f"<{len(ids)}q", *ids)


def packed(ids: Sequence[int]) -> bytes:
    """The row index of the code `packed`."""
    skips, payloads = b"", b""
    for start in range(0, len(ids), GROUP):
        group = ids[start : start + GROUP]
        slots = [0, *(b - a - 1 for a, b in pairwise(group))]
        width = max(slot.bit_length() for slot in slots)
        bits = sum(slot << (k * width) for k, slot in enumerate(slots))
        skips += struct.pack("<qIB3x", group[0], len(payloads) // 8, width)
        payloads += bits.to_bytes(-(-len(group) * width // 64) * 8, "little")
    return skips + payloads


def runs(ids: Sequence[int]) -> bytes:
    """The row index of the code `runs`."""
    entries: list[list[int]] = []
    for id_ in ids:
        if entries and id_ == sum(entries[-1]):
            entries[-1][1] += 1
        else:
            entries.append([id_, 1])
    return b"".join(struct.pack("<qQ", first, length) for first, length in entries)


def bitmap(ids: Sequence[int]) -> bytes:
    """The row index of the code `bitmap`."""
    count = -(-(ids[-1] - ids[0] + 1) // 512) * 8
    return ranked(sum(1 << (id_ - ids[0]) for id_ in ids).to_bytes(count * 8, "little"))


def ranked(words: bytes) -> bytes:
    """The words of a bitmap with their rank directory."""
    ones = [int.from_bytes(words[s : s + 64], "little").bit_count() for s in range(0, len(words), 64)]
    return words + struct.pack(f"<{len(ones)}Q", *(sum(ones[:k]) for k in range(len(ones))))


CODES = {"raw": raw, "packed": packed, "runs": runs, "bitmap": bitmap}


def index(code: str, ids: Sequence[int]) -> bytes:
    """The row index of any code but `range`."""
    return CODES[code](ids)


def raw_encoding(dtype: str) -> Json:
    """The ENCODING of raw parts."""
    return {"name": "raw", "dtype": dtype}


def rowwise_encoding(bits: int) -> Json:
    """The ENCODING of row-wise parts of the layout `tail`."""
    return encodings.rowwise(bits, "tail")


def fused(codes: ArrayLike, scale: ArrayLike, bias: ArrayLike, bits: int) -> bytes:
    """Rows of the layout `tail`: codes of shape [rows, elements], scale and bias of shape [rows]."""
    return encodings.rows(rowwise_encoding(bits), codes, scale, bias)


def decoded(codes: ArrayLike, scale: ArrayLike, bias: ArrayLike, bits: int) -> NDArray[F32]:
    """What such rows mean."""
    return encodings.values(rowwise_encoding(bits), codes, scale, bias)
