"""The hash table of keys and their states, against dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from cnrfmt.kernels import key_marks
from cnrfmt.kernels.key_marks import DELETED, FREE, WRITTEN

Give = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

LEAST, GREATEST = -(2**63), 2**63 - 1
KEYS = st.one_of(st.integers(-9, 9), st.integers(LEAST, GREATEST), st.sampled_from([LEAST, GREATEST, 0, -1]))
STATES = st.dictionaries(KEYS, st.sampled_from([WRITTEN, DELETED]), max_size=12)
SEEDS = st.sampled_from([0, 1, 2**64 - 1, 0x9E37_79B9_7F4A_7C15])


class Table:
    """Arrays as the kernels take them."""

    def __init__(self, slots: int = 16, seed: int = 7) -> None:
        # What free slots hold must not matter.
        self.keys = np.full(slots, 5, np.int64)
        self.states = np.zeros(slots, np.uint8)
        self.counts = np.zeros(3, np.int64)
        self.seed = np.uint64(seed)

    def put(self, ids: npt.NDArray[Any], state: int, first: int = 0, most: int | None = None) -> int:
        most = len(self.keys) - 1 if most is None else most
        return key_marks.put(ids, first, state, most, self.keys, self.states, self.counts, self.seed)

    def merge_into(self, other: Table, *, replace: bool) -> None:
        key_marks.merge(self.keys, self.states, replace, other.keys, other.states, other.counts, other.seed)

    def dict(self) -> dict[int, int]:
        """What it says, found without hashing; checks the counts."""
        used = self.states != FREE
        keys = self.keys[used].tolist()
        assert len(set(keys)) == len(keys)
        assert self.counts[1:].tolist() == [int(np.sum(self.states == s)) for s in (WRITTEN, DELETED)]
        return dict(zip(keys, self.states[used].tolist(), strict=True))


def table_of(states: dict[int, int], seed: int) -> Table:
    table = Table(seed=seed)
    for key, state in states.items():
        assert table.put(np.array([key], np.int64), state) == 1
    return table


@examples(st.lists(st.tuples(st.lists(KEYS, max_size=3), st.sampled_from([WRITTEN, DELETED])), max_size=5), SEEDS)
def test_the_last_state_holds(calls: list[tuple[list[int], int]], seed: int) -> None:
    table, want = Table(seed=seed), {}
    for keys, state in calls:
        assert table.put(np.array(keys, np.int64), state) == len(keys)
        want |= dict.fromkeys(keys, state)
    assert table.dict() == want


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_narrow_keys_are_the_same_keys(dtype: Any, given: Give) -> None:
    keys = np.array([-1, 0, 1, -1, 2**31 - 1, -(2**31)], dtype)
    table = Table()
    assert table.put(given(keys), WRITTEN) == len(keys)
    assert table.put(keys.astype(np.int64), WRITTEN, most=5) == len(keys)
    assert table.dict() == dict.fromkeys(keys.tolist(), WRITTEN)


def test_a_full_table_stops_at_the_first_new_key() -> None:
    table = Table()
    ids = np.array([1, 2, 1, 3, 2, 4, 5])
    assert table.put(ids, WRITTEN, most=3) == 5
    assert table.dict() == dict.fromkeys([1, 2, 3], WRITTEN)
    # Keys that are there need no room.
    assert table.put(np.array([3, 2, 1]), DELETED, most=3) == 3
    assert table.put(ids, WRITTEN, first=5, most=5) == 7
    assert table.dict() == {1: DELETED, 2: DELETED, 3: DELETED, 4: WRITTEN, 5: WRITTEN}


def test_one_free_slot_ends_every_search() -> None:
    table = Table(slots=4)
    assert table.put(np.array([10, 20, 30]), WRITTEN) == 3
    for key in range(40):
        assert table.put(np.array([key]), WRITTEN, most=3) == int(key in (10, 20, 30))
    assert table.dict() == dict.fromkeys([10, 20, 30], WRITTEN)


@examples(STATES, STATES, SEEDS, st.booleans())
def test_merge(a: dict[int, int], b: dict[int, int], seed: int, replace: bool) -> None:
    source, target = table_of(a, seed), Table(slots=32, seed=seed)
    table_of(b, seed).merge_into(target, replace=True)
    source.merge_into(target, replace=replace)
    assert target.dict() == (b | a if replace else a | b)
    assert source.dict() == a


@examples(STATES, STATES, SEEDS, st.sampled_from([WRITTEN, DELETED]))
def test_extract_leaves_out_what_a_newer_table_has(a: dict[int, int], b: dict[int, int], seed: int, state: int) -> None:
    old, new = table_of(a, seed), table_of(b, seed)
    out = np.full(20, 99, np.int64)
    found = key_marks.extract(old.keys, old.states, state, new.keys, new.states, old.seed, out)
    assert sorted(out[:found].tolist()) == sorted(key for key, s in a.items() if s == state and key not in b)
    assert (out[found:] == 99).all()


def test_keys_in_steps_of_powers_of_two_are_spread() -> None:
    # The lowest bits of such keys are alike: without a hash all of them would begin at the same slot.
    table = Table(slots=256)
    keys = np.arange(128, dtype=np.int64) << 20
    assert table.put(keys, WRITTEN) == len(keys)
    used = np.flatnonzero(table.states)
    assert used.max() - used.min() > 200
    longest = max(len(run) for run in "".join(map(str, table.states.tolist())).split("0"))
    assert longest < 32
