"""Where the demo's checkpoints live: the calls that the trainer makes on a container."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

import cnrfmt
from cnrfmt.demo.model import KEYED, PAIR_START, Model, Snapshot, TableRows
from cnrfmt.demo.orders import Dataset
from cnrfmt.sizes import commit_sizes

ACCUMULATOR = "accumulator"
MADE_BY = {"made_by": "cnrfmt demo"}
"""The user metadata of the demo's containers: what may be overwritten by the next demo."""
RAW_BITS = 32
PARTS = ("rows", "ids", "optimizer", "dense", "metadata")


class Store(Protocol):
    """What the trainer needs of a container."""

    def save(self, snapshot: Snapshot) -> int:
        """Commits a full snapshot as a baseline; gives its version."""
        ...

    def append(self, snapshot: Snapshot) -> int:
        """Commits touched rows as a delta; gives its version."""
        ...

    def restore(self, data: Dataset, seed: int) -> tuple[int, Model]:
        """The newest version and the model that it holds."""
        ...

    def bytes_by_part(self, version: int) -> dict[str, int]:
        """The bytes that committing a version wrote, by `PARTS`."""
        ...


@dataclass(frozen=True)
class CnrStore:
    """A container of this library: a single file.

    `bits` per element of the tables' weights; 32 for raw float32. Up to 4 bits scale and bias come from the greedy
    search of Check-N-Run; accumulators are then 12-bit logarithmic codes.
    """

    path: Path
    bits: int = 8
    threads: int | None = None

    def quantize(self) -> cnrfmt.Quantize | None:
        """How weights are stored; raises `UsageError` for bits that there aren't."""
        if self.bits == RAW_BITS:
            return None
        return cnrfmt.Quantize(bits=self.bits, method="adaptive" if self.bits <= 4 else "asymmetric")

    def save(self, snapshot: Snapshot) -> int:
        """Commits a full snapshot as a baseline; gives its version."""
        return cnrfmt.save(
            self.path,
            {
                name: cnrfmt.TableData(
                    rows.weight,
                    columns={ACCUMULATOR: rows.accumulator},
                    keys=rows.ids if name == KEYED else None,
                    fill={"weight": PAIR_START} if name == KEYED else 0.0,
                )
                for name, rows in snapshot.tables.items()
            },
            quantize=self.quantize(),
            dense=snapshot.dense,
            metadata=MADE_BY,
            step=snapshot.order,
            threads=self.threads,
        )

    def append(self, snapshot: Snapshot) -> int:
        """Commits touched rows as a delta; gives its version."""
        return cnrfmt.append(
            self.path,
            {
                name: cnrfmt.Rows(rows.ids, rows.weight, columns={ACCUMULATOR: rows.accumulator})
                for name, rows in snapshot.tables.items()
            },
            dense=snapshot.dense,
            step=snapshot.order,
            threads=self.threads,
        )

    def restore(self, data: Dataset, seed: int) -> tuple[int, Model]:
        """The newest version and the model that it holds."""
        with cnrfmt.open(self.path, threads=self.threads) as ck:
            tables = {
                name: TableRows(
                    np.arange(len(table)) if table.keys is None else table.keys,
                    table[...],
                    table.read(column=ACCUMULATOR),
                )
                for name, table in ck.items()
            }
            return ck.version, Model.restore(data, seed, ck.step or 0, tables, ck.dense)

    def bytes_by_part(self, version: int) -> dict[str, int]:
        """The bytes that committing a version wrote, by `PARTS`."""
        return bytes_by_part(self.path, version)


def bytes_by_part(path: Path, version: int) -> dict[str, int]:
    """The bytes that committing a version wrote, by `PARTS`.

    Weights, row ids, optimizer states and dense state as they are stored; and metadata, which is all that
    goes with them: manifest, tables of contents, digests, padding, and the pages that name the version.
    """
    sizes = commit_sizes(path, version)
    parts = {
        "rows": sizes["weights"] + sizes["exceptions"],
        "ids": sizes["ids"],
        "optimizer": sizes["optimizer"],
        "dense": sizes["dense"],
    }
    return {**parts, "metadata": sum(sizes.values()) - sum(parts.values())}


def rehearse(data: Dataset, bits: int, every: int) -> None:
    """Makes the first two checkpoints and restores them, in a container that is thrown away.

    So what has to be compiled, or loaded, is so before anything is measured.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = CnrStore(Path(folder) / "rehearsal.cnr", bits)
        model = Model(data)
        model.train(every)
        store.save(model.snapshot(full=True))
        model.train(2 * every)
        store.bytes_by_part(store.append(model.snapshot(full=False)))
        store.restore(data, 0)


def is_demo(path: Path) -> bool:
    """Whether a container was made by the demo, so that the next may take its place."""
    try:
        with cnrfmt.open(path) as ck:
            return all(ck.metadata.get(key) == value for key, value in MADE_BY.items())
    except cnrfmt.CnrError:
        return False
