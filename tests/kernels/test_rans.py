"""Groups under the payload `rans`, and the models behind them, against slow references in whole numbers."""

from __future__ import annotations

from math import log2

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import _rans_codes, _rans_models, _rans_steps, rans
from cnrfmt.kernels._jit import INTERPRETED, jit
from tests.kernels import rans_twin as twin

Array = npt.NDArray[np.int64]


def frequencies_of(counts: list[int]) -> list[int]:
    out = np.empty(len(counts), np.uint16)
    rans.normalise(np.array(counts, np.int64), out)
    return out.tolist()


def bits_of(counts: list[int], frequencies: list[int]) -> float:
    return sum(n * (12 - log2(f)) for n, f in zip(counts, frequencies, strict=True) if n)


some_counts = st.one_of(
    st.lists(st.integers(0, 50), min_size=1, max_size=128),
    st.lists(st.one_of(st.just(0), st.integers(1, 10), st.integers(1, 2**40)), min_size=1, max_size=1024),
).filter(any)


@examples(some_counts)
def test_frequencies_sum_to_4096_and_leave_nothing_out(counts: list[int]) -> None:
    found = frequencies_of(counts)
    assert sum(found) == 4096
    assert [f > 0 for f in found] == [n > 0 for n in counts]
    # One unit moved from one symbol to another saves nothing, or next to nothing.
    least = min((n * log2(f / (f - 1)) for n, f in zip(counts, found, strict=True) if f > 1), default=np.inf)
    most = max((n * log2((f + 1) / f) for n, f in zip(counts, found, strict=True) if f), default=0.0)
    assert most - least <= 1e-3 * bits_of(counts, found) + 2


@pytest.mark.parametrize("f", [*range(1, 40), 511, 512, 513, 2047, 2048, 2049, 2731, 4093, 4094, 4095, 4096])
def test_quotients_by_reciprocals_are_exact(f: int) -> None:
    symbols = np.zeros(2, np.uint64)
    rans.fill_symbols(np.array([4096 - f, f], np.uint16), symbols)
    entry = int(symbols[1])
    assert (entry & 0xFFF, entry >> 12 & 0xFFF) == (4096 - f, 4096 - f)
    shift, reciprocal = entry >> 24 & 0x3F, entry >> 30
    end = f << 20
    multiples = np.linspace(1, (1 << 20) - 1, 1000).astype(np.int64) * f
    for x in [0, 1, end - 1, *multiples.tolist(), *(multiples - 1).tolist(), *(multiples + f - 1).tolist()]:
        if x < end:
            assert x * reciprocal < 2**64
            assert x * reciprocal >> shift == x // f


@examples(some_counts)
def test_slots_name_their_symbols(counts: list[int]) -> None:
    frequencies = frequencies_of(counts)
    slots, symbols = np.empty(4096, np.uint32), np.empty(4096, np.uint16)
    rans.fill_slots(np.array(frequencies, np.uint16), slots)
    rans.fill_kinds(np.array(frequencies, np.uint16), symbols)
    expected = [(f - 1, k, s & 0xFF) for s, f in enumerate(frequencies) for k in range(f)]
    assert [(w & 0xFFF, w >> 12 & 0xFFF, w >> 24) for w in slots.tolist()] == expected
    assert symbols.tolist() == [s for s, f in enumerate(frequencies) for _ in range(f)]


@jit
def levels_of(totals: Array, width: int, out: Array) -> None:
    for k in range(len(totals)):
        out[k] = _rans_models.level_of(totals[k], width)


@pytest.mark.parametrize("width", [1, 3, 64, 65536])
def test_levels_are_steps_of_the_mean(width: int) -> None:
    totals = np.array([0, *(width * 2**k for k in range(26)), *range(1, 40)], np.int64)
    found = np.empty_like(totals)
    levels_of(totals, width, found)
    for total, level in zip(totals.tolist(), found.tolist(), strict=True):
        # One for each doubling of the square of 16 times the mean.
        square = 256 * total * total // (width * width)
        assert level == (min(max(square.bit_length(), 1), 31) if total else 0)


@jit
def fold_all(
    codes: npt.NDArray[np.int32], width: int, symbols: npt.NDArray[np.uint16], totals: Array, seen: Array
) -> None:
    for row in range(len(totals)):
        totals[row], seen[row] = _rans_codes.weigh(codes, row * width, width)
        _rans_codes.fold(codes, row * width, width, row & 7, symbols, row * width)


