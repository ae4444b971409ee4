"""Every encoding of section 6, and rows under each, laid out and decoded one number at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Json = dict[str, Any]

KINDS: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PAIRS = [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32")]
PAIRS += [(scale, None) for scale, _ in PAIRS]
GROUPS = [None, 8, 16, 1 << 20]
BLOCKS = [None, 2, 3, 1 << 20]
# Bits, base and shift.
LOGS = [(8, 1, 23), (8, 0x30000000, 20), (12, 0x2F800000, 15), (16, 1, 0), (16, 0x3F7F7FFF, 14)]


def rowwise(bits: int, layout: str, scale: str, bias: str | None, group: int | None = None) -> Json:
    return {"name": "rowwise", "bits": bits, "layout": layout, "scale": scale, "bias": bias, "group": group}


def log(bits: Any, base: Any, shift: Any) -> Json:
    return {
        **{"name": "log", "kind": "absolute", "bits": bits, "base": base, "shift": shift},
        **{"payload": "fixed", "group": None},
    }


def every() -> Iterator[Json]:
    """All legal encodings but raw ones, with a few groups, blocks, bases and shifts."""
    yield from ({"name": "cast", "dtype": dtype} for dtype in ("float16", "bfloat16"))
    yield rowwise(8, "tail", "float32", "float32")
    yield from (rowwise(bits, "tail", "float16", "float16") for bits in (4, 2))
    yield from (rowwise(bits, "head", "float16", "float16") for bits in (8, 4, 2))
    for bits, (scale, bias), group in itertools.product(range(2, 9), PAIRS, GROUPS):
        yield rowwise(bits, "packed", scale, bias, group)
    for bits, values, block in itertools.product((2, 3, 4), ("float32", "float16"), BLOCKS):
        yield {"name": "codebook", "bits": bits, "values": values, "block": block}
    yield from (log(*numbers) for numbers in LOGS)


METHODS = {"cast": "cast", "codebook": "kmeans", "log": "log", "rowwise": "adaptive"}


def scheme_of(encoding: Json) -> Json | None:
    """A scheme that goes with an encoding, known or not."""
    if encoding["name"] == "raw":
        return None
    method = "symmetric" if encoding.get("bias", "") is None else METHODS.get(encoding["name"], "other")
    return {
        "method": method, "num_bins": 25, "ratio": 0.5, "starts": None, "bound": 0.25, "step": None,
        "mean_error": 1e-3, "max_error": 0.125,
    }  # fmt: skip


@dataclass
class Made:
    """The sections of a part, and what its rows mean as float32."""

    raw: bytes
    codebooks: bytes | None
    values: np.ndarray


def _string(codes: list[int], bits: int) -> bytes:
    return sum(code << (bits * k) for k, code in enumerate(codes)).to_bytes(-(-len(codes) * bits // 8), "little")


def _numbers(dtype: str, count: int, salt: int) -> tuple[bytes, list[np.float32]]:
    """Some stored numbers, of both signs and of several sizes, and their values."""
    numbers = [(-1) ** k * (1 + (k + salt) % 5 / 7) * 10.0 ** ((k + 2 * salt) % 5 - 2) for k in range(count)]
    stored = np.array(numbers).astype(KINDS[dtype])
    return stored.tobytes(), list(stored.astype(np.float32))


def made(encoding: Json, count: int, n: int) -> Made:
    """Rows under an encoding; their codes are no rounding of anything."""
    name, bits = encoding["name"], encoding.get("bits", 0)
    codes = [[(31 * row + 7 * k + row * k * k) % (1 << bits) for k in range(n)] for row in range(count)]
    if name == "cast":
        rows = [_numbers(encoding["dtype"], n, row) for row in range(count)]
        return Made(b"".join(raw for raw, _ in rows), None, np.array([values for _, values in rows]))
    if name == "log":
        flat = [row[0] for row in codes]
        flat[:2] = [0, (1 << bits) - 1]
        patterns = [encoding["base"] + ((code - 1) << encoding["shift"]) if code else 0 for code in flat[:count]]
        return Made(_string(flat[:count], bits), None, np.array(patterns, np.uint32).view(np.float32)[:, None])
    if name == "codebook":
        return _codebook(encoding, codes)
    raw, values = b"", []
    group = encoding["group"] or n
    for row, own in enumerate(codes):
        scales, scale = _numbers(encoding["scale"], -(-n // group), row)
        biases, bias = b"", []
        if encoding["bias"] is not None:
            biases, bias = _numbers(encoding["bias"], len(scale), row + 3)
        string = _string(own, bits)
        if encoding["layout"] == "head":
            whole = scales + biases + string
            raw += whole + bytes(-len(whole) % 16)
        else:
            raw += string + scales + biases
        for k, code in enumerate(own):
            if bias:
                values.append(np.float32(np.float32(code) * scale[k // group]) + bias[k // group])
            else:
                values.append(np.float32(2 * code - ((1 << bits) - 1)) * scale[k // group])
    return Made(raw, None, np.array(values, np.float32).reshape(count, n))


def _codebook(encoding: Json, codes: list[list[int]]) -> Made:
    bits, block = encoding["bits"], encoding["block"]
    books = [_numbers(encoding["values"], 1 << bits, k) for k in range(-(-len(codes) // (block or 1)))]
    own = block is None
    raw = b"".join((books[k][0] if own else b"") + _string(row, bits) for k, row in enumerate(codes))
    values = [[books[k // (block or 1)][1][code] for code in row] for k, row in enumerate(codes)]
    return Made(raw, None if own else b"".join(book for book, _ in books), np.array(values))
