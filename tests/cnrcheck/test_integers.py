"""The validator reads integers under each payload, whatever the bytes are, and follows sums from step to step."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import cnrcheck

ROOT = Path(__file__).resolve().parents[2]
# The builder of the vectors is a program beside its own package.
sys.path.append(str(ROOT / "tools"))

from vectors import encodings, integers  # noqa: E402

VECTORS = ROOT / "spec" / "vectors"
LAYOUTS: list[tuple[str, int | None, int | None]] = [
    ("fixed", 26, None),
    *((payload, None, group) for payload in ("packed", "rans") for group in (1, 2, 5, 100)),
]


def rows(count: int, n: int, most: int, seed: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Codes of all sizes, the exponents of rows, and their classes."""
    chance = random.Random(seed)
    exponents = [chance.choice([0, 0, 3, 10]) for _ in range(count)]
    codes = [
        [chance.choice([-1, 1]) * chance.getrandbits(chance.choice([0, 1, 4, 8, most - e])) for _ in range(n)]
        for e in exponents
    ]
    for row in range(0, count, 7):
        codes[row] = [0] * n
    exponents = [e if any(row) else 0 for e, row in zip(exponents, codes, strict=True)]
    return codes, exponents, [row % min(3, count) for row in range(count)]


def opened(encoding: dict[str, Any], data: bytes, count: int, n: int) -> cnrcheck.Integers:
    return cnrcheck.Integers(np.frombuffer(data, np.uint8), encoding, count, n)


