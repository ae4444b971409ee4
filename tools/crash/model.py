"""Crash states by model: every workload of a few operations, crashed wherever it may be, on a disk in memory.

For each workload, on both kinds of container, the last operation is crashed before each of its syncs and after its
end. Operations before it may have been interrupted, too: by a crash, by one more while the next writer recovers, or by
the end of a process, whose successor finds what no sync has made durable. Of the states that POSIX allows then
(`states.py`), all are looked at where they are few, and the extremes and samples where they are many. In each of them
the container must open as the last acknowledged version or a pending one, with every row of every version; both
validators must agree with that and with each other; and the next commit must work and be whole. A write-order checker
reads the record of every commit (`order.py`).

A check runs once for all states that look alike to it (`_probe.py`); one in `RERUN` images is checked in full in spite
of that, and the results must be the same. Images are counted by a hash of all their paths and bytes, lock files aside.

    python -m tools.crash.model --seed 1 --states 100000 --state FILE [--json TABLE.json]
    python -m tools.crash.model --seed 1 --unit 17

The first goes on until it has looked at so many distinct images at least, the last unit being done to its end, or goes
on where the same command was killed; the second repeats one unit of it, in which a failure was found.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.crash._model_checks import Case, Outcome, Verdict, head_of
from tools.crash._model_workloads import LOCK, Course, CrashPoint, Workload, workloads
from tools.crash._probe import Once, ProbedFs
from tools.crash._repeatable import Chance, repeatable
from tools.crash.operations import PATHS
from tools.progress import Kept, at_least, counting, engine_parser, run_program, write_json

LENGTH, LIMIT = 3, 1000
"""How many operations a workload has at most, and how many images of one crash point are looked at."""
RERUN = 500
SECTORS = (512, 64)
"""What a disk writes as a whole; units take turns. Under the smaller one, slots are torn, too."""
_KEPT_FAILURES = 50

Results = tuple[Outcome, Verdict, Verdict]
_PAUSE = 10.0


@dataclass(frozen=True)
class Unit:
    """A workload on a kind of container, with a seed of its own."""

    seed: str
    kind: str
    workload: Workload
    sector: int
    limit: int

    @classmethod
    def of(cls, seed: int, number: int, length: int, limit: int) -> Unit:
        """The units of a run: all workloads on both kinds, then all of them again with other chances."""
        every = all_workloads(seed, length)
        turn, place = divmod(number, len(every))
        kind, workload = every[place]
        return cls(f"{seed} {number}", kind, workload, SECTORS[(turn + place) % len(SECTORS)], limit)


@lru_cache(maxsize=4)
def all_workloads(seed: int, length: int) -> tuple[tuple[str, Workload], ...]:
    """The workloads on each kind of container, in an order of the seed's: a part of them is a sample."""
    every = [(kind, workload) for kind in PATHS for workload in workloads(length, kind)]
    Random(seed).shuffle(every)
    return tuple(every)


@dataclass
class Findings:
    """What came out of one unit."""

    images: list[int] = field(default_factory=list)
    """The digests of the images."""
    points: int = 0
    checks: int = 0
    """How often a check really ran."""
    reruns: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    failed: int = 0


def examine(unit: Unit, chance: Chance) -> Findings:
    """Runs a workload, and looks at the crash points of its last operation."""
    found = Findings()
    course = Course(unit.kind, unit.seed, chance, unit.sector)
    try:
        course.run(unit.workload)
    except Exception as error:
        _fail(found, "the workload", 0, f"{type(error).__name__}: {error}")
        return found
    models = {head_of(model): model for point in course.points for model in point.allowed}
    interrupted = course.points[-1].operation
    case = Case(unit.kind, course.path, tuple(models.values()), Random(unit.seed).getrandbits(32), interrupted)
    known: dict[int, Results] = {}
    for number, point in enumerate(course.points):
        found.points += 1
        _examine_point(unit, case, point, Random(f"{unit.seed} {number}"), chance, known, found)
    return found


