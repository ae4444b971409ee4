"""From the call to the first answer, next to files of PyTorch and safetensors; the first batch of a hydration.

    python -m tools.bench._serving_open [--dir DIR] [--gigabytes 4] [--repeat 2] [--quick]

The table is raw float32, 64 wide, made of trained rows. What is measured begins with a path and ends with a row of a
random id in memory of its own: by `cnrfmt.open`, and by `LiveTables`, which begin to decode everything behind it. Both
verify what they touch; peers verify nothing. Peers load the whole table, or map it: `safetensors.numpy.load_file`
copies, while that of `safetensors.torch` maps as `safe_open` does. *A batch* is 4096 rows, evenly spread, of
`Checkpoint.hydrate`, or of `CheckpointManager.restore(lazy=True)`, called within the time; of peers, the same rows of a
mapped file.

Everything is measured with the files in the page cache, and with their pages dropped before each call where the system
does that: it is looked whether they are gone, and said where they aren't. Names of files and folders stay known to the
kernel. Two files are there at a time: up to twice the table's size of disk, and three times of memory.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, say, settle_repeat, table_of, timed
from tools.bench._setting import clear, warm

_DIM = 64
_QUICK_GIGABYTES = 0.004
_BATCH = 4096
_SHORT = 5
"""So many rounds of what takes milliseconds for each round of a whole load."""
_COLD_LOADS = 2
_ATTEMPTS = 5
_SOONER, _NO_LATER, _FIRST_BATCH_S = 100.0, 1.0, 0.05
_OPEN, _RANDOM = "open + a row", "open(advise='random') + a row"
_LIVE = "LiveTables + a row"
_HYDRATE, _RESTORE = "open, hydrate, a batch", "CheckpointManager, restore(lazy=True), a batch"

Ids = Any
Work = Callable[[Path, ExitStack, Ids], Any]
"""Opens a file, to be closed with the stack, and gives the rows of the ids."""


def by_open(path: Path, stack: ExitStack, ids: Ids) -> Any:
    """Rows of a container."""
    return stack.enter_context(cnrfmt.open(path))["table"][ids]


def by_open_random(path: Path, stack: ExitStack, ids: Ids) -> Any:
    """Rows of a container, without what the kernel reads ahead around each page: megabytes, on some disks."""
    return stack.enter_context(cnrfmt.open(path, advise="random"))["table"][ids]


def by_live(path: Path, stack: ExitStack, ids: Ids) -> Any:
    """Rows of tables that are served."""
    return stack.enter_context(cnrfmt.LiveTables(path))["table"].lookup(ids)


def by_hydration(path: Path, stack: ExitStack, ids: Ids) -> Any:
    """Rows of live arrays."""
    checkpoint = stack.enter_context(cnrfmt.open(path))
    return stack.enter_context(checkpoint.hydrate())["table"].gather(ids)


def by_restore(path: Path, stack: ExitStack, ids: Ids) -> Any:
    """Rows of a trainer that goes on from a checkpoint, tracked before they are read."""
    manager = cnrfmt.CheckpointManager(path, flush_on_sigterm=False)
    # As a `with` block ends by an error, which doesn't wait for the other rows.
    stack.callback(manager.__exit__, KeyboardInterrupt, KeyboardInterrupt(), None)
    restored = manager.restore(lazy=True)
    assert restored is not None
    manager.track("table", ids)
    return restored.tables["table"].values[ids]


def by_torch(path: Path, _: ExitStack, ids: Ids) -> Any:
    """Rows of a mapped file of PyTorch."""
    import torch

    return torch.load(path, mmap=True, weights_only=True)["table"][torch.from_numpy(ids)].numpy()


def by_safetensors(path: Path, stack: ExitStack, ids: Ids) -> Any:
    """Rows of a mapped file of safetensors: one as a slice, which is read alone; of many the whole is mapped."""
    import torch
    from safetensors import safe_open

    file = stack.enter_context(safe_open(path, "pt"))
    if len(ids) == 1:
        return file.get_slice("table")[int(ids[0]) : int(ids[0]) + 1].numpy()
    return file.get_tensor("table")[torch.from_numpy(ids)].numpy()


def torch_whole(path: Path) -> Any:
    """Everything, into memory of its own."""
    import torch

    return torch.load(path, weights_only=True)


def safetensors_whole(path: Path) -> Any:
    """Everything, into memory of its own."""
    from safetensors.numpy import load_file

    return load_file(path)


_PEERS: dict[str, tuple[str, Work, str, Callable[[Path], Any]]] = {
    "pt": ("torch.load(mmap=True)", by_torch, "torch.load", torch_whole),
    "safetensors": ("safe_open", by_safetensors, "load_file", safetensors_whole),
}
"""By the end of the file's name: who maps it, how, who loads it whole, how."""


