"""Chains of every kind for compaction, what is read of them, and which stored bytes give each row, found row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnrfmt
from cnrfmt import Deleted, Dropped, Quantize, Rows, TableData, plan
from cnrfmt.format.encoding import CodebookLayout, LogLayout
from cnrfmt.kernels._jit import INTERPRETED
from cnrfmt.verification.contents import ids_of
from tests.test_quantised import CHOICES, Cut
from tools import cnrcheck

Array = np.ndarray[Any, Any]
DIM = 11
CHOSEN = list(CHOICES.values())
FILLS = (0.0, 1.5, -0.0)
# Interpreted, a kernel takes a thousand times as long.
SCALE = 4 if INTERPRETED else 1
Read = dict[tuple[str, ...], bytes]


def quantize_of(random: np.random.Generator) -> Quantize | None:
    """One of all legal layouts and methods; shared codebooks and raw rows more often than by chance."""
    kind = random.integers(0, 5)
    if kind == 0:
        return None
    if kind == 1:
        return Quantize(bits=int(random.integers(2, 5)), method="kmeans", block=int(random.integers(2, 5)))
    return CHOSEN[int(random.integers(len(CHOSEN)))]


def values_of(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Rows of a table and of a column of one value per row; of each, some that codes can't hold."""
    rows = (random.normal(size=(count, DIM)) * 2.0 ** random.integers(-5, 3, (count, 1))).astype(np.float32)
    sums = np.exp(random.normal(size=count)).astype(np.float32)
    if count and random.integers(2):
        rows[random.integers(count, size=count // 4 + 1), 0] = random.choice([np.nan, np.inf, -0.0])
        sums[random.integers(count, size=count // 4 + 1)] = -1
    return rows, sums


class Chain:
    """A dense and a keyed table in a container, and deltas that do anything that deltas may."""

    def __init__(self, path: Path, seed: int, patch: pytest.MonkeyPatch | None = None) -> None:
        self.path, self.random, self._patch = path, np.random.default_rng(seed), patch
        self.has_plain = True
        self.rows = int(self.random.integers(0, 60 // SCALE))
        self.keys = np.sort(self.random.choice(200, int(self.random.integers(0, 40 // SCALE)), replace=False))
        weight, sums = values_of(self.random, self.rows)
        keyed, others = values_of(self.random, len(self.keys))
        fills = {name: float(self.random.choice(FILLS)) for name in ("weight", "sum")}
        tables = {
            "dense": TableData(weight, columns={"sum": sums}, fill=fills),
            "keyed": TableData(keyed, columns={"sum": others}, keys=self.keys, fill=fills),
            "plain": self.random.integers(-9, 9, (5, 2)),
        }
        cnrfmt.save(path, tables, quantize=self._quantize(), dense={"step": 0, "none": b""}, metadata={"of": "user"})

    def _quantize(self) -> dict[str, Quantize | None]:
        self._divide()
        return {"dense": quantize_of(self.random), "keyed": quantize_of(self.random)}

    def _divide(self) -> None:
        """Lets the weights of the next commit be written in several parts by elements, or in one."""
        if self._patch is None:
            return
        self._patch.undo()
        plain = plan._writes
        cuts = [(0, DIM)] if self.random.integers(2) else [(0, 4), (4, 5), (5, DIM)]

        def divided(schema: Any, sources: Any, recipe_of: Any) -> Any:
            found = []
            for write in plain(schema, sources, recipe_of):
                if write.column.name != "weight" or schema.name == "plain":
                    found.append(write)
                    continue
                found += [replace(write, source=Cut(write.source, a, b), elements=(a, b)) for a, b in cuts]
            return tuple(found)

        self._patch.setattr(plan, "_writes", divided)

    def append(self) -> None:
        """One delta."""
        random = self.random
        changes: dict[str, Any] = {}
        if random.integers(4):
            changes["dense"] = self._dense_rows()
        if random.integers(4):
            changes["keyed"] = self._keyed_rows()
        if random.integers(6) == 0:
            changes["plain"] = random.integers(-9, 9, (int(random.integers(4)), 2))
        elif self.has_plain and random.integers(9) == 0:
            changes["plain"] = Dropped()
        if "plain" in changes:
            self.has_plain = not isinstance(changes["plain"], Dropped)
        quantize = self._quantize() if random.integers(3) == 0 else None
        quantize = None if quantize is None else {k: v for k, v in quantize.items() if isinstance(changes.get(k), Rows)}
        dense = {"step": int(random.integers(99))} if random.integers(3) == 0 else None
        cnrfmt.append(self.path, changes, quantize=quantize, dense=dense, step=int(random.integers(99)))

    def _columns(self, count: int) -> tuple[Array | None, dict[str, Array]]:
        weight, sums = values_of(self.random, count)
        columns: dict[str, Array] = {}
        if self.random.integers(2):
            columns["sum"] = sums
        if self.random.integers(4) == 0:
            columns["late"] = weight[:, ::-1].copy()
        if columns and self.random.integers(3) == 0:
            return None, columns
        return weight, columns

    def _dense_rows(self) -> Rows:
        change = self.random.integers(5)
        if change == 0:
            self.rows += int(self.random.integers(0, 30 // SCALE))
        elif change == 1:
            self.rows = int(self.random.integers(0, self.rows + 1))
        count = int(self.random.integers(0, self.rows + 1))
        if self.random.integers(3) == 0:
            first = int(self.random.integers(0, self.rows - count + 1))
            ids = np.arange(first, first + count)
        else:
            ids = self.random.permutation(self.rows)[: min(count, 20 // SCALE)]
        weight, columns = self._columns(len(ids))
        return Rows(ids.astype(np.int64), weight, columns=columns, rows=self.rows)

    def _keyed_rows(self) -> Any:
        ids = self.random.choice(220, int(self.random.integers(0, 30 // SCALE)), replace=False).astype(np.int64)
        weight, columns = self._columns(len(ids))
        rows = Rows(ids, weight, columns=columns)
        if self.random.integers(2):
            return rows
        gone = self.random.choice(220, int(self.random.integers(0, 90)), replace=False)
        return rows, Deleted(np.setdiff1d(gone, ids).astype(np.int64))


def read(path: Path, version: int | None = None) -> Read:
    """All rows by every path, as bytes."""
    found: Read = {}
    random = np.random.default_rng(0)
    for backend in ("mmap", "pread"):
        with cnrfmt.open(path, version=version, backend=backend) as ck:
            found[backend, "dense"] = repr(ck.dense).encode()
            found[backend, "facts"] = repr((ck.step, ck.metadata, list(ck))).encode()
            for name, table in ck.items():
                ids = np.arange(len(table)) if table.keys is None else table.keys
                found[backend, name, "shape"] = repr((len(table), table.columns, ids.tolist())).encode()
                some = random.choice(ids, 30) if len(ids) else ids
                cut = sorted(random.integers(0, len(ids) + 1, 2).tolist())
                for column in table.columns:
                    where = (backend, name, column)
                    found[*where, "whole"] = table.read(column=column).tobytes()
                    found[*where, "ids"] = table.read(some, column=column).tobytes()
                    found[*where, "range"] = table.read(slice(*cut), column=column, by="position").tobytes()
                    # Each row alone, too: without its neighbours it takes other ways.
                    one = [table.read([i], column=column).tobytes() for i in some[:5]]
                    found[*where, "one"] = b"".join(one)
    return found


def check_sound(path: Path) -> None:
    """That neither validator finds anything."""
    assert cnrfmt.verify(path).findings == []
    assert cnrcheck.check_path(str(path)) == []


Slot = tuple[Any, bytes]


def slots(path: Path, version: int | None = None) -> dict[tuple[str, str, int], list[tuple[int, int, Slot]]]:
    """The stored bytes of each row of each column, in pieces by elements, as section 8 of the specification finds them.

    A row is looked up in the steps from the oldest to the newest, one by one. Codes come with the codebook that is
    theirs, whether others share it or not; those of half bytes as numbers.
    """
    found: dict[tuple[str, str, int], list[tuple[int, int, Slot]]] = {}
    with cnrfmt.open(path, version=version) as ck:
        names = {ck[name].schema.table_id: ck[name].schema for name in ck}
        for entry in ck.manifest.chain:
            segment = ck.view.segments[entry.segment]
            for table in segment.toc.tables:
                if table.table_id not in names:
                    continue
                name = names[table.table_id].name
                gone = set() if table.deleted is None else set(ids_of(segment, table.row_sets[table.deleted]).tolist())
                for key in list(found):
                    if key[0] == name and (key[2] in gone or (table.rows is not None and key[2] >= table.rows)):
                        del found[key]
                for part in table.parts:
                    stored = _stored(segment, part, table.row_sets[part.rows].count)
                    for row, slot in zip(ids_of(segment, table.row_sets[part.rows]).tolist(), stored, strict=True):
                        before = found.get((name, part.column, row), [])
                        first, end = part.elements
                        left = [piece for piece in before if piece[1] <= first or end <= piece[0]]
                        found[name, part.column, row] = sorted([*left, (first, end, slot)], key=lambda p: p[:2])
    return found


def _stored(segment: Any, part: Any, count: int) -> Sequence[Slot]:
    data = segment.section(part.section)
    layout = part.layout
    if isinstance(layout, LogLayout) and layout.bits == 12:
        number = int.from_bytes(data.tobytes(), "little")
        return [(layout, (number >> (12 * k) & 0xFFF).to_bytes(2, "little")) for k in range(count)]
    rows = data.reshape(count, -1)
    if not isinstance(layout, CodebookLayout) or layout.block is None:
        return [(layout, row.tobytes()) for row in rows]
    books = segment.section(part.codebooks).reshape(-1, layout.book_bytes)
    own = replace(layout, block=None)
    return [(own, books[k // layout.block].tobytes() + row.tobytes()) for k, row in enumerate(rows)]
