"""Embedding bags over a mapped table by the operators of PyTorch and FBGEMM, next to their own prepacked tensors.

    python -m tools.bench._serving_operators [--dir DIR] [--bits 8,4,2] [--repeat 20] [--quick]

The table is 1 GiB of float32, 64 wide, made of trained rows; bags are of 20 ids that are Zipf-distributed, or evenly.
Speed is that of one call with 4096 bags, in turn with the same call on the operator's own tensor, by one thread; the
file is in the page cache, and every page of it and of the tensor has been touched. Both must give the same bits. Memory
is what RssAnon of a process of its own grows by from before the checkpoint is opened until all rows were looked up,
as a share of the bytes of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tools.bench._figures import Figure, Target, say, settle_repeat, table_of, timed
from tools.bench._grid_data import Training
from tools.bench._probe import status_bytes, trim
from tools.bench._setting import clear, warm

_BYTES, _QUICK_BYTES = 1 << 30, 4 << 20
_DIM = 64
_BAGS, _PER_BAG = 4096, 20
_NAMES = {8: "byte", 4: "4bit", 2: "2bit"}
_LIBRARIES = {"torch": "tail", "fbgemm": "head"}
_MOST_TIME, _MOST_MEMORY = 1.05, 0.05

LookUp = Callable[[Any, Any], Any]
"""Bags of ids (int64 tensors: ids and offsets) to their sums."""


def _by_torch(tensor: Any, bits: int) -> LookUp:
    import torch

    operator = getattr(torch.ops.quantized, f"embedding_bag_{_NAMES[bits]}_rowwise_offsets")
    found: LookUp = lambda ids, offsets: operator(tensor, ids, offsets[:-1])  # noqa: E731
    return found


def mapped(path: Path, library: str, bits: int) -> LookUp:
    """Look-ups in the table as it is mapped."""
    with cnrfmt.open(path) as ck:
        if library == "torch":
            return _by_torch(ck["table"].as_torch_quantized().tensor, bits)
        from cnrfmt.integrations.fbgemm import batched_embedding_bags

        module: LookUp = batched_embedding_bags(ck).module
        return module


def prepacked(path: Path, library: str, bits: int) -> LookUp:
    """Look-ups in memory that the library allocates itself, with the same rows."""
    import torch

    with cnrfmt.open(path) as ck:
        if library == "torch":
            return _by_torch(ck["table"].as_torch_quantized().tensor.clone(), bits)
        from cnrfmt.integrations.fbgemm import batched_embedding_bags

        given = batched_embedding_bags(ck).module
        own = type(given)(given.embedding_specs, device="cpu", row_alignment=16, output_dtype=_float32())
        own.initialize_weights()
        ((rows, _),) = given.split_embedding_weights(split_scale_shifts=False)
        with torch.no_grad():
            own.split_embedding_weights(split_scale_shifts=False)[0][0].copy_(rows)
        found: LookUp = own
        return found


def _float32() -> Any:
    from fbgemm_gpu.split_embedding_configs import SparseType

    return SparseType.FP32


def ids_of(count: int, spread: str) -> tuple[Any, Any]:
    """Ids and offsets of the bags."""
    import torch

    rng, size = np.random.default_rng(0), _BAGS * _PER_BAG
    ids = rng.integers(0, count, size)
    if spread == "zipf":
        # Frequent ids lie anywhere in a table.
        ids = (rng.zipf(1.2, size) % count) * 2654435761 % count
    return torch.from_numpy(ids.astype(np.int64)), torch.arange(0, size + 1, _PER_BAG)


def speeds(path: Path, library: str, bits: int, count: int, rounds: int) -> list[Figure]:
    """Time of a call, next to the same on the library's own tensor."""
    import torch

    torch.set_num_threads(1)
    own, peer = mapped(path, library, bits), prepacked(path, library, bits)
    every = torch.arange(count), torch.arange(count + 1)
    found = []
    for look_up in (own, peer):
        look_up(*every)
    for spread in ("zipf", "even"):
        bags = ids_of(count, spread)
        if not torch.equal(own(*bags), peer(*bags)):
            raise SystemExit(f"{library}, {bits} bits: the mapped table gives other sums than the prepacked one")
        times = _alternately(rounds, _timing(own, bags), _timing(peer, bags))
        found.append(
            Figure(
                group="operators",
                name=f"{library}, {bits} bits, {_BAGS} bags of {_PER_BAG} {spread} ids",
                cnrfmt=times[0],
                peer_name="prepacked",
                peer=times[1],
                target=Target("ratio", "<=", _MOST_TIME),
                cache="warm",
            )
        )
    return found


