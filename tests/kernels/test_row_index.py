"""Codes of row ids against slow references in whole numbers, on sound and on hostile bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import row_index
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Words = npt.NDArray[np.uint64]
LEAST, GREATEST = -(2**63), 2**63 - 1


def words_of(numbers: list[int]) -> Words:
    return np.array([number % 2**64 for number in numbers], np.uint64)


def signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


# The references: whole numbers, strings of bits, no cleverness.


def reference_packed(ids: list[int]) -> tuple[list[int], list[int]]:
    skip: list[int] = []
    payload: list[int] = []
    for first in range(0, len(ids), 128):
        group = ids[first : first + 128]
        slots = [0, *(b - a - 1 for a, b in pairwise(group))]
        width = max(slot.bit_length() for slot in slots)
        skip += [group[0] % 2**64, len(payload) | width << 32]
        bits = sum(slot << (k * width) for k, slot in enumerate(slots))
        payload += [bits >> (64 * i) & (2**64 - 1) for i in range(-(-len(slots) * width // 64))]
    return skip, payload


def reference_runs(ids: list[int]) -> list[int]:
    entries: list[int] = []
    for k, id_ in enumerate(ids):
        if k and id_ == ids[k - 1] + 1:
            entries[-1] += 1
        else:
            entries += [id_ % 2**64, 1]
    return entries


def reference_bitmap(ids: list[int]) -> tuple[list[int], list[int]]:
    bits = sum(1 << (id_ - ids[0]) for id_ in ids)
    blocks = -(-(ids[-1] - ids[0] + 1) // 512)
    words = [bits >> (64 * i) & (2**64 - 1) for i in range(8 * blocks)]
    ranks = [sum(w.bit_count() for w in words[: 8 * block]) for block in range(blocks)]
    return words, ranks


def judge_packed(skip: list[int], payload: list[int], count: int) -> tuple[int, list[int]]:
    ids: list[int] = []
    offset = 0
    for group in range(-(-count // 128)):
        size = min(128, count - 128 * group)
        id_, entry = signed(skip[2 * group]), skip[2 * group + 1]
        width = entry >> 32
        words = -(-size * width // 64)
        if width > 64 or entry % 2**32 != offset or offset + words > len(payload):
            return group, ids
        bits = sum(w << (64 * i) for i, w in enumerate(payload[offset : offset + words]))
        slots = [bits >> (k * width) & ((1 << width) - 1) for k in range(size)]
        if slots[0] or bits >> (size * width) or max(slots).bit_length() != width:
            return group, ids
        found = [id_]
        for slot in slots[1:]:
            found.append(found[-1] + 1 + slot)
        if found[-1] > GREATEST or (ids and id_ <= ids[-1]):
            return group, ids
        ids += found
        offset += words
    return (-1 if offset == len(payload) else -(-count // 128)), ids


def judge_runs(entries: list[int], count: int) -> tuple[int, list[int]]:
    ids: list[int] = []
    for run in range(len(entries) // 2):
        first, length = signed(entries[2 * run]), entries[2 * run + 1]
        if not 0 < length <= count - len(ids) or first + length - 1 > GREATEST:
            return run, ids
        if ids and first <= ids[-1] + 1:
            return run, ids
        ids += range(first, first + length)
    return (-1 if len(ids) == count else len(entries) // 2), ids


def judge_bitmap(words: list[int], ranks: list[int], least: int, greatest: int, count: int) -> tuple[int, list[int]]:
    """The verdict alone is the format's: where several blocks are bad, the kernel names one of them."""
    ids = [least + 64 * i + k for i, w in enumerate(words) for k in range(64) if w >> k & 1]
    before = [sum(w.bit_count() for w in words[: 8 * block]) for block in range(len(ranks))]
    sound = before == ranks and len(ids) == count and (ids[0], ids[-1]) == (least, greatest)
    return (-1 if sound else 0), ids


# The kernels, as the references are called.