@examples(st.integers(1, 70), st.integers(1, 9), st.sampled_from([3, 15, 16, 40, 2**13, 2**25 - 1]), st.integers(0, 99))
def test_tokens_of_rows(width: int, rows: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-most, most, (rows, width), endpoint=True).astype(np.int32)
    edges = rng.random(codes.shape) < 0.2
    codes[edges] = (rng.choice([-1, 1], codes.shape) * np.minimum(2 ** rng.integers(0, 25, codes.shape), most))[edges]
    symbols, totals, seen = np.empty(codes.size, np.uint16), np.empty(rows, np.int64), np.empty(rows, np.int64)
    fold_all(codes.reshape(-1), width, symbols, totals, seen)
    assert totals.tolist() == np.abs(codes.astype(np.int64)).sum(axis=1).tolist()
    assert seen.tolist() == np.bitwise_or.reduce(np.abs(codes), axis=1).tolist()
    expected = []
    for row in range(rows):
        for code in codes[row].tolist():
            z = 2 * code if code >= 0 else -2 * code - 1
            m = z.bit_length() - 1
            expected.append((row & 7) * 128 + (z if z < 32 else 32 + 4 * (m - 5) + (z >> (m - 2)) % 4))
    assert symbols.tolist() == expected


def code_of(z: int) -> int:
    return z // 2 if z % 2 == 0 else -(z + 1) // 2


