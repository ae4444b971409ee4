"""How long a trainer waits for a snapshot, next to copying its tables, and to PyTorch's checkpoints.

    python -m tools.bench._training_stall [--dir DIR] [--dim 16,64,128] [--share 0.01,0.1,0.26,1] [--case 8,4,4a,2,2a]
        [--repeat 5] [--memory-only] [--quick]

The table is 512 MiB of float32, made of trained rows. Rows were touched by Zipf ids, which lie anywhere in it. The
stall is from the first line of a save to where the table may change again: planning, picking and encoding. Meanwhile
a thread writes and commits the version into a container of its own, a directory; the next round begins when that is
done. Each round copies the whole table into fresh memory just before, and the ratio is taken round by round. `a` is
the adaptive method as it is chosen by expected restores; `copy` only copies the rows that changed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cnrfmt
from cnrfmt import Quantize, Rows
from cnrfmt.checkpointing.bits import quantize_for
from cnrfmt.checkpointing.snapshot import Mode, Picked, Snapshot
from cnrfmt.commits import attempt
from cnrfmt.format.manifest import Manifest
from cnrfmt.parallel import thread_count
from cnrfmt.plan import plan_delta
from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, say, table_of, timed
from tools.bench._probe import Peak, status_bytes
from tools.bench._setting import clear

Ids = npt.NDArray[np.int64]

DIMS = (16, 64, 128)
SHARES = (0.01, 0.1, 0.26, 1.0)
_BYTES, _QUICK_BYTES = 512 << 20, 1 << 20
_WARM = 6
"""So many times the table's size is asked for beforehand: a virtual machine's memory is slow when it is first used."""
_LIMIT = 4 << 30
_EXTRA = 1.2
_TARGETS = {(64, 0.26, "8"): 0.4, (128, 0.26, "8"): 0.4, (64, 0.1, "4"): 0.2, (128, 0.1, "4"): 0.2}
_TARGETS |= {(dim, 0.1, "4a"): 0.2 for dim in (64, 128)}


@dataclass(frozen=True)
class Case:
    """How rows are encoded, and when."""

    quantize: Quantize
    mode: Mode = "encode"


CASES = {
    "8": Case(Quantize(8)),
    "4": Case(Quantize(4)),
    "4a": Case(quantize_for(4)),
    "2": Case(Quantize(2)),
    "2a": Case(quantize_for(2)),
    "copy": Case(quantize_for(4), "copy"),
}


def touched(rows: int, share: float) -> Ids:
    """Which rows a Zipf trace has touched when it comes to this share of them: sorted, and scattered over the table.

    Rows are drawn by weight without repeats (Efraimidis and Spirakis 2006).
    """
    if share >= 1:
        return np.arange(rows, dtype=np.int64)
    random = np.random.default_rng([_data.SEED, rows])
    weights = 1 / (1 + random.permutation(rows))
    keys = random.standard_exponential(rows) / weights
    return np.sort(np.argpartition(keys, int(rows * share))[: int(rows * share)]).astype(np.int64)


class Saves:
    """Saves of one table in one way, each into a container of its own."""

    def __init__(self, path: Path, table: Any, ids: Ids, case: Case) -> None:
        self._path, self._table, self._ids, self._case = path, table, ids, case
        self.seconds: list[float] = []
        """Until the version was durable, save by save."""
        self.encoded_bytes = self.extra_bytes = self._full = 0

    def stall(self, _: int = 0, *, watched: bool = False) -> float:
        """Seconds until the table may change again. `watched` measures memory, which takes time of its own."""
        clear(self._path)
        empty = np.empty((0, self._table.shape[1]), np.float32)
        cnrfmt.save(self._path, {"table": empty}, quantize=self._case.quantize)
        with cnrfmt.open(self._path) as ck:
            head = ck.manifest
        peak = Peak()
        watch: AbstractContextManager[Any] = peak if watched else nullcontext()
        # What earlier saves left to the allocator is memory that this one would not seem to take.
        ctypes.CDLL(None).malloc_trim(0)
        before = status_bytes("RssAnon")
        with watch:
            begin = time.perf_counter()
            rows = Rows(self._ids, Picked(self._table, self._ids), rows=len(self._table))
            plan = plan_delta({"table": rows}, head.tables, self._case.quantize, _unknown)
            threads = thread_count(None)
            snapshot = Snapshot(plan.writes, threads=threads, limit_bytes=_LIMIT, mode=self._case.mode)
            snapshot.start()
            writer = threading.Thread(target=self._write, args=(snapshot, plan.tables, head))
            writer.start()
            snapshot.wait()
            found = time.perf_counter() - begin
            writer.join()
            self.seconds.append(time.perf_counter() - begin)
        with cnrfmt.open(self._path) as ck:
            if ck.version != head.version + 1:
                raise SystemExit("the version wasn't committed")
        self.encoded_bytes = snapshot.encoded_bytes
        if watched:
            self.extra_bytes = max(peak.extra, self._full - before)
        return found

    def _write(self, snapshot: Snapshot, tables: Any, head: Manifest) -> None:
        snapshot.ready()
        # Nothing is written yet, and all is encoded: there is never more.
        self._full = status_bytes("RssAnon")
        with attempt(os.fspath(self._path)) as one:
            manifest = one.next(one.head, tables=tables)
            one.commit(one.write(manifest, snapshot.writes, None, threads=1))


def _unknown(*_: Any) -> Any:
    raise SystemExit("every column's encoding is chosen")


def peers(folder: Path, table: Any) -> dict[str, Callable[[int], float]]:
    """What else one may do with a table, each until the table may change again."""
    import torch
    import torch.distributed.checkpoint.state_dict_saver as dcp

    tensor = torch.from_numpy(table)

    def asynchronous(_: int) -> float:
        clear(folder / "dcp")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begin = time.perf_counter()
            written: Any = dcp.async_save({"table": tensor}, checkpoint_id=folder / "dcp")
            found = time.perf_counter() - begin
            written.result()
        clear(folder / "dcp")
        return found

    def to_disk(_: int) -> float:
        clear(folder / "table.pt")
        found = timed(lambda: torch.save({"table": tensor}, folder / "table.pt"))
        clear(folder / "table.pt")
        return found

    return {"async_save": asynchronous, "torch.save": to_disk}


def of_width(
    folder: Path,
    dim: int,
    shares: Sequence[float],
    cases: Sequence[str],
    repeat: int,
    *,
    quick: bool = False,
    memory_only: bool = False,
) -> list[Figure]:
    """All figures of tables of this width."""
    say(f"stall: rows of {dim}")
    nbytes = _QUICK_BYTES if quick else _BYTES
    table = _data.table(nbytes // (4 * dim), dim)
    np.ones(_WARM * nbytes, np.uint8)
    found = []
    for share in shares:
        ids = touched(len(table), share)
        for name in cases:
            saves = Saves(folder / "run", table, ids, CASES[name])
            saves.stall()
            say(f"stall: rows of {dim}, {share:.0%} of them, {name}")
            target = _TARGETS.get((dim, share, name))
            if not memory_only:
                saves.seconds.clear()
                times = in_turn(repeat, {"copy": lambda _: timed(table.copy), "own": saves.stall})
                found.append(
                    Figure(
                        group="stall",
                        name=f"dim {dim}, {share:.0%} of the rows, {name}, durable after {_median(saves.seconds)} ms",
                        cnrfmt=times["own"],
                        peer_name="copy of the table",
                        peer=times["copy"],
                        target=None if target is None else Target("ratio", "<=", target),
                        bytes_moved=4 * dim * len(ids),
                    )
                )
            saves.stall(watched=True)
            found.append(
                Figure(
                    group="memory",
                    name=f"dim {dim}, {share:.0%} of the rows, {name}",
                    unit="bytes",
                    cnrfmt=[float(saves.extra_bytes)],
                    peer_name="encoded",
                    peer=[float(saves.encoded_bytes)],
                    target=Target("ratio", "<=", _EXTRA) if CASES[name].mode == "encode" else None,
                )
            )
    if not memory_only:
        found += _peers(folder, table, dim, repeat)
    clear(folder / "run")
    return found


def _peers(folder: Path, table: Any, dim: int, repeat: int) -> list[Figure]:
    """PyTorch's ways, and a save of a quarter of the rows in 8 bits, in turn."""
    say(f"stall: rows of {dim}, PyTorch's checkpoints")
    saves = Saves(folder / "run", table, touched(len(table), 0.26), CASES["8"])
    others = peers(folder, table)
    for work in others.values():
        work(0)
    times = in_turn(repeat, {"own": saves.stall, **others})
    return [
        Figure(
            group="stall",
            name=f"dim {dim}, 26% of the rows, 8",
            cnrfmt=times["own"],
            peer_name=f"{name} of the table",
            peer=times[name],
        )
        for name in others
    ]


def _median(seconds: Sequence[float]) -> str:
    return f"{1e3 * float(np.median(seconds)):.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where containers go (a temporary directory)")
    parser.add_argument("--dim", default=",".join(map(str, DIMS)), help="widths: %(default)s")
    parser.add_argument("--share", default=",".join(map(str, SHARES)), help="shares of the rows: %(default)s")
    parser.add_argument("--case", default=",".join(CASES), help="bits and methods: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--memory-only", action="store_true", help="leave times out")
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    cases = [name.strip() for name in given.case.split(",")]
    if unknown := [name for name in cases if name not in CASES]:
        parser.error(f"no case is called {unknown[0]!r}; there are {', '.join(CASES)}")
    found = []
    print(f"load average before: {os.getloadavg()[0]:.2f}, processors: {thread_count(None)}")
    with tempfile.TemporaryDirectory(prefix="cnrfmt-stall-", dir=given.dir) as folder:
        for dim in map(int, given.dim.split(",")):
            shares = [float(share) for share in given.share.split(",")]
            found += of_width(
                Path(folder), dim, shares, cases, given.repeat, quick=given.quick, memory_only=given.memory_only
            )
    print(table_of(found))
    print(f"load average after: {os.getloadavg()[0]:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
