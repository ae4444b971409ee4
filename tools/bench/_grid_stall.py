"""How long a trainer waits for a save on the grid, next to a save in 4 bits per row, and to a copy of its tables.

    python -m tools.bench._grid_stall [--dir DIR] [--dim 16,64,128] [--share 0.01,0.1,0.26,1] [--repeat 5]
        [--memory-only] [--quick]

The table is 1 GiB of float32, made of trained rows, with an accumulator for each; Zipf ids touch some of them, and
steps of Adagrad move these before each round. Two managers save the same rows: one on the grid, in steps that follow
from accumulators, which keeps what is stored in memory; one in 4 bits per row, plain asymmetric. The stall is that of
`CheckpointManager.save`, with what was marked before it; the next save begins when all that goes on behind it is done.
Memory is the peak from there to there, beyond what the manager keeps between checkpoints; that is shown beside it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from cnrfmt import CheckpointManager, Quantize
from cnrfmt.arrays import Ids
from tools.bench._figures import Figure, Target, in_turn, say, settle_repeat, table_of, timed
from tools.bench._grid_data import Training
from tools.bench._probe import Peak, status_bytes, trim
from tools.bench._setting import clear
from tools.bench._training_stall import DIMS, SHARES, touched

_BYTES, _QUICK_BYTES = 1 << 30, 1 << 20
_WARM = 3
"""So many times the table's size is asked for beforehand: a virtual machine's memory is slow when it is first used."""
_MOST = 1.5
_SEGMENTS = 1000


class Saves:
    """Saves of a table in one way, each with the rows that changed since the one before."""

    def __init__(self, path: Path, training: Training, **settings: Any) -> None:
        self._training = training
        trim()
        before = status_bytes("RssAnon")
        self._manager = CheckpointManager(
            path, policy="consecutive", merge_share=None, most_segments=_SEGMENTS, flush_on_sigterm=False, **settings
        )
        self._step = 0
        self.extra_bytes = 0
        self.seconds: list[float] = []
        """Until the version was durable, save by save."""
        self._manager.save(0, training.tables)
        self._manager.wait()
        trim()
        self.kept_bytes = max(0, status_bytes("RssAnon") - before)

    def stall(self, ids: Ids, *, watched: bool = False) -> float:
        """Seconds until the table may change again. `watched` measures memory, which takes time of its own."""
        self._step += 1
        self._manager.track("table", ids)
        peak = Peak()
        watch: AbstractContextManager[Any] = peak if watched else nullcontext()
        # What earlier saves left to the allocator is memory that this one would not seem to take.
        trim()
        with watch:
            begin = time.perf_counter()
            pending = self._manager.save(self._step, self._training.tables)
            found = time.perf_counter() - begin
            pending.wait()
            self.seconds.append(time.perf_counter() - begin)
            self._manager.wait()
        if watched:
            self.extra_bytes = peak.extra
        return found

    def close(self) -> None:
        """Ends the run."""
        self._manager.close()


def of_width(
    folder: Path,
    dim: int,
    shares: Sequence[float],
    repeat: int,
    *,
    quick: bool = False,
    memory_only: bool = False,
) -> list[Figure]:
    """All figures of tables of this width."""
    say(f"stall: rows of {dim}")
    nbytes = _QUICK_BYTES if quick else _BYTES
    training = Training(nbytes // (4 * dim), dim)
    np.ones(_WARM * nbytes, np.uint8)
    grid = Saves(folder / "grid", training, encoding=training.grid)
    rowwise = Saves(folder / "rowwise", training, quantize=Quantize(4))
    found = [
        Figure(
            group="memory",
            name=f"dim {dim}, kept between checkpoints, grid",
            unit="bytes",
            cnrfmt=[float(grid.kept_bytes)],
            peer_name="table",
            peer=[float(training.nbytes)],
        )
    ]
    for share in shares:
        say(f"stall: rows of {dim}, {share:.0%} of them")
        name, ids = f"dim {dim}, {share:.0%} of the rows, grid", touched(len(training.values), share)
        # The first round isn't counted.
        if not memory_only:
            found += _stalls(name, training, ids, grid, rowwise, repeat + 1)
        found.append(_memory(name, training, ids, grid, rowwise))
    for saves in (grid, rowwise):
        saves.close()
    clear(folder / "grid", folder / "rowwise")
    return found


def _stalls(name: str, training: Training, ids: Ids, grid: Saves, rowwise: Saves, rounds: int) -> list[Figure]:
    def copy(_: int) -> float:
        training.visit(ids)
        return timed(lambda: [training.values.copy(), training.accumulator.copy()])

    for saves in (grid, rowwise):
        saves.seconds.clear()
    contenders = {"copy": copy, "grid": lambda _: grid.stall(ids), "rowwise": lambda _: rowwise.stall(ids)}
    times = {name: found[1:] for name, found in in_turn(rounds, contenders).items()}
    durable = [1e3 * float(np.median(saves.seconds[1:])) for saves in (grid, rowwise)]
    moved = (training.values[0].nbytes + 4) * len(ids)
    return [
        Figure(
            group="stall",
            name=f"{name}, durable after {durable[0]:.0f} ms",
            cnrfmt=times["grid"],
            peer_name=f"4 bits per row, durable after {durable[1]:.0f} ms",
            peer=times["rowwise"],
            target=Target("ratio", "<=", _MOST),
            bytes_moved=moved,
        ),
        Figure(
            group="stall",
            name=name,
            cnrfmt=times["grid"],
            peer_name="copy of the table",
            peer=times["copy"],
            bytes_moved=moved,
        ),
    ]


def _memory(name: str, training: Training, ids: Ids, grid: Saves, rowwise: Saves) -> Figure:
    training.visit(ids)
    for saves in (grid, rowwise):
        saves.stall(ids, watched=True)
    return Figure(
        group="memory",
        name=name,
        unit="bytes",
        cnrfmt=[float(grid.extra_bytes)],
        peer_name="4 bits per row",
        # On a small table nothing is seen of it.
        peer=[float(max(1, rowwise.extra_bytes))],
        target=Target("ratio", "<=", _MOST),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where containers go (a temporary directory)")
    parser.add_argument("--dim", default=",".join(map(str, DIMS)), help="widths: %(default)s")
    parser.add_argument("--share", default=",".join(map(str, SHARES)), help="shares of the rows: %(default)s")
    parser.add_argument("--repeat", type=int, help="rounds (5; with --quick 2)")
    parser.add_argument("--memory-only", action="store_true", help="leave times out")
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    settle_repeat(parser, given)
    shares = [float(share) for share in given.share.split(",")]
    found = []
    with tempfile.TemporaryDirectory(prefix="cnrfmt-stall-", dir=given.dir) as folder:
        # What kernels take when they are first used is no memory of a save.
        of_width(Path(folder), 16, (0.1,), 1, quick=True, memory_only=True)
        for dim in map(int, given.dim.split(",")):
            found += of_width(
                Path(folder), dim, shares, given.repeat, quick=given.quick, memory_only=given.memory_only
            )
    print(table_of(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
