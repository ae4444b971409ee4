"""The payload `rans`, whole parts: there and back, against the twin, its size, and hostile bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.encodings.rans import RansModels, RansPart, encode
from cnrfmt.errors import DamagedError, UsageError
from cnrfmt.kernels._jit import INTERPRETED
from tests.kernels import rans_twin as twin

Codes = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
MOST = 25


class Rows:
    """Codes at hand, as a `CodeSource`."""

    def __init__(self, codes: Codes, exponents: Bytes) -> None:
        self.all, self.exponents = codes, exponents

    def codes(self, first: int, stop: int, out: Codes, exponents: Bytes) -> None:
        out[:] = self.all[first:stop]
        exponents[:] = self.exponents[first:stop]


def part_of(codes: Codes, exponents: Bytes, group: int) -> RansPart:
    return encode(Rows(codes, exponents), *codes.shape, group)


def groups_of(part: RansPart) -> list[Bytes]:
    return np.split(part.payload, part.starts[1:])


def decoded(models: RansModels, data: Bytes, rows: int, width: int, most: int = MOST) -> tuple[Codes, Bytes]:
    """A group that lies somewhere in an array of which nothing else may be read or written."""
    out, exponents = np.full((rows + 2, width), 7, np.int32), np.full(rows + 2, 7, np.uint8)
    held = np.full(len(data) + 64, 0xFF, np.uint8)
    held[32 : 32 + len(data)] = data
    held.flags.writeable = False
    models.decode_group(held, 32, 32 + len(data), out[1:-1], exponents[1:-1], most, "group 0")
    assert (out[[0, -1]] == 7).all()
    assert (exponents[[0, -1]] == 7).all()
    return out[1:-1], exponents[1:-1]


def laplace(rng: np.random.Generator, rows: int, width: int, spread: float = 0.8) -> Codes:
    """Codes as those of a trained table: rows of different scales."""
    scales = 0.75 * np.exp(rng.normal(0, spread, (rows, 1)))
    return np.rint(rng.laplace(0, 1, (rows, width)) * scales).astype(np.int32)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Codes, Bytes, int]:
    """Rows of many shapes, and the rows of a group: quiet ones, zero ones, great codes, exponents."""
    width = draw(st.one_of(st.integers(1, 20), st.integers(1, 300)))
    rows = draw(st.integers(1, max(1, (200 if INTERPRETED else 3000) // width)))
    group = draw(st.integers(1, rows + 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    greatest = draw(st.sampled_from([0, 1, 2, 15, 16, 17, 100, 2**13, 2**24, 2**25]))
    top = draw(st.integers(0, 24))
    exponents = rng.integers(0, top + 1, rows).astype(np.uint8)
    bounds = np.minimum(greatest, (1 << (MOST - exponents.astype(np.int64))) - 1)[:, None]
    codes = np.rint(laplace(rng, rows, width) * draw(st.sampled_from([1.0, 1.0, 1e3, 1e7])))
    codes = np.clip(codes, -bounds, bounds).astype(np.int32)
    codes[rng.random(rows) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 0
    spot = rng.random(codes.shape) < draw(st.sampled_from([0.0, 0.01]))
    codes[spot] = np.broadcast_to(bounds, codes.shape)[spot] * rng.choice([-1, 1], spot.sum())
    return codes, exponents, group


@examples(parts())
def test_groups_come_back_and_are_what_the_twin_makes(case: tuple[Codes, Bytes, int]) -> None:
    codes, exponents, group = case
    width = codes.shape[1]
    part = part_of(codes, exponents, group)
    assert RansModels.head_bytes(part.head[:16]) == len(part.head)
    models = RansModels.parse(part.head, "part", exponents=24)
    plain = twin.models_of(part.head.tobytes(), 24)
    assert len(part.starts) == -(-len(codes) // group)
    for number, data in enumerate(groups_of(part)):
        rows = slice(number * group, (number + 1) * group)
        n = len(codes[rows])
        out, e = decoded(models, data, n, width)
        np.testing.assert_array_equal(out, codes[rows].astype(np.int64) << exponents[rows, None])
        np.testing.assert_array_equal(e, exponents[rows])
        found = twin.decode(plain, data.tobytes(), n, width, MOST)
        assert found.codes == codes[rows].tolist()
        assert [plain.kinds[kind][0] for kind in found.kinds] == exponents[rows].tolist()
        assert twin.encode(plain, found) == data.tobytes()


@examples(parts(), st.data())
def test_damaged_groups_are_judged_as_by_the_twin(case: tuple[Codes, Bytes, int], data: st.DataObject) -> None:
    codes, exponents, group = case
    width = codes.shape[1]
    part = part_of(codes, exponents, group)
    models, plain = RansModels.parse(part.head, "part", exponents=24), twin.models_of(part.head.tobytes(), 24)
    number = data.draw(st.integers(0, len(part.starts) - 1))
    sound = groups_of(part)[number]
    rows = len(codes[number * group : (number + 1) * group])
    most = data.draw(st.sampled_from([24, 25]))
    changed = bytearray(sound.tobytes())
    how = data.draw(st.sampled_from(["bits", "cut", "longer", "state", "random"]))
    if how == "bits":
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del changed[data.draw(st.integers(0, len(changed) - 1)) :]
    elif how == "longer":
        changed += data.draw(st.binary(min_size=1, max_size=40))
    elif how == "state":
        lane = data.draw(st.integers(0, 7))
        changed[4 * lane : 4 * lane + 4] = struct.pack("<I", data.draw(st.sampled_from([0, 65535, 65536, 2**32 - 1])))
    else:
        changed[:] = np.random.default_rng(data.draw(st.integers(0, 99))).bytes(data.draw(st.integers(0, 5000)))
    try:
        expected = twin.decode(plain, bytes(changed), rows, width, most)
    except twin.Damaged:
        with pytest.raises(DamagedError, match="group 0") as caught:
            decoded(models, np.frombuffer(bytes(changed), np.uint8), rows, width, most)
        assert caught.value.rule in ("grid-codes", "code-padding")
    else:
        out, e = decoded(models, np.frombuffer(bytes(changed), np.uint8), rows, width, most)
        assert e.tolist() == [plain.kinds[kind][0] for kind in expected.kinds]
        np.testing.assert_array_equal(out, np.array(expected.codes, np.int64) << e[:, None])


@pytest.fixture(scope="module")
def sample() -> RansPart:
    """Rows of several kinds and classes, in groups of 64."""
    rng = np.random.default_rng(5)
    return part_of(laplace(rng, 640, 24, 2.0), rng.integers(3, 6, 640).astype(np.uint8), 64)


@pytest.mark.parametrize("length", range(0, 300, 7))
def test_cut_groups_are_damaged(sample: RansPart, length: int) -> None:
    data = groups_of(sample)[0]
    assert length < len(data)
    with pytest.raises(DamagedError):
        decoded(RansModels.parse(sample.head, "part", exponents=24), data[:length], 64, 24)


def changes(head: bytes) -> dict[str, bytes]:
    """Heads that break one rule each."""
    n_kinds, n_classes, length, _ = struct.unpack("<HHIQ", head[:16])
    at = 16 + 4 * n_kinds

    def put(place: int, form: str, *numbers: int) -> bytes:
        packed = struct.pack("<" + form, *numbers)
        return head[:place] + packed + head[place + len(packed) :]

    def add(place: int, change: int) -> bytes:
        return put(place, "H", struct.unpack_from("<H", head, place)[0] + change)

    return {
        "no bytes": b"",
        "cut in its first bytes": head[:15],
        "cut": head[:-8],
        "longer": head + bytes(8),
        "no kinds": put(0, "H", 0),
        "too many kinds": put(0, "H", 1025),
        "one kind more": put(0, "H", n_kinds + 1),
        "one kind fewer": put(0, "H", n_kinds - 1),
        "no classes": put(2, "H", 0),
        "too many classes": put(2, "H", 257),
        "one class more": put(2, "H", n_classes + 1),
        "one class fewer": put(2, "H", n_classes - 1),
        "another length": put(4, "I", length + 8),
        "a length of odd bytes": put(4, "I", length + 1) + b"\0",
        "bytes that aren't zero": put(15, "B", 1),
        "kinds that don't ascend": head[:16] + head[20:24] + head[16:20] + head[24:],
        "kinds twice": head[:20] + head[16:18] + head[22:],
        "an exponent too great": put(at - 4, "B", 25),
        "a class that isn't there": put(at - 3, "B", n_classes),
        "a kind that never occurs": put(18, "H", 0),
        "kinds that sum to more": add(18, 1),
        "kinds that sum to less": add(18, -1),
        "a class without tokens": put(at, "B", 0),
        "a class of too many tokens": put(at, "B", 125),
        "a class that ends in zero": put(at + 1, "H", 0),
        "a class that sums to more": add(at + 1, 1),
        "a class that sums to less": add(at + 1, -1),
        "a class of frequencies that wrap around": put(at + 1, "HH", 65535, 2),
        "more padding": put(4, "I", length + 8) + bytes(8),
        "padding that isn't zero": put(4, "I", length + 8) + bytes(7) + b"\1",
    }


def test_heads_that_break_a_rule_are_damaged(sample: RansPart) -> None:
    for name, head in changes(sample.head.tobytes()).items():
        with pytest.raises(twin.Damaged):
            twin.models_of(head, 24)
        with pytest.raises(DamagedError, match="the part") as caught:
            RansModels.parse(np.frombuffer(head, np.uint8), "the part", exponents=24)
        assert caught.value.rule == "grid-models", name


@examples(st.data())
def test_changed_heads_are_judged_as_by_the_twin(sample: RansPart, data: st.DataObject) -> None:
    changed = bytearray(sample.head.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    top = data.draw(st.sampled_from([0, 4, 5, 24]))
    head = np.frombuffer(bytes(changed), np.uint8)
    assert 16 <= RansModels.head_bytes(head[:16]) <= 16 + (1 << 20)
    try:
        plain = twin.models_of(bytes(changed), top)
    except twin.Damaged:
        with pytest.raises(DamagedError):
            RansModels.parse(head, "part", exponents=top)
    else:
        assert RansModels.parse(head, "part", exponents=top).kinds.tolist() == [e << 8 | c for e, c, _ in plain.kinds]


def test_tokens_beyond_all_codes_are_damaged() -> None:
    """A model may have tokens up to 123, of z from 2^26 on: bits that no code's bound allows."""
    frequencies = [0] * 124
    frequencies[123], frequencies[0] = 2048, 2048
    table = struct.pack("<BBH", 0, 0, 4096) + bytes([124]) + struct.pack("<124H", *frequencies)
    table += bytes(-len(table) % 8)
    head = struct.pack("<HHIQ", 1, 1, len(table), 0) + table
    models = RansModels.parse(np.frombuffer(head, np.uint8), "part", exponents=24)
    # One symbol of half the range: the word says which.
    x, f, start = 65536, 2048, 2048
    x = ((x // f) << 12) + x % f + start
    data = struct.pack("<8I", x, *[65536] * 7) + bytes([0xFF] * 3 + [1])
    with pytest.raises(DamagedError, match="bounds of their exponent"):
        decoded(models, np.frombuffer(data, np.uint8), 1, 1)


@pytest.mark.parametrize("code", [1 << 25, -(1 << 25), -(1 << 31)])
def test_codes_out_of_range_are_refused(code: int) -> None:
    with pytest.raises(UsageError, match="out of the range"):
        part_of(np.array([[0], [code]], np.int32), np.zeros(2, np.uint8), 1)


def test_exponents_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match="out of the range"):
        part_of(np.zeros((2, 1), np.int32), np.array([0, 25], np.uint8), 1)


def entropy(counts: npt.NDArray[Any]) -> float:
    """Bits of so many symbols at their own frequencies."""
    n = counts[counts > 0].astype(np.float64)
    return float(-(n * np.log2(n / n.sum())).sum())


def test_size_is_near_the_entropy_of_rows_alike() -> None:
    codes = laplace(np.random.default_rng(1), 32 if INTERPRETED else 4096, 64, 0.0)
    part = part_of(codes, np.full(len(codes), 3, np.uint8), 128)
    bound = entropy(np.unique(codes, return_counts=True)[1]) / 8
    # States keep 24 bits each of a group that tell nothing.
    groups = len(part.starts)
    assert bound < len(part.payload) < 1.005 * bound + 32 * groups
    assert len(part.head) < 200


def test_rows_of_different_activity_gain_by_classes() -> None:
    codes = laplace(np.random.default_rng(2), 512 if INTERPRETED else 4096, 64, 1.0)
    part = part_of(codes, np.zeros(len(codes), np.uint8), 512)
    bound = entropy(np.unique(codes, return_counts=True)[1]) / 8
    assert len(part.payload) < 0.93 * bound
    assert len(part.payload) + len(part.head) < bound


def test_real_differences_are_smaller_than_their_widths(embeddings: npt.NDArray[np.float32]) -> None:
    """Rounded to a step that leaves a few bits a value, as a table's changes are."""
    values = embeddings[:: 400 if INTERPRETED else 8]
    codes = np.rint(values / np.float32(values.std())).astype(np.int32)
    part = part_of(codes, np.zeros(len(codes), np.uint8), 32)
    bound = entropy(np.unique(codes, return_counts=True)[1]) / 8
    assert len(part.payload) + len(part.head) < 1.03 * bound + 32 * len(part.starts)
    models = RansModels.parse(part.head, "part", exponents=24)
    for number, data in enumerate(groups_of(part)):
        some = codes[32 * number : 32 * number + 32]
        np.testing.assert_array_equal(decoded(models, data, len(some), 256)[0], some)


@pytest.mark.parametrize("width", [1, 3])
def test_classes_don_t_grow_with_rows(width: int) -> None:
    """A row of one code has no class of its own to gain by; zero rows alone have one class of one token."""
    codes = laplace(np.random.default_rng(3), 500, width, 2.0)
    head = part_of(codes, np.zeros(500, np.uint8), 500).head
    assert int(head[2]) == 1 if width == 1 else 1 <= int(head[2]) <= 16
    head = part_of(codes * 0, np.zeros(500, np.uint8), 500).head
    assert head[:16].tobytes() == struct.pack("<HHIQ", 1, 1, 8, 0)
    assert head[16:].tobytes() == struct.pack("<BBHBHB", 0, 0, 4096, 1, 4096, 0)


def test_parts_are_the_same_however_they_are_asked_for() -> None:
    """A group at a time or many."""
    rng = np.random.default_rng(4)
    codes = laplace(rng, 300 if INTERPRETED else 3000, 40, 1.0)
    exponents = rng.integers(0, 4, len(codes)).astype(np.uint8)
    small, large = part_of(codes, exponents, 10), part_of(codes, exponents, len(codes))
    assert small.head.tobytes() == large.head.tobytes()


