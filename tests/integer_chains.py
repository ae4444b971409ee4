"""Chains of integer parts of every kind, laid down by hand, and a plain model of what they say.

A dense and a keyed table have a weight on grids, squares in logarithmic codes, whose parts may both divide their
elements, and a sum of one value per row. The model keeps for each row and element whether it is an integer, of which
grid, and which; everything else is raw bits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
# The builder is a program beside its own package.
sys.path.append(str(ROOT / "tools"))

from vectors import container, encodings, layout, rows  # noqa: E402
from vectors.container import Store  # noqa: E402

from cnrfmt.encodings.integer_sections import GivenCodes, encode_section  # noqa: E402
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout  # noqa: E402

Array = np.ndarray[Any, Any]
DIM = 5
FILL = np.float32(0.5)
FLOORS = (-12, 3)
LOGS = ((12, 0x3F000000, 16), (16, 0x3F000000, 12))
CODES = ("raw", "packed", "runs", "bitmap")
COLUMNS = ("weight", "squares", "sum")
NOTHING, RAW = -2, -1
"""What the model says of elements that read as the fill value, and of raw ones; else the number of the grid."""


def grid_value(number: int, integers: Array) -> Array:
    """The values of integers on grid `number` of the weight."""
    return (integers * 2.0 ** FLOORS[number]).astype(np.float32)


def log_value(number: int, integers: Array) -> Array:
    """The values of codes of log `number`."""
    _, base, shift = LOGS[number]
    patterns = np.where(integers == 0, 0, base + ((integers - 1) << shift))
    return patterns.astype(np.uint32).view(np.float32)


@dataclass
class Column:
    """What the model says of a column: for each row (elements,) of the grid, of integers, and of float32 bits."""

    width: int
    is_log: bool
    grid: dict[int, Array] = field(default_factory=dict)
    integers: dict[int, Array] = field(default_factory=dict)
    raw: dict[int, Array] = field(default_factory=dict)

    def of(self, row: int) -> tuple[Array, Array, Array]:
        """The three arrays of a row, made if there is nothing of it."""
        self.grid.setdefault(row, np.full(self.width, NOTHING))
        self.integers.setdefault(row, np.zeros(self.width, np.int64))
        self.raw.setdefault(row, np.full(self.width, FILL))
        return self.grid[row], self.integers[row], self.raw[row]

    def end(self, row: int) -> None:
        """The row is gone."""
        for each in (self.grid, self.integers, self.raw):
            each.pop(row, None)

    def values(self, row: int) -> Array:
        """What the row reads as."""
        grid, integers, raw = self.of(row)
        found = np.where(grid == NOTHING, FILL, raw).astype(np.float32)
        decode = log_value if self.is_log else grid_value
        for number in range(len(LOGS if self.is_log else FLOORS)):
            found = np.where(grid == number, decode(number, integers), found)
        return found


class Chain:
    """A container under construction, of tables of about so many rows, and the model."""

    def __init__(self, seed: int, *, rows: int = 40, folder: bool = False, piece_size: int = 4096) -> None:
        self.random = np.random.default_rng(seed)
        self._most, self._piece_size = rows, piece_size
        self.store = Store(folder=folder)
        self.rows = int(self.random.integers(1, rows))
        self.keys: set[int] = set()
        self.columns = {
            (table, column): Column(1 if column == "sum" else DIM, column != "weight")
            for table in ("dense", "keyed")
            for column in COLUMNS
        }
        self._entries: list[Any] = []
        self.residuals = self.log_residuals = 0
        self.step()

    # One step.

    def step(self) -> None:
        """A segment, and the version that it makes."""
        number = len(self._entries)
        source = layout.state(str(number - 1)) if number else None
        segment = layout.Segment(str(number), source, layout.state(str(number)), piece_size=self._piece_size)
        self._dense(segment, is_first=number == 0)
        self._keyed(segment)
        self._entries.append(self.store.put(segment))
        self.store.commit(layout.state(str(number)), self._schemas(), self._entries)

    def _schemas(self) -> list[Any]:
        fill = FILL.tobytes()
        columns = [container.column(name, "float32", [] if name == "sum" else [DIM], fill) for name in COLUMNS]
        return [container.schema(n, n, self.rows if n == "dense" else None, DIM, *columns) for n in ("dense", "keyed")]

    def _dense(self, segment: layout.Segment, *, is_first: bool) -> None:
        if not is_first and self.random.integers(4) == 0:
            self.rows = max(1, min(self.rows + int(self.random.integers(-9, 9)), self._most))
            for row in range(self.rows, self._most + 100):
                for column in COLUMNS:
                    self.columns["dense", column].end(row)
        table = layout.Table(segment, layout.ident("table dense"), self.rows)
        for column in COLUMNS:
            if is_first:
                self._parts(table, "dense", column, list(range(self.rows)), whole=True)
            elif self.random.integers(4):
                some = self._some(list(range(self.rows)))
                self._parts(table, "dense", column, some)

    def _keyed(self, segment: layout.Segment) -> None:
        table = layout.Table(segment, layout.ident("table keyed"), None)
        gone = self._some(sorted(self.keys)) if self.random.integers(3) == 0 else []
        gone = gone[: len(gone) // 2]
        every = [3 * n - 20 for n in range(self._most)]
        some = [key for key in self._some(every) if key not in gone]
        for key in gone:
            self.keys.discard(key)
            for column in COLUMNS:
                self.columns["keyed", column].end(key)
        self._parts(table, "keyed", "weight", some)
        self.keys.update(some)
        for column in COLUMNS[1:]:
            if self.random.integers(2):
                self._parts(table, "keyed", column, self._some(some))
        if gone:
            table.json["deleted"] = self._row_set(table, gone, keyed=True)

    def _some(self, ids: list[int]) -> list[int]:
        count = int(self.random.integers(0, len(ids) + 1))
        if ids and self.random.integers(3) == 0:
            first = int(self.random.integers(0, len(ids) - count + 1))
            return ids[first : first + count]
        return sorted(self.random.choice(ids, count, replace=False).tolist()) if ids else []

    def _row_set(self, table: layout.Table, ids: list[int], *, keyed: bool) -> int:
        if not keyed and ids[-1] - ids[0] == len(ids) - 1 and self.random.integers(3):
            return table.span(ids[0], ids[-1])
        code = str(self.random.choice(CODES))
        return table.index(code, ids, rows.index(code, ids))

    def _parts(self, table: layout.Table, name: str, column: str, ids: list[int], *, whole: bool = False) -> None:
        """Parts that hold these rows, each once in all its elements, or in some unless `whole`."""
        model = self.columns[name, column]
        cuts = [0, model.width]
        if model.width > 1 and self.random.integers(3) == 0:
            cuts.insert(1, int(self.random.integers(1, model.width)))
        for first, end in pairwise(cuts):
            # Which rows can be residual, by the grid that they are on.
            groups: dict[tuple[str, int], list[int]] = {}
            for row in ids:
                on = set(model.of(row)[0][first:end].tolist())
                number = on.pop() if len(on) == 1 else NOTHING
                kind = int(self.random.integers(6))
                if number >= 0 and kind < 4:
                    groups.setdefault(("residual", number), []).append(row)
                elif kind == 5:
                    groups.setdefault(("raw", 0), []).append(row)
                else:
                    groups.setdefault(("absolute", 0 if kind < 4 else 1), []).append(row)
            for (kind, number), some in groups.items():
                self._part(table, name, column, (first, end), kind, number, some)

    def _part(
        self,
        table: layout.Table,
        name: str,
        column: str,
        elements: tuple[int, int],
        kind: str,
        number: int,
        ids: list[int],
    ) -> None:
        model, keyed = self.columns[name, column], name == "keyed"
        first, end = elements
        row_set = self._row_set(table, ids, keyed=keyed)
        if kind == "raw":
            self._raw(table, name, column, elements, row_set, ids, None)
            return
        exceptions = [row for row in ids if self.random.integers(12) == 0]
        is_log, width = model.is_log, end - first
        before = np.array([model.of(row)[1][first:end] for row in ids])
        codes, exponents = self._codes(before, kind, is_log, number, np.isin(ids, exceptions))
        chosen = self._layout(kind, number, column, width)
        chosen, data = encode_section(chosen, GivenCodes(codes, exponents), len(ids), width)
        main = table.part(column, row_set, elements, chosen.to_json(), data.tobytes())
        self.residuals += len(ids) * (kind == "residual")
        self.log_residuals += len(ids) * (kind == "residual" and column == "squares")
        for row, new in zip(ids, codes.astype(np.int64) << exponents[:, None], strict=True):
            grid, integers, _ = model.of(row)
            integers[first:end] = new + (integers[first:end] if kind == "residual" else 0)
            grid[first:end] = number
        if exceptions:
            self._raw(table, name, column, elements, self._row_set(table, exceptions, keyed=keyed), exceptions, main)

    def _raw(
        self,
        table: layout.Table,
        name: str,
        column: str,
        elements: tuple[int, int],
        row_set: int,
        ids: list[int],
        exceptions_of: int | None,
    ) -> None:
        first, end = elements
        bits = self.random.integers(0, 1 << 32, (len(ids), end - first), dtype=np.uint32)
        table.part(column, row_set, elements, rows.raw_encoding("float32"), bits.tobytes(), exceptions_of)
        for row, new in zip(ids, bits.view(np.float32), strict=True):
            grid, _, raw = self.columns[name, column].of(row)
            raw[first:end], grid[first:end] = new, RAW

    def _codes(self, before: Array, kind: str, is_log: bool, number: int, zero: Array) -> tuple[Array, Array]:
        """Codes and exponents whose sums stay in range, zero where they have to be."""
        random, (count, width) = self.random, before.shape
        exponents = np.zeros(count, np.uint8) if is_log else random.integers(0, 9, count).astype(np.uint8)
        reach = 2 ** random.integers(1, 11, (count, 1))
        codes = random.integers(-reach, reach, (count, width))
        least, most = (0, (1 << LOGS[number][0]) - 1) if is_log else (1 - (1 << 24), (1 << 24) - 1)
        if is_log and kind == "absolute":
            codes = np.abs(codes)
        if random.integers(4) == 0:
            # To the very ends of what there is.
            exponents[:] = 0
            base = before if kind == "residual" else np.zeros_like(before)
            codes = np.where(random.integers(0, 2, codes.shape), most, least) - base
        sums = (codes << exponents[:, None]) + (before if kind == "residual" else 0)
        codes = np.where((sums < least) | (sums > most) | zero[:, None], 0, codes)
        exponents[(codes == 0).all(axis=1)] = 0
        return codes.astype(np.int32), exponents

    def _layout(self, kind: str, number: int, column: str, width: int) -> IntegerLayout:
        group = int(self.random.choice([*range(1, 12), 65536 // width]))
        if column != "weight":
            # Of several values per row there are no codes but entropy-coded ones.
            payload = "rans" if kind == "residual" or column == "squares" or self.random.integers(2) else "fixed"
            return LogLayout(*LOGS[number], kind, payload, group if payload == "rans" else None)
        payload = str(self.random.choice(["fixed", "packed", "rans"]))
        grouped = payload != "fixed"
        return GridLayout(kind, FLOORS[number], payload, None if grouped else 26, group if grouped else None)

    # What is read.

    def ids(self, name: str) -> list[int]:
        """The rows of a table."""
        return list(range(self.rows)) if name == "dense" else sorted(self.keys)

    def values(self, name: str, column: str) -> Array:
        """All rows of a column."""
        model = self.columns[name, column]
        found = [model.values(row) for row in self.ids(name)]
        whole = np.array(found, np.float32).reshape(-1, model.width)
        return whole[:, 0] if column == "sum" else whole

    def integers(self, name: str, column: str, ids: list[int], number: int) -> tuple[Array, Array]:
        """The integers of rows on a grid, and which rows have any in all their elements."""
        model = self.columns[name, column]
        known = np.array([row in model.grid and bool((model.grid[row] == number).all()) for row in ids], bool)
        found = [model.integers[row] if k else np.zeros(model.width) for row, k in zip(ids, known, strict=True)]
        return np.array(found, np.int32).reshape(-1, model.width), known


def grid_of(column: str, number: int) -> tuple[Any, ...]:
    """The grid `number` of a column, as layouts have it."""
    return ("grid", FLOORS[number]) if column == "weight" else ("log", *LOGS[number])


__all__ = ["COLUMNS", "DIM", "FILL", "Array", "Chain", "Store", "container", "encodings", "grid_of", "layout", "rows"]
