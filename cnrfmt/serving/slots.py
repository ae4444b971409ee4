"""Rows in memory that move on from version to version while they are read.

Every row is in a slot, and a map says which slot that is. A new version puts the rows that changed into slots that
nobody looks at, and then gets a map of its own: whoever has the old map goes on seeing the old rows, all of them, and
nobody ever sees a row half written. Maps and slots are taken again once nobody can look at them any more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cnrfmt import sorted_ids
from cnrfmt.arrays import Array, Ids
from cnrfmt.serving.lazy_memory import fill_soon, lazy_empty

Map = npt.NDArray[np.int32]
_SPARE = 1 << 16
"""Slots that there are at least beside those of the first version."""
MOST_SLOTS = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Move:
    """A step to a next version that nobody sees yet: its map, and the slots that its changed rows are in.

    `map` is None where no row has moved yet; `changed` are the positions whose slot is another one, `dropped` the slots
    that they were in, and `rows` how many more rows there are.
    """

    map: Map | None
    changed: Ids
    dropped: Ids
    rows: int


class Slots:
    """The rows of one table, in `store` (slots, elements). For one thread that moves on, beside any that read.

    Versions have numbers, *generations*, which ascend without gaps from the one that the rows began with.
    """

    def __init__(self, store: Array, count: int, generation: int = 0) -> None:
        self.store, self._begun, self._end = store, count, count
        self._free = np.empty(0, np.int64)
        self._map: Map | None = None
        self._generation = generation
        # The maps that nobody has any more, with the generation whose map each was.
        self._pool: list[tuple[int, Map]] = []
        self._changed: dict[int, Ids] = {}
        # Slots that no generation from some one on has a row in.
        self._dropped: list[tuple[int, Ids]] = []

    @staticmethod
    def capacity(count: int) -> int:
        """Slots to make room for, so that `count` rows can move on; untouched, they take no memory."""
        return min(MOST_SLOTS, 2 * count + _SPARE)

    @property
    def begun(self) -> int:
        """Rows that it began with, each in the slot of its position."""
        return self._begun

    @property
    def map(self) -> Map | None:
        """The map of this generation; None where each row is in the slot of its own position."""
        return self._map

    @property
    def nbytes(self) -> int:
        """Bytes of the slots that were ever taken, and of all maps."""
        maps = [*(m for _, m in self._pool), *([] if self._map is None else [self._map])]
        return self._end * self.store[:1].nbytes + sum(m.nbytes for m in maps)

    @property
    def free(self) -> int:
        """Slots that were taken and are nobody's now."""
        return len(self._free)

    def room(self) -> int:
        """Rows that can be taken in now."""
        return len(self._free) + len(self.store) - self._end

    def take(self, count: int) -> Ids:
        """Slots that nobody looks at, ascending, as many as there is room for."""
        reused, self._free = self._free[:count], self._free[count:]
        fresh = np.arange(self._end, self._end + count - len(reused), dtype=np.int64)
        self._end += len(fresh)
        return np.concatenate([reused, fresh])

    def give_back(self, slots: Ids) -> None:
        """Slots that no map has."""
        self._free = sorted_ids.union(self._free, slots)

    def prepared(self, count: int, changed: Ids, slots: Ids, gone: Ids) -> Move:
        """The map for `count` positions with these rows in these slots, and these positions in none; -1 says so there.

        The map's memory is one that nobody has, brought up to date where that is less than a copy.
        """
        if not len(changed) and not len(gone) and (self._map is None or count <= len(self._map)):
            return Move(self._map, changed, changed, 0)
        moved = self._next_map(count)
        every = np.concatenate([changed, gone])
        before = moved[every]
        moved[changed], moved[gone] = slots, -1
        there = before >= 0
        return Move(moved, every, before[there].astype(np.int64), len(changed) - int(np.count_nonzero(there)))

    def _next_map(self, count: int) -> Map:
        now = self._map
        size = max(count, 0 if now is None else len(now))
        if now is None:
            # Before anything moved, each row was where its position says.
            made = np.full(size, -1, np.int32)
            made[: self._begun] = np.arange(self._begun, dtype=np.int32)
            return made
        while self._pool:
            generation, made = self._pool.pop()
            if len(made) >= size:
                behind = [self._changed[g] for g in range(generation + 1, self._generation + 1)]
                if 4 * sum(map(len, behind)) < len(now):
                    for positions in behind:
                        made[positions] = now[positions]
                else:
                    made[: len(now)] = now
                return made
        made = np.full(size + (size - len(now)) * 8, -1, np.int32)
        made[: len(now)] = now
        return made

    def move(self, step: Move) -> None:
        """Goes on to the next generation, which the step was prepared for."""
        self._generation += 1
        self._changed[self._generation] = step.changed
        self._dropped.append((self._generation, step.dropped))
        self._map = step.map

    def grow(self, count: int) -> None:
        """Makes room for so many rows more in another store; who looks at the old one goes on with it."""
        store = lazy_empty((self.capacity(self._end + count), *self.store.shape[1:]), self.store.dtype)
        fill_soon(store[: self._end])
        store[: self._end] = self.store[: self._end]
        self.store = store

    def release(self, dead: list[tuple[int, Map]], alive: list[Map], oldest: int, *, slots: bool) -> None:
        """Takes back what nobody looks at any more.

        Parameters
        ----------
        dead
            The maps of generations that nobody has any more; generations may share one.
        alive
            Those of generations that somebody has.
        oldest
            The oldest of these.
        slots
            Whether slots are taken back, too: not before all rows of the first version are in theirs.
        """
        for generation, one in dead:
            if all(one is not known for known in (*alive, *(m for _, m in self._pool))):
                self._pool.append((generation, one))
        if slots and (over := [found for generation, found in self._dropped if generation <= oldest]):
            self._dropped = [(g, found) for g, found in self._dropped if g > oldest]
            self.give_back(np.concatenate(over))
        known = min([oldest, *(g for g, _ in self._pool)])
        for generation in [g for g in self._changed if g <= known]:
            del self._changed[generation]