def packed(ids: list[int], give: Give = lambda a: a) -> tuple[list[int], list[int]]:
    array = give(np.array(ids, np.int64))
    words = int(row_index.measure(array)[1])
    skip, payload = np.empty(2 * -(-len(ids) // 128), np.uint64), np.empty(words, np.uint64)
    row_index.encode_packed(array, skip, payload)
    return skip.tolist(), payload.tolist()


def unpacked(skip: list[int], payload: list[int], count: int, give: Give = lambda a: a) -> tuple[int, list[int]]:
    out = np.zeros(count, np.int64)
    bad = int(row_index.decode_packed(give(words_of(skip)), give(words_of(payload)), count, out))
    return bad, out.tolist()


def runs(ids: list[int], give: Give = lambda a: a) -> list[int]:
    array = give(np.array(ids, np.int64))
    entries = np.empty(2 * int(row_index.measure(array)[0]), np.uint64)
    row_index.encode_runs(array, entries)
    return entries.tolist()


def unrun(entries: list[int], count: int, give: Give = lambda a: a) -> tuple[int, list[int]]:
    out = np.zeros(count, np.int64)
    return int(row_index.decode_runs(give(words_of(entries)), out)), out.tolist()


def bitmap(ids: list[int], give: Give = lambda a: a) -> tuple[list[int], list[int]]:
    blocks = -(-(ids[-1] - ids[0] + 1) // 512)
    words, ranks = np.full(8 * blocks, 7, np.uint64), np.empty(blocks, np.uint64)
    row_index.encode_bitmap(give(np.array(ids, np.int64)), words, ranks)
    return words.tolist(), ranks.tolist()


def unmapped(
    words: list[int], ranks: list[int], least: int, greatest: int, count: int, give: Give = lambda a: a
) -> tuple[int, list[int]]:
    out = np.zeros(count, np.int64)
    bad = row_index.decode_bitmap(give(words_of(words)), give(words_of(ranks)), least, greatest, out)
    return int(bad), out.tolist()


# Sets of ids: spread over all of int64, and in clusters of touching ones, around groups' ends.

SPREAD = st.sets(st.integers(LEAST, GREATEST), min_size=1, max_size=300).map(sorted)


@st.composite
def clusters(draw: st.DrawFn) -> list[int]:
    id_ = draw(st.sampled_from([LEAST, -1000, 0, 10**12]))
    ids: list[int] = []
    for gap, length in draw(
        st.lists(
            st.tuples(st.integers(0, 2 ** draw(st.integers(1, 12))), st.integers(1, 150)),
            min_size=1,
            max_size=8,
        )
    ):
        ids += range(id_ + gap, id_ + gap + length)
        id_ = ids[-1] + 1
    return ids


@examples(SPREAD | clusters())
def test_measure(ids: list[int]) -> None:
    found = tuple(int(n) for n in row_index.measure(np.array(ids, np.int64)))
    assert found == (len(reference_runs(ids)) // 2, len(reference_packed(ids)[1]))


@examples(SPREAD | clusters())
def test_packed(ids: list[int]) -> None:
    code = packed(ids)
    assert code == reference_packed(ids)
    assert unpacked(*code, len(ids)) == (-1, ids)


@examples(SPREAD | clusters())
def test_runs(ids: list[int]) -> None:
    code = runs(ids)
    assert code == reference_runs(ids)
    assert unrun(code, len(ids)) == (-1, ids)


@examples(clusters())
def test_bitmap(ids: list[int]) -> None:
    code = bitmap(ids)
    assert code == reference_bitmap(ids)
    assert unmapped(*code, ids[0], ids[-1], len(ids)) == (-1, ids)


@pytest.mark.parametrize("count", [2, 64, 127, 128, 129, 257])
def test_packed_of_every_width(count: int) -> None:
    for width in range(64):
        gap = 1 << width  # The slot holds one less, so this is the least gap of some width.
        ids = [LEAST + k for k in range(count - 1)] + [LEAST + count - 2 + gap]
        code = packed(ids)
        assert code == reference_packed(ids), width
        assert unpacked(*code, count) == (-1, ids), width


def test_the_ends_of_int64(given: Give) -> None:
    ids = [LEAST, GREATEST]
    assert packed(ids, given) == ([2**63, 64 << 32], [0, 2**64 - 2])
    assert unpacked(*packed(ids), 2, given) == (-1, ids)
    ids = [LEAST, LEAST + 1, GREATEST - 1, GREATEST]
    assert unrun(runs(ids, given), 4, given) == (-1, ids)
    for ids in (list(range(GREATEST - 600, GREATEST + 1, 3)), list(range(LEAST, LEAST + 700, 7))):
        assert unpacked(*packed(ids), len(ids), given) == (-1, ids)
        assert unmapped(*bitmap(ids, given), ids[0], ids[-1], len(ids), given) == (-1, ids)


def test_no_ids() -> None:
    assert tuple(row_index.measure(np.empty(0, np.int64))) == (0, 0)
    assert unpacked([], [], 0) == (-1, [])
    assert unpacked([], [0], 0) == (0, [])
    assert unrun([], 0) == (-1, [])


def test_rows_touched_in_an_interval() -> None:
    # As a trainer leaves them: some rows often, most seldom.
    rng = np.random.default_rng(1)
    count = 3000 if INTERPRETED else 300_000
    popular = count * rng.beta(0.3, 3.0, count // 2)
    ids = sorted(set(popular.astype(np.int64).tolist()))
    assert unpacked(*packed(ids), len(ids)) == (-1, ids)
    assert unrun(runs(ids), len(ids)) == (-1, ids)
    assert unmapped(*bitmap(ids), ids[0], ids[-1], len(ids)) == (-1, ids)


# Hostile bytes. Each rule by name, then whatever hypothesis thinks of.


def test_packed_rules() -> None:
    ids = [*range(0, 256, 2), 300, 307]
    skip, payload = packed(ids)
    assert skip == [0, 1 << 32, 300, 2 | 3 << 32]

    def judge(change: Callable[[list[int], list[int]], None]) -> int:
        bad_skip, bad_payload = skip.copy(), payload.copy()
        change(bad_skip, bad_payload)
        found = unpacked(bad_skip, bad_payload, 130)[0]
        assert found == judge_packed(bad_skip, bad_payload, 130)[0]
        return found

    def put(index: int, value: int) -> Callable[[list[int], list[int]], None]:
        return lambda skip, payload: skip.__setitem__(index, value)

    assert judge(lambda skip, payload: None) == -1
    assert judge(put(1, 1 | 1 << 32)) == 0  # Not where the payload starts.
    assert judge(put(3, 1 | 3 << 32)) == 1  # Not where the payload before it ends.
    assert judge(put(3, 2 | 65 << 32)) == 1  # Wider than a word.
    assert judge(put(3, 2 | 64 << 32)) == 1  # Longer than the payload.
    assert judge(put(3, 2 | 4 << 32)) == 1  # Not the smallest width.
    assert judge(put(3, 2 | 2 << 32)) == 1  # Ones behind the last slot.
    assert judge(put(3, 2 | 3 << 32 | 1 << 40)) == 1  # A byte that has to be zero.
    assert judge(put(3, 2 | 3 << 32 | 1 << 63)) == 1
    assert judge(put(2, 254)) == 1  # The last id of the group before.
    assert judge(put(2, 255)) == -1
    assert judge(put(2, GREATEST - 6)) == 1  # Beyond int64.
    assert judge(put(2, GREATEST - 7)) == -1
    assert judge(lambda skip, payload: payload.append(0)) == 2
    assert judge(lambda skip, payload: payload.pop() and None) == 1
    assert judge(lambda skip, payload: payload.__setitem__(0, payload[0] | 1)) == 0  # Slot 0.
    assert judge(lambda skip, payload: payload.__setitem__(2, payload[2] | 1 << 6)) == 1


def test_packed_of_no_width_beyond_int64() -> None:
    assert unpacked([GREATEST - 3, 0], [], 4) == (-1, list(range(GREATEST - 3, GREATEST + 1)))
    assert unpacked([GREATEST - 2, 0], [], 4)[0] == 0


def test_packed_sums_that_wrap() -> None:
    # Two slots of nearly 2**64: their sum, modulo 2**64, would be small again.
    top = 2**64 - 1
    assert unpacked([LEAST % 2**64, 64 << 32], [0, top], 2)[0] == 0
    assert unpacked([0, 64 << 32], [0, top, 5], 3)[0] == 0
    assert unpacked([0, 64 << 32], [0, 2**63, 2**63 - 2], 3)[0] == 0


def test_runs_rules() -> None:
    assert unrun([5, 2, 8, 3], 5) == (-1, [5, 6, 8, 9, 10])
    assert unrun([5, 0, 8, 5], 5)[0] == 0  # Empty.
    assert unrun([5, 2, 7, 3], 5)[0] == 1  # Touches.
    assert unrun([5, 2, 4, 3], 5)[0] == 1  # Goes back.
    assert unrun([5, 2, 8, 4], 5)[0] == 1  # Too many.
    assert unrun([5, 2, 8, 2**64 - 1], 5)[0] == 1
    assert unrun([5, 2, 8, 2], 5)[0] == 2  # Too few.
    assert unrun([GREATEST, 2], 2)[0] == 0  # Beyond int64.
    assert unrun([GREATEST, 1, LEAST % 2**64, 1], 2)[0] == 1  # Wraps.


def test_bitmap_rules() -> None:
    ids = [10, 11, 521, 522, 600]
    words, ranks = bitmap(ids)
    assert (len(words), ranks) == (16, [0, 3])

    def judge(index: int, change: int, *, count: int = 5, rank: int = 3) -> int:
        bad = words.copy()
        bad[index] ^= change
        return unmapped(bad, [0, rank], 10, 600, count)[0]

    assert judge(0, 0) == -1
    assert judge(0, 0, rank=2) == 1
    assert judge(0, 1) == 0  # The first id is missing.
    assert judge(9, 1 << (590 % 64)) == 1  # The last is.
    assert judge(9, 3 << (589 % 64)) == 1  # There is one before it instead.
    assert judge(9, 1 << 63, count=6) == 1  # A bit behind the last id.
    assert judge(10, 1, count=6) == 1  # A word behind it.
    assert judge(0, 0, count=6) == 1  # Too few.
    assert judge(0, 0, count=4) == 1  # Too many.
    assert judge(3, 1) == 1  # A rank that no longer fits.
    beyond = [3, *[0] * 7]
    assert unmapped(beyond, [0], GREATEST, GREATEST, 2)[0] == 0  # Beyond int64.


@st.composite
def damage(draw: st.DrawFn, words: list[int]) -> list[int]:
    """A few words changed, as a rot or an attacker would."""
    words = words.copy()
    for _ in range(draw(st.integers(0, 3))):
        if words:
            at = draw(st.integers(0, len(words) - 1))
            kind = draw(st.sampled_from(["bit", "add", "any"]))
            if kind == "bit":
                words[at] ^= 1 << draw(st.integers(0, 63))
            elif kind == "add":
                words[at] = (words[at] + draw(st.integers(-3, 3))) % 2**64
            else:
                words[at] = draw(st.integers(0, 2**64 - 1))
    return words


@examples(SPREAD | clusters(), st.data())
def test_packed_of_damaged_words(ids: list[int], data: st.DataObject) -> None:
    skip, payload = packed(ids)
    skip, payload = data.draw(damage(skip)), data.draw(damage(payload))
    bad, found = unpacked(skip, payload, len(ids))
    want, sound = judge_packed(skip, payload, len(ids))
    assert bad == want
    assert found[: len(sound)] == sound


@examples(st.integers(1, 300), st.integers(0, 40), st.integers(0, 2**32), st.integers(0, 70))
def test_packed_of_any_words(count: int, words: int, seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    skip = rng.integers(0, 2**64, 2 * -(-count // 128), np.uint64)
    skip[0] %= np.uint64(1000)
    skip[1] = np.uint64(width << 32)
    payload = rng.integers(0, 2**64, words, np.uint64).tolist()
    bad = unpacked(skip.tolist(), payload, count)[0]
    assert bad == judge_packed(skip.tolist(), payload, count)[0]


@examples(SPREAD | clusters(), st.data())
def test_runs_of_damaged_words(ids: list[int], data: st.DataObject) -> None:
    entries = data.draw(damage(runs(ids)))
    bad, found = unrun(entries, len(ids))
    want, sound = judge_runs(entries, len(ids))
    assert bad == want
    assert found[: len(sound)] == sound


@examples(clusters(), st.data())
def test_bitmap_of_damaged_words(ids: list[int], data: st.DataObject) -> None:
    words, ranks = bitmap(ids)
    words, ranks = data.draw(damage(words)), data.draw(damage(ranks))
    bad, found = unmapped(words, ranks, ids[0], ids[-1], len(ids))
    want, sound = judge_bitmap(words, ranks, ids[0], ids[-1], len(ids))
    assert (bad == -1) == (want == -1)
    assert -1 <= bad < len(ranks)
    if want == -1:
        assert found == sound


@examples(st.lists(st.integers(LEAST, GREATEST), max_size=20), st.booleans(), st.data())
def test_check_ids(ids: list[int], ordered: bool, data: st.DataObject) -> None:
    ids = sorted(ids) if ordered else ids
    lo, hi = sorted(data.draw(st.tuples(*[st.integers(LEAST, GREATEST)] * 2)))
    want = -1
    for k in reversed(range(len(ids))):
        if not lo <= ids[k] <= hi or (k and ids[k] <= ids[k - 1]):
            want = k
    assert row_index.check_ids(np.array(ids, np.int64), lo, hi) == want


def test_check_of_read_only_ids(given: Give) -> None:
    ids = given(np.array([LEAST, -5, 0, GREATEST]))
    assert row_index.check_ids(ids, LEAST, GREATEST) == -1
    assert row_index.check_ids(ids, -5, GREATEST) == 0
    assert row_index.check_ids(ids, LEAST, GREATEST - 1) == 3
