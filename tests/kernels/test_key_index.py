"""The hash table of keys, against a dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import key_index as kernel
from cnrfmt.kernels._jit import INTERPRETED

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
LEAST, GREATEST = -(2**63), 2**63 - 1
SIZES = pytest.mark.parametrize("slot_bytes", [kernel.NARROW, kernel.WIDE])
any_key = st.integers(LEAST, GREATEST) | st.sampled_from([LEAST, LEAST + 1, -2, -1, 0, 1, GREATEST])
seeds = st.integers(0, 2**64 - 1) | st.just(0)


def built(keys: npt.NDArray[np.int64], slots: int, slot_bytes: int, seed: int) -> npt.NDArray[np.uint8]:
    table = np.zeros(slots * slot_bytes, np.uint8)
    assert kernel.build(keys, table, slot_bytes, np.uint64(seed)) == -1
    return table


def found(table: npt.NDArray[np.uint8], slot_bytes: int, seed: int, wanted: npt.NDArray[np.int64]) -> list[int]:
    out = np.full(len(wanted) + 2, 77, np.int64)
    kernel.find(table, slot_bytes, np.uint64(seed), wanted, out[1:-1])
    assert (out[0], out[-1]) == (77, 77)
    return out[1:-1].tolist()  # type: ignore[no-any-return]


@SIZES
@examples(st.lists(any_key, unique=True, max_size=60), st.lists(any_key, max_size=50), seeds, st.randoms())
def test_as_a_dict(slot_bytes: int, keys: list[int], others: list[int], seed: int, random: Any) -> None:
    numbers = {key: k for k, key in enumerate(keys)}
    wanted = [*others, *random.sample(keys, len(keys) // 2), *keys[:3]]
    random.shuffle(wanted)
    # With one free slot alone, most searches go through many slots, and round the end.
    for slots in (128, 1 << len(keys).bit_length()):
        table = built(np.array(keys, np.int64), slots, slot_bytes, seed)
        assert found(table, slot_bytes, seed, np.array(wanted, np.int64)) == [numbers.get(key, -1) for key in wanted]


@SIZES
@examples(st.lists(any_key, unique=True, min_size=1, max_size=30), st.data(), seeds)
def test_a_key_that_is_there_twice(slot_bytes: int, keys: list[int], data: Any, seed: int) -> None:
    first = data.draw(st.integers(0, len(keys) - 1))
    second = data.draw(st.integers(first + 1, len(keys)))
    keys.insert(second, keys[first])
    table = np.zeros(64 * slot_bytes, np.uint8)
    assert kernel.build(np.array(keys, np.int64), table, slot_bytes, np.uint64(seed)) == second


def patterns(count: int) -> dict[str, npt.NDArray[np.int64]]:
    up = np.arange(count, dtype=np.int64)
    return {
        "sequential": up - count // 2,
        "every fourth": up * 4,
        **{f"multiples of 2**{k}": up << k for k in (12, 32, 63 - count.bit_length())},
        "from the least": LEAST + up,
        "to the greatest": GREATEST - up,
        "two ends of the word": np.concatenate([up[: count // 2], (up[: count // 2] + 1) << 40]),
        "random": np.unique(np.random.default_rng(5).integers(LEAST, GREATEST, count)),
    }


@SIZES
def test_keys_of_a_pattern_spread(slot_bytes: int, given: Give) -> None:
    count = 500 if INTERPRETED else 50_000
    slots = 1 << (2 * count - 1).bit_length()
    for name, keys in patterns(count).items():
        keys = given(keys)
        table = built(keys, slots, slot_bytes, 0)
        assert found(given(table), slot_bytes, 0, keys) == list(range(len(keys))), name
        # Linear probing at this load leaves few runs of any length; a poor hash would make long ones.
        taken = table.reshape(slots, slot_bytes)[:, 8:].any(axis=1)
        assert taken.sum() == len(keys), name
        free = np.flatnonzero(~taken)
        assert np.diff(free).max() < 200, name


@SIZES
def test_numbers_beyond_16_bits(slot_bytes: int) -> None:
    count = 1000 if INTERPRETED else 200_000
    keys = np.random.default_rng(1).permutation(np.arange(count, dtype=np.int64) * 2)
    table = built(keys, 1 << 19, slot_bytes, 99)
    wanted = np.arange(-3, 2 * count + 3)
    numbers = np.full(len(wanted), -1)
    numbers[keys + 3] = np.arange(count)
    assert found(table, slot_bytes, 99, wanted) == numbers.tolist()


@SIZES
def test_nothing(slot_bytes: int) -> None:
    none = np.empty(0, np.int64)
    table = built(none, 2, slot_bytes, 3)
    assert not table.any()
    assert found(table, slot_bytes, 3, none) == []
    assert found(table, slot_bytes, 3, np.array([0, -1, LEAST])) == [-1, -1, -1]
