"""Numbers that overflow: logarithmic codes beyond the greatest float, scales and codebooks that aren't finite."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from tests.attacks.support import Store, accepted, encodings, in_child, parts, refused

INFINITE = 0x7F800000
GREATEST = struct.unpack("<f", struct.pack("<I", INFINITE - 1))[0]


def _log(bits: int, base: int, shift: int) -> Store:
    """Two rows of the greatest code."""
    data = encodings.bit_string([(1 << bits) - 1] * 2, bits)
    return parts.single(encodings.log(bits, base, shift), data, count=2)


def _greatest(path: Path) -> Any:
    with cnrfmt.open(path) as ck:
        return ck["item"].read(column="state").tolist()


LARGEST = [(8, 23), (8, 0), (12, 18), (12, 15), (16, 14), (16, 0)]


@pytest.mark.parametrize(("bits", "shift"), LARGEST)
def test_codes_beyond_the_greatest_float(tmp_path: Path, bits: int, shift: int) -> None:
    """The greatest code of one stands for infinity, those of others for NaNs; of the twin it is the greatest float."""
    base = INFINITE - ((1 << bits) - 2 << shift)
    for beyond in (base, base + 1, base + (1 << 22), INFINITE):
        refused(tmp_path / f"{beyond:x}", _log(bits, beyond, shift), "part-encoding")
    path = accepted(tmp_path, _log(bits, base - 1, shift))
    assert in_child(_greatest, path) == [GREATEST] * 2


@pytest.mark.parametrize("base", [0, -1, -(1 << 31), 1 << 31, 1 << 32, (1 << 53) - 1])
def test_bases_that_are_no_number(tmp_path: Path, base: int) -> None:
    """Negative patterns, and those that wrap around in 32 bits."""
    refused(tmp_path, _log(8, base, 0), "part-encoding")
    accepted(tmp_path, _log(8, 1, 0))


@pytest.mark.parametrize("shift", [-1, 24, 32, 64, 1 << 31, (1 << 53) - 1])
def test_shifts_beyond_a_float(tmp_path: Path, shift: int) -> None:
    """A number shifted by 2^53 would take all memory."""
    refused(tmp_path, _log(8, 1, shift), "part-encoding")
    accepted(tmp_path, _log(8, 1, 22))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    ("kind", "where"),
    [*((kind, w) for kind in ("tail", "head", "packed") for w in ("scale", "bias")), ("biasless", "scale")],
)
def test_parameters_that_arent_finite(tmp_path: Path, kind: str, where: str, number: float) -> None:
    encoding = parts.KINDS[kind]
    refused(tmp_path, _parameters(encoding, **{where: number}), "row-parameter", read=False)
    # The greatest that each data type holds: what comes of it may well be infinite.
    size = {"float32": GREATEST, "float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
    accepted(tmp_path, _parameters(encoding, **{where: size[encoding[where]]}))


def _parameters(encoding: Any, *, scale: float = 1.0, bias: float = 0.0) -> Store:
    codes = np.zeros((parts.COUNT, parts.WIDTH), int)
    biases = None if encoding["bias"] is None else [bias] * parts.COUNT
    return parts.single(encoding, encodings.rows(encoding, codes, [scale] * parts.COUNT, biases))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", ["codebook", "blocks"])
def test_codebooks_that_arent_finite(tmp_path: Path, kind: str, number: float) -> None:
    """Even where no code is that number's."""

    def store(value: float) -> Store:
        encoding = parts.KINDS[kind]
        codes, places = np.zeros((parts.COUNT, parts.WIDTH), int), 1 << encoding["bits"]
        books = np.zeros((parts.COUNT if kind == "codebook" else 2, places))
        books[-1, -1] = value
        if kind == "codebook":
            return parts.single(encoding, encodings.coded(codes, encoding["bits"], books, encoding["values"]))
        shared = encodings.numbers(books, encoding["values"])
        return parts.single(encoding, encodings.coded(codes, encoding["bits"]), codebooks=shared)

    refused(tmp_path, store(number), "row-parameter", read=False)
    accepted(tmp_path, store(65504.0))
