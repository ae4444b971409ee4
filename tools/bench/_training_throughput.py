"""What checkpoints and tracking cost a training loop: its throughput with them against that without.

    python -m tools.bench._training_throughput [--only demo,dlrm] [--seconds 4] [--policy intermittent] [--bits 4]
        [--repeat 10] [--rows 4000000] [--dir DIR] [--quick]

Three contenders train in turn, in one process, each for an interval: one alone, one that hands the rows of each batch
to `CheckpointManager.track`, and one that also makes a checkpoint when its interval begins. The checkpoint is written
into a real directory while the interval is trained; should it not be durable by the end, the clock runs on. An interval
is as many batches as took `--seconds` when the loop was alone. What was kept before goes at once.

*demo*: the recommender on real orders, 250 at a time, pass after pass. *dlrm*: steps of DLRM in torch, 2048 samples
with 26 lookups each by Zipf's law, in one table with rows of 64 elements. Both train on one thread, so that the
background has a processor of its own where there are two. *Stall* is what `save` takes until the tables may change
again; *behind* is the processor time of all other threads, be it encoding during `save` or writing after it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from cnrfmt import CheckpointManager, Event, TableData
from cnrfmt.demo.model import Model, seen_before
from cnrfmt.demo.orders import load_orders
from tools.bench._figures import Figure, Target, in_turn, say, table_of, timed
from tools.bench._training_tracking import Blocks, Ids, Step, looked_up, zipf

_BLOCK = 250
_LOOKUPS, _STEPS = 2048 * 26, 200
_DIM = 64
_QUICK_SECONDS = 0.05

Track = Callable[[str, Ids], None]


class Loop(Protocol):
    """A model in training, batch by batch.

    Attributes
    ----------
    about
        What it is, in a few words.
    """

    about: str

    def step(self, track: Track | None) -> None:
        """Trains on the next batch, and says before which rows of each table it is going to change."""
        ...

    def tables(self) -> dict[str, TableData]:
        """The live tables."""
        ...

    def dense(self) -> dict[str, Any]:
        """Everything else of the model."""
        ...


class Demo:
    """The demo's recommender on real orders. Each pass over them starts with the same random state."""

    def __init__(self, *, quick: bool) -> None:
        self._data = load_orders(users=7 if quick else None)
        self._blocks: Blocks = looked_up(self._data, _BLOCK)
        self._model = Model(self._data)
        self._random = self._model.random.copy()
        self._next = 0
        rows = sum(len(values) for values in self._model.weights)
        self.about = f"demo, {rows:,} rows of 32"

    def step(self, track: Track | None) -> None:
        """Trains on the next 250 orders."""
        if self._next == len(self._blocks):
            self._next, self._model.order = 0, 0
            self._model.seen = seen_before(self._data, 0)
            self._model.random[:] = self._random
        end, ids = self._blocks[self._next]
        self._next += 1
        if track is not None:
            for table, rows in ids.items():
                track(table, rows)
        self._model.train(end)

    def tables(self) -> dict[str, TableData]:
        """All rows of users, products and pairs, where they are."""
        accumulators = self._model.accumulators._asdict()
        return {n: TableData(w, {"accumulator": accumulators[n]}) for n, w in self._model.weights._asdict().items()}

    def dense(self) -> dict[str, Any]:
        """Layers, their accumulators, the state of the random generator."""
        return self._model.dense_state()


