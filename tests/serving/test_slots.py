"""Slots and maps against plain dictionaries: whoever holds a generation sees its rows, whatever comes later."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.serving.slots import Map, Move, Slots

BEGUN = 12


@dataclass(eq=False)
class Held:
    """A generation that somebody looks at: its map and store, and what it must give."""

    map: Map | None
    store: Any
    count: int
    want: dict[int, int]

    def check(self) -> None:
        found = {}
        for position in range(self.count):
            slot = position if self.map is None else int(self.map[position])
            if slot >= 0:
                found[position] = int(self.store[slot, 0])
        assert found == self.want


class Moving:
    """Random steps over slots, with random generations held."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        store = np.full((Slots.capacity(BEGUN), 1), -1, np.int64)
        # Little room, so that it runs out now and then.
        store = store[: BEGUN + 8].copy()
        store[:BEGUN, 0] = range(BEGUN)
        self.slots, self.value = Slots(store, BEGUN), BEGUN
        self.now = dict(zip(range(BEGUN), range(BEGUN), strict=True))
        self.count = BEGUN
        self.held = {0: Held(None, store, BEGUN, dict(self.now))}
        self.dead: list[tuple[int, Map]] = []
        self.generation = 0

    def step(self) -> None:
        chance, count = self.random, self.count
        changed = chance.sample(range(count), chance.randrange(min(count, 6)))
        if chance.random() < 0.3:
            more = chance.randrange(4)
            changed += range(count, count + more)
            count += more
        others = [p for p in self.now if p not in changed]
        gone = chance.sample(others, min(len(others), chance.choice([0, 0, 1, 3])))
        self.go(count, changed, gone, fails=chance.random() < 0.2)
        if chance.random() < 0.8:
            self.let_go(0.6, slots=chance.random() < 0.8)
        if chance.random() < 0.4:
            self.settle()

    def go(self, count: int, changed: list[int], gone: list[int], *, fails: bool = False) -> None:
        slots, positions = self.slots, np.array(changed, np.int64)
        lacking = slots.lacking(positions)
        if slots.room < lacking:
            slots.grow(lacking)
        end, taken = slots._end, slots.take(positions)
        assert slots._end == end + lacking
        values = range(self.value, self.value + len(taken))
        self.value = values.stop
        slots.store[taken, 0] = values
        step = slots.prepared(count, positions, taken, np.array(gone, np.int64))
        if fails:
            # What would have come next couldn't be read.
            slots.give_back(step.slots)
            return
        before, self.count = len(self.now), count
        self.now.update(zip(changed, values, strict=True))
        for position in gone:
            del self.now[position]
        assert step.rows == len(self.now) - before
        self._moved(step)

    def settle(self) -> bool:
        """Whether rows came back to their own slots."""
        step = self.slots.settled()
        assert step.map is None or step.map is self.slots.map
        assert step.rows == 0
        self._moved(step)
        return len(step.changed) > 0

    def _moved(self, step: Move) -> None:
        self.slots.move(step)
        self.generation += 1
        self.held[self.generation] = Held(self.slots.map, self.slots.store, self.count, dict(self.now))

    def let_go(self, keeps: float, *, slots: bool) -> None:
        """Lets older generations go, each but for this chance."""
        for generation in list(self.held)[:-1]:
            if self.random.random() >= keeps:
                one = self.held.pop(generation)
                if one.map is not None:
                    self.dead.append((generation, one.map))
        alive = [one.map for one in self.held.values() if one.map is not None]
        self.slots.release(self.dead, alive, min(self.held), slots=slots)
        self.dead = []


@given(st.integers(0, 1 << 32))
def test_what_is_held_stays_as_it_is(seed: int) -> None:
    moving = Moving(seed)
    for _ in range(25):
        moving.step()
        for one in moving.held.values():
            one.check()
    # Once nobody looks at what was, rows come back to their own slots, whatever happened before; one after the other,
    # where some were in those of others.
    for _ in range(8):
        moving.let_go(0, slots=True)
        moving.go(moving.count, [], [])
        moving.held[moving.generation].check()
    assert len(moving.slots._elsewhere) == 0
    assert (moving.slots.map is None) is (len(moving.now) == moving.count)
    moving.go(moving.count, [p for p in range(moving.count) if p not in moving.now], [])
    for _ in range(3):
        moving.let_go(0, slots=True)
        moving.settle()
        moving.held[moving.generation].check()
    assert moving.slots.map is None


def test_slots_and_maps_are_taken_again() -> None:
    moving = Moving(7)
    for number in range(50):
        moving.go(BEGUN, list(range(number % 3, number % 3 + 4)), [])
        assert moving.slots.map is not None
        assert not moving.settle()
        moving.let_go(0, slots=True)
        if number % 2:
            assert moving.settle()
            assert moving.slots.map is None
            moving.let_go(0, slots=True)
    assert moving.slots.store is moving.held[moving.generation].store
    assert moving.slots.nbytes <= 8 * (BEGUN + 8) + 2 * 4 * BEGUN
    assert len(moving.slots._changed) + len(moving.slots._dropped) <= 8


def test_rows_that_are_held_keep_others_from_their_own_slots() -> None:
    moving = Moving(1)
    moving.go(BEGUN, [3, 4], [])
    moving.let_go(1, slots=True)
    assert not moving.settle()
    # What was nobody's before the first of those that are held is free all the same, and comes back with the next move.
    moving.go(BEGUN, [4, 5], [])
    del moving.held[0]
    moving.let_go(1, slots=True)
    assert not moving.settle()
    moving.go(BEGUN, [7], [])
    assert moving.slots.map is not None
    assert moving.slots.map[:6].tolist()[3] == 3
    for one in moving.held.values():
        one.check()


def test_rows_that_are_added_behind_the_last_need_no_map() -> None:
    moving = Moving(2)
    for number in range(30):
        moving.go(BEGUN + 1 + number, [BEGUN + number], [])
        moving.let_go(0, slots=True)
        assert moving.slots.map is None
        moving.held[moving.generation].check()
    assert moving.slots._end == BEGUN + 30
