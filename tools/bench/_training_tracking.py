"""What tracking the rows that a trainer touches costs: time, throughput and memory.

    python -m tools.bench._training_tracking [--only share,demo,memory,take] [--repeat 5] [--quick]

`share` marks the ids of a training step in a table of 10^8 rows and holds that against the step itself, in turn: an
embedding bag of torch forward and backward, then row-wise Adagrad, over the same ids. A *bare* step is nothing but
that; the *DLRM* step has that model's layers, loss and dense optimizer, too. Neither reads any samples. `demo` trains
the demo's recommender with and without marking the ids that it looks up. `memory` is resident memory, and `take` lists
the rows that were marked. Times are of the processor, and all is done by one thread on either side, so that what else
the machine does matters less. Up to 6 GB of memory are used.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cnrfmt.arrays import Array
from cnrfmt.checkpointing.tracking.tracker import KeyTracker, RowTracker, Tracker
from cnrfmt.demo import training
from cnrfmt.demo.model import SETTINGS, Model
from cnrfmt.demo.orders import Dataset, load_orders
from cnrfmt.kernels._jit import jit
from tools.bench._data import SEED
from tools.bench._figures import Figure, Target, in_turn, say, table_of
from tools.bench._probe import status_bytes

Ids = npt.NDArray[Any]

_ROWS, _QUICK_ROWS = 10**8, 10**6
_BATCH, _LOOKUPS = 2048, 26
"""Samples of a batch, and lookups of each: those of DLRM on the Criteo data."""
_EXPONENT = 1.05
_STEPS, _QUICK_STEPS = 30, 3
_DIMS = (16, 64)
_BLOCKS = (250, 25)
"""Orders of the demo between two calls of `mark`; its trainer trains 250 at once."""
_NORESERVE = 0x4000


def share(repeat: int, *, quick: bool) -> list[Figure]:
    """The marks of a step against the step, for each width: ids of both common types, and keys."""
    rows, steps = (_QUICK_ROWS, _QUICK_STEPS) if quick else (_ROWS, _STEPS)
    batches = [zipf(rows, _BATCH * _LOOKUPS, number) for number in range(steps)]
    makers: dict[str, Callable[[], Tracker[Any]]] = {
        "int64": lambda: RowTracker(rows, name="table"),
        "int32": lambda: RowTracker(rows, name="table"),
        "keys": lambda: KeyTracker(name="table"),
    }
    found = []
    for dim in _DIMS:
        for kind in ("bare", "DLRM"):
            say(f"tracking: {kind} training steps on {rows:,} rows of {dim} elements")
            step = Step(rows, dim, layers=kind == "DLRM")
            for ids in batches:
                # The system gives memory now, lest the time that it takes should flatter the tracker.
                step(ids)
            for of, make in makers.items():
                given = [ids.astype(np.int32) if of == "int32" else ids for ids in batches]
                times = _in_steps(step, make, given, repeat)
                each = 1e9 * statistics.median(times["mark"]) / len(batches[0])
                found.append(
                    Figure(
                        group="tracking",
                        name=f"marks of a {kind} step, dim {dim}, {of}: {each:.1f} ns per id",
                        cnrfmt=times["mark"],
                        peer_name="step",
                        peer=times["step"],
                        target=None if of == "keys" else Target("ratio", "<=", 0.01),
                    )
                )
            del step
    return found


def _in_steps(step: Step, make: Callable[[], Tracker[Any]], batches: list[Ids], repeat: int) -> dict[str, list[float]]:
    """Marks and steps in turn, so that a step has left little of the bitmap in the caches.

    The tracker starts anew `repeat` times.
    """
    tracker = make()

    def mark(number: int) -> float:
        nonlocal tracker
        if number % len(batches) == 0:
            tracker = make()
        ids = batches[number % len(batches)]
        return _processor(lambda: tracker.mark(ids))

    def train(number: int) -> float:
        ids = batches[number % len(batches)]
        return _processor(lambda: step(ids))

    return in_turn(repeat * len(batches), {"mark": mark, "step": train})


def _processor(work: Callable[[], Any]) -> float:
    """Seconds of processor time that a call takes, on this thread."""
    start = time.thread_time()
    result = work()
    seconds = time.thread_time() - start
    del result
    return seconds


class Step:
    """A training step in torch: one row per lookup of each sample, row-wise Adagrad, on request the rest of a DLRM.

    Its layers are those that Naumov et al. (2019) give for the Criteo data, with products of all pairs of vectors.
    """

    def __init__(self, rows: int, dim: int, *, layers: bool) -> None:
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
        # Of a table that is larger than the memory there is, only the rows that are touched are ever had.
        self._weight = torch.from_numpy(_on_demand(rows * dim).reshape(rows, dim)).requires_grad_(True)
        self._accumulator = torch.from_numpy(_on_demand(rows))
        self._gradient = torch.randn(_BATCH * _LOOKUPS, dim)
        self._layers = layers
        vectors = _LOOKUPS + 1
        self._pairs = torch.tril_indices(vectors, vectors, -1)
        self._bottom = _layers(13, 512, 256, dim)
        self._top = _layers(dim + self._pairs.shape[1], 512, 512, 256, 1)
        self._optimizer = torch.optim.Adagrad([*self._bottom.parameters(), *self._top.parameters()], lr=0.01)
        self._plain, self._labels = torch.randn(_BATCH, 13), torch.randint(0, 2, (_BATCH, 1)).float()

    def __call__(self, ids: Ids) -> None:
        """Forward, backward and update."""
        rows = torch.from_numpy(ids)
        offsets = torch.arange(len(rows), dtype=rows.dtype)
        found = torch.nn.functional.embedding_bag(rows, self._weight, offsets, mode="sum", sparse=True)
        if self._layers:
            bottom = self._bottom(self._plain)
            vectors = torch.cat([bottom.unsqueeze(1), found.view(_BATCH, _LOOKUPS, -1)], 1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self._pairs[0], self._pairs[1]]
            logits = self._top(torch.cat([bottom, products], 1))
            torch.nn.functional.binary_cross_entropy_with_logits(logits, self._labels).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        else:
            found.backward(self._gradient)
        self._update()

    def _update(self) -> None:
        assert self._weight.grad is not None
        with torch.no_grad():
            gradient = self._weight.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            self._accumulator.index_add_(0, rows, values.pow(2).mean(1))
            scale = self._accumulator[rows].sqrt().add_(1e-8).unsqueeze(1)
            self._weight.index_add_(0, rows, values / scale, alpha=-0.01)
            self._weight.grad = None


def _layers(*widths: int) -> torch.nn.Sequential:
    found: list[torch.nn.Module] = []
    for before, after in pairwise(widths):
        found += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*found[:-1])


def _on_demand(count: int) -> npt.NDArray[np.float32]:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return np.frombuffer(mmap.mmap(-1, 4 * count, flags=flags), np.float32)


def zipf(rows: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Ids by Zipf's law; a row's popularity has nothing to do with its place in the table."""
    uniform = np.random.default_rng([SEED, seed]).random(count)
    # The inverse of the integral of x^-s, from 1 to `rows`.
    power = 1 - _EXPONENT
    ranks = ((rows**power - 1) * uniform + 1) ** (1 / power)
    # A multiplication by a number that is prime to that of the rows is a permutation of them.
    return ranks.astype(np.int64) % rows * 2_654_435_761 % rows


