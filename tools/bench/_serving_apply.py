"""Taking in a delta of 1 % of the rows, next to loading the whole table again.

    python -m tools.bench._serving_apply [--dir DIR] [--gigabytes 1] [--share 0.01] [--repeat 5] [--quick]

The table is 64 wide, made of trained rows, raw and in 4 bits per row. Before each round a delta of some rows is
appended, as skewed as traffic is; then `LiveTables.advance` takes it in, from the look at the container to the switch.
Peers load the newest version into new memory, and into memory that is there, and PyTorch loads float32 from a file.
All files are in the page cache.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tools.bench import _data
from tools.bench._figures import Figure, Target, in_turn, say, settle_repeat, table_of, timed
from tools.bench._setting import ENCODINGS, clear, warm

_DIM = 64
_QUICK_GIGABYTES = 0.004
_CHEAPER = 10.0
_LOAD, _INTO, _TORCH = "cnrfmt.load", "cnrfmt.load, out=", "torch.load of float32"


class Applying:
    """A container that gets deltas, and tables that take them in."""

    def __init__(self, path: Path, values: Any, encoding: str, share: float) -> None:
        self._path, self._values, self._share = path, values, share
        cnrfmt.save(path, {"table": values}, quantize=ENCODINGS[encoding])
        for file in sorted((path / "segments").iterdir()):
            warm(file)
        self._live = cnrfmt.LiveTables(path)
        self._live.wait()
        self._out = {"table": np.ones_like(values)}

    def advance(self, _: int = 0) -> float:
        """Appends a delta, and times how it is taken in."""
        rows = len(self._values)
        number = self._live.version + 1
        ids = _data.touched_rows(rows, max(1, int(self._share * rows)), number)
        self._values[ids] *= np.float32(1.01)
        cnrfmt.append(self._path, {"table": cnrfmt.Rows(ids, self._values[ids])})
        seconds = timed(self._live.advance)
        if self._live.version != number:
            raise SystemExit(f"version {number} was appended, and {self._live.version} is served")
        return seconds

    def check(self) -> None:
        """That what is served is what is stored."""
        found = self._live["table"].lookup(np.arange(len(self._values)))
        if not np.array_equal(found, cnrfmt.load(self._path)["table"]):
            raise SystemExit("what is served isn't what is stored")

    def load(self, _: int = 0) -> float:
        """Times a load into new memory."""
        return timed(lambda: cnrfmt.load(self._path))

    def load_into(self, _: int = 0) -> float:
        """Times a load into memory that is there."""
        return timed(lambda: cnrfmt.load(self._path, out=self._out))

    def close(self) -> None:
        """Lets go of the files."""
        self._live.close()


def figures(folder: Path, gigabytes: float, share: float, repeat: int) -> list[Figure]:
    """All figures."""
    import torch

    rows = int(gigabytes * 1e9) // (4 * _DIM)
    say("apply: making the table")
    values = _data.table(rows, _DIM)
    other = folder / "table.pt"
    torch.save({"table": torch.from_numpy(values)}, other)
    warm(other)
    found = []
    for encoding in ("raw", "4-bit"):
        say(f"apply: {encoding}")
        one = Applying(folder / "model", values, encoding, share)
        contenders = {
            "advance": one.advance,
            _LOAD: one.load,
            _INTO: one.load_into,
            _TORCH: lambda _: timed(lambda: torch.load(other, weights_only=True)),
        }
        # The first round isn't counted.
        times = {name: values[1:] for name, values in in_turn(repeat + 1, contenders).items()}
        one.check()
        one.close()
        clear(folder / "model")
        found += [
            Figure(
                group="apply",
                name=f"{share:.2g} of the rows, {encoding}",
                cnrfmt=times["advance"],
                peer_name=peer,
                peer=times[peer],
                ratio_of="speed",
                target=Target("ratio", ">=", _CHEAPER),
                verify="touched",
                cache="warm",
            )
            for peer in (_LOAD, _INTO, _TORCH)
        ]
    clear(other)
    return found


def main(
    argv: Sequence[str] | None = None,
    *,
    about: str | None = __doc__,
    measure: Callable[[Path, float, float, int], list[Figure]] = figures,
    made_of: str = "float32",
) -> int:
    """Measures, and prints the report; also for whoever measures deltas of another kind of table."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0] if about else None)
    parser.add_argument("--dir", type=Path, help="where files go (a temporary directory)")
    parser.add_argument("--gigabytes", type=float, help="size of the table in float32 (1)")
    parser.add_argument("--share", type=float, default=0.01, help="rows of a delta: %(default)s")
    parser.add_argument("--repeat", type=int, help="rounds (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    settle_repeat(parser, given)
    gigabytes = given.gigabytes or (_QUICK_GIGABYTES if given.quick else 1.0)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-apply-", dir=given.dir) as folder:
        print(f"a table of {gigabytes:g} GB in float32, {_DIM} wide, made of {made_of}")
        print(table_of(measure(Path(folder), gigabytes, given.share, given.repeat)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