def write_peer(path: Path, values: Any) -> None:
    """The table in a file of the kind that its name says."""
    if path.suffix == ".pt":
        import torch

        torch.save({"table": torch.from_numpy(values)}, path)
    else:
        from safetensors.numpy import save_file

        save_file({"table": values}, path)


def is_cached(path: Path) -> bool | None:
    """Whether any page of a file is in the page cache; None where the system doesn't tell."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        held = np.zeros(-(-len(pages) // mmap.PAGESIZE), np.uint8)
        there = np.frombuffer(pages, np.uint8)
        try:
            # To read a page, even without waiting for it, may bring others in.
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(there.ctypes.data), ctypes.c_size_t(len(pages)), ctypes.c_void_p(held.ctypes.data)
            )
        except AttributeError:
            return None
        finally:
            del there
    return None if failed else bool((held & 1).any())


def drop(path: Path) -> bool:
    """Has the kernel forget the pages of a file that was synced; whether it did."""
    for attempt in range(_ATTEMPTS):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
        if is_cached(path) is False:
            return True
        # Pages that somebody has mapped stay, and those that are just being read ahead.
        if not attempt:
            gc.collect()
        time.sleep(0.01 * attempt)
    return False


class Openings:
    """Times from path to answer, of one kind of file."""

    def __init__(self, rows: int, *, dropped: bool) -> None:
        self._rows, self._dropped = rows, dropped
        self._random = np.random.default_rng([_data.SEED, int(dropped)])
        self.stayed = 0
        """Calls before which pages couldn't be dropped."""

    def answer(self, work: Work, path: Path, count: int) -> Callable[[int], float]:
        """Times of `count` rows."""

        def one(_: int) -> float:
            ids = self._random.integers(0, self._rows, count)
            self._prepare(path)
            with ExitStack() as stack:
                return timed(lambda: work(path, stack, ids))

        return one

    def whole(self, work: Callable[[Path], Any], path: Path) -> Callable[[int], float]:
        """Times of everything."""

        def one(_: int) -> float:
            self._prepare(path)
            return timed(lambda: work(path))

        return one

    def _prepare(self, path: Path) -> None:
        # `in_turn` collects once a round, and leaves the processor's caches cold for the first of each round alone.
        gc.collect()
        if self._dropped and not drop(path):
            self.stayed += 1


