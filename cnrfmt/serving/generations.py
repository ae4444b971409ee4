"""Which versions somebody still looks at: each that is served is a *generation*, with a number of its own."""

from __future__ import annotations

import weakref
from collections import deque

from cnrfmt.serving.slots import Map, Slots

Maps = dict[Slots, Map | None]
"""The slots of each table of a generation, and its map of them."""


class Lease:
    """What all tables of one generation hold: when it is gone, nobody looks at that generation any more."""


class Generations:
    """Counts generations, and takes slots and maps back once nobody can look at them; for one thread at a time.

    `number` is the newest generation's.
    """

    def __init__(self) -> None:
        self.number = -1
        self._maps: dict[int, Maps] = {}
        # Leases may end in any thread, at any moment.
        self._ended: deque[int] = deque()

    def begin(self, maps: Maps) -> Lease:
        """Begins the next generation, which lasts as long as somebody holds the lease."""
        self.number += 1
        self._maps[self.number] = maps
        lease = Lease()
        weakref.finalize(lease, self._ended.append, self.number).atexit = False
        return lease

    def release(self, freed: dict[Slots, bool]) -> None:
        """Has slots of the newest generation take back what only older ones had, that nobody looks at any more.

        By slots, `freed` says whether rows may come into slots again that were somebody's.
        """
        gone: dict[int, Maps] = {}
        while self._ended:
            number = self._ended.popleft()
            gone[number] = self._maps.pop(number)
        for slots, may_be in freed.items():
            alive = [one for maps in self._maps.values() if (one := maps.get(slots)) is not None]
            dead = [(number, one) for number, maps in gone.items() if (one := maps.get(slots)) is not None]
            slots.release(dead, alive, min(self._maps), slots=may_be)