class Dlrm(Step):
    """Steps of DLRM in torch on one large table."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, _DIM, layers=True)
        self._weight.data.normal_(0, 0.01)
        self._batches = [zipf(rows, _LOOKUPS, number) for number in range(_STEPS)]
        self._number = 0
        self.about = f"DLRM, {rows:,} rows of {_DIM}"

    def step(self, track: Track | None) -> None:
        """Trains on the next batch."""
        ids = self._batches[self._number % len(self._batches)]
        self._number += 1
        if track is not None:
            track("table", ids)
        self(ids)

    def tables(self) -> dict[str, TableData]:
        """The table where it is."""
        return {"table": TableData(self._weight.detach().numpy(), {"accumulator": self._accumulator.numpy()})}

    def dense(self) -> dict[str, Any]:
        """The layers and their accumulators."""
        found = {}
        for name, layers in (("bottom", self._bottom), ("top", self._top)):
            for key, values in layers.named_parameters():
                found[f"{name}.{key}"] = values.detach().numpy()
                found[f"{name}.{key}.sum"] = self._optimizer.state[values]["sum"].numpy()
        return found


class Contenders:
    """A loop that is trained for an interval: alone, with marks, and with checkpoints.

    Attributes
    ----------
    own
        Of each interval of each contender, seconds of processor time of the thread that trains.
    stalls, behind, kinds, nbytes
        Of each checkpoint: seconds of stall, of processor time of other threads during its interval, what it was, and
        its bytes.
    """

    def __init__(self, loop: Loop, folder: Path, policy: str, bits: int, steps: int) -> None:
        self._loop, self._steps = loop, steps
        options: dict[str, Any] = {"policy": policy, "bits": bits, "keep": 1, "grace": 0, "flush_on_sigterm": False}
        self._tracking = CheckpointManager(folder / "tracking", **options)
        self._checkpoints = CheckpointManager(folder / "checkpoints", **options, on_event=self._on)
        self.own: dict[str, list[float]] = {"alone": [], "tracking": [], "checkpoints": []}
        self.stalls: list[float] = []
        self.behind: list[float] = []
        self.kinds: list[str] = []
        self.nbytes: list[int] = []
        for manager in (self._tracking, self._checkpoints):
            # Who only tracks has had a checkpoint, too: before the first, there are no tables to track.
            manager.save(0, loop.tables(), dense=loop.dense())
            manager.wait()

    def alone(self, _: int) -> float:
        """Seconds of an interval without either."""
        return self._timed("alone", lambda: self._train(None))

    def tracking(self, _: int) -> float:
        """Seconds of an interval with marks."""
        return self._timed("tracking", lambda: self._train(self._tracking.track))

    def checkpoints(self, number: int) -> float:
        """Seconds of an interval with marks and a checkpoint, which is durable at the end."""

        def interval() -> None:
            self._checkpoints.save(number + 1, self._loop.tables(), dense=self._loop.dense())
            self._train(self._checkpoints.track)
            self._checkpoints.wait()

        processor = time.process_time() - time.thread_time()
        seconds = self._timed("checkpoints", interval)
        self.behind.append(time.process_time() - time.thread_time() - processor)
        return seconds

    def start_over(self) -> None:
        """Forgets what was measured until now."""
        lists: list[list[Any]] = [*self.own.values(), self.stalls, self.behind, self.kinds, self.nbytes]
        for values in lists:
            values.clear()

    def close(self) -> None:
        """Ends both managers."""
        self._tracking.close()
        self._checkpoints.close()

    def _train(self, track: Track | None) -> None:
        for _ in range(self._steps):
            self._loop.step(track)

    def _timed(self, name: str, work: Callable[[], None]) -> float:
        processor = time.thread_time()
        seconds = timed(work)
        self.own[name].append(time.thread_time() - processor)
        return seconds

    def _on(self, event: Event) -> None:
        if event.kind == "snapshot":
            self.stalls.append(event.stall_seconds)
        elif event.kind == "committed":
            self.kinds.append(str(event.checkpoint))
            self.nbytes.append(event.nbytes)


def figures(loop: Loop, folder: Path, given: argparse.Namespace) -> list[Figure]:
    """The throughput of a loop with checkpoints and with marks alone, and where the time goes."""
    seconds = _QUICK_SECONDS if given.quick else given.seconds
    say(f"throughput: {loop.about}")
    loop.step(None)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        loop.step(None)
        steps += 1
    folder.mkdir()
    contenders = Contenders(loop, folder, given.policy, given.bits, steps)
    everybody = {"alone": contenders.alone, "tracking": contenders.tracking, "checkpoints": contenders.checkpoints}
    # One round that doesn't count, in which kernels are compiled.
    in_turn(1, everybody)
    contenders.start_over()
    times = in_turn(given.repeat, everybody)
    contenders.close()
    shutil.rmtree(folder)
    found = []
    words = {"checkpoints": f"{given.policy}, {given.bits} bits, every {seconds:g} s", "tracking": "tracking alone"}
    for kind, of in (("", times), (", processor time of the training thread", contenders.own)):
        for name, least in (("checkpoints", 0.97), ("tracking", 0.99)):
            together = sum(of["alone"]) / sum(of[name])
            found.append(
                Figure(
                    group=loop.about,
                    name=f"{words[name]}{kind} (all rounds together: {together:.3f})",
                    cnrfmt=of[name],
                    peer_name="alone",
                    peer=of["alone"],
                    ratio_of="speed",
                    target=Target("ratio", ">=", least) if of is times else None,
                )
            )
    kinds, most = contenders.kinds, max(contenders.nbytes) / 1e6
    made = f"{len(kinds)} checkpoints, {kinds.count('baseline')} of them baselines, {most:.3g} MB at most"
    for name, values in ((f"stall: {made}", contenders.stalls), ("behind, processor time", contenders.behind)):
        found.append(Figure(loop.about, name, values, peer_name="interval", peer=times["checkpoints"]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="demo,dlrm", help="loops, comma-separated: %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="between checkpoints: %(default)s")
    parser.add_argument("--policy", default="intermittent", help="%(default)s")
    parser.add_argument("--bits", type=int, default=4, help="%(default)s")
    parser.add_argument("--repeat", type=int, default=10, help="rounds (%(default)s)")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of DLRM's table: %(default)s")
    parser.add_argument("--dir", type=Path, help="where containers go; up to 2 GB are used")
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    loops: dict[str, Callable[[], Loop]] = {
        "demo": lambda: Demo(quick=given.quick),
        "dlrm": lambda: Dlrm(10_000 if given.quick else given.rows),
    }
    names = [name.strip() for name in given.only.split(",")]
    if unknown := [name for name in names if name not in loops]:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(loops)}")
    if given.repeat < 1:
        parser.error("--repeat must be at least 1")
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="cnrfmt-throughput-", dir=given.dir) as folder:
        for name in names:
            found += figures(loops[name](), Path(folder, name), given)
    print(f"{given.repeat} rounds of {given.seconds:g} s; medians with least and greatest, ratios round by round\n")
    print(table_of(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