def _examine_point(
    unit: Unit,
    case: Case,
    point: CrashPoint,
    random: Random,
    chance: Chance,
    known: dict[int, Results],
    found: Findings,
) -> None:
    def by_library(fs: ProbedFs) -> Outcome:
        # What a check writes must not depend on how many ran before it.
        chance.restart(unit.seed, "check")
        return case.by_library(fs)

    library = Once(point.space, by_library)
    ours, theirs = Once(point.space, case.by_verify), Once(point.space, case.by_cnrcheck)
    for digest, state in point.space.images(unit.limit, random, without=LOCK):
        found.images.append(digest)
        # Crash points that follow each other share images.
        results = known.get(digest) or (library(state), theirs(state), ours(state))
        known[digest] = results
        problem = case.problem(point.allowed, *results)
        if random.randrange(RERUN) == 0:
            found.reruns += 1
            again = library.run(state)[1], theirs.run(state)[1], ours.run(state)[1]
            if again != results:
                problem = f"a state that should look like another doesn't: {results}, then {again}"
        if problem:
            _fail(found, point.name, state, problem)
    found.checks += library.runs + ours.runs + theirs.runs


def _fail(found: Findings, point: str, state: int, problem: str) -> None:
    found.failed += 1
    # One image of each crash point tells enough.
    if all(failure["point"] != point for failure in found.failures):
        found.failures.append({"point": point, "state": hex(state), "problem": problem})


class Seen:
    """The digests of all images so far."""

    def __init__(self, known: npt.NDArray[np.uint64] | None = None) -> None:
        self._sorted = np.empty(0, np.uint64) if known is None else known
        self._recent: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    def add(self, digests: list[int]) -> int:
        """Adds some; returns how many of them are new."""
        before = len(self)
        new = np.array(digests, np.uint64)
        at = np.searchsorted(self._sorted, new)
        at[at == len(self._sorted)] = 0
        known = self._sorted[at] == new if len(self._sorted) else np.zeros(len(new), bool)
        self._recent.update(new[~known].tolist())
        if len(self._recent) > 200_000:
            self.array()
        return len(self) - before

    def array(self) -> npt.NDArray[np.uint64]:
        """All of them, ascending."""
        self._sorted = np.union1d(self._sorted, np.fromiter(self._recent, np.uint64, len(self._recent)))
        self._recent.clear()
        return self._sorted


