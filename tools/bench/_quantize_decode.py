"""Point 4: decoding, against FBGEMM's operators and against filling the memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import cnrfmt
from cnrfmt import parallel
from cnrfmt.arrays import Bytes
from cnrfmt.encodings import Recipe, coder
from tools.bench._figures import Times, say
from tools.bench._quantize_codes import encode_asymmetric, in_chunks, recipe
from tools.bench._quantize_figures import Line, Work, race, speed
from tools.bench._quantize_setting import Setting, Values, operators, tensor
from tools.bench._setting import clear, warm

_BITS = (8, 4, 2)
_LEAST = 5.0
_LEAST_OF_FILLING = 0.85
_MAPPED = "wordllama"
"""Whole tables are read of these rows alone: their values make no difference to it."""


def figures(setting: Setting) -> list[Line]:
    """The kernels against operators, and whole tables against the memory."""
    found = []
    for case in setting.cases():
        values = setting.many(*case)
        out = np.ones_like(values)
        for bits in _BITS:
            say(f"point 4: {case[0]} rows of {case[1]}, {bits} bits")
            how = recipe(bits, "asymmetric")
            data = np.zeros((len(values), how.layout.row_bytes(values.shape[1])), np.uint8)
            encode_asymmetric(bits, values, data, np.empty(len(values), np.uint8))
            times = race(setting.short_repeat, _against_operators(bits, how, values, data, out))
            found += _operator_lines(bits, case, times, values.nbytes)
            if case[0] == _MAPPED:
                found += _whole_tables(setting, case, bits, how, values, data, out)
    return found


def _against_operators(
    bits: int, how: Recipe, values: Values, data: npt.NDArray[np.uint8], out: Values
) -> dict[str, Work]:
    ops = operators().fbgemm
    decode = coder(how.layout).decode_range
    starts = np.cumsum([0, *map(len, in_chunks(values))])
    chunks = [data[start:stop] for start, stop in pairwise(starts)]
    scratch = np.ones((len(chunks[0]), values.shape[1]), np.float32)

    def op(codes: Any) -> Any:
        if bits == 8:
            return ops.Fused8BitRowwiseQuantizedToFloat(codes)
        return ops.FusedNBitRowwiseQuantizedSBHalfToFloat(codes, bits)

    def own_chunks() -> None:
        for chunk in chunks:
            decode(chunk.reshape(-1), 0, scratch[: len(chunk)])

    tensors = [tensor(chunk) for chunk in chunks]

    def peer_chunks() -> None:
        for chunk in tensors:
            op(chunk)

    def own_table_anew() -> Values:
        fresh = np.empty_like(values)
        decode(data.reshape(-1), 0, fresh)
        return fresh

    whole, target = tensor(data), tensor(out)
    found: dict[str, Work] = {
        "chunks": own_chunks,
        "FBGEMM, chunks": peer_chunks,
        "given": lambda: decode(data.reshape(-1), 0, out),
        "anew": own_table_anew,
        "FBGEMM, anew": lambda: op(whole),
    }
    if bits == 8:
        found["FBGEMM, given"] = lambda: ops.Fused8BitRowwiseQuantizedToFloatOut(target, whole)
    return found


def _operator_lines(bits: int, case: tuple[str, int], times: dict[str, Times], nbytes: int) -> list[Line]:
    """The operators take new memory for what they give; only that for 8 bits may be given some."""
    pairs = [
        ("a table into memory that is there", "given", "FBGEMM, a table into new memory", "FBGEMM, anew"),
        ("a table into new memory", "anew", "FBGEMM, a table into new memory", "FBGEMM, anew"),
        ("chunk by chunk, in the cache", "chunks", "FBGEMM, chunk by chunk", "FBGEMM, chunks"),
    ]
    if bits == 8:
        pairs.append(
            ("a table into memory that is there", "given", "FBGEMM, the same by its variant Out", "FBGEMM, given")
        )
    return [
        speed(4, f"{bits} bits, {name}", case, times[own], nbytes, peer=(peer_name, times[peer]), least=_LEAST)
        for name, own, peer_name, peer in pairs
    ]


def _whole_tables(
    setting: Setting,
    case: tuple[str, int],
    bits: int,
    how: Recipe,
    values: Values,
    data: npt.NDArray[np.uint8],
    out: Values,
) -> list[Line]:
    path = setting.folder / "mapped.cnr"
    cnrfmt.save(path, {"table": values}, quantize=cnrfmt.Quantize(bits=bits))
    warm(path)

    def load(verify: Any, threads: int) -> Work:
        return lambda: cnrfmt.load(path, out={"table": out}, verify=verify, threads=threads)

    found = []
    for threads in (1, 2):
        own = {
            "loaded, unverified": load("none", threads),
            "loaded, verified": load("touched", threads),
            "by the kernel alone": _in_parts(threads, out, _decoder(how, data.reshape(-1), out)),
        }
        peers = {
            "memset": _in_parts(threads, out, _memset(out)),
            "numpy fill": _in_parts(threads, out, lambda start, stop: out[start:stop].fill(1.5)),
        }
        times = race(setting.short_repeat, own | peers)
        found += [
            speed(
                4,
                f"{bits} bits, a mapped table {name}" if "loaded" in name else f"{bits} bits, a table {name}",
                case,
                times[name],
                values.nbytes,
                threads=threads,
                peer=(peer, times[peer]),
                least=_LEAST_OF_FILLING,
            )
            for peer in peers
            for name in own
        ]
    clear(path)
    return found


def _in_parts(threads: int, out: Values, work: Callable[[int, int], object]) -> Work:
    """One part of the rows for each thread."""
    edges = [len(out) * k // threads for k in range(threads + 1)]
    parts = list(pairwise(edges))
    each = parallel.run(threads)

    def one(part: tuple[int, int]) -> None:
        work(*part)

    return lambda: each(one, parts)


def _decoder(how: Recipe, data: Bytes, out: Values) -> Callable[[int, int], None]:
    row_bytes, decode = how.layout.row_bytes(out.shape[1]), coder(how.layout).decode_range
    return lambda start, stop: decode(data, start * row_bytes, out[start:stop])


def _memset(out: Values) -> Callable[[int, int], object]:
    """The C library's. Of zeros it would be faster still: processors have an instruction for these."""
    row_bytes = out.strides[0]
    return lambda start, stop: ctypes.memset(out.ctypes.data + start * row_bytes, 1, (stop - start) * row_bytes)
