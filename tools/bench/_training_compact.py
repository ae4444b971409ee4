"""Compacting a chain against copying its bytes, restoring after many deltas, and merging increments by addition.

    python -m tools.bench._training_compact [--dir DIR] [--repeat 5] [--quick]

Rates of both compaction and copy are of bytes read and written, read from the disk and flushed to it. Deltas touch
rows as traffic does: each 2 % of the rows, with Zipf-skewed ids. Restores are compared with one of the baseline alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt.checkpointing.compacting.compaction import compact, due_in, merge
from tools.bench import _training_add
from tools.bench._data import table, touched_rows
from tools.bench._figures import Figure, Target, in_turn, say, table_of, timed
from tools.bench._setting import Setting, clear, warm

_ROWS, _QUICK_ROWS, _DIM = 5_600_000, 5_600, 64
"""At 8 bits, a row takes 72 bytes: 403 MB."""
_TOUCHED = 50
"""A delta touches one row in so many."""
_DELTAS = (1, 10, 50)
_COMPACTED = 10
_MOST = 8
_SHARE = 0.125
"""Where it is asked for, deltas don't have more of the baseline's bytes than this."""
_MERGING: dict[str, tuple[int, float | None] | None] = {
    "all in the chain": None,
    f"merged to fewer than {_MOST} segments": (_MOST, None),
    f"and to at most {_SHARE:.3g} of the baseline": (_MOST, _SHARE),
}
_BLOCK = 16 << 20


def figures(setting: Setting) -> list[Figure]:
    """Compaction with cold and warm files, loads after 1, 10 and 50 deltas with and without merging, and addition."""
    chains = Chains(setting)
    found = [compaction(setting, chains.of[next(iter(_MERGING))][_COMPACTED], cache) for cache in ("cold", "warm")]
    return found + restores(setting, chains) + _training_add.figures(setting)


class Chains:
    """A baseline, and chains of so many deltas behind it, left as they are or merged whenever that is due."""

    def __init__(self, setting: Setting) -> None:
        say("compact: saving a baseline and appending deltas")
        self.values = table(_QUICK_ROWS if setting.quick else _ROWS, _DIM)
        self.baseline = setting.folder / "baseline"
        self.of: dict[str, dict[int, Path]] = {name: {} for name in _MERGING}
        rows = len(self.values)
        touched = [touched_rows(rows, rows // _TOUCHED, number) for number in range(1, max(_DELTAS) + 1)]
        cnrfmt.save(self.baseline, {"user": self.values}, quantize=cnrfmt.Quantize(bits=8))
        for place, (name, limits) in enumerate(_MERGING.items()):
            path = setting.folder / "chain"
            shutil.copytree(self.baseline, path)
            written = 0
            for number, ids in enumerate(touched, 1):
                # The rows get the values of others.
                cnrfmt.append(path, {"user": cnrfmt.Rows(ids, self.values[ids - number])})
                written += _merge(path, limits)
                if number in _DELTAS:
                    self.of[name][number] = setting.folder / f"{place}-{number}"
                    compacted_copy(path, self.of[name][number])
            say(f"compact: {max(_DELTAS)} deltas, {name}: merges wrote {written / 1e6:.0f} MB")
            shutil.rmtree(path)


def _merge(path: Path, limits: tuple[int, float | None] | None) -> int:
    """Merges what is due; returns the bytes that were written."""
    with cnrfmt.open(path) as ck:
        head = ck.manifest
    found = None if limits is None else due_in(head, *limits)
    return 0 if found is None else merge(path, *found, expect=head).chain[found[0]].length


def compacted_copy(path: Path, target: Path) -> None:
    """A copy of a directory with the newest version and its segments alone."""
    with cnrfmt.open(path) as ck:
        names = {f"{entry.segment.hex()}.cnrs" for entry in ck.manifest.chain} | {f"{ck.version:020}.cnrm"}

    def others(folder: str, found: list[str]) -> list[str]:
        return [name for name in found if name not in names and os.path.isfile(os.path.join(folder, name))]

    shutil.copytree(path, target, ignore=others)


def compaction(setting: Setting, source: Path, cache: str) -> Figure:
    """Bytes read and written a second, by compaction into another directory and by copies of the segments."""
    say(f"compact: {_COMPACTED} deltas, files {cache}")
    target, copies = setting.folder / "compacted", setting.folder / "copied"
    files = sorted((source / "segments").iterdir())
    sizes: dict[str, int] = {}

    def prepare() -> None:
        clear(target, copies)
        for file in files:
            warm(file)
            if cache == "cold":
                evict(file)

    def ours(_: int) -> float:
        prepare()
        seconds = timed(lambda: compact(source, target))
        sizes["written"] = sum(file.stat().st_size for file in (target / "segments").iterdir())
        return seconds / (total(files) + sizes["written"]) * 1e9

    def theirs(_: int) -> float:
        prepare()
        copies.mkdir()

        def every() -> None:
            for file in files:
                copy(file, copies / file.name)

        return timed(every) / (2 * total(files)) * 1e9

    in_turn(1, {"cnrfmt": ours})
    times = in_turn(setting.repeat, {"cnrfmt": ours, "copy": theirs})
    clear(target, copies)
    return Figure(
        group="compact",
        name=f"seconds per GB read and written, {_COMPACTED} deltas of 2 %, {cache} files",
        cnrfmt=times["cnrfmt"],
        peer_name="copy",
        peer=times["copy"],
        ratio_of="speed",
        target=Target("ratio", ">=", 0.7),
        verify="touched",
        cache=cache,
        bytes_moved=10**9,
    )


def total(files: Sequence[Path]) -> int:
    """Bytes of some files."""
    return sum(file.stat().st_size for file in files)


def evict(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(source: Path, target: Path) -> None:
    """Reads and writes a file in large blocks, and waits until the copy is on the disk."""
    buffer = memoryview(bytearray(_BLOCK))
    with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as write:
        while count := read.readinto(buffer):
            write.write(buffer[:count])
        os.fsync(write.fileno())


def restores(setting: Setting, chains: Chains) -> list[Figure]:
    """Whole loads after so many deltas, next to loads of the baseline alone, from the page cache.

    They go into new memory, whose first touch costs more than decoding does, and into an array that is there.
    """
    say("compact: loads after deltas")
    paths: dict[str, Path] = {"baseline": chains.baseline}
    for number in _DELTAS:
        for name, found_for in chains.of.items():
            paths[f"{number} deltas, {name}"] = found_for[number]
    for path in paths.values():
        for file in (path / "segments").iterdir():
            warm(file)
    found = []
    for memory, out in (("new memory", None), ("an array", {"user": np.zeros_like(chains.values)})):
        contenders = {name: _loading(path, out) for name, path in paths.items()}
        in_turn(1, contenders)
        times = in_turn(setting.repeat, contenders)
        for name, path in list(paths.items())[1:]:
            with cnrfmt.open(path) as ck:
                length = len(ck.manifest.chain)
            found.append(
                Figure(
                    group="restore",
                    name=f"{name} ({length} segments), into {memory}",
                    cnrfmt=times[name],
                    peer_name="baseline",
                    peer=times["baseline"],
                    target=Target("ratio", "<=", 1.25),
                    verify="touched",
                    touch="first" if out is None else "again",
                    cache="warm",
                    bytes_moved=chains.values.nbytes,
                )
            )
    return found


def _loading(path: Path, out: dict[str, Any] | None) -> Callable[[int], float]:
    return lambda _: timed(lambda: cnrfmt.load(path, out=out))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="measure on the file system of this folder; up to 6 GB are used")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny table: tries the benchmark, measures nothing")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-bench-", dir=arguments.dir) as folder:
        print(table_of(figures(Setting(Path(folder), arguments.quick, arguments.repeat))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
