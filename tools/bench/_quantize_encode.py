"""Point 1: encoding in 8, 4 and 2 bits as inference operators do, with digests of the result and without."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from cnrfmt import parallel
from cnrfmt.encodings import Recipe
from cnrfmt.format import limits
from cnrfmt.format.encoding import RowwiseLayout
from cnrfmt.kernels import xxh3
from tools.bench._figures import Figure, Target, Times, say
from tools.bench._quantize_codes import encode_asymmetric, in_chunks, recipe, statistics_of
from tools.bench._quantize_figures import Line, Work, race, speed
from tools.bench._quantize_setting import Setting, Values, operators, tensor

_LEAST = {8: 1.5, 4: 1.0, 2: 1.0}
_COST = 1.10
_SCALING = 1.8


def figures(setting: Setting) -> list[Line]:
    """Kernels with and without digests, and whole encoders, against FBGEMM's operators."""
    found = []
    for case in setting.cases():
        values = setting.many(*case)
        for bits in _LEAST:
            say(f"point 1: {case[0]} rows of {case[1]}, {bits} bits")
            how = recipe(bits, "asymmetric")
            times = race(setting.short_repeat, _contenders(bits, how, values))
            found += _lines(bits, case, times, values.nbytes)
    return found


def _contenders(bits: int, how: Recipe, values: Values) -> dict[str, Work]:
    assert isinstance(how.layout, RowwiseLayout)
    row_bytes = how.layout.row_bytes(values.shape[1])
    return {
        "kernel": _own(bits, row_bytes, values, digests=False, threads=1),
        "digests": _own(bits, row_bytes, values, digests=True, threads=1),
        "chunks": _peer(bits, row_bytes, values, threads=1),
        "table": _peer_at_once(bits, values),
        "digests, two": _own(bits, row_bytes, values, digests=True, threads=2),
        "chunks, two": _peer(bits, row_bytes, values, threads=2),
        "statistics": statistics_of(how, values),
    }


def _own(bits: int, row_bytes: int, values: Values, *, digests: bool, threads: int) -> Work:
    """Chunk after chunk, each with the digests of its whole pieces, as a segment is written."""
    chunks = in_chunks(values)
    each = parallel.run(threads)
    spare = deque(
        (np.zeros((len(chunks[0]), row_bytes), np.uint8), np.empty(len(chunks[0]), np.uint8)) for _ in range(threads)
    )

    def one(chunk: Values) -> None:
        memory = spare.pop()
        out, bad = memory[0][: len(chunk)], memory[1][: len(chunk)]
        encode_asymmetric(bits, chunk, out, bad)
        if digests:
            pieces = out.size // limits.PIECE
            words = np.empty(pieces, np.uint64)
            xxh3.digest_pieces(out.reshape(-1)[: pieces * limits.PIECE], limits.PIECE, np.uint64(1), words)
        spare.append(memory)

    return lambda: each(one, chunks)


def _peer(bits: int, row_bytes: int, values: Values, *, threads: int) -> Work:
    """The same chunks; in 8 bits into memory that is given, which the other operator can't be."""
    ops = operators().fbgemm
    chunks = [tensor(chunk) for chunk in in_chunks(values)]
    each = parallel.run(threads)
    if bits != 8:
        return lambda: each(lambda chunk: ops.FloatToFusedNBitRowwiseQuantizedSBHalf(chunk, bits), chunks)
    spare = deque(tensor(np.zeros((len(chunks[0]), row_bytes), np.uint8)) for _ in range(threads))

    def one(chunk: Any) -> None:
        memory = spare.pop()
        ops.FloatToFused8BitRowwiseQuantizedOut(memory[: len(chunk)], chunk)
        spare.append(memory)

    return lambda: each(one, chunks)


def _peer_at_once(bits: int, values: Values) -> Work:
    """One call for the whole table, into memory that the operator takes anew."""
    ops, whole = operators().fbgemm, tensor(values)
    if bits == 8:
        return lambda: ops.FloatToFused8BitRowwiseQuantized(whole)
    return lambda: ops.FloatToFusedNBitRowwiseQuantizedSBHalf(whole, bits)


def _lines(bits: int, case: tuple[str, int], times: dict[str, Times], nbytes: int) -> list[Line]:
    least = _LEAST[bits]
    chunks, table = ("FBGEMM, chunk by chunk", times["chunks"]), ("FBGEMM, the table at once", times["table"])
    with_digests = times["digests"]
    cost = Figure(
        group="point 1",
        name=f"{bits} bits, what digests cost",
        cnrfmt=with_digests,
        peer_name="without them",
        peer=times["kernel"],
        target=Target("ratio", "<=", _COST),
        bytes_moved=nbytes,
    )
    return [
        speed(1, f"{bits} bits", case, times["kernel"], nbytes, peer=chunks, least=least),
        speed(1, f"{bits} bits, with digests", case, with_digests, nbytes, peer=chunks, least=least),
        speed(1, f"{bits} bits, with digests", case, with_digests, nbytes, peer=table, least=least),
        Line(1, *case, 1, cost),
        speed(
            1,
            f"{bits} bits, with digests",
            case,
            times["digests, two"],
            nbytes,
            threads=2,
            peer=(chunks[0], times["chunks, two"]),
            least=least,
        ),
        speed(
            1,
            f"{bits} bits, with digests",
            case,
            times["digests, two"],
            nbytes,
            threads=2,
            peer=("cnrfmt, one thread", with_digests),
            least=_SCALING,
        ),
        speed(1, f"{bits} bits, encoder with statistics", case, times["statistics"], nbytes, peer=chunks),
    ]