def demo(repeat: int, *, quick: bool) -> list[Figure]:
    """The demo's training with marks of all that it looks up against training without, block by block in turn.

    The kernel that trains sets bits of its own, on both sides.
    """
    data = load_orders(users=7 if quick else None)
    found = []
    for block in _BLOCKS:
        say(f"tracking: the demo, {block} orders between marks")
        blocks = looked_up(data, block)
        times: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(repeat + 1):
            seconds = _train_both(data, blocks)
            # The first round compiles.
            if number:
                for name in times:
                    times[name].append(seconds[name])
        found.append(
            Figure(
                group="tracking",
                name=f"the demo's training, marks every {block} orders",
                cnrfmt=times["with"],
                peer_name="without marks",
                peer=times["without"],
                ratio_of="speed",
                target=Target("ratio", ">=", 0.99),
            )
        )
    return found


Blocks = list[tuple[int, dict[str, Ids]]]


def _train_both(data: Dataset, blocks: Blocks) -> dict[str, float]:
    """Seconds that two models take to be trained on all orders, one with marks and one without."""
    models = {"with": Model(data), "without": Model(data)}
    trackers = {n: RowTracker(len(w), name=n) for n, w in models["with"].weights._asdict().items()}

    def train(name: str, end: int, ids: dict[str, Ids]) -> None:
        if name == "with":
            for table, rows in ids.items():
                trackers[table].mark(rows)
        models[name].train(end)

    seconds = dict.fromkeys(models, 0.0)
    for number, (end, drawn) in enumerate(blocks):
        # Neither is always the one that finds the caches warm.
        for name in sorted(models, reverse=number % 2 == 1):
            # A trainer has just drawn these ids; here they were drawn long ago, and are out of the caches.
            ids = {table: rows.copy() for table, rows in drawn.items()}
            seconds[name] += _processor(lambda name=name, end=end, ids=ids: train(name, end, ids))  # type: ignore[misc]
    for table, rows in models["with"].touched_rows().items():
        if not np.array_equal(trackers[table].take(), rows):
            raise SystemExit(f"the tracker of {table!r} and the training kernel have marked different rows")
    return seconds


def looked_up(data: Dataset, block: int) -> Blocks:
    """The rows of each table that the demo looks up, block by block, with the order that each block ends before."""
    model = Model(data)
    bought = np.zeros(data.pairs, np.bool_)
    longest = int(np.diff(data.stream.starts).max()) * (1 + SETTINGS.negatives)
    products, pairs = np.empty((2, block * longest), np.int64)
    blocks: Blocks = []
    for begin in range(0, len(data.stream), block):
        end = min(begin + block, len(data.stream))
        state = model.seen.popularity, bought, model.random
        n, m = _look_up(begin, end, model.stream, *state, SETTINGS, products, pairs)
        users = data.stream.users[begin:end]
        blocks.append((end, {"user": users, "product": products[:n].copy(), "pair": pairs[:m].copy()}))
    return blocks


