"""Workloads of a few operations, and the crash points that they pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from cnrfmt.testing import Model
from tools.crash._memory import Disk, Event, Folder
from tools.crash._model_checks import head_of, read_whole
from tools.crash._repeatable import Chance
from tools.crash.operations import OPERATIONS, PATHS, Step, step
from tools.crash.order import check_order
from tools.crash.recording import FOLDER, RecordingFs
from tools.crash.states import SECTOR, CrashSpace

LOCK = ".lock"
RECOVER, CRASH_AGAIN, TAKE_OVER = "recover", "crash-in-recovery", "take-over"
"""What comes after an operation that was interrupted: after a crash, the next writer, which is whole or interrupted
itself; after the end of its process alone, the next writer, which finds what no sync has made durable."""

_WRITERS = [name for name, operation in OPERATIONS.items() if operation.commit and not operation.first]

Workload = tuple[str, ...]


def workloads(length: int) -> list[Workload]:
    """All that make a container and then do up to `length - 1` more."""
    others = [name for name, operation in OPERATIONS.items() if not operation.first] + [RECOVER, CRASH_AGAIN, TAKE_OVER]
    first = [name for name, operation in OPERATIONS.items() if operation.first]
    made: list[Workload] = [(name,) for name in first]
    for _ in range(length - 1):
        made += [(*before, name) for before in made for name in others]
    return list(dict.fromkeys(made))


@dataclass(frozen=True)
class CrashPoint:
    """A moment of an operation at which the machine may crash, and what the container may say afterwards."""

    name: str
    space: CrashSpace
    allowed: tuple[Model, ...]


@dataclass(frozen=True)
class _Done:
    """An operation that was done: the disk before it, and what changed."""

    step: Step
    before: Disk
    events: list[Event]
    possible: tuple[Model, ...]


class Course:
    """A workload under way on one kind of container."""

    def __init__(self, kind: str, seed: str, chance: Chance, sector: int = SECTOR) -> None:
        self.kind, self.path = kind, f"{FOLDER}/{PATHS[kind]}"
        self.fs, self.model = RecordingFs(), Model()
        self.possible: tuple[Model, ...] = (self.model,)
        """What the container may say after a crash now: the last acknowledged version, and pending ones."""
        self.points: list[CrashPoint] = []
        """The crash points of the last operation."""
        self._last: _Done | None = None
        self._chance, self._seed, self._sector = chance, seed, sector
        self._random = Random(seed)
        self._count = 0

    def run(self, workload: Workload) -> None:
        """Does all of it."""
        for name in workload:
            if name in OPERATIONS:
                self._operation(name)
            for _ in range({RECOVER: 1, CRASH_AGAIN: 2}.get(name, 0)):
                self._crash()
                self._operation(self._random.choice(_WRITERS))
            if name == TAKE_OVER:
                self._end_process()
                self._operation(self._random.choice(_WRITERS))

    def _crash(self) -> None:
        """Crashes at one of the last operation's crash points, and opens what is there."""
        point = self._random.choice(self.points)
        self.fs = RecordingFs(point.space.disk(point.space.sample(self._random)))
        self.model = read_whole(self.fs, self.path, point.allowed, self.kind)
        self.possible = (self.model,)
        self.fs.end_process()

    def _end_process(self) -> None:
        """Ends the process of the last operation after one of its steps; what it wrote is still pending."""
        assert self._last is not None
        last, disk, random = self._last, self._last.before.copy(), self._random
        count = len(last.events)
        # Most is pending right before a sync.
        syncs = [number for number, event in enumerate(last.events) if event.change is None]
        stop = random.randint(0, count) if random.randrange(2) else random.choice([*syncs, count])
        for event in last.events[:stop]:
            disk.replay(event)
        self.fs = RecordingFs(disk)
        self.model = read_whole(self.fs, self.path, (last.step.before, last.step.after), self.kind)
        self.possible = _each_once(*last.possible, self.model)
        self.fs.end_process()

    def _operation(self, name: str) -> None:
        if not self.model.versions:
            name = next(n for n, operation in OPERATIONS.items() if operation.first)
        self._count += 1
        self._chance.restart(self._seed, self._count)
        doing = step(name, self.model, self._random.getrandbits(32), self.kind)
        before, start = self.fs.disk.copy(), len(self.fs.log)
        doing.run(self.path, self.fs)
        events = self.fs.log[start:]
        self._last = _Done(doing, before, events, self.possible)
        self.model = doing.after
        pending = _each_once(*self.possible, doing.after)
        if doing.operation.commit is not None:
            check_order(before, events, self.path, self.kind)
            self.possible = (doing.after,)
        self.points = list(self._crash_points(self._last, pending))
        self.fs.end_process()

    def _crash_points(self, done: _Done, pending: tuple[Model, ...]) -> Iterator[CrashPoint]:
        """One before each sync, where most is in doubt, and one when the operation has returned."""
        disk, operation = done.before.copy(), done.step.operation.name
        for number, event in enumerate(done.events):
            if event.change is None:
                yield CrashPoint(f"{operation}, before step {number} ({event.call})", self._space(disk), pending)
            disk.replay(event)
        yield CrashPoint(f"{operation}, returned", self._space(disk), self.possible)

    def _space(self, disk: Disk) -> CrashSpace:
        disk = disk.copy()
        for node in list(disk.reachable()):
            for name, number in node.entries.items() if isinstance(node, Folder) else ():
                # What a lock file holds means nothing, so its states aren't told apart.
                if name.endswith(LOCK):
                    disk.file(number).sync()
        return CrashSpace(disk, self._sector)


def _each_once(*models: Model) -> tuple[Model, ...]:
    return tuple({head_of(model): model for model in models}.values())
