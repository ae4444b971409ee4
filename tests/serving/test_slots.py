"""Slots and maps against plain dictionaries: whoever holds a generation sees its rows, whatever comes later."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cnrfmt.serving.slots import Map, Slots

BEGUN = 12


@dataclass(eq=False)
class Held:
    """A generation that somebody looks at: its map and store, and what it must give."""

    map: Map | None
    store: Any
    want: dict[int, int]

    def check(self) -> None:
        found = {}
        for position in range(len(self.map) if self.map is not None else BEGUN):
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
        self.held = {0: Held(None, store, dict(self.now))}
        self.dead: list[tuple[int, Map]] = []
        self.generation = 0

    def step(self) -> None:
        chance = self.random
        changed = sorted(chance.sample(range(self.count), chance.randrange(min(self.count, 6))))
        if chance.random() < 0.3:
            more = chance.randrange(4)
            changed += range(self.count, self.count + more)
            self.count += more
        others = [p for p in self.now if p not in changed]
        gone = sorted(chance.sample(others, min(len(others), chance.choice([0, 0, 1, 3]))))
        slots = self.slots
        if slots.room() < len(changed):
            slots.grow(len(changed))
        taken = slots.take(len(changed))
        for slot in taken.tolist():
            slots.store[slot] = self.value
            self.value += 1
        step = slots.prepared(self.count, np.array(changed, np.int64), taken, np.array(gone, np.int64))
        if chance.random() < 0.2:
            # What would have come next couldn't be read.
            slots.give_back(taken)
            self.count = max([*self.now, BEGUN - 1]) + 1 if slots.map is None else max(len(slots.map), BEGUN)
            return
        before = len(self.now)
        self.now.update(zip(changed, slots.store[taken, 0].tolist(), strict=True))
        for position in gone:
            del self.now[position]
        assert step.rows - len(gone) == len(self.now) - before or step.rows == len(self.now) - before
        slots.move(step)
        self.generation += 1
        self.held[self.generation] = Held(slots.map, slots.store, dict(self.now))
        self._let_go()

    def _let_go(self) -> None:
        chance = self.random
        for generation in list(self.held)[:-1]:
            if chance.random() < 0.4:
                one = self.held.pop(generation)
                if one.map is not None:
                    self.dead.append((generation, one.map))
        alive = [one.map for one in self.held.values() if one.map is not None]
        self.slots.release(self.dead, alive, min(self.held), slots=chance.random() < 0.8)
        self.dead = []


@given(st.integers(0, 1 << 32))
def test_what_is_held_stays_as_it_is(seed: int) -> None:
    moving = Moving(seed)
    for _ in range(25):
        moving.step()
        for one in moving.held.values():
            one.check()


def test_slots_and_maps_are_taken_again() -> None:
    moving = Moving(7)
    ids = np.arange(4)
    for _ in range(50):
        taken = moving.slots.take(4)
        moving.slots.move(moving.slots.prepared(BEGUN, ids, taken, ids[:0]))
        generation = moving.slots._generation
        assert moving.slots.map is not None
        moving.slots.release([(generation, moving.slots.map)], [moving.slots.map], generation, slots=True)
    assert moving.slots.store is moving.held[0].store
    assert moving.slots.nbytes <= 8 * (BEGUN + 8) + 2 * 4 * BEGUN