@dataclass
class Tally:
    """How far a run has come; what is written to its state file."""

    seed: int
    length: int = LENGTH
    limit: int = LIMIT
    unit: int = 0
    """The next one."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each kind, sector size and last operation: units, points, images, checks, reruns and failed images."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def total(self, what: str) -> int:
        """A sum over all kinds and operations."""
        return sum(count[what] for count in self.counts.values())

    def run_unit(self, chance: Chance, seen: Seen) -> Findings:
        """Does the next unit."""
        unit = Unit.of(self.seed, self.unit, self.length, self.limit)
        found = examine(unit, chance)
        count = Counter(self.counts.get(_row(unit), {}))
        new = seen.add(found.images)
        for what, more in (
            *(("units", 1), ("points", found.points), ("images", new)),
            *(("checks", found.checks), ("reruns", found.reruns), ("failed", found.failed)),
        ):
            count[what] += more
        self.counts[_row(unit)] = dict(count)
        for failure in found.failures:
            command = f"python -m tools.crash.model --seed {self.seed} --unit {self.unit}"
            command += f" --length {self.length} --limit {self.limit}"
            self.failures.append({"command": command, "workload": " > ".join(unit.workload), **failure})
        del self.failures[_KEPT_FAILURES:]
        self.unit += 1
        return found

    def line(self) -> str:
        """One line that says how far it has come."""
        images, checks, failed = (self.total(what) for what in ("images", "checks", "failed"))
        rate = images / self.seconds if self.seconds else 0.0
        return (
            f"seed {self.seed}, unit {self.unit}: {images} distinct images ({rate:.0f} a second), "
            f"{checks} checks run, {self.total('reruns')} reruns, {failed} failed"
        )


def _row(unit: Unit) -> str:
    return f"{unit.kind}, sectors of {unit.sector}, {unit.workload[-1]}"


def run(tally: Tally, states: int, seen: Seen, pause: float = _PAUSE) -> bool:
    """Goes on until so many distinct images were looked at, or for about so many seconds; True if it is done."""
    start = time.monotonic()
    before = tally.seconds
    with repeatable() as chance:
        while tally.total("images") < states:
            if time.monotonic() - start > pause:
                return False
            tally.run_unit(chance, seen)
            tally.seconds = before + time.monotonic() - start
    return True


# The command


def _load(kept: Kept, wanted: Tally) -> tuple[Tally, Seen]:
    """What a run with this state file has done so far."""
    found = kept.load()
    if kept.file is None or found is None:
        return wanted, Seen()
    tally = Tally(**found)
    return tally, Seen(np.load(_images_path(kept.file, tally)))


def _images_path(path: Path, tally: Tally) -> Path:
    return path.with_suffix(f".{tally.unit}.npy")


def _store(kept: Kept, tally: Tally, seen: Seen) -> None:
    """Puts the state in the place of the old one; the images, which belong to it, are in a file named by its unit."""
    if kept.file is not None:
        images = _images_path(kept.file, tally)
        images.parent.mkdir(parents=True, exist_ok=True)
        np.save(images, seen.array())
    kept.save(vars(tally))
    if kept.file is not None:
        for old in kept.file.parent.glob(f"{kept.file.stem}.*.npy"):
            if old != images:
                old.unlink()


def _table(tally: Tally, states: int, kept: Kept) -> dict[str, Any]:
    """The result as it is committed."""
    command = f"python -m tools.crash.model --seed {tally.seed} --states {states}"
    return {
        "engine": "crash states by model",
        "command": f"{command} --length {tally.length} --limit {tally.limit}",
        "seed": tally.seed,
        "code": kept.code,
        "date": kept.date,
        "seconds": round(tally.seconds),
        "workloads": min(tally.unit, len(all_workloads(tally.seed, tally.length))),
        **{what: tally.total(what) for what in ("units", "points", "images", "checks", "reruns", "failed")},
        "failures": tally.failures,
        "rows": dict(sorted(tally.counts.items())),
    }


def _run_one(tally: Tally) -> int:
    """Repeats one unit."""
    with counting(lambda: "no unit", None), repeatable() as chance:
        found = tally.run_unit(chance, Seen())
    print(tally.line())
    for failure in tally.failures:
        print(json.dumps(failure, indent=1))
    return 1 if found.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code, 1 if anything failed."""
    parser = engine_parser("tools.crash.model", __doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--states", type=at_least(1), default=100_000, help="distinct images to look at, at least")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the table of results goes")
    parser.add_argument("--length", type=at_least(1), default=LENGTH, help="operations of a workload at most")
    parser.add_argument("--limit", type=at_least(1), default=LIMIT, help="images of one crash point at most")
    parser.add_argument("--unit", type=at_least(0), help="repeat this unit alone")
    options = parser.parse_args(arguments)
    tally = Tally(options.seed, options.length, options.limit)
    if options.unit is not None:
        tally.unit = options.unit
        return _run_one(tally)
    asked = {"seed": options.seed, "length": options.length, "limit": options.limit}
    kept = Kept(options.state, asked, anyway=options.anyway)
    tally, seen = _load(kept, tally)
    before = tally.total("images")
    stored = before
    with counting(lambda: f"{stored - before} images", options.state):
        while stored < options.states:
            run(tally, options.states, seen)
            _store(kept, tally, seen)
            stored = tally.total("images")
            print(tally.line(), flush=True)
    if stored == before:
        kept.say_finished()
        print(tally.line())
    if options.json is not None:
        write_json(options.json, _table(tally, options.states, kept))
    for failure in tally.failures:
        print(json.dumps(failure, indent=1))
    return 1 if tally.total("failed") else 0


if __name__ == "__main__":
    run_program(main)