@pytest.mark.parametrize(("payload", "bits", "group"), LAYOUTS)
@pytest.mark.parametrize("kind", ["absolute", "residual"])
def test_rows_are_read_as_laid_out(kind: str, payload: str, bits: int | None, group: int | None) -> None:
    for seed, (count, n) in enumerate(product((1, 6, 61), (1, 3, 17))):
        codes, exponents, classes = rows(count, n, 24 if kind == "absolute" else 25, seed)
        encoding = encodings.grid(kind, -5, payload, bits, group)
        part = opened(encoding, integers.section(encoding, codes, exponents, classes), count, n)
        read = [part.read(units) for units in part.pieces()]
        assert np.concatenate([places for places, _, _ in read]).tolist() == list(range(count))
        assert np.concatenate([found for _, found, _ in read]).tolist() == codes
        assert np.concatenate([found for _, _, found in read]).tolist() == exponents
        slots = np.array([count - 1, 0, count // 2, 0])
        order, found, of_rows = part.at(slots)
        assert [codes[slot] for slot in slots[order].tolist()] == found.tolist()
        assert [exponents[slot] for slot in slots[order].tolist()] == of_rows.tolist()
        assert part.padding == set()


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("kind", ["absolute", "residual"])
def test_rows_of_logarithmic_codes_are_read_as_laid_out(kind: str, bits: int) -> None:
    chance, last = random.Random(bits), (1 << bits) - 1
    for count, n, group in product((1, 6, 61), (1, 3, 17), (1, 5, 65536)):
        least = 0 if kind == "absolute" else -last
        codes = [[chance.choice([least, last, chance.randint(least, last)]) for _ in range(n)] for _ in range(count)]
        encoding = encodings.log(bits, 1, 0, kind, "rans", group)
        section = integers.section(encoding, codes, None, [row % min(3, count) for row in range(count)])
        part = opened(encoding, section, count, n)
        read = [part.read(units) for units in part.pieces()]
        assert np.concatenate([found for _, found, _ in read]).tolist() == codes
        assert not np.concatenate([found for _, _, found in read]).any()
        slots = np.array([count - 1, 0, count // 2, 0])
        order, found, _ = part.at(slots)
        assert [codes[slot] for slot in slots[order].tolist()] == found.tolist()
        if kind == "absolute":
            # Of the least base and no shift, a code is the bits of its value.
            values = cnrcheck.values_of(np.array(codes), ("log", bits, 1, 0))
            assert values.view(np.uint32).tolist() == codes


@pytest.mark.parametrize(("group", "n"), [(1, 1 << 20), (2, 32768), (21845, 3), (65536, 1)])
def test_how_wide_the_rows_of_a_group_may_be(group: int, n: int) -> None:
    logs = encodings.log(8, 1, 0, "residual", "rans", group)
    for encoding in (encodings.grid("absolute", 0, "packed", None, group), logs):
        assert cnrcheck.has_width(encoding, n)
        assert cnrcheck.has_width(encoding, n + 1) == (group == 1)
    assert [cnrcheck.has_width(encodings.log(12, 1, 0), width) for width in (1, 2, n + 1)] == [True, False, False]
    assert cnrcheck.has_width(encodings.grid("absolute", 0, "fixed", 26), n)


@pytest.mark.parametrize(("payload", "bits", "group"), LAYOUTS)
def test_few_values_at_a_time_are_the_same(
    payload: str, bits: int | None, group: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, exponents, classes = rows(40, 3, 24, 1)
    encoding = encodings.grid("absolute", 0, payload, bits, group)
    part = opened(encoding, integers.section(encoding, codes, exponents, classes), 40, 3)
    monkeypatch.setattr(cnrcheck, "CHUNK", 1)
    assert len(list(part.pieces())) == -(-40 // (group or 1))
    assert [row for units in part.pieces() for row in part.read(units)[1].tolist()] == codes
    assert part.at(np.arange(40))[1].tolist() == codes


def test_the_bytes_of_a_directory() -> None:
    for groups in (1, 2, 3, 1023, 1024, 1025, 2048, 3000):
        assert cnrcheck.directory_length(groups) == len(integers.directory([1] * groups))


def test_legal_integers() -> None:
    groups = [None, 0, 1, 65536, 65537, -1, "1", 1.0, True]
    kinds, payloads = ["absolute", "residual", "x", None], ["fixed", "packed", "rans", "x", None]
    for kind, payload, group in product(kinds, payloads, groups):
        for floor, bits in product([-127, -126, 0, 103, 104, 0.0, None], [None, 0, 1, 26, 27, 8.0, True]):
            shape = bits in (1, 26) and type(bits) is int and group is None
            if payload in ("packed", "rans"):
                shape = bits is None and type(group) is int and group in (1, 65536)
            legal = kind in kinds[:2] and payload in payloads[:3] and type(floor) is int and -126 <= floor <= 103
            found = cnrcheck.is_legal(encodings.grid(kind, floor, payload, bits, group))  # type: ignore[arg-type]
            assert found == (legal and shape)
        shape = (kind, payload, group) == ("absolute", "fixed", None)
        if payload == "rans":
            shape = kind in kinds[:2] and type(group) is int and group in (1, 65536)
        found = cnrcheck.is_legal(encodings.log(12, 1, 0, kind, payload, group))  # type: ignore[arg-type]
        assert found == shape


def harmless(encoding: dict[str, Any], data: bytes, count: int, n: int) -> str:
    """The rule that is found broken; whatever else the bytes make happen is an error."""
    try:
        part = opened(encoding, data, count, n)
        for units in part.pieces():
            positions, codes, exponents = part.read(units)
            assert codes.shape == (len(positions), n)
            assert len(exponents) == len(positions)
    except cnrcheck.BrokenCodesError as broken:
        return str(broken.args[0])
    return "code-padding" if part.padding else ""


@pytest.mark.parametrize(("payload", "group"), [("packed", 2), ("packed", 5), ("rans", 2), ("rans", 5)])
def test_every_flipped_bit_is_read_or_named(payload: str, group: int) -> None:
    codes, exponents, classes = rows(5, 3, 24, 3)
    encoding = encodings.grid("absolute", 0, payload, None, group)
    data = integers.section(encoding, codes, exponents, classes)
    assert harmless(encoding, data, 5, 3) == ""
    named = set()
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        named.add(harmless(encoding, bytes(spoilt), 5, 3))
    assert named - {"", "code-padding"} == {"grid-directory", "grid-codes", *(["grid-models"] * (payload == "rans"))}


PAYLOADS = st.sampled_from(["packed", "rans"])


@given(st.binary(max_size=200), PAYLOADS, st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_whatever_the_bytes_are(data: bytes, payload: str, group: int, n: int, headed: bool) -> None:
    encoding = encodings.grid("residual", 0, payload, None, group)
    if headed and payload == "rans":
        models = integers.Models([(0, 0, 4095), (3, 1, 1)], [[4000, 96], [1] * 100 + [3996]])
        data = models.head() + data
    if len(data) >= cnrcheck.part_length(encoding, 4, n):
        assert harmless(encoding, data, 4, n) in ("", "code-padding", "grid-directory", "grid-models", "grid-codes")


def test_a_group_of_the_widest_row_takes_little_memory() -> None:
    """2^20 values in 32 bytes are as many as there are in 4 MiB; they are decoded alone."""
    encoding = encodings.grid("absolute", 0, "rans", None, 1)
    head = integers.Models([(0, 0, 4096)], [[4096]]).head()
    states = b"\0\0\1\0" * 8
    part = opened(encoding, integers.assembled([states] * 3, head), 3, 1 << 20)
    assert [len(units) for units in part.pieces()] == [1, 1, 1]
    _, codes, _ = part.read(np.array([2]))
    assert codes.shape == (1, 1 << 20)
    assert not codes.any()


@given(st.lists(st.lists(st.integers(-30, 30), min_size=1, unique=True), min_size=1, max_size=4), st.integers(1, 9))
def test_the_ids_of_several_row_sets(sets: list[list[int]], size: int) -> None:
    runs = cnrcheck.union([cnrcheck.runs_of_ids(np.array(sorted(ids))) for ids in sets])
    blocks = list(cnrcheck.id_blocks(runs, size))
    assert [id_ for block in blocks for id_ in block.tolist()] == sorted(set().union(*sets))
    assert all(len(block) == size for block in blocks[:-1])


SUMS = [
    path
    for path in sorted(VECTORS.glob("*valid/*"))
    if path.is_dir() and path.name.startswith(("residual", "grid-range"))
]


@pytest.mark.parametrize("path", SUMS, ids=lambda path: path.name)
def test_sums_of_few_rows_at_a_time_are_judged_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged() -> set[tuple[str, str]]:
        return {(finding.error, finding.place) for finding in cnrcheck.check_path(path)}

    whole = judged()
    monkeypatch.setattr(cnrcheck, "CHUNK", 1)
    assert judged() == whole
