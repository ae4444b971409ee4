"""Chains whose rows are integers, under all payloads, mixed with everything else, and a model of what they hold.

Segments are written part by part: no writer of ours would mix so much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import cnrfmt
from cnrfmt import TableData
from cnrfmt.arrays import Ids
from cnrfmt.commits import attempt
from cnrfmt.encodings import Recipe
from cnrfmt.encodings.integer_sections import GivenCodes, encode_section
from cnrfmt.format.encoding import GridLayout, IntegerLayout, LogLayout, RawLayout, RowwiseLayout
from cnrfmt.format.schema import ColumnSchema, TableSchema
from cnrfmt.format.scheme import CLOSED_LOOP, Errors, Scheme, Step
from cnrfmt.inputs import as_source
from cnrfmt.plan import plan_baseline
from cnrfmt.table_writes import ColumnWrite, EncodedColumn, RowIds, Slice, SliceSections, TableWrite
from tests.checkpointing.compaction_support import FILLS, SCALE

Array = np.ndarray[Any, Any]
Elements = tuple[int, int]
DIM = 5
PIECES = ((0, 2), (2, DIM))
"""Rows of DIM values are written as a whole or in these two pieces; the model has what each row is in each of them."""
FLOORS = (-20, -9)
LOGS = ((12, 0x3A000000, 15), (8, 0x3A000000, 19), (16, 0x30000000, 12))
KEYS = 60
COLUMNS = ("weight", "squares", "sum")
"""On grids; in logarithmic codes of DIM values per row, mostly; in such codes of one value per row, mostly."""


@dataclass(frozen=True)
class Cell:
    """What a row is, in a piece of a column: integers of a grid, or, without one, values."""

    grid: tuple[Any, ...] | None
    numbers: Array

    def values(self) -> Array:
        """As a reader decodes it, without any code of ours."""
        if self.grid is None:
            return self.numbers
        if self.grid[0] == "grid":
            return (self.numbers * 2.0 ** self.grid[1]).astype(np.float32)
        base, shift = self.grid[2:]
        patterns = np.where(self.numbers == 0, 0, base + ((self.numbers - 1) << shift))
        return patterns.astype(np.uint32).view(np.float32)


@dataclass(frozen=True)
class GivenSlice:
    """A slice that is encoded already."""

    made: SliceSections

    def sections(self) -> SliceSections:
        """As they were given."""
        return self.made

    def written(self) -> None:
        """Holds nothing that it could let go of."""


def commit(path: Path, writes: Sequence[TableWrite], step: int = 0) -> None:
    """A version with these tables, of which a segment says this."""
    with attempt(str(path)) as one:
        manifest = one.next(one.head, tables=tuple(write.schema for write in writes), step=step)
        one.commit(one.write(manifest, writes, None, threads=2))


def part_of(
    column: ColumnSchema,
    layout: IntegerLayout,
    codes: Array,
    exponents: Array | int = 0,
    elements: Elements | None = None,
) -> EncodedColumn:
    """A part that has these codes, (n, width)."""
    codes = np.ascontiguousarray(codes, np.int32)
    given = GivenCodes(codes, np.broadcast_to(np.uint8(exponents), len(codes)).astype(np.uint8))
    layout, data = encode_section(layout, given, *codes.shape)
    scheme = Scheme("log") if isinstance(layout, LogLayout) else Scheme(CLOSED_LOOP, step=Step(0.01, 1.0, None))
    none = np.empty(0, np.int64), np.empty((0, codes.shape[1]), np.float32)
    return EncodedColumn(column, elements or (0, codes.shape[1]), Recipe(layout, scheme), Errors(0.1, 0.2), data, *none)


def bounds_of(grid: tuple[Any, ...]) -> tuple[int, int]:
    """The least and the greatest integer of a grid."""
    return (1 - (1 << 24), (1 << 24) - 1) if grid[0] == "grid" else (0, (1 << grid[1]) - 1)


class IntegerChain:
    """A dense and a keyed table in a directory, and versions that write any rows in any way that is legal."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.random = path, np.random.default_rng(seed)
        fills = {name: float(self.random.choice(FILLS)) for name in COLUMNS}
        self.rows = int(self.random.integers(1, 40 // SCALE))
        weight, sums = np.zeros((self.rows, DIM), np.float32), np.zeros(self.rows, np.float32)
        others, none = {"squares": weight, "sum": sums}, {"squares": weight[:0], "sum": sums[:0]}
        tables = {
            "dense": TableData(weight, columns=others, fill=fills),
            "keyed": TableData(weight[:0], columns=none, keys=np.empty(0, np.int64), fill=fills),
        }
        self.schemas = {schema.name: schema for schema in plan_baseline(tables, None).tables}
        self.cells: dict[tuple[str, str, Elements, int], Cell] = {}
        self.live: set[int] = set()
        self.commit(first=True)

    def commit(self, *, first: bool = False) -> None:
        """One version."""
        commit(self.path, [self._dense(first), self._keyed()], step=int(self.random.integers(99)))

    # What a reader must find

    def values(self, table: str, column: str) -> tuple[list[int], Array]:
        """The ids of the rows of a table, and their values."""
        schema = self.schemas[table]
        found = schema.column(column)
        assert found is not None
        ids = sorted(self.live) if schema.keyed else list(range(self.rows))
        out = np.full((len(ids), found.width(schema.dim)), np.frombuffer(found.fill, np.float32)[0], np.float32)
        for place, row in enumerate(ids):
            for a, b in self._pieces(found):
                cell = self.cells.get((table, column, (a, b), row))
                if cell is not None:
                    out[place, a:b] = cell.values()
        return ids, out.reshape(-1) if found.per_row else out

    def check(self) -> None:
        """That the newest version reads as it must, bit for bit."""
        with cnrfmt.open(self.path) as ck:
            for table in self.schemas:
                for column in COLUMNS:
                    ids, want = self.values(table, column)
                    keys = ck[table].keys
                    assert (len(ck[table]) if keys is None else keys.tolist()) == (len(ids) if keys is None else ids)
                    assert ck[table].read(column=column).tobytes() == want.tobytes(), (table, column)

    # What a version writes

    def _dense(self, first: bool) -> TableWrite:
        change = self.random.integers(5)
        if change == 0 and not first:
            self.rows += int(self.random.integers(0, 20 // SCALE + 1))
        elif change == 1 and not first:
            self.rows = int(self.random.integers(0, self.rows + 1))
        self._forget("dense", lambda row: row >= self.rows)
        schema = self.schemas["dense"] = replace(self.schemas["dense"], rows=self.rows)
        every = np.arange(self.rows, dtype=np.int64)
        columns, slices = [], []
        for column in schema.columns:
            chosen = every if first else every[self.random.random(self.rows) < self.random.choice([0.0, 0.3, 0.9])]
            some, more = self._column(schema, column, chosen)
            columns += some
            slices += more
        return TableWrite(schema, columns=tuple(columns), slices=tuple(slices))

    def _keyed(self) -> TableWrite:
        schema = self.schemas["keyed"]
        count = int(self.random.integers(0, 30 // SCALE + 1))
        chosen = np.sort(self.random.choice(KEYS, count, replace=False)).astype(np.int64)
        gone = np.empty(0, np.int64)
        if self.random.integers(2):
            gone = np.setdiff1d(self.random.choice(KEYS, 20, replace=False), chosen).astype(np.int64)
        self._forget("keyed", lambda row: row in gone)
        self.live = (self.live - set(gone.tolist())) | set(chosen.tolist())
        columns, slices = [], []
        for column in schema.columns:
            mine = chosen if column.name == "weight" else chosen[self.random.random(len(chosen)) < 0.7]
            some, more = self._column(schema, column, mine)
            columns += some
            slices += more
        return TableWrite(schema, columns=tuple(columns), slices=tuple(slices), deleted=gone)

    def _forget(self, table: str, is_gone: Any) -> None:
        self.cells = {key: cell for key, cell in self.cells.items() if key[0] != table or not is_gone(key[3])}

    def _pieces(self, column: ColumnSchema) -> Sequence[Elements]:
        return ((0, 1),) if column.per_row else PIECES

    def _column(
        self, schema: TableSchema, column: ColumnSchema, ids: Ids
    ) -> tuple[list[ColumnWrite], list[Slice]]:
        """Parts of a column that have these rows, each in one of them."""
        cuts = self._pieces(column)
        if self.random.integers(2):
            cuts = [(0, column.width(schema.dim))]
        columns: list[ColumnWrite] = []
        slices: list[Slice] = []
        for elements in cuts:
            left = ids
            while len(left):
                mine = left[self.random.random(len(left)) < 0.6]
                if self.random.integers(3) == 0:
                    mine = left
                mine, made = self._part(schema.name, column, elements, mine)
                if isinstance(made, ColumnWrite):
                    columns.append(made)
                elif made is not None:
                    slices.append(made)
                left = np.setdiff1d(left, mine)
        return columns, slices

    def _part(
        self, table: str, column: ColumnSchema, elements: Elements, ids: Ids
    ) -> tuple[Ids, ColumnWrite | Slice | None]:
        """A part of these rows, or of those of them that can be residual together."""
        if not len(ids):
            return ids, None
        pieces = [piece for piece in self._pieces(column) if elements[0] <= piece[0] and piece[1] <= elements[1]]
        before = [[self.cells.get((table, column.name, piece, row)) for piece in pieces] for row in ids.tolist()]
        bases = [{None if cell is None else cell.grid for cell in cells} for cells in before]
        grids = [next(iter(base)) if len(base) == 1 else None for base in bases]
        known = [grid for grid in grids if grid is not None]
        if known and self.random.integers(3):
            grid = known[int(self.random.integers(len(known)))]
            mine = [k for k in range(len(ids)) if grids[k] == grid]
            old = np.array([np.concatenate([c.numbers for c in before[k] if c is not None]) for k in mine])
            return ids[mine], self._integers(table, column, elements, ids[mine], grid, old)
        if self.random.integers(3):
            return ids, self._integers(table, column, elements, ids, self._grid(column), None)
        return ids, self._plain(table, column, elements, ids)

    def _grid(self, column: ColumnSchema) -> tuple[Any, ...]:
        if column.name != "weight" and self.random.integers(4):
            return ("log", *LOGS[int(self.random.integers(len(LOGS)))])
        return "grid", int(self.random.choice(FLOORS))

    def _plain(self, table: str, column: ColumnSchema, elements: Elements, ids: Ids) -> ColumnWrite:
        """Rows that aren't integers."""
        shape = (len(ids), elements[1] - elements[0])
        values = np.ldexp(self.random.integers(-9, 9, shape), -int(self.random.integers(4))).astype(np.float32)
        rows, recipe = RowIds(len(ids), ids), Recipe(RawLayout("float32"))
        if not column.per_row and self.random.integers(2):
            # Of a row of one value, 8 bits hold every bit.
            values[:] = values[:, :1]
            recipe = Recipe(RowwiseLayout(8), Scheme("asymmetric"))
        values += np.float32(0)
        self._know(table, column, elements, ids, None, values)
        source = as_source(values.reshape(-1) if column.per_row else values, what="rows")
        return ColumnWrite(column, source, recipe, rows, elements)

    def _integers(
        self, table: str, column: ColumnSchema, elements: Elements, ids: Ids, grid: tuple[Any, ...], old: Array | None
    ) -> Slice:
        """A part of integers, or of differences to the old ones; some rows aren't held."""
        shape = len(ids), elements[1] - elements[0]
        exponents, codes = self._codes(grid, shape, old)
        bad = np.empty(0, np.int64)
        if self.random.integers(3) == 0:
            bad = np.flatnonzero(self.random.random(len(ids)) < 0.3).astype(np.int64)
        codes[bad] = 0
        exponents[bad] = 0
        exact = self.random.choice([np.nan, np.inf, -0.0, 7], (len(bad), shape[1])).astype(np.float32)
        shifted = codes << exponents[:, None].astype(np.int32)
        self._know(table, column, elements, ids, grid, shifted + (0 if old is None else old))
        self._know(table, column, elements, ids[bad], None, exact)
        layout = self._layout(grid, codes, residual=old is not None, one_valued=column.per_row)
        part = part_of(column, layout, codes, exponents, elements=elements)._replace(bad=bad, exact=exact)
        return GivenSlice(SliceSections(RowIds(len(ids), ids), (part,)))

    def _codes(self, grid: tuple[Any, ...], shape: tuple[int, int], old: Array | None) -> tuple[Array, Array]:
        """Exponents and codes, whose sums with the old integers are in range."""
        least, greatest = bounds_of(grid)
        exponents = np.zeros(shape[0], np.uint8)
        if grid[0] == "grid":
            exponents = self.random.integers(0, int(self.random.choice([1, 4, 25])), shape[0]).astype(np.uint8)
        reach = int(self.random.choice([3, 200, greatest]))
        base = np.zeros(shape, np.int64) if old is None else old.astype(np.int64)
        if old is not None and self.random.integers(4) == 0:
            codes = np.zeros(shape, np.int64)
        else:
            codes = self.random.integers(-reach, reach + 1, shape)
        step = 1 << exponents[:, None].astype(np.int64)
        # The nearest code with which the sum is in range: of the sums that it can make, some are.
        low, high = -((base - least) // step), (greatest - base) // step
        codes = np.clip(codes, low, high)
        return exponents, codes.astype(np.int32)

    def _layout(
        self, grid: tuple[Any, ...], codes: Array, *, residual: bool, one_valued: bool
    ) -> IntegerLayout:
        kind, payload = "residual" if residual else "absolute", str(self.random.choice(["fixed", "packed", "rans"]))
        group = int(self.random.choice([*range(1, 9), 65536 // codes.shape[1]]))
        if grid[0] == "log":
            payload = payload if payload == "fixed" and one_valued and not residual else "rans"
            return LogLayout(*grid[1:], kind, payload, None if payload == "fixed" else group)
        if payload == "fixed":
            widest = max(int(np.abs(codes.astype(np.int64)).max()), 1).bit_length() + 1
            return GridLayout(kind, grid[1], payload, bits=int(self.random.integers(widest, 27)))
        return GridLayout(kind, grid[1], payload, group=group)

    def _know(
        self, table: str, column: ColumnSchema, elements: Elements, ids: Ids, grid: tuple[Any, ...] | None, rows: Array
    ) -> None:
        for a, b in self._pieces(column):
            if elements[0] <= a and b <= elements[1]:
                for row, numbers in zip(ids.tolist(), rows[:, a - elements[0] : b - elements[0]], strict=True):
                    self.cells[table, column.name, (a, b), row] = Cell(grid, numbers.copy())
