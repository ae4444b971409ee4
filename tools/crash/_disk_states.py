"""What a crash may leave on a recorded disk: pure functions from a log to images.

Between two flushes the disk may lose any of the writes that it took and hasn't promised anything about, each
block by itself; what it has promised is there. So the states of a log fall into epochs, one for each flush.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import xxhash

from tools.crash.disk import Log

PAGE = 4096
SECTOR = 512
# Up to this many undecided blocks, every subset of them is a state; beyond, subsets are drawn by lot.
_EVERY_SUBSET = 5

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Unit:
    """What survives a crash as one, or not at all: the part of a write that is in one block of the file system."""

    moment: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Epoch:
    """The time between two flushes that ended: `settled` has become durable at its start, `open` may be lost.

    `open` is in the order in which the disk took the writes. `marks` are those that were set before the epoch's
    end, the latest moment at which its states are possible: so a state is held to all that was promised by then.
    """

    number: int
    settled: tuple[Unit, ...]
    open: tuple[Unit, ...]
    marks: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """The units of an epoch that survive. `torn` tells whether the last of them is a mixture of old and new sectors."""

    epoch: Epoch
    survivors: tuple[Unit, ...]
    torn: bool = False

    def __str__(self) -> str:
        kept = set(self.survivors)
        lost = [f"{u.moment}@{u.offset}" for u in self.epoch.open if u not in kept]
        how = f", torn at {self.survivors[-1].offset}" if self.torn else ""
        return f"epoch {self.epoch.number}, lost {' '.join(lost) or 'nothing'}{how}"


def units(log: Log, block: int) -> list[Unit]:
    """The writes of a log, block by block."""
    found = []
    for write in log.writes:
        end = write.offset + len(write.data)
        at = write.offset
        while at < end:
            stop = min(end, (at // block + 1) * block)
            found.append(Unit(write.begun, at, write.data[at - write.offset : stop - write.offset]))
            at = stop
    return found


def epochs(log: Log, block: int) -> list[Epoch]:
    """The epochs of a log, in order; the last one ends with the log."""
    ended = {write.begun: write.ended for write in log.writes}
    undecided = units(log, block)
    settled: tuple[Unit, ...] = ()
    found = []
    flushes = sorted((f.ended, f.begun) for f in log.flushes if f.ended is not None)
    for number, (end, begun) in enumerate([*flushes, (log.end, log.end)]):
        taken = tuple(unit for unit in undecided if unit.moment < end)
        marks = tuple(text for moment, text in log.marks if moment < end)
        found.append(Epoch(number, settled, taken, marks))
        durable = {unit for unit in taken if (done := ended[unit.moment]) is not None and done < begun}
        # What was written over by a later write that is durable can't come back.
        last = {unit.offset: unit.moment for unit in undecided if unit in durable}
        gone = {unit for unit in taken if unit not in durable and unit.moment < last.get(unit.offset, 0)}
        settled = tuple(unit for unit in undecided if unit in durable)
        undecided = [unit for unit in undecided if unit not in durable and unit not in gone]
    return found


def prefixes(epoch: Epoch) -> Iterator[State]:
    """Everything up to some write survives, in the order in which the disk took the writes."""
    for count in range(len(epoch.open) + 1):
        yield State(epoch, epoch.open[:count])


def subsets(epoch: Epoch, random: Random, count: int) -> Iterator[State]:
    """Up to `count` reorderings: some subset of what is undecided survives."""
    total = len(epoch.open)
    if total <= _EVERY_SUBSET:
        for bits in random.sample(range(1 << total), min(count, 1 << total)):
            yield State(epoch, tuple(unit for number, unit in enumerate(epoch.open) if bits >> number & 1))
        return
    for _ in range(count):
        # One lost, one kept, or any share of them: each finds what the others rarely meet.
        lost = set(random.sample(range(total), random.choice([1, 2, total - 1, random.randint(1, total)])))
        yield State(epoch, tuple(unit for number, unit in enumerate(epoch.open) if number not in lost))


def tear(state: State, random: Random, before: Image) -> State:
    """The state with the last of its survivors torn: some of its sectors are as they were without it.

    The state as it is, where no two sectors of it change.
    """
    if not state.survivors:
        return state
    *kept, last = state.survivors
    old = before.read(kept, last.offset, len(last.data))
    sectors = range(0, len(last.data), SECTOR)
    changed = [at for at in sectors if last.data[at : at + SECTOR] != old[at : at + SECTOR]]
    if len(changed) < 2:
        return state
    lost = random.sample(changed, random.randint(1, len(changed) - 1))
    data = bytearray(last.data)
    for at in lost:
        data[at : at + SECTOR] = old[at : at + SECTOR]
    return State(state.epoch, (*kept, Unit(last.moment, last.offset, bytes(data))), torn=True)


class Image:
    """The bytes of a disk, as the pages that anything was ever written to; the others are zero."""

    def __init__(self, size: int, pages: dict[int, Bytes], touched: list[Unit]) -> None:
        numbers = sorted({*pages, *(page for unit in touched for page in _pages(unit))})
        self.size = size
        self._place = {number: place for place, number in enumerate(numbers)}
        self._bytes: Bytes = np.zeros((len(numbers), PAGE), np.uint8)
        for number, content in pages.items():
            self._bytes[self._place[number]] = content
        starts = [i for i, number in enumerate(numbers) if i == 0 or numbers[i - 1] != number - 1]
        bounds = pairwise([*starts, len(numbers)])
        self._runs = [(numbers[start] * PAGE, start, stop) for start, stop in bounds]

    def apply(self, changes: tuple[Unit, ...]) -> None:
        """Lets these writes be part of the image."""
        _write(self._bytes, self._place, changes)

    def read(self, changes: list[Unit], offset: int, length: int) -> bytes:
        """The bytes of one page that are there with these changes."""
        place = self._place[offset // PAGE]
        page = self._bytes[place : place + 1].copy()
        _write(page, {offset // PAGE: 0}, [unit for unit in changes if unit.offset // PAGE == offset // PAGE])
        return page[0, offset % PAGE :][:length].tobytes()

    def with_changes(self, changes: tuple[Unit, ...]) -> Bytes:
        """The pages with these changes, which don't become part of the image."""
        pages = self._bytes.copy()
        _write(pages, self._place, changes)
        return pages

    def split(self, pages: Bytes) -> dict[int, Bytes]:
        """The pages by their numbers, those that are zero left out."""
        return {number: pages[place].copy() for number, place in self._place.items() if pages[place].any()}

    def write(self, handle: int, pages: Bytes) -> None:
        """Makes a file, in memory best, the image with these pages; whatever else was in it is gone."""
        os.ftruncate(handle, 0)
        os.ftruncate(handle, self.size)
        for offset, start, stop in self._runs:
            os.pwrite(handle, pages[start:stop].data.cast("B"), offset)


def digest(pages: Bytes) -> int:
    """What tells two images of one recording apart."""
    return xxhash.xxh3_64_intdigest(pages.data.cast("B"))


def read_pages(handle: int) -> dict[int, Bytes]:
    """The pages of a sparse file that aren't zero."""
    found: dict[int, Bytes] = {}
    size = os.fstat(handle).st_size
    at = 0
    while at < size:
        try:
            start = os.lseek(handle, at, os.SEEK_DATA)
        except OSError:
            # No data behind this.
            break
        at = os.lseek(handle, start, os.SEEK_HOLE)
        content = np.frombuffer(os.pread(handle, at - start, start), np.uint8).reshape(-1, PAGE)
        for number in np.flatnonzero(content.any(axis=1)).tolist():
            found[start // PAGE + number] = content[number].copy()
    return found


def _pages(unit: Unit) -> range:
    return range(unit.offset // PAGE, (unit.offset + len(unit.data) - 1) // PAGE + 1)


def _write(pages: Bytes, place: dict[int, int], changes: Any) -> None:
    for unit in changes:
        within = unit.offset % PAGE
        pages[place[unit.offset // PAGE], within : within + len(unit.data)] = np.frombuffer(unit.data, np.uint8)
