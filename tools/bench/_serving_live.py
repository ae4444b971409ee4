"""Look-ups while a trainer appends every second and a follower applies, next to the same without; freshness; torn rows.

    python -m tools.bench._serving_live [--dir DIR] [--rows 1000000] [--dim 64] [--share 0.01] [--every 1]
        [--seconds 5] [--repeat 5] [--threads 1] [--hold 1] [--quick]

Rows are raw float32 and carry the version that wrote them in every element. A trainer, a process of its own, appends
some of the rows, those that Zipf's law touches, and `LiveTables` follow it; batches of 4096 ids, drawn by the same law,
are looked up by threads of this process, into memory that is there. In turn, for so many seconds each:

still     tables that never took in a version, while the trainer waits: what the others are held against
paused    tables that follow, while the trainer waits
updates   the same, while it appends

With `--hold 2` the version before is kept, so that the rows that changed last can't come back to their own slots, and
all are found by a map: `paused` is what that costs.

Time is that of look-ups alone: between them, each fourth batch is looked at for rows that aren't of one version in all
their elements, or newer than the version that was asked; and of each 64th the rows are kept, and later held against
what the trainer wrote up to that version. A row that is wrong ends the program. *Throughput* is by the mean time of a
batch. *Freshness* is from when `append` has returned in the trainer to when the follower has switched, which may be
before: one clock is both's. On few cores the trainer's own work is in the figures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cnrfmt
from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, say, settle_repeat, table_of

_BATCH, _BATCHES = 4096, 256
_CHECKED, _KEPT = 4, 64
"""One batch in so many is looked at, and kept."""
_EXPONENT = 1.05
_ENOUGH = 10_000_000
_THROUGHPUT, _P99, _FRESH_S = 0.9, 2.0, 0.2
_PATIENCE_S = 60.0
_WARM_S = 0.3
_MOST_VERSIONS = 250


class Sizes(NamedTuple):
    """Rows of the table, elements of a row, rows of a delta, and seconds from one delta to the next."""

    rows: int
    dim: int
    changed: int
    every: float

    def changed_ids(self, version: int) -> Any:
        """The rows that a version brings."""
        return _data.touched_rows(self.rows, self.changed, version)


def train(path: str, sizes: Sizes, versions: int, told: Any, ready: Any, going: Any, over: Any) -> None:
    """The trainer's process: appends a version every so often while `going` is set, and says when each was durable."""
    # What a real trainer computes meanwhile is none of the library's work.
    changed = [sizes.changed_ids(version) for version in range(1, versions + 1)]
    ready.set()
    version, due = 0, 0.0
    while not over.is_set() and version < versions:
        if not going.wait(0.05):
            due = 0.0
            continue
        now = time.monotonic()
        if due == 0.0:
            due = now
        if now < due:
            time.sleep(min(due - now, 0.01))
            continue
        due += sizes.every
        version += 1
        ids = changed[version - 1]
        rows = np.full((len(ids), sizes.dim), version, np.float32)
        cnrfmt.append(path, {"table": cnrfmt.Rows(ids, rows)}, step=version)
        told[version] = time.time()


