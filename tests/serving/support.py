"""Containers for the tests of the serving side."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Quantize, Rows, TableData
from cnrfmt.serving import hydrated_table
from tests.storage.support import QuickFs

F32 = np.float32
QUICK = QuickFs()


def chain(path: Path, *, quantize: Any = None, rows: int = 3000, dim: int = 8, deltas: int = 3, seed: int = 0) -> Path:
    """A container of a dense table, a keyed one, and one with optimizer state, each with some deltas."""
    random = np.random.default_rng(seed)

    def made(count: int) -> Any:
        return random.normal(0, 1, (count, dim)).astype(F32)

    keys = np.sort(random.choice(1 << 40, rows // 3, replace=False)) - (1 << 39)
    state = TableData(made(rows // 2), columns={"squares": random.uniform(1, 2, rows // 2).astype(F32)})
    tables = {"dense": made(rows), "keyed": TableData(made(len(keys)), keys=keys), "state": state}
    cnrfmt.save(path, tables, step=0, quantize=quantize, dense={"bias": np.arange(3.0)}, fs=QUICK)
    for step in range(1, deltas + 1):
        ids = np.sort(random.choice(rows, rows // 5, replace=False))
        some = np.sort(random.choice(keys, len(keys) // 5, replace=False))
        cnrfmt.append(
            path,
            {"dense": Rows(ids, made(len(ids))), "keyed": (Rows(some[1:], made(len(some) - 1)), Deleted(some[:1]))},
            step=step,
            dense={"bias": np.arange(3.0) + step},
            fs=QUICK,
        )
        keys = keys[keys != some[0]]
    return path


ENCODINGS = {"raw": None, "row-wise": Quantize(bits=4), "8 bits": Quantize(bits=8)}


def damage(path: Path, table: str) -> None:
    """Changes a byte amid the rows of a table's baseline, in place."""
    with cnrfmt.open(path) as ck:
        entry = ck.manifest.chain[0]
        segment = ck.view.segments[entry.segment]
        part = segment.toc.by_table[ck[table].schema.table_id].parts[0]
        offset, length = segment.toc.sections[part.section]
    file = path / "segments" / f"{entry.segment.hex()}.cnrs"
    data = bytearray(file.read_bytes())
    data[offset + length // 2] ^= 1
    file.write_bytes(data)


class Held:
    """Holds the background up, block by block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.waiting = threading.Event(), threading.Event()
        fill = hydrated_table.HydratedTable.fill

        def held(table: hydrated_table.HydratedTable, block: int) -> None:
            self.waiting.set()
            assert self.go.wait(60)
            fill(table, block)

        monkeypatch.setattr(hydrated_table.HydratedTable, "fill", held)
