"""Workloads of a few operations, and the crash points that they pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tools.crash._memory import Disk, Event, Folder
from tools.crash._model_checks import head_of, read_whole
from tools.crash._readers import Readers
from tools.crash._repeatable import Chance
from tools.crash.expected import Expected
from tools.crash.operations import OPERATIONS, PATHS, Step, fitting, step
from tools.crash.order import check_order
from tools.crash.recording import FOLDER, RecordingFs
from tools.crash.states import SECTOR, CrashSpace

LOCK = ".lock"
RECOVER, CRASH_AGAIN, TAKE_OVER = "recover", "crash-in-recovery", "take-over"
"""What comes after an operation that was interrupted: after a crash, the next writer, which is whole or interrupted
itself; after the end of its process alone, the next writer, which finds what no sync has made durable."""

Workload = tuple[str, ...]


def workloads(length: int, kind: str) -> list[Workload]:
    """All that make a container of that kind and then do up to `length - 1` more."""
    others = [name for name, operation in OPERATIONS.items() if not operation.first and kind in operation.kinds]
    others += [RECOVER, CRASH_AGAIN, TAKE_OVER]
    first = [name for name, operation in OPERATIONS.items() if operation.first]
    made: list[Workload] = [(name,) for name in first]
    for _ in range(length - 1):
        made += [(*before, name) for before in made for name in others]
    return list(dict.fromkeys(made))


@dataclass(frozen=True)
class CrashPoint:
    """A moment of an operation at which the machine may crash, and what the container may say afterwards."""

    name: str
    operation: str
    space: CrashSpace
    allowed: tuple[Expected, ...]


@dataclass(frozen=True)
class _Done:
    """An operation that was done: the disk before it, and what changed.

    `told` has the versions that were acknowledged before its end, each with the number of changes until then.
    `earlier` is what the container may have said after a crash before it.
    """

    step: Step
    before: Disk
    events: list[Event]
    told: list[tuple[int, int]]
    earlier: tuple[Expected, ...]

    def possible(self, count: int) -> tuple[Expected, ...]:
        """What the container may say after a crash when so many of the changes were made."""
        told = [version for version, at in self.told if at <= count]
        # What was acknowledged is durable, and with it what it was put on.
        return _each_once(*(() if told else self.earlier), *self.step.possible(told))


class Course:
    """A workload under way on one kind of container."""

    def __init__(self, kind: str, seed: str, chance: Chance, sector: int = SECTOR) -> None:
        self.kind, self.path = kind, f"{FOLDER}/{PATHS[kind]}"
        self.fs, self.model = RecordingFs(), Expected()
        self.possible: tuple[Expected, ...] = (self.model,)
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
                self._operation(self._some_writer())
            if name == TAKE_OVER:
                self._end_process()
                self._operation(self._some_writer())

    def _some_writer(self) -> str:
        return self._random.choice([name for name in fitting(self.model, self.kind) if OPERATIONS[name].writes])

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
        self.model = read_whole(self.fs, self.path, last.step.possible(), self.kind)
        # Versions after this one weren't begun.
        self.possible = tuple(model for model in last.possible(stop) if head_of(model) <= head_of(self.model))
        self.fs.end_process()

    def _operation(self, name: str) -> None:
        self._count += 1
        self._chance.restart(self._seed, self._count)
        doing = step(name, self.model, self._random.getrandbits(32), self.kind)
        before, log = self.fs.disk.copy(), self.fs.log
        start = len(log)
        told: list[tuple[int, int]] = []
        with Readers(self.fs, self.path, doing, self._random.getrandbits(32)):
            version = doing.run(self.path, self.fs, lambda version: told.append((version, len(log) - start)))
        assert version == doing.version, f"{doing.operation.name} gave version {version}, expected {doing.version}"
        events = log[start:]
        self._last = _Done(doing, before, events, told, self.possible)
        self.model = doing.after
        if doing.operation.writes:
            check_order(before, events, self.path, self.kind)
        self.points = list(self._crash_points(self._last))
        self.possible = self.points[-1].allowed
        self.fs.end_process()

    def _crash_points(self, done: _Done) -> Iterator[CrashPoint]:
        """One before each sync, where most is in doubt, and one when the operation has returned."""
        disk, operation = done.before.copy(), done.step.operation.name
        for number, event in enumerate(done.events):
            if event.change is None:
                where = f"{operation}, before step {number} ({event.call})"
                yield CrashPoint(where, operation, self._space(disk), done.possible(number))
            disk.replay(event)
        allowed = (done.step.after,) if done.step.stages else done.earlier
        yield CrashPoint(f"{operation}, returned", operation, self._space(disk), allowed)

    def _space(self, disk: Disk) -> CrashSpace:
        disk = disk.copy()
        for node in list(disk.reachable()):
            for name, number in node.entries.items() if isinstance(node, Folder) else ():
                # What a lock file holds means nothing, so its states aren't told apart.
                if name.endswith(LOCK):
                    disk.file(number).sync()
        return CrashSpace(disk, self._sector)


def _each_once(*models: Expected) -> tuple[Expected, ...]:
    return tuple({head_of(model): model for model in models}.values())