def bytes_of(numbers: list[int], sizes: list[int]) -> bytes:
    """Numbers of so many bits one after the other, from the lowest bit on."""
    string, n_bits = 0, 0
    for number, size in zip(numbers, sizes, strict=True):
        string |= number << n_bits
        n_bits += size
    return string.to_bytes(-(-n_bits // 8), "little")


@jit
def unfold_all(
    data: npt.NDArray[np.uint8], at: int, stop: int, symbols: npt.NDArray[np.uint16], out: npt.NDArray[np.int32]
) -> tuple[int, int]:
    return _rans_codes.unfold(data, at, stop, symbols, 0, len(symbols), 25, out, 1)


@examples(st.integers(1, 200), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 20), st.integers(0, 2**32))
def test_codes_of_tokens(count: int, share: float, least: int, seed: int) -> None:
    """Whatever is cut off of their extra bits, nothing beyond them is read, and how many they are is known."""
    rng = np.random.default_rng(seed)
    token, e = rng.integers(0, 32, count), rng.integers(0, 25, count)
    large = rng.random(count) < share
    token[large] = rng.integers(32, 124, large.sum())
    size = np.where(token < 32, 0, 3 + (token - 32) // 4)
    low = rng.integers(0, 1 << 25, count) & ((1 << size) - 1)
    z = np.where(token < 32, token, (4 + token % 4) << size | low)
    extra = bytes_of(low.tolist(), size.tolist())
    expected = [code_of(n) for n in z.tolist()]
    sound = all(abs(code) < 1 << (25 - by) for code, by in zip(expected, e.tolist(), strict=True))
    out = np.full(count + 2, 7, np.int32)
    # Extra bits lie at the end of an array, after what may be no more than the four bytes that are asked for.
    data = np.frombuffer(bytes([0xFF] * (4 + least)) + extra, np.uint8)
    n_bits, beyond = unfold_all(data, 4 + least, len(data), (token | e << 8).astype(np.uint16), out)
    assert n_bits == size.sum()
    assert (beyond == 0) == sound
    assert out[[0, -1]].tolist() == [7, 7]
    if sound:
        assert out[1:-1].tolist() == [code << by for code, by in zip(expected, e.tolist(), strict=True)]
    short = data[: len(data) - int(rng.integers(0, len(extra) + 1))].copy()
    assert unfold_all(short, 4 + least, len(short), (token | e << 8).astype(np.uint16), out)[0] == size.sum()


@jit
def put_all(codes: npt.NDArray[np.int32], count: int, out: npt.NDArray[np.uint8], to: int) -> int:
    return _rans_codes.put_extra(codes, 1, count, out, to)


@examples(st.integers(0, 100), st.sampled_from([3, 15, 16, 40, 2**13, 2**25 - 1]), st.integers(0, 2**32))
def test_extra_bits_of_codes(count: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-most, most, count + 2, endpoint=True).astype(np.int32)
    edges = rng.random(count + 2) < 0.2
    codes[edges] = (rng.choice([-1, 1], count + 2) * np.minimum(2 ** rng.integers(0, 25, count + 2), most))[edges]
    z = [2 * code if code >= 0 else -2 * code - 1 for code in codes[1:-1].tolist()]
    sizes = [n.bit_length() - 3 if n >= 32 else 0 for n in z]
    expected = bytes_of([n & ((1 << size) - 1) for n, size in zip(z, sizes, strict=True)], sizes)
    out = np.full(3 + len(expected) + 9, 7, np.uint8)
    end = put_all(codes, count, out, 3)
    assert out[:end].tobytes() == bytes([7] * 3) + expected
    assert out[-1] == 7


@jit
def encode_four(
    symbols: npt.NDArray[np.uint16],
    stride: int,
    count: int,
    table: npt.NDArray[np.uint64],
    states: Array,
    words: npt.NDArray[np.uint16],
    room: int,
    at: Array,
) -> bool:
    return _rans_steps.encode_four(symbols, stride, count, table, states, words, room, at)


@jit
def encode_one(
    symbols: npt.NDArray[np.uint16],
    first: int,
    count: int,
    table: npt.NDArray[np.uint64],
    states: Array,
    words: npt.NDArray[np.uint16],
    at: int,
) -> int:
    return _rans_steps.encode_steps(symbols, first, count, table, states, words, at)


@examples(st.integers(0, 2**32), st.integers(0, 40), st.sampled_from([0.02, 0.3, 1.0]))
def test_four_groups_are_encoded_at_once_as_each_by_itself(seed: int, count: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    frequencies = np.array(frequencies_of(rng.geometric(spread, 128).tolist()), np.uint16)
    table = np.zeros(128, np.uint64)
    rans.fill_symbols(frequencies, table)
    stride, room = count + 3, count + 9
    symbols = rng.integers(0, 128, 4 * stride).astype(np.uint16)
    # Of a symbol a state is at least 65536, and less than 2^32.
    states = rng.integers(65536, 2**32, 32)
    words, at = np.zeros(4 * room, np.uint16), rng.integers(0, 2, 4)
    all_states, all_words, all_at = states.copy(), words.copy(), at.copy()
    if not encode_four(symbols, stride, count, table, all_states, all_words, room, all_at):
        return
    for g in range(4):
        own = states[8 * g : 8 * g + 8].copy()
        end = encode_one(symbols, g * stride, count, table, own, words, g * room + int(at[g]))
        assert end == g * room + all_at[g]
        assert own.tolist() == all_states[8 * g : 8 * g + 8].tolist()
        some = slice(g * room + int(at[g]), end)
        np.testing.assert_array_equal(all_words[some], words[some])


def tables_of(models: list[list[int]]) -> npt.NDArray[np.uint32]:
    slots = np.empty((len(models), 4096), np.uint32)
    for model, own in zip(models, slots, strict=True):
        rans.fill_slots(np.array(model, np.uint16), own)
    return slots.reshape(-1)


@jit
def decode_four(
    data: npt.NDArray[np.uint8],
    at: Array,
    stop: Array,
    slots: npt.NDArray[np.uint32],
    states: Array,
    symbols: npt.NDArray[np.uint16],
    stride: int,
) -> int:
    return _rans_steps.decode_four(data, at, stop, slots, states, symbols, stride, stride)


@jit
def decode_one(
    data: npt.NDArray[np.uint8],
    at: int,
    stop: int,
    slots: npt.NDArray[np.uint32],
    states: Array,
    symbols: npt.NDArray[np.uint16],
    first: int,
    width: int,
    count: int,
) -> tuple[int, int]:
    return _rans_steps.decode_steps(data, at, stop, slots, states, symbols, first, width, 0, count)


@examples(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 600))
def test_four_groups_at_once_are_as_each_by_itself(seed: int, classes: int, length: int) -> None:
    """On random words, of which some groups have more than others: what is decoded doesn't matter."""
    rng = np.random.default_rng(seed)
    slots = tables_of([frequencies_of(rng.geometric(0.3, 40).tolist()) for _ in range(classes)])
    data = rng.integers(0, 256, 4 * 700, np.uint8)
    begin = np.arange(4, dtype=np.int64) * 700
    stop = begin + length + rng.integers(0, 100, 4)
    states = rng.integers(65536, 2**32, 32)
    stride = 8 * int(rng.integers(1, 20)) + 3
    width = int(rng.integers(1, 30))
    rows = rng.integers(0, classes, 4 * stride) | rng.integers(0, 25, 4 * stride) << 8
    symbols = rows[np.arange(4 * stride) // stride * stride + np.arange(4 * stride) % stride // width].astype(np.uint16)
    at, all_states, all_symbols = begin.copy(), states.copy(), symbols.copy()
    done = decode_four(data, at, stop, slots, all_states, all_symbols, stride)
    assert done % 8 == 0
    assert done <= stride
    for g in range(4):
        own, some = states[8 * g : 8 * g + 8].copy(), symbols.copy()
        k, where = decode_one(data, begin[g], stop[g], slots, own, some, g * stride, width, done)
        some_done, rest = slice(g * stride, g * stride + done), slice(g * stride + done, (g + 1) * stride)
        assert (k, where) == (done, at[g])
        assert own.tolist() == all_states[8 * g : 8 * g + 8].tolist()
        np.testing.assert_array_equal(all_symbols[some_done], some[some_done])
        np.testing.assert_array_equal(all_symbols[rest], symbols[rest])


def plain_level_bits(tokens: Array, kinds: Array) -> float:
    """The bits that one class takes: its tokens, its model, and what it adds to the kinds of rows."""
    n, m = tokens[tokens > 0], kinds[kinds > 0]
    used = int(np.flatnonzero(tokens)[-1]) + 1
    return float((n * np.log2(n.sum() / n)).sum() + 16 * used + 8 + (32 - m * np.log2(m)).sum())


@examples(st.integers(0, 2**32), st.sampled_from([1, 3, 16]))
def test_levels_are_joined_while_it_helps(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.poisson(rng.choice([0.0, 0.1, 20.0], (32, 1)) * np.ones((32, 25))).astype(np.int64)
    tokens = np.zeros((32, 128), np.int64)
    for level in np.flatnonzero(kinds.any(axis=1)):
        tokens[level, : level + 2] = rng.geometric(0.02, level + 2) * kinds[level].sum()
    if not kinds.any():
        kinds[4, 4], tokens[4, 0] = 1, 16
    before, rows = tokens.copy(), kinds.copy()
    class_of = np.full(32, 99, np.uint8)
    n = int(rans.join_levels(tokens, kinds, most, class_of))
    used = rows.any(axis=1)
    assert 1 <= n <= most
    assert class_of.tolist() == sorted(class_of.tolist())
    assert set(class_of[used].tolist()) == set(range(n))
    for class_ in range(n):
        np.testing.assert_array_equal(tokens[class_], before[class_of == class_].sum(axis=0))
        np.testing.assert_array_equal(kinds[class_], rows[class_of == class_].sum(axis=0))
    bits = [plain_level_bits(tokens[k], kinds[k]) for k in range(n)]
    for k in range(n - 1):
        assert plain_level_bits(tokens[k] + tokens[k + 1], kinds[k] + kinds[k + 1]) > bits[k] + bits[k + 1] - 1e-3


def group_of(models: twin.Models, group: twin.Group) -> tuple[int, Array, list[int]]:
    """What the kernel makes of the twin's bytes."""
    data = np.frombuffer(twin.encode(models, group), np.uint8)
    rows, width = len(group.codes), len(group.codes[0])
    kinds = np.array([e << 8 | c for e, c, _ in models.kinds], np.uint16)
    frequencies = np.array([f for _, _, f in models.kinds], np.uint16)
    kind_slots, kind_symbols = np.empty(4096, np.uint32), np.empty(4096, np.uint16)
    rans.fill_slots(frequencies, kind_slots)
    rans.fill_kinds(frequencies, kind_symbols)
    out, exponents = np.empty((rows, width), np.int32), np.empty(rows, np.uint8)
    wrong, _ = rans.decode_groups(
        data, np.array([0]), np.array([len(data)]), rows, kinds, kind_slots, kind_symbols,
        tables_of(models.classes), 25,
        np.empty(16, np.int64), np.empty(64, np.int64), np.empty(rows, np.uint16), np.empty(rows * width, np.uint16),
        out, exponents,
    )  # fmt: skip
    return wrong, out.astype(np.int64), exponents.tolist()


@pytest.mark.parametrize("n_kinds", [1, 2, 255, 256, 257, 1024])
def test_row_kinds_of_any_number(n_kinds: int) -> None:
    rng = np.random.default_rng(n_kinds)
    n_classes = -(-n_kinds // 25)
    pairs = sorted((k % 25, k // 25) for k in range(n_kinds))
    frequencies = frequencies_of(rng.geometric(0.1, n_kinds).tolist())
    models = twin.Models(
        [(e, c, f) for (e, c), f in zip(pairs, frequencies, strict=True)],
        [frequencies_of(rng.geometric(0.3, 20).tolist()) for _ in range(n_classes)],
    )
    kinds = rng.integers(0, n_kinds, 20 if INTERPRETED else 300).tolist()
    bounds = [1 << min(3, 24 - models.kinds[k][0]) for k in kinds]
    group = twin.Group(kinds, [rng.integers(-bound, bound, 5, endpoint=True).tolist() for bound in bounds])
    wrong, out, exponents = group_of(models, group)
    assert wrong == rans.SOUND
    assert exponents == [models.kinds[k][0] for k in kinds]
    assert out.tolist() == [[c << e for c in row] for row, e in zip(group.codes, exponents, strict=True)]


@pytest.mark.parametrize("e", range(25))
def test_codes_are_below_the_bound_of_their_exponent(e: int) -> None:
    tokens = np.ones(116, np.int64)
    models = twin.Models([(e, 0, 4096)], [frequencies_of(tokens.tolist())])
    bound = 1 << (25 - e)
    for code in (bound - 1, 1 - bound, bound, -bound):
        if abs(code) < 1 << 25:
            wrong, out, _ = group_of(models, twin.Group([0], [[0, code]]))
            assert wrong == (rans.SOUND if abs(code) < bound else rans.RANGE)
            assert abs(code) >= bound or out.tolist() == [[0, code << e]]
