"""The directory of groups, against the specification's letter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.encodings.groups import build, directory_bytes, group_count, parse
from cnrfmt.errors import DamagedError
from cnrfmt.kernels._jit import INTERPRETED

Starts = npt.NDArray[np.int64]
COUNTS = [1, 2, 3, 1023, 1024, 1025, 1026, 2048, 2049, 5000]


def reference(starts: Starts) -> bytes:
    """Blocks of 1024 groups: where the first begins, then for each how much later it does."""
    found = b""
    for first in range(0, len(starts), 1024):
        block = starts[first : first + 1024]
        found += int(block[0]).to_bytes(8, "little")
        found += b"".join(int(start - block[0]).to_bytes(4, "little") for start in block)
        found += bytes(-len(found) % 8)
    return found


def some_starts(groups: int, seed: int = 0) -> Starts:
    lengths = np.random.default_rng(seed).integers(0, 100, groups)
    lengths[0] = 0
    return np.cumsum(lengths)


@pytest.mark.parametrize("groups", COUNTS)
def test_by_the_letter(groups: int) -> None:
    # Whole directories, then those of payloads that no 32 bits count.
    for starts in (some_starts(groups), some_starts(groups) + np.arange(groups) // 1024 * 2**40):
        data = build(starts)
        assert data.tobytes() == reference(starts)
        assert len(data) == directory_bytes(groups)
        stored = np.concatenate([np.full(3, 255, np.uint8), data])
        stored.flags.writeable = False
        size = int(starts[-1]) + 7
        found = parse(stored[3:], groups, size, "here")
        ends = np.append(starts, size)
        assert np.array_equal(found.bounds(0, groups), ends)
        for first in {0, 1, groups // 2, groups - 1, 1023, 1024, 1025}:
            for stop in {first + 1, first + 2, 1024, 1025, groups}:
                if first < stop <= groups:
                    assert np.array_equal(found.bounds(first, stop), ends[first : stop + 1])


def test_counts() -> None:
    assert [group_count(n, 64) for n in (1, 63, 64, 65, 128, 129)] == [1, 1, 1, 2, 2, 3]
    assert [directory_bytes(n) for n in (0, 1, 2, 3, 1024, 1025)] == [0, 16, 16, 24, 4104, 4120]


def test_a_copy_is_kept() -> None:
    data = build(some_starts(10))
    found = parse(data, 10, 10**4, "here")
    want = found.bounds(0, 10)
    data[:] = 255
    assert np.array_equal(found.bounds(0, 10), want)


def damaged(data: npt.NDArray[np.uint8], groups: int, size: int) -> DamagedError:
    with pytest.raises(DamagedError) as caught:
        parse(data, groups, size, "here")
    assert caught.value.rule == "grid-directory"
    return caught.value


@pytest.mark.parametrize("groups", [3, 1025, 2049, 10_001 if INTERPRETED else 300_001])
def test_groups_that_go_backwards(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = np.arange(groups, dtype=np.int64) * 5
    size = int(starts[-1]) + 5
    for number in {1, 2, groups - 2, groups - 1, 1023, 1025, 262_143, 262_145} & set(range(1, groups)):
        data = build(starts).view(np.uint32)
        place = number // 1024 * 1026 + 2 + number % 1024
        data[place] += 6
        error = damaged(data.view(np.uint8), groups, size)
        assert error.place == f"here, group {number}"
    # A block that begins before the one before it ends.
    if groups > 1024:
        data = build(starts).view(np.uint32)
        data[1026] -= 10
        assert damaged(data.view(np.uint8), groups, size).place == "here, group 1023"


def test_what_else_is_wrong() -> None:
    starts = np.arange(1025, dtype=np.int64) * 5
    size = int(starts[-1]) + 5
    for word, value, group in (
        (0, 1, 0),  # The first group begins behind the first byte.
        (2, 5, 0),  # A block doesn't begin where its base is.
        (1028, 1, 1024),
        (1029, 1, 1024),  # What pads the last block.
        (1027, 1, 1024),  # Bases beyond the payload, and beyond what is signed.
        (1, 0x80000000, 0),
    ):
        data = build(starts).view(np.uint32)
        data[word] += value
        assert damaged(data.view(np.uint8), 1025, size).place == f"here, group {group}"
    # A payload that ends before its last group begins.
    assert damaged(build(starts), 1025, int(starts[-1]) - 1).place == "here, group 1024"
    assert parse(build(starts), 1025, int(starts[-1]), "here").bounds(1024, 1025).tolist() == [5120, 5120]


@given(st.binary(min_size=24, max_size=24), st.integers(0, 2**34))
def test_any_bytes_are_a_directory_or_damaged(data: bytes, size: int) -> None:
    words = np.frombuffer(data, "<u4")
    base = int(words[0]) | int(words[1]) << 32
    starts = [base + int(word) for word in words[2:5]]
    sound = base == words[2] == words[5] == 0 and sorted(starts) == starts and starts[-1] <= size
    array = np.frombuffer(data, np.uint8)
    if sound:
        assert parse(array, 3, size, "here").bounds(0, 3).tolist() == [*starts, size]
    else:
        damaged(array, 3, size)


@given(st.lists(st.integers(0, 2**20), min_size=3, max_size=3))
def test_any_sound_directory(lengths: list[int]) -> None:
    starts = np.cumsum([0, *lengths[:2]])
    found = parse(build(starts), 3, sum(lengths), "here")
    assert np.diff(found.bounds(0, 3)).tolist() == lengths
