"""Row indexes and row-wise rows, laid out as sections 6 and 7 of the specification say."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


def raw_encoding(dtype: str) -> dict[str, Any]:
    """The ENCODING of raw parts."""
    return {"name": "raw", "dtype": dtype}


def rowwise_encoding(bits: int) -> dict[str, Any]:
    """The ENCODING of row-wise parts."""
    half = "float32" if bits == 8 else "float16"
    return {"name": "rowwise", "bits": bits, "layout": "tail", "scale": half, "bias": half}


def fused(codes: ArrayLike, scale: ArrayLike, bias: ArrayLike, bits: int) -> bytes:
    """Row-wise rows: codes of shape [rows, elements], scale and bias of shape [rows]."""
    kind = "<f4" if bits == 8 else "<f2"
    parameters = np.stack([np.asarray(scale, kind), np.asarray(bias, kind)], axis=1)
    out = b""
    for row, tail in zip(np.asarray(codes).tolist(), parameters, strict=True):
        packed_row = sum(code << (bits * k) for k, code in enumerate(row))
        out += packed_row.to_bytes(-(-len(row) * bits // 8), "little") + tail.tobytes()
    return out


def decoded(codes: ArrayLike, scale: ArrayLike, bias: ArrayLike, bits: int) -> NDArray[np.float32]:
    """What row-wise rows mean: two roundings to float32, one after each operation."""
    kind = np.float32 if bits == 8 else np.float16
    factor = np.asarray(scale, kind).astype(np.float32)[:, None]
    shift = np.asarray(bias, kind).astype(np.float32)[:, None]
    product = np.multiply(np.asarray(codes).astype(np.float32), factor, dtype=np.float32)
    return np.add(product, shift, dtype=np.float32)
