"""Of whatever bytes a part of integers has, the library and the independent validator say the same."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnrfmt.encodings.integers import integer_coder
from cnrfmt.errors import DamagedError
from cnrfmt.format.legality import parse_layout
from tools import cnrcheck

# The builder of the vectors is a program beside its own package.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from vectors import encodings, integers


def by_library(encoding: dict[str, Any], data: bytes, count: int, n: int) -> tuple[str, Any]:
    """The rule that is broken, or what the rows say."""
    layout: Any = parse_layout(encoding, "here", lenient=False)
    coder = integer_coder(layout, count, n, "here")
    section, found = np.frombuffer(data, np.uint8), np.empty((count, n), np.int32)
    try:
        prefix = coder.prefix_bytes(section[:16])
        part = coder.opened(section[:prefix], len(section))
        start, length = part.span(0, count)
        part.decode(section[start : start + length], 0, 0, found)
    except DamagedError as error:
        return error.rule, None
    return "", found.tolist()


def by_cnrcheck(encoding: dict[str, Any], data: bytes, count: int, n: int) -> tuple[str, Any]:
    """The rule that is broken, or what the rows say."""
    try:
        part = cnrcheck.Integers(np.frombuffer(data, np.uint8), encoding, count, n)
        found = [cnrcheck.scaled(*part.read(units)[1:]) for units in part.pieces()]
    except cnrcheck.BrokenCodesError as broken:
        return str(broken.args[0]), None
    return ("code-padding", None) if part.padding else ("", np.concatenate(found).tolist())


def made(chance: random.Random) -> tuple[dict[str, Any], bytes, int, int]:
    """A section of a few rows, sound: its encoding, its bytes, rows and elements."""
    kind, payload = chance.choice(["absolute", "residual"]), chance.choice(["fixed", "packed", "rans", "rans"])
    count, n, most = chance.randint(1, 12), chance.choice([1, 2, 5]), 24 if kind == "absolute" else 25
    exponents = [chance.choice([0, 0, 3, 10]) for _ in range(count)]
    codes = [
        [chance.choice([-1, 1]) * chance.getrandbits(chance.choice([0, 1, 2, 4, 8, most - e])) for _ in range(n)]
        for e in exponents
    ]
    exponents = [e if any(row) else 0 for e, row in zip(exponents, codes, strict=True)]
    bits, group = (most + 1, None) if payload == "fixed" else (None, chance.choice([1, 2, 5, 100]))
    encoding = encodings.grid(kind, -5, payload, bits, group)
    if payload == "rans" and chance.random() < 0.3:
        # Logarithmic codes: without exponents, in rows of one value and of several.
        exponents = [0] * count
        encoding = encodings.log(12, 1, 0, kind, payload, group)
    classes = [row % min(3, count) for row in range(count)]
    return encoding, integers.section(encoding, codes, exponents, classes), count, n


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """Some bytes with a few changes."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4])):
        at, way = chance.randrange(len(changed)), chance.random()
        if way < 0.5:
            changed[at] ^= 1 << chance.randrange(8)
        elif way < 0.7:
            changed[at] = chance.choice([0, 1, 24, 25, 26, 27, 127, 128, 255])
        elif way < 0.8:
            changed.insert(at, chance.randrange(256))
        elif way < 0.9:
            changed += bytes([chance.choice([0, 0, 1])])
        elif len(changed) > 1:
            del changed[at]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(20))
def test_both_say_the_same_of_changed_bytes(seed: int) -> None:
    chance = random.Random(seed)
    read = 0
    for _ in range(50):
        encoding, data, count, n = made(chance)
        assert by_library(encoding, data, count, n)[0] == by_cnrcheck(encoding, data, count, n)[0] == ""
        data = spoilt(data, chance)
        least = cnrcheck.part_length(encoding, count, n)
        if len(data) < least or (encoding["payload"] == "fixed" and len(data) > least):
            continue
        (rule, rows), (other, also) = by_library(encoding, data, count, n), by_cnrcheck(encoding, data, count, n)
        # Where several rules are broken, each names the one that it meets first.
        assert (rule == "", rows) == (other == "", also), (rule, other, encoding, count, n, data.hex())
        read += rule == ""
    assert read
