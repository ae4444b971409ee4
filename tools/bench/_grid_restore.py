"""Restoring a chain on the grid against restoring its compacted baseline, and against loading float32 from a file.

    python -m tools.bench._grid_restore [--dir DIR] [--dim 16,64,128] [--repeat 5] [--quick]

The table is 1 GiB of float32, made of trained rows, with an accumulator for each. 12 increments follow a baseline, each
of the 27 % of the rows that Zipf ids touch, moved by steps of Adagrad. One manager merges them as it does by default,
one never. All files are in the page cache. Loads go into new memory, whose first touch costs more than decoding does,
or into an array that is there. What the three chains read as is compared, bit for bit; and a manager's `restore` is
shown, which also takes in what it needs for the next checkpoint. Memory is the peak of a load into an array.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import CheckpointManager, TableData
from cnrfmt.checkpointing.compacting.compaction import compact
from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, say, settle_repeat, table_of, timed
from tools.bench._grid_data import TOUCHED, Training
from tools.bench._probe import Peak, trim
from tools.bench._setting import clear, warm
from tools.bench._training_stall import DIMS

_BYTES, _QUICK_BYTES = 1 << 30, 1 << 20
_INCREMENTS = 12
_MOST = 1.5
_COMPACTED = "compacted"
_CHAINS: dict[str, dict[str, Any]] = {
    "merged by default": {},
    "never merged": {"merge_share": None},
}
_COLUMN = "accumulator"

Load = Callable[[], Any]


def train(folder: Path, training: Training) -> dict[str, Path]:
    """The chains of the same run, and the never merged one compacted, by their names."""
    paths = {name: folder / name.replace(" ", "-") for name in _CHAINS}
    managers = [
        CheckpointManager(
            paths[name],
            policy="consecutive",
            encoding=training.grid,
            keep=1,
            grace=0,
            flush_on_sigterm=False,
            **settings,
        )
        for name, settings in _CHAINS.items()
    ]
    rows = len(training.values)
    for number in range(_INCREMENTS + 1):
        say(f"restore: checkpoint {number} of {_INCREMENTS}")
        if number:
            ids = _data.touched_rows(rows, int(TOUCHED * rows), number)
            training.visit(ids)
        for manager in managers:
            if number:
                manager.track("table", ids)
            manager.save(number, training.tables)
            manager.wait()
    for manager in managers:
        manager.close()
    paths[_COMPACTED] = folder / _COMPACTED
    compact(paths["never merged"], paths[_COMPACTED])
    return paths


def check(paths: dict[str, Path], training: Training) -> None:
    """That all chains read alike, and nearly as what was trained."""
    found = [_load(path)["table"] for path in paths.values()]
    for one in found[1:]:
        same = np.array_equal(one.values, found[0].values)
        if not same or not np.array_equal(one.columns[_COLUMN], found[0].columns[_COLUMN]):
            raise SystemExit("the chains of one run don't read alike")
    # No row is ever stored in steps of more than 16 times what one of median activity is.
    if float(np.abs(found[0].values - training.values).max()) > 16 * training.rate:
        raise SystemExit("what was restored isn't what was trained")


def float32_files(folder: Path, training: Training) -> dict[str, Load]:
    """The same tables in plain files: how each is loaded, by the name of who loads it."""
    import torch
    from safetensors.numpy import load_file, save_file

    arrays = {"weight": training.values, _COLUMN: training.accumulator}
    for name, array in arrays.items():
        array.tofile(folder / f"{name}.f32")
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / "tables.pt")
    save_file(arrays, folder / "tables.safetensors")
    files = [folder / f"{name}.f32" for name in arrays]
    for file in (*files, folder / "tables.pt", folder / "tables.safetensors"):
        warm(file)
    return {
        "numpy.fromfile": lambda: [np.fromfile(file, np.float32) for file in files],
        "torch.load": lambda: torch.load(folder / "tables.pt", weights_only=True),
        "safetensors": lambda: load_file(folder / "tables.safetensors"),
    }


def of_width(folder: Path, dim: int, repeat: int, *, quick: bool = False) -> list[Figure]:
    """All figures of tables of this width."""
    say(f"restore: rows of {dim}")
    training = Training((_QUICK_BYTES if quick else _BYTES) // (4 * dim), dim)
    paths = train(folder, training)
    check(paths, training)
    shown, nbytes = {}, training.nbytes
    for name, path in paths.items():
        segments = sorted((path / "segments").iterdir())
        for file in segments:
            warm(file)
        stored = sum(file.stat().st_size for file in segments)
        shown[name] = f"{name} ({len(segments)} segments of {nbytes / stored:.3g} times fewer bytes)"
    peers = float32_files(folder, training)
    say(f"restore: rows of {dim}, loads")
    found = _loads(dim, paths, shown, peers, repeat, nbytes)
    found += _into(dim, paths, shown, training, repeat)
    for name in _CHAINS:
        # One after the other, since what one takes would be the other's.
        own, peer = (_extra(paths[one], training) for one in (name, _COMPACTED))
        found.append(
            Figure(
                group="memory",
                name=f"dim {dim}, {shown[name]}",
                unit="bytes",
                cnrfmt=[own],
                peer_name=_COMPACTED,
                peer=[max(1.0, peer)],
            )
        )
    clear(*paths.values(), *(folder / name for name in ("weight.f32", f"{_COLUMN}.f32", "tables.")))
    return found


def _loads(
    dim: int, paths: dict[str, Path], shown: dict[str, str], peers: dict[str, Load], repeat: int, nbytes: int
) -> list[Figure]:
    """Loads into new memory."""
    contenders: dict[str, Load] = {name: partial(_load, path) for name, path in paths.items()}
    contenders |= peers
    times = _raced(contenders, repeat)
    memory: dict[str, Any] = {"verify": "touched", "touch": "first", "cache": "warm", "bytes_moved": nbytes}
    found = []
    for name in (*_CHAINS, _COMPACTED):
        against = [] if name == _COMPACTED else [_COMPACTED]
        for peer in (*against, *peers):
            target = Target("ratio", "<=", _MOST) if peer == _COMPACTED else None
            label = f"dim {dim}, {shown[name]}, into new memory"
            found.append(
                Figure("restore", label, times[name], peer_name=peer, peer=times[peer], target=target, **memory)
            )
    return found


def _into(
    dim: int, paths: dict[str, Path], shown: dict[str, str], training: Training, repeat: int
) -> list[Figure]:
    """Loads into an array, and restores by a manager into the same."""
    out = _like(training)

    def restored(path: Path) -> Any:
        with CheckpointManager(path, encoding=training.grid, flush_on_sigterm=False) as manager:
            return manager.restore(into=out)

    memory: dict[str, Any] = {"verify": "touched", "touch": "again", "cache": "warm", "bytes_moved": training.nbytes}
    ways: dict[str, Callable[[Path], Any]] = {
        "into an array": lambda path: _load(path, out),
        "by a manager": restored,
    }
    found = []
    for way, work in ways.items():
        times = _raced({name: partial(work, path) for name, path in paths.items()}, repeat)
        for name in _CHAINS:
            label = f"dim {dim}, {shown[name]}, {way}"
            target = Target("ratio", "<=", _MOST)
            peer = times[_COMPACTED]
            found.append(
                Figure("restore", label, times[name], peer_name=_COMPACTED, peer=peer, target=target, **memory)
            )
    return found


def _load(path: Path, into: dict[str, TableData] | None = None) -> Any:
    """Everything, into new memory, or weights, which are nearly all, into an array that is there."""
    out = None if into is None else {name: data.values for name, data in into.items()}
    return cnrfmt.load(path, columns=True, out=out)


def _like(training: Training) -> dict[str, TableData]:
    """Memory for the table that was used once."""
    values, accumulator = np.ones_like(training.values), np.ones_like(training.accumulator)
    return {"table": TableData(values, {_COLUMN: accumulator})}


def _extra(path: Path, training: Training) -> float:
    out = _like(training)
    trim()
    with Peak() as peak:
        _load(path, out)
    return float(peak.extra)


def _raced(contenders: dict[str, Load], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turn, without the first round."""
    found = in_turn(rounds + 1, {name: partial(_seconds, load) for name, load in contenders.items()})
    return {name: times[1:] for name, times in found.items()}


def _seconds(load: Load, _: int) -> float:
    return timed(load)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="measure on the file system of this folder; up to 6 GB are used")
    parser.add_argument("--dim", default=",".join(map(str, DIMS)), help="widths: %(default)s")
    parser.add_argument("--repeat", type=int, help="rounds (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="small tables: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    settle_repeat(parser, given)
    found = []
    with tempfile.TemporaryDirectory(prefix="cnrfmt-restore-", dir=given.dir) as folder:
        for dim in map(int, given.dim.split(",")):
            found += of_width(Path(folder), dim, given.repeat, quick=given.quick)
    print(table_of(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