class Trainer:
    """A process that trains, or waits."""

    def __init__(self, path: Path, sizes: Sizes, versions: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.told = context.Array("d", versions + 1, lock=False)
        ready, self._going, self._over = (context.Event() for _ in range(3))
        arguments = (str(path), sizes, versions, self.told, ready, self._going, self._over)
        self._process = context.Process(target=train, args=arguments, daemon=True)
        self._process.start()
        end = time.monotonic() + _PATIENCE_S
        while not ready.wait(0.1):
            if not self._process.is_alive() or time.monotonic() > end:
                raise SystemExit(f"the trainer didn't begin (exit status {self._process.exitcode})")

    @property
    def newest(self) -> int:
        """The newest version that it has said to be durable."""
        return int(np.count_nonzero(np.frombuffer(self.told)))

    def go(self) -> None:
        """Has it append."""
        self._going.set()

    def pause(self, seconds: float) -> None:
        """Has it wait; an append that began has so many seconds to end."""
        self._going.clear()
        time.sleep(seconds)

    def close(self) -> None:
        """Ends it; and the program, where it didn't end well."""
        self._over.set()
        self._process.join(_PATIENCE_S)
        if self._process.exitcode:
            raise SystemExit(f"the trainer ended with {self._process.exitcode}")


class Kept(NamedTuple):
    """What a look-up gave: the version that was asked, which batch of ids, and the first element of each row."""

    version: int
    batch: int
    rows: Any


@dataclass
class Looked:
    """What look-ups found, and how long each took."""

    seconds: list[float] = field(default_factory=list)
    checked_rows: int = 0
    wrong_rows: int = 0
    kept: list[Kept] = field(default_factory=list)

    def check(self, version: int, found: Any) -> None:
        """Counts the rows that aren't of one version, or of one that comes later."""
        first = found[:, :1]
        wrong = (found != first).any(axis=1) | (first[:, 0] > version)
        self.checked_rows += len(found)
        self.wrong_rows += int(np.count_nonzero(wrong))


def look_up(live: cnrfmt.LiveTables, batches: Any, until: float, looked: Looked) -> None:
    """Looks batch after batch up until a time; for one thread."""
    out = np.empty((_BATCH, live["table"].shape[1]), live["table"].dtype)
    clock, number = time.perf_counter, 0
    while clock() < until:
        batch = number % len(batches)
        begin = clock()
        # As `live["table"].lookup` does it, but for knowing the version.
        snapshot = live.snapshot()
        snapshot["table"].lookup(batches[batch], out=out)
        looked.seconds.append(clock() - begin)
        if number % _CHECKED == 0:
            looked.check(snapshot.version, out)
        if number % _KEPT == 0:
            looked.kept.append(Kept(snapshot.version, batch, out[:, 0].astype(np.int32)))
        del snapshot
        number += 1


def check_kept(kept: Sequence[Kept], batches: Any, sizes: Sizes) -> int:
    """How many of the rows that were kept aren't those of their version."""
    expected, version, wrong = np.zeros(sizes.rows, np.int32), 0, 0
    for one in sorted(kept, key=lambda one: one.version):
        while version < one.version:
            version += 1
            expected[sizes.changed_ids(version)] = version
        wrong += int(np.count_nonzero(expected[batches[one.batch]] != one.rows))
    return wrong


def zipf_batches(rows: int) -> Any:
    """Batches of ids by the law of `_data.touched_rows`, in which the same rows are popular."""
    ranks = np.random.default_rng([_data.SEED, rows]).permutation(rows) + 1
    law = np.cumsum(ranks**-_EXPONENT)
    drawn = np.random.default_rng(_data.SEED).random((_BATCHES, _BATCH)) * law[-1]
    return np.searchsorted(law, drawn).clip(max=rows - 1).astype(np.int64)


class Serving:
    """Tables that never move on, and tables that follow, of one container with a trainer."""

    def __init__(self, path: Path, sizes: Sizes, versions: int, threads: int, hold: int) -> None:
        cnrfmt.save(path, {"table": np.zeros((sizes.rows, sizes.dim), np.float32)}, step=0)
        self.batches, self._threads = zipf_batches(sizes.rows), threads
        self._still, self._live = cnrfmt.LiveTables(path, version=0), cnrfmt.LiveTables(path, hold=hold)
        self.seen: dict[int, float] = {}
        for tables in (self._still, self._live):
            tables.wait()
        self._live.follow(on_update=self._came)
        self.trainer = Trainer(path, sizes, versions)
        self.looked: dict[str, list[Looked]] = {"still": [], "paused": [], "updates": []}

    def _came(self, snapshot: cnrfmt.Snapshot) -> None:
        self.seen[snapshot.version] = time.time()

    def measure(self, way: str, seconds: float) -> float:
        """Looks up for so long in one way; the mean time of a batch."""
        tables = self._still if way == "still" else self._live
        if way == "updates":
            self.trainer.go()
        idle = min(_WARM_S, seconds / 4)
        look_up(tables, self.batches, time.perf_counter() + idle, Looked())
        found = [Looked() for _ in range(self._threads)]
        until = time.perf_counter() + seconds
        threads = [threading.Thread(target=look_up, args=(tables, self.batches, until, one)) for one in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if way == "updates":
            self.trainer.pause(idle)
            self._catch_up()
        looked = Looked(
            [time for one in found for time in one.seconds],
            sum(one.checked_rows for one in found),
            sum(one.wrong_rows for one in found),
            [kept for one in found for kept in one.kept],
        )
        self.looked[way].append(looked)
        return float(np.mean(looked.seconds))

    def measured(self, way: str, seconds: float) -> Callable[[int], float]:
        """`measure`, for `in_turn`."""
        return lambda _: self.measure(way, seconds)

    def _catch_up(self) -> None:
        end = time.monotonic() + _PATIENCE_S
        while self._live.version < self.trainer.newest:
            if time.monotonic() > end:
                raise SystemExit(f"version {self.trainer.newest} never came: {self._live.status().error}")
            time.sleep(0.01)

    def freshness(self) -> list[float]:
        """By version that the trainer made, the seconds until it, or one after it, was served."""
        versions = sorted(self.seen)
        found = []
        for version in range(1, self.trainer.newest + 1):
            shown = next(self.seen[one] for one in versions if one >= version)
            found.append(shown - self.trainer.told[version])
        return found

    def close(self) -> None:
        """Ends the trainer and the follower."""
        self.trainer.close()
        for tables in (self._still, self._live):
            tables.close()


def figures(folder: Path, sizes: Sizes, seconds: float, repeat: int, threads: int, hold: int) -> list[Figure]:
    """All figures; ends the program where a row was wrong."""
    # The first round isn't counted: its deltas make the maps, and the memory for rows that move.
    rounds = repeat + 1
    versions = int(rounds * ((seconds + 3 * _WARM_S) / sizes.every + 1))
    if versions > _MOST_VERSIONS:
        raise SystemExit(f"{versions} versions are more than a chain may have: fewer --seconds or --repeat")
    say("live: making the container")
    serving = Serving(folder / "model", sizes, versions, threads, hold)
    say(f"live: {rounds} rounds of {3 * seconds:g} s")
    try:
        means = in_turn(rounds, {way: serving.measured(way, seconds) for way in serving.looked})
    finally:
        serving.close()
    every = [one for some in serving.looked.values() for one in some]
    wrong = sum(one.wrong_rows for one in every)
    wrong += check_kept([kept for one in every for kept in one.kept], serving.batches, sizes)
    rows, checked = _BATCH * sum(len(one.seconds) for one in every), sum(one.checked_rows for one in every)
    during = sum(one.checked_rows for one in serving.looked["updates"])
    kept = _BATCH * sum(len(one.kept) for one in every)
    print(
        f"{rows:.3g} rows looked up; {checked:.3g} of them looked at ({during:.3g} during updates), {wrong} torn or "
        f"wrong; {kept:.3g} of them also held against what was written; {serving.trainer.newest} versions, "
        f"{len(serving.seen)} of them served"
    )
    if wrong:
        raise SystemExit(f"{wrong} rows were torn, or of another version than that which was asked")
    return _figures(serving, {way: values[1:] for way, values in means.items()}, sizes, checked)


def _figures(serving: Serving, means: dict[str, list[float]], sizes: Sizes, checked: int) -> list[Figure]:
    median, p99 = (
        {way: [float(np.quantile(one.seconds, q)) for one in some[1:]] for way, some in serving.looked.items()}
        for q in (0.5, 0.99)
    )
    found = []
    for way in ("updates", "paused"):
        goals = (Target("ratio", ">=", _THROUGHPUT), Target("ratio", "<=", _P99)) if way == "updates" else (None, None)
        shown: dict[str, Any] = {"group": way, "peer_name": "still", "touch": "again"}
        found += [
            Figure(
                name="throughput, mean of a batch",
                cnrfmt=means[way],
                peer=means["still"],
                ratio_of="speed",
                target=goals[0],
                bytes_moved=_BATCH * sizes.dim * 4,
                **shown,
            ),
            # What else a shared machine does is hardly in it.
            Figure(name="median of a batch", cnrfmt=median[way], peer=median["still"], ratio_of="speed", **shown),
            Figure(name="p99 of a batch", cnrfmt=p99[way], peer=p99["still"], target=goals[1], **shown),
        ]
    fresh, soon = serving.freshness(), Target("cnrfmt", "<=", _FRESH_S)
    checks = Target("cnrfmt", ">=", _ENOUGH)
    return [
        *found,
        Figure(group="updates", name="freshness", cnrfmt=fresh, target=soon),
        Figure(group="updates", name="freshness, worst", cnrfmt=[max(fresh)], target=soon),
        Figure(group="all", name="rows looked at, none torn", unit="error", cnrfmt=[float(checked)], target=checks),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where the container goes (a temporary directory)")
    parser.add_argument("--rows", type=int, help="rows of the table (1,000,000)")
    parser.add_argument("--dim", type=int, default=64, help="elements of a row: %(default)s")
    parser.add_argument("--share", type=float, default=0.01, help="rows of a delta: %(default)s")
    parser.add_argument("--every", type=float, help="seconds from one delta to the next (1)")
    parser.add_argument("--seconds", type=float, help="of each way, in each round (5)")
    parser.add_argument("--threads", type=int, default=1, help="threads that look up: %(default)s")
    parser.add_argument("--hold", type=int, default=1, help="versions that are held: %(default)s")
    parser.add_argument("--repeat", type=int, help="rounds, beside one that isn't counted (5; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    if given.repeat is None and given.quick:
        given.repeat = 1
    settle_repeat(parser, given)
    rows, every, seconds = (20_000, 0.1, 0.2) if given.quick else (1_000_000, 1.0, 5.0)
    rows, every, seconds = given.rows or rows, given.every or every, given.seconds or seconds
    sizes = Sizes(rows, given.dim, max(1, int(given.share * rows)), every)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="cnrfmt-live-", dir=given.dir) as folder:
        print(
            f"{rows:,} rows of {given.dim} float32; a delta of {sizes.changed:,} rows every {every:g} s, "
            f"{given.hold} versions held; "
            f"{given.threads} threads look up batches of {_BATCH}; trainer, follower and look-ups share {cores} cores"
        )
        print(table_of(figures(Path(folder), sizes, seconds, given.repeat, given.threads, given.hold)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
