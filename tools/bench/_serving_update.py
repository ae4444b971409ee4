"""Bringing a module of FBGEMM to a version in which 1 % of the rows changed, next to making it anew.

    python -m tools.bench._serving_update [--dir DIR] [--gigabytes 1] [--share 0.01] [--repeat 5] [--quick]

The table is 64 wide, made of trained rows, in 8 and in 4 bits per row, in the layout that FBGEMM's
``IntNBitTableBatchedEmbeddingBagsCodegen`` reads. Before each round a delta of some rows is appended, as skewed as
traffic is; then `Bags.update` puts them in place as they are stored, by FBGEMM's own operator, from the look at the
container to the last row. Peers, whose result is the same module: one made anew over the newest version, whose rows are
mapped and those of deltas put over them, all verified; and FBGEMM's own way, rows loaded by PyTorch from a file that
has them quantised already, and given to a module that is there. All files are in the page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt.integrations import fbgemm
from tools.bench import _data, _serving_apply
from tools.bench._figures import Figure, Target, in_turn, say, timed
from tools.bench._setting import clear, warm

_DIM = 64
_CHEAPER = 10.0
_ANEW, _TORCH = "bags made anew", "torch.load, assign"


class Updating:
    """A container that gets deltas, and bags that are brought up to them."""

    def __init__(self, folder: Path, values: Any, bits: int, share: float) -> None:
        import torch

        self._path, self._values, self._share = folder / "model", values, share
        quantize = cnrfmt.Quantize(bits=bits, layout="head")
        cnrfmt.save(self._path, {"table": values}, quantize=quantize)
        for file in sorted((self._path / "segments").iterdir()):
            warm(file)
        self._ck = cnrfmt.open(self._path)
        self._bags, self._other = (fbgemm.batched_embedding_bags(self._ck) for _ in range(2))
        self._file = folder / "rows.pt"
        torch.save(self._bags.module.weights_host.clone(), self._file)
        warm(self._file)

    def update(self, _: int = 0) -> float:
        """Appends a delta, and times how it is put in place."""
        rows, number = len(self._values), self._ck.version + 1
        ids = _data.touched_rows(rows, max(1, int(self._share * rows)), number)
        self._values[ids] *= np.float32(1.01)
        cnrfmt.append(self._path, {"table": cnrfmt.Rows(ids, self._values[ids])})
        seconds = timed(self._take_in)
        if (self._bags.version, self._ck.version) != (number, number):
            raise SystemExit(f"version {number} was appended, and the bags have {self._bags.version}")
        return seconds

    def _take_in(self) -> None:
        self._ck.refresh()
        self._bags.update(self._ck)

    def anew(self, _: int = 0) -> float:
        """Times how bags are made of the newest version."""

        def make() -> None:
            with cnrfmt.open(self._path) as ck:
                fbgemm.batched_embedding_bags(ck)

        return timed(make)

    def torch_loads(self, _: int = 0) -> float:
        """Times how PyTorch loads quantised rows, and a module takes them over."""
        import torch

        def load() -> None:
            self._other.module.weights_host.copy_(torch.load(self._file, weights_only=True))

        return timed(load)

    def check(self) -> None:
        """That the module has the rows that one made anew has, bit for bit."""
        new = fbgemm.batched_embedding_bags(self._ck).module
        (start,), (other,) = self._bags.module.weights_physical_offsets, new.weights_physical_offsets
        mine, its = self._bags.module.weights_host[start:], new.weights_host[other:]
        length = min(len(mine), len(its))
        if not bool((mine[:length] == its[:length]).all()):
            raise SystemExit("rows that were put in place aren't those of a module made anew")

    def close(self) -> None:
        """Lets go of the files."""
        self._ck.close()
        clear(self._path)
        clear(self._file)


def figures(folder: Path, gigabytes: float, share: float, repeat: int) -> list[Figure]:
    """All figures."""
    rows = int(gigabytes * 1e9) // (4 * _DIM)
    say("update: making the table")
    values, found = _data.table(rows, _DIM), []
    for bits in (8, 4):
        say(f"update: {bits} bits")
        one = Updating(folder, values, bits, share)
        contenders = {"update": one.update, _ANEW: one.anew, _TORCH: one.torch_loads}
        # The first round isn't counted: it loads the operator.
        times = {name: seconds[1:] for name, seconds in in_turn(repeat + 1, contenders).items()}
        one.check()
        one.close()
        found += [
            Figure(
                group="update",
                name=f"{share:.2g} of the rows, {bits} bits, FBGEMM",
                cnrfmt=times["update"],
                peer_name=peer,
                peer=times[peer],
                ratio_of="speed",
                target=Target("ratio", ">=", _CHEAPER),
                verify="touched",
                cache="warm",
            )
            for peer in (_ANEW, _TORCH)
        ]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    return _serving_apply.main(argv, about=__doc__, measure=figures, made_of="rows as FBGEMM reads them")


if __name__ == "__main__":
    raise SystemExit(main())