def figures_of(container: Path, peer: Path, rows: int, repeat: int, *, short: int, dropped: bool) -> list[Figure]:
    """All figures next to one kind of file; `short` rounds of what takes milliseconds."""
    mapped, map_rows, loaded, load = _PEERS[peer.suffix[1:]]
    state = "dropped" if dropped else "warm"
    say(f"open: next to {mapped}, page cache {state}")
    openings, batch = Openings(rows, dropped=dropped), min(_BATCH, rows)
    own = {
        _OPEN: openings.answer(by_open, container, 1),
        _RANDOM: openings.answer(by_open_random, container, 1),
        _LIVE: openings.answer(by_live, container, 1),
    }
    batches = {
        _HYDRATE: openings.answer(by_hydration, container, batch),
        _RESTORE: openings.answer(by_restore, container, batch),
        f"{mapped}, a batch": openings.answer(map_rows, peer, batch),
    }
    answers = own | batches | {mapped: openings.answer(map_rows, peer, 1)}
    in_turn(1, answers)
    times = in_turn(short, answers)
    loads = min(repeat, _COLD_LOADS) if dropped else repeat
    whole = own | {loaded: openings.whole(load, peer)}
    if not dropped:
        in_turn(1, {loaded: whole[loaded]})
    whole_times = in_turn(loads, whole)
    if openings.stayed:
        print(f"{openings.stayed} calls next to {mapped} found pages in the page cache that should have been dropped")
    shown: dict[str, Any] = {"group": state, "verify": "touched", "touch": "first", "cache": state}
    found = []
    for name in own:
        soon, sooner = Target("ratio", "<=", _NO_LATER), Target("ratio", ">=", _SOONER)
        found += [
            Figure(name=name, cnrfmt=times[name], peer_name=mapped, peer=times[mapped], target=soon, **shown),
            Figure(
                name=name,
                cnrfmt=whole_times[name],
                peer_name=f"{loaded}, whole",
                peer=whole_times[loaded],
                ratio_of="speed",
                target=sooner,
                **shown,
            ),
        ]
    found += [
        Figure(
            name=name,
            cnrfmt=times[name],
            peer_name=f"{mapped}, a batch",
            peer=times[f"{mapped}, a batch"],
            # From a disk so many single pages take as long as they take.
            target=None if dropped else Target("cnrfmt", "<=", _FIRST_BATCH_S),
            **shown,
        )
        for name in (_HYDRATE, _RESTORE)
    ]
    return found


def check(container: Path, peer: Path, rows: int) -> None:
    """That all give the same rows."""
    ids = np.random.default_rng(_data.SEED).integers(0, rows, 100)
    _, map_rows, _, load = _PEERS[peer.suffix[1:]]
    with ExitStack() as stack:
        first = by_open(container, stack, ids)
        own = (by_live, by_hydration, by_restore)
        others: list[tuple[Work, Path]] = [*((work, container) for work in own), (map_rows, peer)]
        for work, path in others:
            if not np.array_equal(work(path, stack, ids), first):
                raise SystemExit(f"{path}: not the rows that cnrfmt.open gives")
        if not np.array_equal(np.asarray(load(peer)["table"])[ids], first):
            raise SystemExit(f"{peer}: loaded whole, it has other rows")


def figures(folder: Path, gigabytes: float, repeat: int, short: int) -> list[Figure]:
    """All figures; `short` rounds of what takes milliseconds."""
    rows, container = int(gigabytes * 1e9) // (4 * _DIM), folder / "model.cnr"
    say("open: making the table")
    values: Any = _data.table(rows, _DIM)
    cnrfmt.save(container, {"table": values})
    found: list[Figure] = []
    for suffix in _PEERS:
        say(f"open: writing the file of {suffix}")
        peer = folder / f"peer.{suffix}"
        if values is None:
            values = cnrfmt.load(container)["table"]
        write_peer(peer, values)
        values = None
        for path in (container, peer):
            warm(path)
        check(container, peer, rows)
        found += figures_of(container, peer, rows, repeat, short=short, dropped=False)
        if drop(container) and drop(peer):
            found += figures_of(container, peer, rows, repeat, short=short, dropped=True)
        else:
            print("the pages of files can't be dropped here: all figures are with a warm page cache")
        clear(peer)
    clear(container)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where files go (a temporary directory)")
    parser.add_argument("--gigabytes", type=float, help="size of the table (4)")
    parser.add_argument("--repeat", type=int, help="rounds of whole loads, of others five times as many (2; quick 1)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    if given.repeat is None:
        given.repeat = 1 if given.quick else 2
    settle_repeat(parser, given)
    gigabytes = given.gigabytes or (_QUICK_GIGABYTES if given.quick else 4.0)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-open-", dir=given.dir) as folder:
        print(f"a table of {gigabytes:g} GB, raw float32, {_DIM} wide")
        short = given.repeat * (1 if given.quick else _SHORT)
        print(table_of(figures(Path(folder), gigabytes, given.repeat, short)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
