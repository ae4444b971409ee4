"""Rows in memory that move on from version to version while they are read.

Every row is in a slot, and a map says which slot that is. A new version puts the rows that changed into slots that
nobody looks at, and then gets a map of its own: whoever has the old map goes on seeing the old rows, all of them, and
nobody ever sees a row half written. Maps and slots are taken again once nobody can look at them any more.

A row's *own* slot is the one of its position. Once nobody looks at what is there, the row comes back to it, and where
all rows are in their own, there is no map: look-ups then cost what they did before anything moved. That is a move as
any other: the row is copied to where nobody looks, and seen there with the next generation.
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
_LARGE = 64 << 20
"""Bytes of rows beside which part of a large page more is little."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Move:
    """A step to a next generation that nobody sees yet.

    Attributes
    ----------
    map
        Its map; None where each row is in its own slot.
    count
        How many positions there are.
    changed, dropped
        The positions whose slot is another one, and the slots that they were in.
    slots
        The slots that were taken for it.
    elsewhere
        The positions of rows that aren't in their own slots, sorted.
    rows
        How many more rows there are.
    """

    map: Map | None
    count: int
    changed: Ids
    dropped: Ids
    slots: Ids
    elsewhere: Ids
    rows: int


class Slots:
    """The rows of one table, in `store` (slots, elements). For one thread that moves on, beside any that read.

    Versions have numbers, *generations*, which ascend without gaps from the one that the rows began with.
    """

    def __init__(self, store: Array, count: int, generation: int = 0) -> None:
        self.store, self._begun, self._end = store, count, count
        self._count = self._rows = count
        # Slots that nobody looks at, and those of them that are some living row's own.
        self._free = self._own = self._elsewhere = _NONE
        self._map: Map | None = None
        self._generation = generation
        # A map that nobody has any more, with the generation whose map it was.
        self._old: tuple[int, Map] | None = None
        self._changed: dict[int, Ids] = {}
        # Slots that no generation from some one on has a row in.
        self._dropped: list[tuple[int, Ids]] = []
        self._use_large_pages()

    def _use_large_pages(self) -> None:
        """Has the slots that weren't taken yet in large pages, in which rows are quicker to look up."""
        if self.store[: self._end].nbytes >= _LARGE:
            fill_soon(self.store[self._end :])

    @staticmethod
    def capacity(count: int) -> int:
        """Slots to make room for, so that `count` rows can move on; untouched, they take no memory."""
        return min(MOST_SLOTS, 2 * count + _SPARE)

    @property
    def begun(self) -> int:
        """Rows that it began with, each in its own slot."""
        return self._begun

    @property
    def map(self) -> Map | None:
        """The map of this generation; None where each row is in its own slot."""
        return self._map

    @property
    def nbytes(self) -> int:
        """Bytes of the slots that were ever taken, and of maps."""
        maps = [one for one in (self._map, None if self._old is None else self._old[1]) if one is not None]
        return self._end * self.store[:1].nbytes + sum(m.nbytes for m in maps)

    @property
    def free(self) -> int:
        """Slots that were taken and are nobody's now."""
        return len(self._free)

    @property
    def room(self) -> int:
        """Slots that there are beside those that were ever taken."""
        return len(self.store) - self._end

    def lacking(self, positions: Ids) -> int:
        """How many slots that were never taken these rows will take."""
        own, others = self._choice(positions)
        return len(positions) - len(own) - len(others)

    def _choice(self, positions: Ids) -> tuple[Ids, Ids]:
        """Free slots for rows: those of them that are their own, and for the others some that are no living row's."""
        own = sorted_ids.intersection(self._free, np.sort(positions))
        others = _without(self._free, sorted_ids.union(own, self._own))
        return own, others[: len(positions) - len(own)]

    def take(self, positions: Ids) -> Ids:
        """Slots that nobody looks at for the rows of these positions, in their order; there must be room for them."""
        own, others = self._choice(positions)
        end = self._end + len(positions) - len(own) - len(others)
        fresh, self._end = np.arange(self._end, end, dtype=np.int64), end
        self._set_free(_without(self._free, sorted_ids.union(own, others)))
        taken = positions.astype(np.int64)
        taken[~_among(positions, own)] = np.concatenate([others, fresh])
        return taken

    def give_back(self, slots: Ids) -> None:
        """Slots that no map has."""
        self._set_free(sorted_ids.union(self._free, slots))

    def _set_free(self, slots: Ids) -> None:
        self._free, self._own = slots, sorted_ids.intersection(slots, self._elsewhere)

    def prepared(self, count: int, changed: Ids, slots: Ids, gone: Ids) -> Move:
        """The next generation of `count` positions, with these rows in these slots, and these positions in none.

        Other rows whose own slots are free come back to them.
        """
        back = _without(self._own, np.sort(gone))
        every = np.concatenate([changed, back, gone])
        if not len(every) and count == self._count:
            return self._stay()
        places = np.concatenate([slots, back, np.full(len(gone), -1, np.int64)])
        before = self._slots_of(every)
        there = before >= 0
        rows = len(changed) + len(back) - int(np.count_nonzero(there))
        elsewhere = _without(self._elsewhere, np.sort(every))
        elsewhere = sorted_ids.union(elsewhere, changed[slots != changed])
        made: Map | None = None
        if len(elsewhere) or self._rows + rows < count:
            made = self._next_map(count)
            made[every] = places
        self._copy(before[len(changed) : len(changed) + len(back)], back)
        self._set_free(_without(self._free, back))
        return Move(made, count, every, before[there], np.concatenate([slots, back]), elsewhere, rows)

    def settled(self) -> Move:
        """The next generation with the same rows: in their own slots, if that is where all of them can be."""
        if len(self._elsewhere) and len(self._own) == len(self._elsewhere) and self._rows == self._count:
            return self.prepared(self._count, _NONE, _NONE, _NONE)
        return self._stay()

    def _stay(self) -> Move:
        return Move(self._map, self._count, _NONE, _NONE, _NONE, self._elsewhere, 0)

    def _slots_of(self, positions: Ids) -> Ids:
        """The slots of this generation; -1 for none."""
        known = positions < self._count
        found = np.where(known, positions, -1)
        if self._map is not None:
            found[known] = self._map[positions[known]]
        return found

    def _copy(self, slots: Ids, to: Ids) -> None:
        from cnrfmt.kernels import lookup as kernel

        if len(to):
            kernel.copy_rows(self.store.reshape(-1).view(np.uint8), slots, to, self.store[:1].nbytes)

    def _next_map(self, count: int) -> Map:
        """A map to change that is as this generation's: one that nobody has, brought up to date, or a new one."""
        now, size = self._map, max(count, self._count)
        old, self._old = self._old, None
        if old is not None and len(old[1]) >= size:
            generation, made = old
            for positions in (some for g, some in self._changed.items() if g > generation):
                made[positions] = positions if now is None else now[positions]
            return made
        # Tables that grow mostly grow again.
        made = np.full(size + (size - self._count) * 8, -1, np.int32)
        made[: self._count] = np.arange(self._count, dtype=np.int32) if now is None else now[: self._count]
        return made

    def move(self, step: Move) -> None:
        """Goes on to the next generation, which the step was prepared for."""
        self._generation += 1
        if len(step.changed):
            self._changed[self._generation] = step.changed
            self._dropped.append((self._generation, step.dropped))
        self._map, self._count, self._elsewhere = step.map, step.count, step.elsewhere
        self._rows += step.rows
        self._set_free(self._free)

    def grow(self, count: int) -> None:
        """Makes room for so many rows more in another store; who looks at the old one goes on with it."""
        store = lazy_empty((self.capacity(self._end + count), *self.store.shape[1:]), self.store.dtype)
        fill_soon(store[: self._end])
        store[: self._end] = self.store[: self._end]
        self.store = store
        self._use_large_pages()

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
            # One is enough, the newest, which takes the least to bring up to date.
            if all(one is not known for known in alive) and (self._old is None or generation > self._old[0]):
                self._old = generation, one
        if slots and (over := [found for generation, found in self._dropped if generation <= oldest]):
            self._dropped = [(g, found) for g, found in self._dropped if g > oldest]
            self.give_back(np.concatenate(over))
        if self._old is not None:
            behind = sum(len(positions) for g, positions in self._changed.items() if g > self._old[0])
            if 4 * behind > self._count:
                # To make another takes less than to bring it up to date.
                self._old = None
        known = oldest if self._old is None else min(oldest, self._old[0])
        for generation in [g for g in self._changed if g <= known]:
            del self._changed[generation]


def _among(ids: Ids, some: Ids) -> npt.NDArray[np.bool_]:
    """Which of the ids are among some that are sorted."""
    if not len(some):
        return np.zeros(len(ids), np.bool_)
    places: Ids = np.searchsorted(some, ids).clip(max=len(some) - 1)
    return np.equal(some[places], ids, dtype=np.bool_)


def _without(ids: Ids, some: Ids) -> Ids:
    """Those of the ids that aren't among some that are sorted."""
    return ids[~_among(ids, some)]
