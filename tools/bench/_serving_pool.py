"""Bags of rows pooled by `Table.pool` and `LiveRows.pool`, next to the fused operators of PyTorch and FBGEMM.

    python -m tools.bench._serving_pool [--dir DIR] [--encodings float32,8,...] [--dims 64,128] [--bags 512,2048]
        [--per-bag 1,20,100] [--spreads zipf,even] [--threads 1,2] [--repeat 15] [--quick]

The table has 10^6 rows. Speed is that of one call, from arrays of ids and offsets to a new array of sums, in turn with
the peer's call on the same ids by as many threads; the file is in the page cache, and every row has been looked up and
verified before. Peers: of 8, 4 and 2 bits the quantised operators of PyTorch on the mapped table, or in the layout
`head` FBGEMM's module on it; of all others `embedding_bag` on a tensor of PyTorch's own, of the same data type where it
has such an operator, else of float32. Sums must be those of rows that are read and added in order, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from tools.bench._figures import Figure, Target, say, settle_repeat, table_of, timed
from tools.bench._setting import clear, warm

_ROWS, _QUICK_ROWS = 1_000_000, 3000
_ENCODINGS = "float32,float16,bfloat16,8,4,2,8-head,4-head,2-head,3,5,6,7,grid,live-float32,live-float16"
_NAMES = {8: "byte", 4: "4bit", 2: "2bit"}
_CHECKED = 200

Pool = Callable[[Any, Any], Any]
"""Ids and where bags begin, as the side takes them, to sums."""


def bits_of(encoding: str) -> int | None:
    """The bits of a row-wise encoding."""
    bits = encoding.removesuffix("-head")
    return int(bits) if bits.isdigit() else None


def save(path: Path, values: Any, encoding: str) -> None:
    """A container of the rows in an encoding."""
    bits, kind = bits_of(encoding), encoding.removeprefix("live-")
    quantize: Any = None
    if bits is not None:
        quantize = cnrfmt.Quantize(bits, layout="head") if encoding.endswith("head") else cnrfmt.Quantize(bits)
    elif encoding == "grid":
        quantize = cnrfmt.Grid(step=2.0**-8)
    elif kind != "float32":
        import ml_dtypes

        values = values.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16)
    cnrfmt.save(path, {"table": values}, quantize=quantize)
    warm(path)


@contextmanager
def sides(path: Path, values: Any, encoding: str, threads: int) -> Iterator[tuple[Pool, str, Pool, Any]]:
    """How cnrfmt pools, the peer's name, how that does, and the rows as they are decoded."""
    import torch

    torch.set_num_threads(threads)
    bits = bits_of(encoding)
    with cnrfmt.open(path, threads=threads) as ck:
        rows = ck["table"]
        own: Any = rows
        live = None
        if encoding.startswith("live-"):
            live = cnrfmt.LiveTables(path)
            live.wait()
            own = live["table"]
        name, peer = "embedding_bag", _embedding_bag(torch.from_numpy(_peer_rows(values, rows, encoding)).clone())
        if bits in _NAMES and encoding.endswith("head"):
            from cnrfmt.integrations.fbgemm import batched_embedding_bags

            module = batched_embedding_bags(ck).module
            name, peer = "FBGEMM", lambda ids, begins: module(ids, torch.cat([begins, torch.tensor([len(ids)])]))
        elif bits in _NAMES:
            operator = getattr(torch.ops.quantized, f"embedding_bag_{_NAMES[bits]}_rowwise_offsets")
            tensor = rows.as_torch_quantized().tensor
            name, peer = "quantized", lambda ids, begins: operator(tensor, ids, begins)
        try:
            yield own.pool, name, peer, rows
        finally:
            if live is not None:
                live.close()


def _peer_rows(values: Any, rows: Any, encoding: str) -> Any:
    return values.astype(np.float16) if encoding.endswith("16") and encoding != "bfloat16" else values


def _embedding_bag(weight: Any) -> Pool:
    import torch

    bag: Pool = lambda ids, begins: torch.nn.functional.embedding_bag(ids, weight, begins, mode="sum")  # noqa: E731
    return bag


def ids_of(count: int, bags: int, per_bag: int, spread: str) -> tuple[Any, Any]:
    """Ids, and where bags begin among them."""
    rng, size = np.random.default_rng(0), bags * per_bag
    ids = rng.integers(0, count, size)
    if spread == "zipf":
        # Frequent ids lie anywhere in a table.
        ids = (rng.zipf(1.2, size) % count) * 2654435761 % count
    return ids.astype(np.int64), np.arange(0, size, per_bag)


def check(pool: Pool, rows: Any, count: int) -> None:
    """That sums are those of rows that are read and added one by one."""
    ids, begins = ids_of(count, _CHECKED, 9, "even")
    each = rows[ids].astype(np.float32).reshape(_CHECKED, 9, -1)
    want = np.zeros_like(each[:, 0])
    for k in range(9):
        want += each[:, k]
    if not np.array_equal(pool(ids, begins), want):
        raise SystemExit("sums aren't those of the rows")


def compare(own: Pool, peer: Pool, bags: tuple[Any, Any], rounds: int) -> list[list[float]]:
    """Seconds of either in each round; each second round goes backwards, and each call follows one of its own."""
    import torch

    tensors = tuple(map(torch.from_numpy, bags))
    found: list[list[float]] = [[], []]
    calls: list[Callable[[], Any]] = [lambda: own(*bags), lambda: peer(*tensors)]
    for number in range(rounds):
        for k in (0, 1)[:: 1 - 2 * (number % 2)]:
            calls[k]()
            found[k].append(timed(calls[k]))
    return found


def figures(folder: Path, given: argparse.Namespace) -> Iterator[Figure]:
    """All figures."""
    count = _QUICK_ROWS if given.quick else _ROWS
    for dim in given.dims:
        values = np.random.default_rng(1).standard_normal((count, dim), np.float32) / np.float32(8)
        for encoding in given.encodings:
            say(f"pool: {encoding}, {dim} wide")
            path = folder / f"{encoding}-{dim}.cnr"
            save(path, values, encoding)
            for threads in given.threads:
                with sides(path, values, encoding, threads) as (own, name, peer, rows):
                    check(own, rows, count)
                    own(np.arange(count), np.zeros(1, np.int64))
                    for many, per_bag, spread in product(given.bags, given.per_bag, given.spreads):
                        times = compare(own, peer, ids_of(count, many, per_bag, spread), given.repeat)
                        yield Figure(
                            group="pool",
                            name=f"{encoding}, {dim} wide, {many} x {per_bag} {spread} ids, {threads} threads",
                            cnrfmt=times[0],
                            peer_name=name,
                            peer=times[1],
                            target=Target("ratio", "<=", 1.0),
                            cache="warm",
                        )
            clear(path)


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(x) for x in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, help="where containers go (a temporary directory)")
    parser.add_argument("--encodings", type=_list(str), default=_ENCODINGS, help="of %(default)s")
    for name, kind, default in (
        ("dims", int, "64,128"), ("bags", int, "512,2048"), ("per-bag", int, "1,20,100"),
        ("spreads", str, "zipf,even"), ("threads", int, "1,2"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=_list(kind), default=default, help="%(default)s")
    parser.add_argument("--repeat", type=int, help="rounds (15; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="a small table: tries the benchmark, measures nothing")
    given = parser.parse_args(argv)
    if given.repeat is None and not given.quick:
        given.repeat = 15
    settle_repeat(parser, given)
    with tempfile.TemporaryDirectory(prefix="cnrfmt-pool-", dir=given.dir) as folder:
        print(table_of(list(figures(Path(folder), given))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