def _alternately(rounds: int, *contenders: Callable[[], float]) -> list[list[float]]:
    """The values of each contender; each second round goes backwards, since whoever comes first pays for warming up."""
    found: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        for k in range(len(contenders))[:: 1 - 2 * (number % 2)]:
            found[k].append(contenders[k]())
    return found


def _timing(look_up: LookUp, bags: tuple[Any, Any]) -> Callable[[], float]:
    def timing() -> float:
        # So that the ids are in the cache for everybody.
        look_up(*bags)
        return timed(lambda: look_up(*bags))

    return timing


def memory(path: Path, library: str, bits: int, nbytes: int) -> Figure:
    """Growth of RssAnon, next to the bytes of the table."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench._serving_operators", "--probe", str(path), library, str(bits)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))},
        stdout=subprocess.PIPE,
        check=True,
    )
    return Figure(
        group="operators",
        name=f"{library}, {bits} bits, RssAnon",
        unit="bytes",
        cnrfmt=[float(json.loads(done.stdout)["grown"])],
        peer_name="the table",
        peer=[float(nbytes)],
        target=Target("ratio", "<=", _MOST_MEMORY),
    )


_ROOT = Path(__file__).resolve().parents[2]


def probe(path: Path, library: str, bits: int) -> None:
    """Prints what RssAnon grows by; what libraries and kernels take when they are first used is taken before."""
    import torch

    torch.set_num_threads(1)
    small = path.with_name("probe.cnr")
    cnrfmt.save(small, {"table": np.ones((100, _DIM), np.float32)}, quantize=_scheme(library, bits))
    mapped(small, library, bits)(torch.arange(100), torch.arange(101))
    small.unlink()
    with cnrfmt.open(path) as ck:
        count = len(ck["table"])
    step = 1 << 16
    trim()
    before = status_bytes("RssAnon")
    look_up = mapped(path, library, bits)
    for start in range(0, count, step):
        look_up(torch.arange(start, min(start + step, count)), torch.tensor([0, min(step, count - start)]))
    trim()
    print(json.dumps({"grown": max(0, status_bytes("RssAnon") - before)}))


def _scheme(library: str, bits: int) -> cnrfmt.Quantize:
    placement: Any = _LIBRARIES[library]
    return cnrfmt.Quantize(bits, layout=placement)


def figures(folder: Path, bits: Sequence[int], repeat: int, *, quick: bool) -> list[Figure]:
    """All figures."""
    nbytes = _QUICK_BYTES if quick else _BYTES
    values = Training(nbytes // (4 * _DIM), _DIM).values
    found = []
    for library in _LIBRARIES:
        for width in bits:
            say(f"operators: {library}, {width} bits")
            path = folder / f"{library}-{width}.cnr"
            cnrfmt.save(path, {"table": values}, quantize=_scheme(library, width))
            warm(path)
            found += speeds(path, library, width, len(values), repeat)
            found.append(memory(path, library, width, path.stat().st_size))
            clear(path)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where containers go (a temporary directory)")
    parser.add_argument("--bits", default="8,4,2", help="bits of the codes: %(default)s")
    parser.add_argument("--repeat", type=int, help="rounds (20; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.probe is not None:
        probe(Path(given.probe[0]), given.probe[1], int(given.probe[2]))
        return 0
    if given.repeat is None and not given.quick:
        given.repeat = 20
    settle_repeat(parser, given)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-operators-", dir=given.dir) as folder:
        bits = [int(width) for width in given.bits.split(",")]
        print(table_of(figures(Path(folder), bits, given.repeat, quick=given.quick)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
