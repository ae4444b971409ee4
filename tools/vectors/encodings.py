"""The encodings of section 6, laid out by hand: what metadata says of them, their rows, and what these mean."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = np.float32
Json = dict[str, Any]

SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
# The pairs of parameters that the layout `packed` has.
PARAMETERS = (
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "float32"),
    ("float32", None),
    ("float16", None),
    ("bfloat16", None),
)
METHODS = {"cast": "cast", "rowwise": "asymmetric", "codebook": "kmeans", "log": "log", "grid": "closed-loop"}


def cast(dtype: str) -> Json:
    """The ENCODING of parts cast to a narrower type."""
    return {"name": "cast", "dtype": dtype}


def rowwise(bits: int, layout: str, scale: str = "", bias: str | None = "", group: int | None = None) -> Json:
    """The ENCODING of row-wise parts; the parameters of `tail` and `head` follow from the rest."""
    of_layout = "float32" if (bits, layout) == (8, "tail") else "float16"
    values = {"scale": scale or of_layout, "bias": of_layout if bias == "" else bias, "group": group}
    return {"name": "rowwise", "bits": bits, "layout": layout, **values}


def codebook(bits: int, values: str, block: int | None = None) -> Json:
    """The ENCODING of parts whose codes are places in a codebook."""
    return {"name": "codebook", "bits": bits, "values": values, "block": block}


def log(
    bits: int, base: int, shift: int, kind: str = "absolute", payload: str = "fixed", group: int | None = None
) -> Json:
    """The ENCODING of parts of logarithmic codes."""
    numbers_ = {"bits": bits, "base": base, "shift": shift}
    return {"name": "log", "kind": kind, **numbers_, "payload": payload, "group": group}


def grid(kind: str, floor: int, payload: str, bits: int | None = None, group: int | None = None) -> Json:
    """The ENCODING of parts of integers on a grid."""
    return {"name": "grid", "kind": kind, "floor": floor, "payload": payload, "bits": bits, "group": group}


def scheme(encoding: Json, **changes: Any) -> Json | None:
    """The SCHEME of a part: a method of its encoding, no parameters; null for a raw part."""
    name = encoding.get("name")
    if name == "raw":
        return None
    biasless = name == "rowwise" and encoding.get("bias") is None
    method = "symmetric" if biasless else METHODS.get(name, "other") if isinstance(name, str) else "other"
    none = dict.fromkeys(("num_bins", "ratio", "starts", "bound", "step"))
    return {"method": method, **none, "mean_error": 0.0, "max_error": 0.0} | changes


def numbers(values: ArrayLike, dtype: str) -> bytes:
    """Parameters or codebooks as they are stored; a bfloat16 is the upper half of a float32."""
    flat = np.asarray(values, np.float64).ravel().tolist()
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", value)[2:] for value in flat)
    return struct.pack(f"<{len(flat)}{'f' if dtype == 'float32' else 'e'}", *flat)


def stored(number: bytes, dtype: str) -> float:
    """The number that its bytes stand for."""
    if dtype == "float16":
        return float(struct.unpack("<e", number)[0])
    return float(struct.unpack("<f", number.rjust(4, b"\0"))[0])


def widened(values: ArrayLike, dtype: str) -> NDArray[F32]:
    """What stored numbers are as float32, in the shape of `values`."""
    raw, size = numbers(values, dtype), SIZE[dtype]
    found = [stored(raw[at : at + size], dtype) for at in range(0, len(raw), size)]
    return np.array(found, F32).reshape(np.shape(values))


def bit_string(codes: Sequence[int], bits: int) -> bytes:
    """Codes as a string of bits, counted from the lowest bit of the first byte."""
    whole = sum(code << (bits * k) for k, code in enumerate(codes))
    return whole.to_bytes(-(-len(codes) * bits // 8), "little")


def _per_group(encoding: Json, values: ArrayLike, count: int, width: int) -> NDArray[np.float64]:
    """Parameters of shape [rows] or [rows, groups], as [rows, groups]."""
    groups = 1 if encoding["group"] is None else -(-width // encoding["group"])
    return np.asarray(values, np.float64).reshape(count, groups)


def rows(encoding: Json, codes: ArrayLike, scale: ArrayLike, bias: ArrayLike | None = None) -> bytes:
    """Row-wise rows: codes of shape [rows, elements], a scale and mostly a bias for each group of a row."""
    codes = np.asarray(codes)
    count, width = codes.shape
    scales = _per_group(encoding, scale, count, width)
    biases = None if bias is None else _per_group(encoding, bias, count, width)
    out = b""
    for k, row in enumerate(codes.tolist()):
        string, parameters = bit_string(row, encoding["bits"]), numbers(scales[k], encoding["scale"])
        if biases is not None:
            parameters += numbers(biases[k], encoding["bias"])
        if encoding["layout"] == "head":
            whole = parameters + string
            out += whole + bytes(-len(whole) % 16)
        else:
            out += string + parameters
    return out


def values(encoding: Json, codes: ArrayLike, scale: ArrayLike, bias: ArrayLike | None = None) -> NDArray[F32]:
    """What row-wise rows mean: a rounding to float32 after each operation."""
    codes = np.asarray(codes)
    count, width = codes.shape
    group = np.arange(width) // (encoding["group"] or width)
    factor = widened(_per_group(encoding, scale, count, width), encoding["scale"])[:, group]
    if bias is None:
        top = 2 ** encoding["bits"] - 1
        return np.multiply((2 * codes - top).astype(F32), factor, dtype=F32)
    shift = widened(_per_group(encoding, bias, count, width), encoding["bias"])[:, group]
    return np.add(np.multiply(codes.astype(F32), factor, dtype=F32), shift, dtype=F32)


def coded(codes: ArrayLike, bits: int, books: ArrayLike | None = None, dtype: str = "float32") -> bytes:
    """Rows of places in codebooks, behind books of shape [rows, places] where each row has its own."""
    out = b""
    for k, row in enumerate(np.asarray(codes).tolist()):
        if books is not None:
            out += numbers(np.asarray(books)[k], dtype)
        out += bit_string(row, bits)
    return out


def looked_up(codes: ArrayLike, books: ArrayLike, dtype: str) -> NDArray[F32]:
    """What rows of places mean, given the codebook of each row."""
    wide = widened(books, dtype)
    return np.array([[wide[k, code] for code in row] for k, row in enumerate(np.asarray(codes).tolist())], F32)


def log_values(codes: Sequence[int], encoding: Json) -> NDArray[F32]:
    """What logarithmic codes mean."""
    base, shift = encoding["base"], encoding["shift"]
    patterns = [base + (code - 1 << shift) if code else 0 for code in codes]
    return np.array(patterns, "<u4").view("<f4").astype(F32)
