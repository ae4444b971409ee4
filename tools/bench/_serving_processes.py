"""Memory of many reader processes of one container, next to that of one.

    python -m tools.bench._serving_processes [--dir DIR] [--gigabytes 1] [--readers 8] [--repeat 1] [--quick]

The table is 64 wide, made of trained rows, raw and in 4 bits per row, in a directory with a delta of a tenth of the
rows. Each process opens the container, reads all rows by their ids, in random order, verified, and waits until all
have; then each looks up in /proc/self/smaps the proportional set size of what it has mapped of the container's files: a
page that eight processes share counts an eighth for each. (Ranges of rows are read past the map, so it is ids.) Their
anonymous memory, which nobody shares, is shown beside it: how much more of it there is than before the container was
opened.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tools.bench import _data
from tools.bench._figures import Figure, Target, say, settle_repeat, table_of
from tools.bench._probe import status_bytes, trim
from tools.bench._setting import ENCODINGS, clear

_DIM = 64
_QUICK_GIGABYTES = 0.004
_MOST = 1.1
_AT_ONCE = 1 << 16
_PATIENCE_S = 120.0


def mapped_bytes(smaps: Iterable[str], container: Path) -> int:
    """Proportional set size of all mappings of a container's files, of the lines of /proc/PID/smaps."""
    found, inside = 0, False
    for line in smaps:
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            # The head of a mapping: addresses, rights, offset, device, inode, and a path if it has one.
            inside = len(words) == 6 and Path(words[5].rstrip("\n")).is_relative_to(container)
        elif inside and words[0] == "Pss:":
            found += int(words[1]) << 10
    return found


def read_all(path: str, rows: int, all_have: Any, found: Any) -> None:
    """Reads all rows, waits until all processes have, and puts what it takes: mapped, and of its own."""
    cnrfmt.load(f"{path}.small")  # What kernels take is taken before.
    trim()
    before = status_bytes("RssAnon")
    with cnrfmt.open(path) as ck:
        table = ck["table"]
        ids = np.random.default_rng(0).permutation(rows)
        for start in range(0, rows, _AT_ONCE):
            table.read(ids[start : start + _AT_ONCE])
        del ids
        trim()
        own = max(0, status_bytes("RssAnon") - before)
        all_have.wait(_PATIENCE_S)
        with open("/proc/self/smaps") as file:
            mapped = mapped_bytes(file, Path(path))
        # Who ends takes no share any more.
        all_have.wait(_PATIENCE_S)
    found.put((mapped, own))


def run(path: Path, rows: int, readers: int) -> tuple[int, int]:
    """Bytes that so many processes have mapped, and have of their own, summed up."""
    context = multiprocessing.get_context("spawn")
    all_have, found = context.Barrier(readers), context.Queue()
    processes = [context.Process(target=read_all, args=(str(path), rows, all_have, found)) for _ in range(readers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"a reader ended with {[process.exitcode for process in processes]}")
    each = [found.get() for _ in processes]
    return sum(mapped for mapped, _ in each), sum(own for _, own in each)


def figures(folder: Path, encodings: Sequence[str], gigabytes: float, readers: int, repeat: int) -> list[Figure]:
    """All figures."""
    path, rows = (folder / "model").resolve(), int(gigabytes * 1e9) // (4 * _DIM)
    say("processes: making the table")
    values = _data.table(rows, _DIM)
    ids = _data.touched_rows(rows, rows // 10, 1)
    found = []
    for encoding in encodings:
        say(f"processes: {encoding}")
        small = path.with_name(f"{path.name}.small")
        for place, count in ((path, rows), (small, 1000)):
            cnrfmt.save(place, {"table": values[:count]}, quantize=ENCODINGS[encoding])
            some = ids[ids < count]
            cnrfmt.append(place, {"table": cnrfmt.Rows(some, values[some] + 1)})
        one, many = ([run(path, rows, count) for _ in range(repeat)] for count in (1, readers))
        shown: dict[str, Any] = {"group": "processes", "unit": "bytes", "peer_name": "1 reader", "verify": "touched"}
        found += [
            Figure(
                name=f"{readers} readers, {encoding}, {what}",
                cnrfmt=[float(figure[place]) for figure in many],
                # Of a small table nothing may be seen.
                peer=[max(1.0, figure[place]) for figure in one],
                target=target,
                **shown,
            )
            for place, what, target in (
                (0, "mapped, PSS summed", Target("ratio", "<=", _MOST)),
                (1, "anonymous, summed", None),
            )
        ]
        clear(path)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where containers go (a temporary directory)")
    parser.add_argument("--gigabytes", type=float, help="size of the table (1)")
    parser.add_argument("--encodings", default="raw,4-bit", help="%(default)s")
    parser.add_argument("--readers", type=int, help="processes (8; with --quick 2)")
    parser.add_argument("--repeat", type=int, help="rounds (1)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    if given.repeat is None:
        given.repeat = 1
    settle_repeat(parser, given)
    gigabytes = given.gigabytes or (_QUICK_GIGABYTES if given.quick else 1.0)
    readers = given.readers or (2 if given.quick else 8)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-processes-", dir=given.dir) as folder:
        print(f"a table of {gigabytes:g} GB of float32, {_DIM} wide, and a delta of a tenth of its rows")
        print(table_of(figures(Path(folder), given.encodings.split(","), gigabytes, readers, given.repeat)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