@jit
def _look_up(
    begin: int,
    end: int,
    stream: training.Stream,
    popularity: Array,
    bought: Array,
    random: Array,
    settings: training.Settings,
    products: Array,
    pairs: Array,
) -> tuple[int, int]:
    """What `training.train` looks up: fills both arrays, moves the random state on, notes which pairs are bought."""
    taken = np.full(len(popularity), -1, np.int64)
    n = m = 0
    for order in range(begin, end):
        count = training.choose(order, stream, settings, random, taken, products[n:])
        for product in products[n : n + count]:
            pair = stream.pair_of[stream.users[order], product]
            if pair >= 0 and bought[pair]:
                pairs[m] = pair
                m += 1
        n += count
        for line in range(stream.starts[order], stream.starts[order + 1]):
            bought[stream.line_pairs[line]] = True
    return n, m


def memory(repeat: int, *, quick: bool) -> list[Figure]:
    """Resident memory of one state of marks, and what the tracker says of it, in bits per row of the table."""
    rows = _QUICK_ROWS if quick else _ROWS
    random = np.random.default_rng(SEED)
    cases: dict[str, Ids] = {
        "no row": np.empty(0, np.int64),
        "1,000 random rows": random.integers(0, rows, 1000),
        "the first 1 %": np.arange(rows // 100),
        "all rows": np.arange(rows, dtype=np.int32),
    }
    found = []
    for name, ids in cases.items():
        say(f"tracking: memory, {name}")
        taken: dict[str, list[float]] = {"resident": [], "said": []}
        for _ in range(repeat):
            before = status_bytes("RssAnon")
            tracker = RowTracker(rows, name="table")
            tracker.mark(ids)
            taken["resident"].append(max(status_bytes("RssAnon") - before, 0))
            taken["said"].append(tracker.nbytes)
            del tracker
        bits = 8 * statistics.median(taken["said"]) / rows
        shown: dict[str, Any] = {"group": "tracking", "unit": "bytes", "peer_name": "nbytes", "peer": taken["said"]}
        label = f"resident, {name} of {rows:,}: nbytes is {bits:.4f} bits per row"
        found.append(Figure(name=label, cnrfmt=taken["resident"], **shown))
    return found


def take(repeat: int, *, quick: bool) -> list[Figure]:
    """Listing what is marked against numpy's `flatnonzero` of `unpackbits`; bytes are those of bitmap and ids."""
    rows = _QUICK_ROWS if quick else _ROWS
    random = np.random.default_rng(SEED)
    cases: dict[str, Ids] = {
        "1 % at random": random.integers(0, rows, rows // 100),
        "26 % at random": np.flatnonzero(random.random(rows, np.float32) < 0.26),
        "all": np.arange(rows, dtype=np.int32),
        "1 %, side by side": np.arange(rows // 100),
    }
    found = []
    for name, ids in cases.items():
        say(f"tracking: take, {name}")
        tracker = RowTracker(rows, name="table")
        tracker.mark(ids)
        count = tracker.count
        bits = np.zeros(-(-rows // 8), np.uint8)
        np.bitwise_or.at(bits, ids >> 3, np.left_shift(1, ids & 7).astype(np.uint8))
        takers: dict[str, Callable[[int], float]] = {
            "take": lambda _, tracker=tracker: _take(tracker),  # type: ignore[misc]
            "numpy": lambda _, bits=bits: _processor(lambda: _flat(bits, rows)),  # type: ignore[misc]
        }
        times = in_turn(repeat, takers)
        each = 1e9 * statistics.median(times["take"]) / count
        found.append(
            Figure(
                group="tracking",
                name=f"take of {name}, {count:,} of {rows:,} rows: {each:.2f} ns per id",
                cnrfmt=times["take"],
                peer_name="numpy",
                peer=times["numpy"],
                ratio_of="speed",
                bytes_moved=8 * count + bits.nbytes,
            )
        )
    return found


def _take(tracker: RowTracker) -> float:
    seconds = _processor(tracker.take)
    tracker.give_back()
    return seconds


def _flat(bits: npt.NDArray[np.uint8], rows: int) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(bits, count=rows, bitorder="little"))


GROUPS: dict[str, Callable[..., list[Figure]]] = {"share": share, "demo": demo, "memory": memory, "take": take}


def figures(repeat: int, *, quick: bool, groups: Sequence[str] = tuple(GROUPS)) -> list[Figure]:
    """All figures of these groups."""
    return [figure for name in groups for figure in GROUPS[name](repeat, quick=quick)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, comma-separated: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    arguments = parser.parse_args(argv)
    groups = [name.strip() for name in arguments.only.split(",")]
    if unknown := [name for name in groups if name not in GROUPS]:
        parser.error(f"no group is called {unknown[0]!r}; there are {', '.join(GROUPS)}")
    print(table_of(figures(arguments.repeat, quick=arguments.quick, groups=groups)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
